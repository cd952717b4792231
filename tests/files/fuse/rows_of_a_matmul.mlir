// Rows of a matmul less their mean are one region behind the matmul.
// RUN: print-fusion ..fuse ranks=1
// CHECK: dot_general in <root>
// CHECK: fused
// CHECK: fusion: 3 ops in 1 regions, 1 with several ops
// ABSENT: is not fused
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %product = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %sums = stablehlo.reduce(%product init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
    %mean_c = stablehlo.constant dense<0.333333343> : tensor<f32>
    %mean_w = stablehlo.broadcast_in_dim %mean_c, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %mean = stablehlo.multiply %sums, %mean_w : tensor<3xf32>
    %wide = stablehlo.broadcast_in_dim %mean, dims = [0] : (tensor<3xf32>) -> tensor<3x3xf32>
    %centred = stablehlo.subtract %product, %wide : tensor<3x3xf32>
    return %centred : tensor<3x3xf32>
  }
}
