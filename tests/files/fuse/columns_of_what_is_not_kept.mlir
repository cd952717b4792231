// The same where nobody else reads the squares: they are never stored.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 1 instructions, 2 buffers
// CHECK: = multiply+reduce(
// CHECK: fusion: 2 ops in 1 regions, 1 with several ops
// ABSENT: tensor<256x3
// ABSENT: is not fused
// EQUAL: exact
module {
  func.func @main(%x: tensor<256x3xf32> {partita.role = "input"}) -> tensor<3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.multiply %x, %x : tensor<256x3xf32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x3xf32>, tensor<f32>) -> tensor<3xf32>
    return %sums : tensor<3xf32>
  }
}
