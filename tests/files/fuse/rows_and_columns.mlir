// Sums of rows and sums of columns in one region.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 1 instructions, 3 buffers
// CHECK: , %2@
// CHECK: = 2*reduce+subtract(
// CHECK: fusion: 3 ops in 1 regions, 1 with several ops
// ABSENT: is not fused
// EQUAL: exact
module {
  func.func @main(%x: tensor<256x3xf32> {partita.role = "input"}) -> (tensor<3xf32>, tensor<256x3xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %row_sums = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<256x3xf32>, tensor<f32>) -> tensor<256xf32>
    %wide = stablehlo.broadcast_in_dim %row_sums, dims = [0] : (tensor<256xf32>) -> tensor<256x3xf32>
    %y = stablehlo.subtract %x, %wide : tensor<256x3xf32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x3xf32>, tensor<f32>) -> tensor<3xf32>
    return %sums, %y : tensor<3xf32>, tensor<256x3xf32>
  }
}
