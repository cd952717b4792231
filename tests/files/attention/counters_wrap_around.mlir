// A difference of unsigned counters is never negative: no causal mask, and the ops stay.
// RUN: attention
// ABSENT: partita.attention
// EQUAL: exact
module {
  func.func @main(%q: tensor<2x3x5x4xf64>, %k: tensor<2x3x5x4xf64>, %v: tensor<2x3x5x4xf64>) -> (tensor<2x3x5x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.iota dim = 0 : tensor<5x5xui32>
    %2 = stablehlo.iota dim = 1 : tensor<5x5xui32>
    %3 = stablehlo.subtract %1, %2 : tensor<5x5xui32>
    %4 = stablehlo.constant dense<0> : tensor<ui32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<ui32>) -> tensor<5x5xui32>
    %6 = stablehlo.compare GE, %3, %5, UNSIGNED : (tensor<5x5xui32>, tensor<5x5xui32>) -> tensor<5x5xi1>
    %7 = stablehlo.broadcast_in_dim %6, dims = [2, 3] : (tensor<5x5xi1>) -> tensor<2x3x5x5xi1>
    %8 = stablehlo.constant dense<-1.0e+09> : tensor<f64>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %10 = stablehlo.select %7, %0, %9 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
    %11 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %12 = stablehlo.reduce(%10 init: %11) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %13 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %14 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %15 = stablehlo.maximum %14, %12 : tensor<2x3x5xf64>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %18 = stablehlo.subtract %10, %17 : tensor<2x3x5x5xf64>
    %19 = stablehlo.exponential %18 : tensor<2x3x5x5xf64>
    %20 = stablehlo.constant dense<0.0> : tensor<f64>
    %21 = stablehlo.reduce(%19 init: %20) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %22 = stablehlo.broadcast_in_dim %21, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %23 = stablehlo.broadcast_in_dim %22, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %24 = stablehlo.divide %19, %23 : tensor<2x3x5x5xf64>
    %25 = stablehlo.dot_general %24, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    return %25 : tensor<2x3x5x4xf64>
  }
}
