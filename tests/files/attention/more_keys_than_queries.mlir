// Heads without a batch, and more keys than queries: the last query sees all.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// CHECK: causal = true
// EQUAL: 1e-12
module {
  func.func @main(%q: tensor<5x3x4xf64>, %k: tensor<7x3x4xf64>, %v: tensor<7x3x4xf64>) -> (tensor<5x12xf64>) {
    %0 = stablehlo.transpose %q, dims = [1, 0, 2] : (tensor<5x3x4xf64>) -> tensor<3x5x4xf64>
    %1 = stablehlo.transpose %k, dims = [1, 2, 0] : (tensor<7x3x4xf64>) -> tensor<3x4x7xf64>
    %2 = stablehlo.transpose %v, dims = [1, 0, 2] : (tensor<7x3x4xf64>) -> tensor<3x7x4xf64>
    %3 = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<3x5x4xf64>, tensor<3x4x7xf64>) -> tensor<3x5x7xf64>
    %4 = stablehlo.iota dim = 0 : tensor<5x7xi32>
    %5 = stablehlo.constant dense<2> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<i32>) -> tensor<5x7xi32>
    %7 = stablehlo.add %4, %6 : tensor<5x7xi32>
    %8 = stablehlo.iota dim = 1 : tensor<5x7xi32>
    %9 = stablehlo.compare GE, %7, %8, SIGNED : (tensor<5x7xi32>, tensor<5x7xi32>) -> tensor<5x7xi1>
    %10 = stablehlo.broadcast_in_dim %9, dims = [1, 2] : (tensor<5x7xi1>) -> tensor<3x5x7xi1>
    %11 = stablehlo.constant dense<-1.0e+30> : tensor<f64>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f64>) -> tensor<3x5x7xf64>
    %13 = stablehlo.select %10, %3, %12 : tensor<3x5x7xi1>, tensor<3x5x7xf64>
    %14 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %15 = stablehlo.reduce(%13 init: %14) applies stablehlo.maximum across dimensions = [2] : (tensor<3x5x7xf64>, tensor<f64>) -> tensor<3x5xf64>
    %16 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<f64>) -> tensor<3x5xf64>
    %18 = stablehlo.maximum %17, %15 : tensor<3x5xf64>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1] : (tensor<3x5xf64>) -> tensor<3x5x1xf64>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2] : (tensor<3x5x1xf64>) -> tensor<3x5x7xf64>
    %21 = stablehlo.subtract %13, %20 : tensor<3x5x7xf64>
    %22 = stablehlo.exponential %21 : tensor<3x5x7xf64>
    %23 = stablehlo.constant dense<0.0> : tensor<f64>
    %24 = stablehlo.reduce(%22 init: %23) applies stablehlo.add across dimensions = [2] : (tensor<3x5x7xf64>, tensor<f64>) -> tensor<3x5xf64>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1] : (tensor<3x5xf64>) -> tensor<3x5x1xf64>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0, 1, 2] : (tensor<3x5x1xf64>) -> tensor<3x5x7xf64>
    %27 = stablehlo.divide %22, %26 : tensor<3x5x7xf64>
    %28 = stablehlo.dot_general %27, %2, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<3x5x7xf64>, tensor<3x7x4xf64>) -> tensor<3x5x4xf64>
    %29 = stablehlo.transpose %28, dims = [1, 0, 2] : (tensor<3x5x4xf64>) -> tensor<5x3x4xf64>
    %30 = stablehlo.reshape %29 : (tensor<5x3x4xf64>) -> tensor<5x12xf64>
    return %30 : tensor<5x12xf64>
  }
}
