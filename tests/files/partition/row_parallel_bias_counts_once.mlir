// The bias of a row-parallel layer counts once: EQUAL would find a bias that each of the four ranks adds to its partial
// sum.
// RUN: partition print-collectives
// CHECK: collectives (1)
// CHECK: all_reduce tensor<8x6xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["tp"=4]>
  func.func @main(%x: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %w: tensor<6x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %bias: tensor<6xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> tensor<8x6xf64> {
    %product = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<6x4xf64>) -> tensor<8x6xf64>
    %wide = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<6xf64>) -> tensor<8x6xf64>
    %y = stablehlo.add %product, %wide : tensor<8x6xf64>
    return %y : tensor<8x6xf64>
  }
}
