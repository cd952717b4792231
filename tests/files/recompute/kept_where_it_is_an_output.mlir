// Where the sum itself is an output, it is not formed again.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 3 instructions, 6 buffers
// CHECK: , %4@
// CHECK: = add+tanh(
// CHECK: = multiply(
// CHECK: fusion: 3 ops in 2 regions, 1 with several ops
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}, %bias: tensor<3xf32> {partita.role = "param"}) -> (tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>) {
    %product = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %wide = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<3xf32>) -> tensor<3x3xf32>
    %sum = stablehlo.add %product, %wide : tensor<3x3xf32>
    %y = stablehlo.tanh %sum : tensor<3x3xf32>
    %z = stablehlo.multiply %sum, %y : tensor<3x3xf32> loc("input_grad/backward")
    return %y, %z, %sum : tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>
  }
}
