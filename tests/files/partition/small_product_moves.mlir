// A small product is computed where its large operand lies, and then moves to the layout asked for.
// RUN: partition print-collectives
// CHECK: collectives (1)
// CHECK: all_to_all tensor<64x1xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%left: tensor<64x512xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %right: tensor<2x512xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> tensor<64x2xf64> {
    %product = stablehlo.dot_general %left, %right, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : (tensor<64x512xf64>, tensor<2x512xf64>) -> tensor<64x2xf64>
    return %product : tensor<64x2xf64>
  }
}
