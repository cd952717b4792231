// Seven rows over three ranks are 3, 2 and 2. Windows of five rows, two apart, see three rows beyond their own at most; each
// rank gets exactly the rows that its windows see.
// RUN: print-layouts partition print-collectives
// CHECK: y: [{}, {sp}, {}, {}]
// CHECK: forward: 2 collective_permute, 2 tensors, 72 bytes
// ABSENT: all_gather
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["sp"=3]>
  func.func @main(%x: tensor<1x7x3x1xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"sp"}, {}, {}]>}, %w: tensor<1x1x5x1xf64>) -> tensor<1x4x3x1xf64> {
    %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f], window = {stride = [2, 1], pad = [[2, 2], [0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, partita.name = "y"} : (tensor<1x7x3x1xf64>, tensor<1x1x5x1xf64>) -> tensor<1x4x3x1xf64>
    return %y : tensor<1x4x3x1xf64>
  }
}
