// A partial sum that is asked for whole is all-reduced.
// RUN: partition print-collectives
// CHECK: collectives (1)
// CHECK: all_reduce tensor<8x6xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["tp"=2]>
  func.func @main(%x: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %w: tensor<6x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x6xf64> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<8x4xf64>, tensor<6x4xf64>) -> tensor<8x6xf64>
    return %y : tensor<8x6xf64>
  }
}
