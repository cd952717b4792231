// Two matmuls, the first weight sharded along its output features: the activation between them is sharded too, the
// second weight along its input features, and the result is not.
// RUN: propagate
// CHECK: %arg2: tensor<4x16xf64>
// CHECK: sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>
// CHECK: [<@mesh, [{}, {"tp"}]>]>} : (tensor<8x4xf64>, tensor<16x4xf64>) -> tensor<8x16xf64>
// CHECK: [<@mesh, [{}, {}]>]>} : (tensor<8x16xf64>, tensor<4x16xf64>) -> tensor<8x4xf64>
// EQUAL: exact
module {
  sdy.mesh @mesh = <["tp"=2]>
  func.func @main(%x: tensor<8x4xf64>, %up: tensor<16x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}, %down: tensor<4x16xf64>) -> tensor<8x4xf64> {
    %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<16x4xf64>) -> tensor<8x16xf64>
    %1 = stablehlo.dot_general %0, %down, contracting_dims = [1] x [1] : (tensor<8x16xf64>, tensor<4x16xf64>) -> tensor<8x4xf64>
    return %1 : tensor<8x4xf64>
  }
}
