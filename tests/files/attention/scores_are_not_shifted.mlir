// Exponentials of scores that may overflow, where the composite's do not: the ops stay.
// RUN: attention
// ABSENT: partita.attention
// EQUAL: exact
module {
  func.func @main(%q: tensor<2x3x5x4xf64>, %k: tensor<2x3x5x4xf64>, %v: tensor<2x3x5x4xf64>) -> (tensor<2x3x5x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.exponential %0 : tensor<2x3x5x5xf64>
    %2 = stablehlo.constant dense<0.0> : tensor<f64>
    %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %5 = stablehlo.divide %1, %4 : tensor<2x3x5x5xf64>
    %6 = stablehlo.dot_general %5, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    return %6 : tensor<2x3x5x4xf64>
  }
}
