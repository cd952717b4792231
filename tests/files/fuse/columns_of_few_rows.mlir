// With one row fewer than 256 the sum of columns is not fused.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 2 instructions, 3 buffers
// CHECK: = multiply(
// CHECK: = reduce(
// COUNT: is not fused 1
// CHECK: reduce in <root> is not fused with multiply in <root>: it is reduced across rows
// EQUAL: exact
module {
  func.func @main(%x: tensor<255x3xf32> {partita.role = "input"}) -> tensor<3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.multiply %x, %x : tensor<255x3xf32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<255x3xf32>, tensor<f32>) -> tensor<3xf32>
    return %sums : tensor<3xf32>
  }
}
