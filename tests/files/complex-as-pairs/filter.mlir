// A filter of frequencies: a transform of real numbers is two products, with the cosines and with the sines; the transform back
// to real numbers is two, and no imaginary part of it is computed.
// RUN: complex-as-pairs
// ABSENT: complex
// ABSENT: stablehlo.fft
// COUNT: stablehlo.dot_general 4
// EQUAL: 1e-12
module {
  func.func @main(%x: tensor<3x6xf64>, %a: tensor<4xf64>) -> tensor<3x6xf64> {
    %spectrum = stablehlo.fft %x, type = RFFT, length = [6] : (tensor<3x6xf64>) -> tensor<3x4xcomplex<f64>>
    %z = stablehlo.convert %a : (tensor<4xf64>) -> tensor<4xcomplex<f64>>
    %spread = stablehlo.broadcast_in_dim %z, dims = [1] : (tensor<4xcomplex<f64>>) -> tensor<3x4xcomplex<f64>>
    %kept = stablehlo.multiply %spectrum, %spread : tensor<3x4xcomplex<f64>>
    %y = stablehlo.fft %kept, type = IRFFT, length = [6] : (tensor<3x4xcomplex<f64>>) -> tensor<3x6xf64>
    return %y : tensor<3x6xf64>
  }
}
