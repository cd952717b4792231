// At the borders a complex tensor is one real tensor with a last dimension of 2: its bytes as they are. The layout is that of
// the other dimensions.
// RUN: complex-as-pairs
// CHECK: %arg0: tensor<4x2xf32>
// CHECK: [{"dp"}, {}]
// CHECK: -> (tensor<4x2xf32>)
// CHECK: stablehlo.slice %arg0 [0:4, 0:1]
// CHECK: stablehlo.slice %arg0 [0:4, 1:2]
// CHECK: stablehlo.negate
// CHECK: stablehlo.concatenate
// ABSENT: complex
module {
  sdy.mesh @mesh = <["dp"=2]>
  func.func @main(%z: tensor<4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}]>}) -> tensor<4xcomplex<f32>> {
    %0 = chlo.conj %z : tensor<4xcomplex<f32>> -> tensor<4xcomplex<f32>>
    return %0 : tensor<4xcomplex<f32>>
  }
}
