// An op that has no counterpart on pairs is named.
// RUN: complex-as-pairs
// ERROR: no device computes `stablehlo.power` of complex numbers
module {
  func.func @main(%z: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
    %0 = stablehlo.power %z, %z : tensor<4xcomplex<f32>>
    return %0 : tensor<4xcomplex<f32>>
  }
}
