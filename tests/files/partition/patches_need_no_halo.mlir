// Patches of four rows, one beside another: each rank has whole patches, so a convolution over them needs no halo, and neither
// does the gradient of its kernel, whose entries are four apart. The sums over the ranks' patches are added once.
// RUN: print-layouts partition print-collectives
// CHECK: y: [{}, {sp}, {}, {}]
// CHECK: dw: [{}, {}, {}, {}]
// CHECK: collectives (1)
// CHECK: all_reduce tensor<4x1x3x5xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["sp"=2]>
  func.func @main(%x: tensor<2x16x4x3xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"sp"}, {}, {}]>}, %w: tensor<5x3x4x1xf64>) -> (tensor<2x4x4x5xf64>, tensor<4x1x3x5xf64>) {
    %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f], window = {stride = [4, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, partita.name = "y"} : (tensor<2x16x4x3xf64>, tensor<5x3x4x1xf64>) -> tensor<2x4x4x5xf64>
    %dw = stablehlo.convolution(%x, %y) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {rhs_dilate = [4, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, partita.name = "dw"} : (tensor<2x16x4x3xf64>, tensor<2x4x4x5xf64>) -> tensor<4x1x3x5xf64>
    return %y, %dw : tensor<2x4x4x5xf64>, tensor<4x1x3x5xf64>
  }
}
