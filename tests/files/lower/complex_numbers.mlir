// RUN: partition mesh=dp=2
// ERROR: no device computes with element type complex<f32>
module {
  func.func @main(%x: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {
    %0 = stablehlo.add %x, %x : tensor<2xcomplex<f32>>
    return %0 : tensor<2xcomplex<f32>>
  }
}
