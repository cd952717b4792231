// The gradient of a softmax in its usual form, queries that were scaled before, and a mask that is a constant and chooses
// what is hidden.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// COUNT: stablehlo.composite "partita.attention.vjp" 1
// CHECK: causal = true, scale = 1.000000e+00
// EQUAL: 1e-12
module {
  func.func @main(%q: tensor<2x3x5x4xf64>, %k: tensor<2x3x5x4xf64>, %v: tensor<2x3x5x4xf64>, %dout: tensor<2x3x5x4xf64>) -> (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) {
    %0 = stablehlo.constant dense<0.5> : tensor<f64>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f64>) -> tensor<2x3x5x4xf64>
    %2 = stablehlo.multiply %q, %1 : tensor<2x3x5x4xf64>
    %3 = stablehlo.transpose %k, dims = [0, 1, 3, 2] : (tensor<2x3x5x4xf64>) -> tensor<2x3x4x5xf64>
    %4 = stablehlo.dot_general %2, %3, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x4xf64>, tensor<2x3x4x5xf64>) -> tensor<2x3x5x5xf64>
    %5 = stablehlo.constant dense<[[true, false, false, false, false], [true, true, false, false, false], [true, true, true, false, false], [true, true, true, true, false], [true, true, true, true, true]]> : tensor<5x5xi1>
    %6 = stablehlo.not %5 : tensor<5x5xi1>
    %7 = stablehlo.broadcast_in_dim %6, dims = [2, 3] : (tensor<5x5xi1>) -> tensor<2x3x5x5xi1>
    %8 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %10 = stablehlo.select %7, %9, %4 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
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
    %26 = stablehlo.dot_general %24, %dout, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %27 = stablehlo.dot_general %dout, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %28 = stablehlo.multiply %24, %27 : tensor<2x3x5x5xf64>
    %29 = stablehlo.constant dense<0.0> : tensor<f64>
    %30 = stablehlo.reduce(%28 init: %29) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %31 = stablehlo.broadcast_in_dim %30, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %32 = stablehlo.subtract %27, %31 : tensor<2x3x5x5xf64>
    %33 = stablehlo.multiply %24, %32 : tensor<2x3x5x5xf64>
    %34 = stablehlo.constant dense<0.0> : tensor<f64>
    %35 = stablehlo.broadcast_in_dim %34, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %36 = stablehlo.select %7, %35, %33 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
    %37 = stablehlo.dot_general %36, %3, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x5xf64>, tensor<2x3x4x5xf64>) -> tensor<2x3x5x4xf64>
    %38 = stablehlo.constant dense<0.5> : tensor<f64>
    %39 = stablehlo.broadcast_in_dim %38, dims = [] : (tensor<f64>) -> tensor<2x3x5x4xf64>
    %40 = stablehlo.multiply %37, %39 : tensor<2x3x5x4xf64>
    %41 = stablehlo.dot_general %2, %36, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x3x5x4xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %42 = stablehlo.transpose %41, dims = [0, 1, 3, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x3x5x4xf64>
    return %25, %40, %42, %26 : tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>
  }
}
