// The gradient of a bias is the sum of columns of an input gradient. It comes after a matmul that reads the same, and
// still joins the region that makes its operand, ahead of the matmul.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 3 instructions, 5 buffers
// CHECK: , %3@
// CHECK: = multiply+reduce(
// CHECK: = dot_general(
// ABSENT: is not fused
// EQUAL: exact
module {
  func.func @main(%x: tensor<256x3xf32> {partita.role = "input"}) -> (tensor<256x3xf32>, tensor<3xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %largest = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<256x3xf32>, tensor<f32>) -> tensor<f32>
    %weight = stablehlo.broadcast_in_dim %largest, dims = [] : (tensor<f32>) -> tensor<3x3xf32>
    %y = stablehlo.multiply %x, %x : tensor<256x3xf32> loc("input_grad/x")
    %product = stablehlo.dot_general %y, %weight, contracting_dims = [1] x [0] : (tensor<256x3xf32>, tensor<3x3xf32>) -> tensor<256x3xf32> loc("input_grad/x")
    %bias = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x3xf32>, tensor<f32>) -> tensor<3xf32> loc("weight_grad/bias")
    return %product, %bias : tensor<256x3xf32>, tensor<3xf32>
  }
}
