// A norm written out: two sums of rows, and what stands before, between and behind them, are one region.
// RUN: print-fusion ..fuse ranks=1
// COUNT: fused 1
// CHECK: fusion: 8 ops in 1 regions, 1 with several ops
// ABSENT: is not fused
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %e = stablehlo.exponential %x : tensor<3x3xf32>
    %sums = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
    %mean_c = stablehlo.constant dense<0.333333343> : tensor<f32>
    %mean_w = stablehlo.broadcast_in_dim %mean_c, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %mean = stablehlo.multiply %sums, %mean_w : tensor<3xf32>
    %wide = stablehlo.broadcast_in_dim %mean, dims = [0] : (tensor<3xf32>) -> tensor<3x3xf32>
    %centred = stablehlo.subtract %e, %wide : tensor<3x3xf32>
    %squares = stablehlo.multiply %centred, %centred : tensor<3x3xf32>
    %variance = stablehlo.reduce(%squares init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
    %root = stablehlo.sqrt %variance : tensor<3xf32>
    %deviation = stablehlo.broadcast_in_dim %root, dims = [0] : (tensor<3xf32>) -> tensor<3x3xf32>
    %y = stablehlo.divide %centred, %deviation : tensor<3x3xf32>
    return %y : tensor<3x3xf32>
  }
}
