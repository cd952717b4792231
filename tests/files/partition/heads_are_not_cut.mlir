// Four heads of 8 features over three ranks: ranks have 2, 1 and 1 whole heads, in two classes, and the weight has its
// rows accordingly (16, 8 and 8). Nothing is exchanged.
// RUN: print-layouts partition print-collectives
// CHECK: ranks [0]
// CHECK: %arg1: tensor<16x16xf64>
// CHECK: -> (tensor<2x2x8xf64>)
// CHECK: ranks [1, 2]
// CHECK: %arg1: tensor<8x16xf64>
// CHECK: -> (tensor<2x1x8xf64>)
// COUNT: // ranks [ 2
// CHECK: heads: [{}, {tp}, {}]
// CHECK: collectives (0)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["tp"=3]>
  func.func @main(%x: tensor<2x16xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %w: tensor<32x16xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>, partita.role = "param"}) -> tensor<2x4x8xf64> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<2x16xf64>, tensor<32x16xf64>) -> tensor<2x32xf64>
    %heads = stablehlo.reshape %y {partita.name = "heads"} : (tensor<2x32xf64>) -> tensor<2x4x8xf64>
    return %heads : tensor<2x4x8xf64>
  }
}
