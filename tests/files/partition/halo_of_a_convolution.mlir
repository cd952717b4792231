// The height of an image is sharded: each rank sends one row of the image to each neighbour, as many as the windows of a 3 x 3
// kernel see beyond it. Zeros arrive where there is no neighbour, so all ranks have one program, and nothing is gathered.
// RUN: print-layouts partition print-collectives
// CHECK: y: [{}, {sp}, {}, {}]
// CHECK: collectives (2)
// CHECK: collective_permute tensor<2x1x8x3xf64> (forward)
// CHECK: collective_permute tensor<2x1x8x3xf64> (forward)
// CHECK: forward: 2 collective_permute, 2 tensors, 768 bytes
// ABSENT: all_gather
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["sp"=4]>
  func.func @main(%x: tensor<2x8x8x3xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"sp"}, {}, {}]>}, %w: tensor<5x3x3x3xf64>) -> tensor<2x8x8x5xf64> {
    %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, partita.name = "y"} : (tensor<2x8x8x3xf64>, tensor<5x3x3x3xf64>) -> tensor<2x8x8x5xf64>
    return %y : tensor<2x8x8x5xf64>
  }
}
