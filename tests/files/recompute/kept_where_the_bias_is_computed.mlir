// A bias that is computed would have to be kept as well, so the sum is kept.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 4 instructions, 7 buffers
// CHECK: = multiply(
// CHECK: , %5@
// CHECK: = add+tanh(
// CHECK: = multiply(
// CHECK: fusion: 4 ops in 3 regions, 1 with several ops
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}, %bias: tensor<3xf32> {partita.role = "param"}) -> (tensor<3x3xf32>, tensor<3x3xf32>) {
    %product = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %tripled_c = stablehlo.constant dense<3.0> : tensor<f32>
    %tripled_w = stablehlo.broadcast_in_dim %tripled_c, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %tripled = stablehlo.multiply %bias, %tripled_w : tensor<3xf32>
    %wide = stablehlo.broadcast_in_dim %tripled, dims = [1] : (tensor<3xf32>) -> tensor<3x3xf32>
    %sum = stablehlo.add %product, %wide : tensor<3x3xf32>
    %y = stablehlo.tanh %sum : tensor<3x3xf32>
    %z = stablehlo.multiply %sum, %y : tensor<3x3xf32> loc("input_grad/backward")
    return %y, %z : tensor<3x3xf32>, tensor<3x3xf32>
  }
}
