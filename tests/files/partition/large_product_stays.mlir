// A large product is computed where it stays: the small left operand is gathered instead.
// RUN: partition print-collectives
// CHECK: collectives (1)
// CHECK: all_gather tensor<64x2xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%left: tensor<64x2xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %right: tensor<64x2xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> tensor<64x64xf64> {
    %product = stablehlo.dot_general %left, %right, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : (tensor<64x2xf64>, tensor<64x2xf64>) -> tensor<64x64xf64>
    return %product : tensor<64x64xf64>
  }
}
