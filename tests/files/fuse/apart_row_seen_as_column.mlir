// The sum of a row, read along a column, is not there when the first row is worked on.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: subtract in <root> is not fused with reduce in <root>: it is read transposed, sliced or broadcast
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sums = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
    %turned = stablehlo.broadcast_in_dim %sums, dims = [1] : (tensor<3xf32>) -> tensor<3x3xf32>
    %y = stablehlo.subtract %x, %turned : tensor<3x3xf32>
    return %y : tensor<3x3xf32>
  }
}
