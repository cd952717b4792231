// A softmax in f32 between matmuls in bf16: the composite computes in f32 too. The difference is rounding of bf16.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// CHECK: tensor<2x3x5x4xbf16>
// EQUAL: 2e-2
module {
  func.func @main(%q: tensor<2x3x5x4xbf16>, %k: tensor<2x3x5x4xbf16>, %v: tensor<2x3x5x4xbf16>) -> (tensor<2x3x5x4xbf16>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xbf16>, tensor<2x3x5x4xbf16>) -> tensor<2x3x5x5xbf16>
    %1 = stablehlo.convert %0 : (tensor<2x3x5x5xbf16>) -> tensor<2x3x5x5xf32>
    %2 = stablehlo.constant dense<0.5> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<2x3x5x5xf32>
    %4 = stablehlo.multiply %1, %3 : tensor<2x3x5x5xf32>
    %5 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf32>, tensor<f32>) -> tensor<2x3x5xf32>
    %7 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<2x3x5xf32>
    %9 = stablehlo.maximum %8, %6 : tensor<2x3x5xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<2x3x5xf32>) -> tensor<2x3x5x1xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf32>) -> tensor<2x3x5x5xf32>
    %12 = stablehlo.subtract %4, %11 : tensor<2x3x5x5xf32>
    %13 = stablehlo.exponential %12 : tensor<2x3x5x5xf32>
    %14 = stablehlo.constant dense<0.0> : tensor<f32>
    %15 = stablehlo.reduce(%13 init: %14) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf32>, tensor<f32>) -> tensor<2x3x5xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<2x3x5xf32>) -> tensor<2x3x5x1xf32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf32>) -> tensor<2x3x5x5xf32>
    %18 = stablehlo.divide %13, %17 : tensor<2x3x5x5xf32>
    %19 = stablehlo.convert %18 : (tensor<2x3x5x5xf32>) -> tensor<2x3x5x5xbf16>
    %20 = stablehlo.dot_general %19, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xbf16>, tensor<2x3x5x4xbf16>) -> tensor<2x3x5x4xbf16>
    return %20 : tensor<2x3x5x4xbf16>
  }
}
