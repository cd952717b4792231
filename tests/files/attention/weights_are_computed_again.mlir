// The backward pass computes the weights again, and not the output: one composite, and the gradient of another.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// COUNT: stablehlo.composite "partita.attention.vjp" 1
// EQUAL: 1e-12
module {
  func.func @main(%q: tensor<2x3x5x4xf64>, %k: tensor<2x3x5x4xf64>, %v: tensor<2x3x5x4xf64>, %dout: tensor<2x3x5x4xf64>) -> (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %3 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %5 = stablehlo.maximum %4, %2 : tensor<2x3x5xf64>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %8 = stablehlo.subtract %0, %7 : tensor<2x3x5x5xf64>
    %9 = stablehlo.exponential %8 : tensor<2x3x5x5xf64>
    %10 = stablehlo.constant dense<0.0> : tensor<f64>
    %11 = stablehlo.reduce(%9 init: %10) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %14 = stablehlo.divide %9, %13 : tensor<2x3x5x5xf64>
    %15 = stablehlo.dot_general %14, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %16 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %17 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %18 = stablehlo.reduce(%16 init: %17) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %19 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %20 = stablehlo.broadcast_in_dim %19, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %21 = stablehlo.maximum %20, %18 : tensor<2x3x5xf64>
    %22 = stablehlo.broadcast_in_dim %21, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %23 = stablehlo.broadcast_in_dim %22, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %24 = stablehlo.subtract %16, %23 : tensor<2x3x5x5xf64>
    %25 = stablehlo.exponential %24 : tensor<2x3x5x5xf64>
    %26 = stablehlo.constant dense<0.0> : tensor<f64>
    %27 = stablehlo.reduce(%25 init: %26) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %28 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %29 = stablehlo.broadcast_in_dim %28, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %30 = stablehlo.divide %25, %29 : tensor<2x3x5x5xf64>
    %31 = stablehlo.dot_general %30, %dout, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %32 = stablehlo.dot_general %dout, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %33 = stablehlo.multiply %30, %32 : tensor<2x3x5x5xf64>
    %34 = stablehlo.constant dense<0.0> : tensor<f64>
    %35 = stablehlo.reduce(%33 init: %34) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %37 = stablehlo.subtract %32, %36 : tensor<2x3x5x5xf64>
    %38 = stablehlo.multiply %30, %37 : tensor<2x3x5x5xf64>
    %39 = stablehlo.dot_general %38, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %40 = stablehlo.dot_general %38, %q, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    return %15, %39, %40, %31 : tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>
  }
}
