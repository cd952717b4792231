// A rotary embedding as the first Llama has it: pairs of numbers are complex ones, which are turned. Of the factor, a constant,
// only its parts are left, and a product is four products.
// RUN: complex-as-pairs
// ABSENT: complex
// COUNT: stablehlo.multiply 4
// COUNT: stablehlo.constant 2
// EQUAL: 1e-12
module {
  func.func @main(%x: tensor<3x2x2xf64>) -> tensor<3x2x2xf64> {
    %a = stablehlo.slice %x [0:3, 0:2, 0:1] : (tensor<3x2x2xf64>) -> tensor<3x2x1xf64>
    %b = stablehlo.slice %x [0:3, 0:2, 1:2] : (tensor<3x2x2xf64>) -> tensor<3x2x1xf64>
    %z = stablehlo.complex %a, %b : tensor<3x2x1xcomplex<f64>>
    %turns = stablehlo.constant dense<[(1.0, 0.0), (0.6, 0.8)]> : tensor<2xcomplex<f64>>
    %spread = stablehlo.broadcast_in_dim %turns, dims = [1] : (tensor<2xcomplex<f64>>) -> tensor<3x2x1xcomplex<f64>>
    %y = stablehlo.multiply %z, %spread : tensor<3x2x1xcomplex<f64>>
    %re = stablehlo.real %y : (tensor<3x2x1xcomplex<f64>>) -> tensor<3x2x1xf64>
    %im = stablehlo.imag %y : (tensor<3x2x1xcomplex<f64>>) -> tensor<3x2x1xf64>
    %pairs = stablehlo.concatenate %re, %im, dim = 2 : (tensor<3x2x1xf64>, tensor<3x2x1xf64>) -> tensor<3x2x2xf64>
    return %pairs : tensor<3x2x2xf64>
  }
}
