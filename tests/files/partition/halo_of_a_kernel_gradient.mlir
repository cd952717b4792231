// The gradient of a kernel: the image under the output's gradient, both sharded by height. Each rank sums over its own rows of
// the output's gradient, for which it needs a row of the image from each neighbour; the sums are added once.
// RUN: print-layouts partition print-collectives
// CHECK: dw: [{}, {}, {}, {}]
// CHECK: collectives (3)
// CHECK: collective_permute tensor<2x1x8x3xf64> (forward)
// CHECK: collective_permute tensor<2x1x8x3xf64> (forward)
// CHECK: all_reduce tensor<3x3x3x5xf64> (forward)
// CHECK: forward: 1 all_reduce, 1 tensors, 1080 bytes
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["sp"=4]>
  func.func @main(%x: tensor<2x8x8x3xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"sp"}, {}, {}]>}, %g: tensor<2x8x8x5xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"sp"}, {}, {}]>}) -> tensor<3x3x3x5xf64> {
    %dw = stablehlo.convolution(%x, %g) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, partita.name = "dw"} : (tensor<2x8x8x3xf64>, tensor<2x8x8x5xf64>) -> tensor<3x3x3x5xf64>
    return %dw : tensor<3x3x3x5xf64>
  }
}
