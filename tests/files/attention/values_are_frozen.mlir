// Without the gradient of the values, that of the composite has two results.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// CHECK: wanted = array<i64: 0, 1>
// EQUAL: 1e-12
module {
  func.func @main(%q: tensor<2x5x3x4xf64>, %k: tensor<2x5x3x4xf64>, %v: tensor<2x5x3x4xf64>, %dout: tensor<2x5x3x4xf64>) -> (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.constant dense<2.5> : tensor<f64>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %3 = stablehlo.divide %0, %2 : tensor<2x3x5x5xf64>
    %4 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %5 = stablehlo.reduce(%3 init: %4) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %6 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %8 = stablehlo.maximum %7, %5 : tensor<2x3x5xf64>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %11 = stablehlo.subtract %3, %10 : tensor<2x3x5x5xf64>
    %12 = stablehlo.exponential %11 : tensor<2x3x5x5xf64>
    %13 = stablehlo.constant dense<0.0> : tensor<f64>
    %14 = stablehlo.reduce(%12 init: %13) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %17 = stablehlo.divide %12, %16 : tensor<2x3x5x5xf64>
    %18 = stablehlo.constant dense<1.0> : tensor<f64>
    %19 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<f64>) -> tensor<2x3x5x1xf64>
    %20 = stablehlo.multiply %15, %15 : tensor<2x3x5x1xf64>
    %21 = stablehlo.divide %19, %20 : tensor<2x3x5x1xf64>
    %22 = stablehlo.dot_general %v, %17, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x5x3x4xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %23 = stablehlo.transpose %22, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %24 = stablehlo.transpose %dout, dims = [0, 2, 3, 1] : (tensor<2x5x3x4xf64>) -> tensor<2x3x4x5xf64>
    %25 = stablehlo.dot_general %24, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3] : (tensor<2x3x4x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %26 = stablehlo.dot_general %24, %17, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x4x5xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %27 = stablehlo.transpose %26, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %28 = stablehlo.broadcast_in_dim %21, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %29 = stablehlo.multiply %25, %28 : tensor<2x3x5x5xf64>
    %30 = stablehlo.multiply %29, %12 : tensor<2x3x5x5xf64>
    %31 = stablehlo.constant dense<0.0> : tensor<f64>
    %32 = stablehlo.reduce(%30 init: %31) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %33 = stablehlo.reshape %32 : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %34 = stablehlo.negate %33 : tensor<2x3x5x1xf64>
    %35 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %36 = stablehlo.divide %25, %35 : tensor<2x3x5x5xf64>
    %37 = stablehlo.constant dense<0.0> : tensor<f64>
    %38 = stablehlo.reduce(%34 init: %37) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x1xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %39 = stablehlo.broadcast_in_dim %38, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %40 = stablehlo.add %36, %39 : tensor<2x3x5x5xf64>
    %41 = stablehlo.multiply %40, %12 : tensor<2x3x5x5xf64>
    %42 = stablehlo.constant dense<2.5> : tensor<f64>
    %43 = stablehlo.broadcast_in_dim %42, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %44 = stablehlo.divide %41, %43 : tensor<2x3x5x5xf64>
    %45 = stablehlo.dot_general %44, %q, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %46 = stablehlo.transpose %45, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    %47 = stablehlo.dot_general %44, %k, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %48 = stablehlo.transpose %47, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    return %23, %48, %46 : tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>
  }
}
