// Rows of one element are no rows: their sum is not fused.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 2 instructions, 3 buffers
// CHECK: = multiply(
// CHECK: = reduce(
// COUNT: is not fused 1
// CHECK: reduce in <root> is not fused with multiply in <root>: it is reduced across rows
// EQUAL: exact
module {
  func.func @main(%x: tensor<256x1xf32> {partita.role = "input"}) -> tensor<1xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.multiply %x, %x : tensor<256x1xf32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x1xf32>, tensor<f32>) -> tensor<1xf32>
    return %sums : tensor<1xf32>
  }
}
