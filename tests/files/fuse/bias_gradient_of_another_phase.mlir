// The sum of columns of an activation of the forward pass, needed in the backward pass, does not join the region of the
// forward pass.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 4 instructions, 5 buffers
// CHECK: = multiply(
// CHECK: = dot_general(
// CHECK: = reduce(
// COUNT: is not fused 1
// CHECK: reduce in bias is not fused with multiply in <root>: they belong to different phases or microbatches
// EQUAL: exact
module {
  func.func @main(%x: tensor<256x3xf32> {partita.role = "input"}) -> (tensor<256x3xf32>, tensor<3xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %y = stablehlo.multiply %x, %x : tensor<256x3xf32>
    %largest = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<256x3xf32>, tensor<f32>) -> tensor<f32>
    %weight = stablehlo.broadcast_in_dim %largest, dims = [] : (tensor<f32>) -> tensor<3x3xf32>
    %product = stablehlo.dot_general %y, %weight, contracting_dims = [1] x [0] : (tensor<256x3xf32>, tensor<3x3xf32>) -> tensor<256x3xf32>
    %bias = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x3xf32>, tensor<f32>) -> tensor<3xf32> loc("weight_grad/bias")
    return %product, %bias : tensor<256x3xf32>, tensor<3xf32>
  }
}
