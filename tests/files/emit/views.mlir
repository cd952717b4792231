// A reshape, a transpose and a broadcast are strides of one instruction's inputs, and a product with ones vanishes,
// with the constant.
// RUN: device=plain ..check ranks=1
// CHECK: 1 instructions
// CHECK: :f32[2,2,3] strides [3, 6, 1], 
// CHECK: strides [0, 0, 1])
// ABSENT: load
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x6xf32> {partita.role = "input"}, %bias: tensor<3xf32> {partita.role = "param"}) -> tensor<2x2x3xf32> {
    %split = stablehlo.reshape %x : (tensor<2x6xf32>) -> tensor<2x2x3xf32>
    %turned = stablehlo.transpose %split, dims = [1, 0, 2] : (tensor<2x2x3xf32>) -> tensor<2x2x3xf32>
    %wide = stablehlo.broadcast_in_dim %bias, dims = [2] : (tensor<3xf32>) -> tensor<2x2x3xf32>
    %one = stablehlo.constant dense<1.0> : tensor<2x2x3xf32>
    %sum = stablehlo.add %turned, %wide : tensor<2x2x3xf32>
    %y = stablehlo.multiply %sum, %one : tensor<2x2x3xf32>
    return %y : tensor<2x2x3xf32>
  }
}
