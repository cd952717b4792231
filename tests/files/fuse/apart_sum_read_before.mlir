// A matmul needs the sums of rows before their other reader can run.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: add in <root> is not fused with reduce in <root>: dot_general reads it in between
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sums = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
    %wide = stablehlo.broadcast_in_dim %sums, dims = [0] : (tensor<3xf32>) -> tensor<3x3xf32>
    %product = stablehlo.dot_general %wide, %x, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %y = stablehlo.add %product, %wide : tensor<3x3xf32>
    return %y : tensor<3x3xf32>
  }
}
