// A partial sum that is asked for sharded by rows is reduce-scattered: no rank ever has all of it.
// RUN: partition print-collectives
// CHECK: collectives (1)
// CHECK: reduce_scatter tensor<4x6xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["tp"=2]>
  func.func @main(%x: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %w: tensor<6x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x6xf64> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"tp"}, {}]>]>} : (tensor<8x4xf64>, tensor<6x4xf64>) -> tensor<8x6xf64>
    return %y : tensor<8x6xf64>
  }
}
