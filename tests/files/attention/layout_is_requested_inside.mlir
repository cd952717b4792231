// The user requests a layout of the exponentials: the ops stay.
// RUN: attention
// ABSENT: partita.attention
// EQUAL: exact
module {
  sdy.mesh @mesh = <["dp"=2]>
  func.func @main(%q: tensor<2x3x5x4xf64>, %k: tensor<2x3x5x4xf64>, %v: tensor<2x3x5x4xf64>) -> (tensor<2x3x5x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %3 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %5 = stablehlo.maximum %4, %2 : tensor<2x3x5xf64>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %8 = stablehlo.subtract %0, %7 : tensor<2x3x5x5xf64>
    %9 = stablehlo.exponential %8 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}, {}, {}, {}]>]>} : tensor<2x3x5x5xf64>
    %10 = stablehlo.constant dense<0.0> : tensor<f64>
    %11 = stablehlo.reduce(%9 init: %10) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %14 = stablehlo.divide %9, %13 : tensor<2x3x5x5xf64>
    %15 = stablehlo.dot_general %14, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    return %15 : tensor<2x3x5x4xf64>
  }
}
