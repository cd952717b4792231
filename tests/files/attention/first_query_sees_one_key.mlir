// More keys than queries, of which the first query sees the first: not the causal mask of the composite. The ops stay.
// RUN: attention
// ABSENT: partita.attention
// EQUAL: exact
module {
  func.func @main(%q: tensor<5x3x4xf64>, %k: tensor<7x3x4xf64>, %v: tensor<7x3x4xf64>) -> (tensor<5x12xf64>) {
    %0 = stablehlo.transpose %q, dims = [1, 0, 2] : (tensor<5x3x4xf64>) -> tensor<3x5x4xf64>
    %1 = stablehlo.transpose %k, dims = [1, 2, 0] : (tensor<7x3x4xf64>) -> tensor<3x4x7xf64>
    %2 = stablehlo.transpose %v, dims = [1, 0, 2] : (tensor<7x3x4xf64>) -> tensor<3x7x4xf64>
    %3 = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<3x5x4xf64>, tensor<3x4x7xf64>) -> tensor<3x5x7xf64>
    %4 = stablehlo.iota dim = 0 : tensor<5x7xi32>
    %5 = stablehlo.iota dim = 1 : tensor<5x7xi32>
    %6 = stablehlo.compare GE, %4, %5, SIGNED : (tensor<5x7xi32>, tensor<5x7xi32>) -> tensor<5x7xi1>
    %7 = stablehlo.broadcast_in_dim %6, dims = [1, 2] : (tensor<5x7xi1>) -> tensor<3x5x7xi1>
    %8 = stablehlo.constant dense<-1.0e+30> : tensor<f64>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f64>) -> tensor<3x5x7xf64>
    %10 = stablehlo.select %7, %3, %9 : tensor<3x5x7xi1>, tensor<3x5x7xf64>
    %11 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %12 = stablehlo.reduce(%10 init: %11) applies stablehlo.maximum across dimensions = [2] : (tensor<3x5x7xf64>, tensor<f64>) -> tensor<3x5xf64>
    %13 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %14 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<f64>) -> tensor<3x5xf64>
    %15 = stablehlo.maximum %14, %12 : tensor<3x5xf64>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<3x5xf64>) -> tensor<3x5x1xf64>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2] : (tensor<3x5x1xf64>) -> tensor<3x5x7xf64>
    %18 = stablehlo.subtract %10, %17 : tensor<3x5x7xf64>
    %19 = stablehlo.exponential %18 : tensor<3x5x7xf64>
    %20 = stablehlo.constant dense<0.0> : tensor<f64>
    %21 = stablehlo.reduce(%19 init: %20) applies stablehlo.add across dimensions = [2] : (tensor<3x5x7xf64>, tensor<f64>) -> tensor<3x5xf64>
    %22 = stablehlo.broadcast_in_dim %21, dims = [0, 1] : (tensor<3x5xf64>) -> tensor<3x5x1xf64>
    %23 = stablehlo.broadcast_in_dim %22, dims = [0, 1, 2] : (tensor<3x5x1xf64>) -> tensor<3x5x7xf64>
    %24 = stablehlo.divide %19, %23 : tensor<3x5x7xf64>
    %25 = stablehlo.dot_general %24, %2, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<3x5x7xf64>, tensor<3x7x4xf64>) -> tensor<3x5x4xf64>
    %26 = stablehlo.transpose %25, dims = [1, 0, 2] : (tensor<3x5x4xf64>) -> tensor<5x3x4xf64>
    %27 = stablehlo.reshape %26 : (tensor<5x3x4xf64>) -> tensor<5x12xf64>
    return %27 : tensor<5x12xf64>
  }
}
