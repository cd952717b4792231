// A sharding constraint holds between two other layouts: what stands before it follows the input, what stands behind it
// follows the constraint, and one all-to-all lies between them.
// RUN: print-layouts partition print-collectives
// CHECK: before: [{x}, {}]
// CHECK: middle: [{}, {x}]
// CHECK: after: [{}, {x}]
// CHECK: collectives (1)
// CHECK: all_to_all tensor<8x3xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<8x6xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x6xf64> {
    %before = stablehlo.negate %x {partita.name = "before"} : tensor<8x6xf64>
    %middle = sdy.sharding_constraint %before <@mesh, [{}, {"x"}]> {partita.name = "middle"} : tensor<8x6xf64>
    %after = stablehlo.exponential %middle {partita.name = "after"} : tensor<8x6xf64>
    return %after : tensor<8x6xf64>
  }
}
