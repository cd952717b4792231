// Batch and heads joined to one dimension around the matmuls, apart in the softmax.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// CHECK: tensor<2x3x5x4xf64>
// EQUAL: 1e-12
module {
  func.func @main(%q: tensor<2x5x3x4xf64>, %k: tensor<2x5x3x4xf64>, %v: tensor<2x5x3x4xf64>) -> (tensor<2x5x3x4xf64>) {
    %0 = stablehlo.transpose %q, dims = [0, 2, 1, 3] : (tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %1 = stablehlo.reshape %0 : (tensor<2x3x5x4xf64>) -> tensor<6x5x4xf64>
    %2 = stablehlo.transpose %k, dims = [0, 2, 1, 3] : (tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %3 = stablehlo.reshape %2 : (tensor<2x3x5x4xf64>) -> tensor<6x5x4xf64>
    %4 = stablehlo.transpose %v, dims = [0, 2, 1, 3] : (tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %5 = stablehlo.reshape %4 : (tensor<2x3x5x4xf64>) -> tensor<6x5x4xf64>
    %6 = stablehlo.dot_general %1, %3, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<6x5x4xf64>, tensor<6x5x4xf64>) -> tensor<6x5x5xf64>
    %7 = stablehlo.reshape %6 : (tensor<6x5x5xf64>) -> tensor<2x3x5x5xf64>
    %8 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %9 = stablehlo.reduce(%7 init: %8) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %10 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %11 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %12 = stablehlo.maximum %11, %9 : tensor<2x3x5xf64>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %15 = stablehlo.subtract %7, %14 : tensor<2x3x5x5xf64>
    %16 = stablehlo.exponential %15 : tensor<2x3x5x5xf64>
    %17 = stablehlo.constant dense<0.0> : tensor<f64>
    %18 = stablehlo.reduce(%16 init: %17) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %21 = stablehlo.divide %16, %20 : tensor<2x3x5x5xf64>
    %22 = stablehlo.reshape %21 : (tensor<2x3x5x5xf64>) -> tensor<6x5x5xf64>
    %23 = stablehlo.dot_general %22, %5, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<6x5x5xf64>, tensor<6x5x4xf64>) -> tensor<6x5x4xf64>
    %24 = stablehlo.reshape %23 : (tensor<6x5x4xf64>) -> tensor<2x3x5x4xf64>
    %25 = stablehlo.transpose %24, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    return %25 : tensor<2x5x3x4xf64>
  }
}
