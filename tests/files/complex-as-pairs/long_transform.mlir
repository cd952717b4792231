// A transform of 100 elements is ten of ten, a product with a table, and ten of ten again: no constant has 100 x 100 elements.
// RUN: complex-as-pairs
// CHECK: tensor<2x10x10xf64>
// ABSENT: tensor<100x100xf64>
// ABSENT: stablehlo.fft
// EQUAL: 1e-10
module {
  func.func @main(%x: tensor<2x100xf64>) -> tensor<2x100xf64> {
    %z = stablehlo.convert %x : (tensor<2x100xf64>) -> tensor<2x100xcomplex<f64>>
    %y = stablehlo.fft %z, type = FFT, length = [100] : (tensor<2x100xcomplex<f64>>) -> tensor<2x100xcomplex<f64>>
    %size = stablehlo.abs %y : (tensor<2x100xcomplex<f64>>) -> tensor<2x100xf64>
    return %size : tensor<2x100xf64>
  }
}
