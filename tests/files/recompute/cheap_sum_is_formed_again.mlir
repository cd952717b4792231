// The sum of a matmul and a bias is read in the forward and the backward pass: it is formed again rather than kept, in
// two regions of two ops with one output each.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 3 instructions, 5 buffers
// CHECK: = add+tanh(
// CHECK: = add+multiply(
// CHECK: fusion: 4 ops in 2 regions, 2 with several ops
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}, %bias: tensor<3xf32> {partita.role = "param"}) -> (tensor<3x3xf32>, tensor<3x3xf32>) {
    %product = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %wide = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<3xf32>) -> tensor<3x3xf32>
    %sum = stablehlo.add %product, %wide : tensor<3x3xf32>
    %y = stablehlo.tanh %sum : tensor<3x3xf32>
    %z = stablehlo.multiply %sum, %y : tensor<3x3xf32> loc("input_grad/backward")
    return %y, %z : tensor<3x3xf32>, tensor<3x3xf32>
  }
}
