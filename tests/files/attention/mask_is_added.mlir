// A mask that is added, computed from counters, and a gradient that flows through the maximum of each row: it sums to 0.
// The scale behind the matmul of the scores stands behind those of the gradients too.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// COUNT: stablehlo.composite "partita.attention.vjp" 1
// CHECK: causal = true, scale = 5.000000e-01
// EQUAL: 1e-12
module {
  func.func @main(%q: tensor<2x3x5x4xf64>, %k: tensor<2x3x5x4xf64>, %v: tensor<2x3x5x4xf64>, %dout: tensor<2x3x5x4xf64>) -> (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.constant dense<0.5> : tensor<f64>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %3 = stablehlo.multiply %0, %2 : tensor<2x3x5x5xf64>
    %4 = stablehlo.iota dim = 0 : tensor<5x5xi32>
    %5 = stablehlo.iota dim = 1 : tensor<5x5xi32>
    %6 = stablehlo.compare GE, %4, %5, SIGNED : (tensor<5x5xi32>, tensor<5x5xi32>) -> tensor<5x5xi1>
    %7 = stablehlo.convert %6 : (tensor<5x5xi1>) -> tensor<5x5xf64>
    %8 = stablehlo.constant dense<1.0> : tensor<f64>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f64>) -> tensor<5x5xf64>
    %10 = stablehlo.subtract %9, %7 : tensor<5x5xf64>
    %11 = stablehlo.constant dense<-1.0e+09> : tensor<f64>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f64>) -> tensor<5x5xf64>
    %13 = stablehlo.multiply %10, %12 : tensor<5x5xf64>
    %14 = stablehlo.broadcast_in_dim %13, dims = [2, 3] : (tensor<5x5xf64>) -> tensor<2x3x5x5xf64>
    %15 = stablehlo.add %3, %14 : tensor<2x3x5x5xf64>
    %16 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %17 = stablehlo.reduce(%15 init: %16) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %18 = stablehlo.reshape %17 : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %20 = stablehlo.compare EQ, %15, %19, FLOAT : (tensor<2x3x5x5xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x5x5xi1>
    %21 = stablehlo.convert %20 : (tensor<2x3x5x5xi1>) -> tensor<2x3x5x5xf64>
    %22 = stablehlo.constant dense<0.0> : tensor<f64>
    %23 = stablehlo.reduce(%21 init: %22) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %24 = stablehlo.subtract %15, %19 : tensor<2x3x5x5xf64>
    %25 = stablehlo.exponential %24 : tensor<2x3x5x5xf64>
    %26 = stablehlo.constant dense<0.0> : tensor<f64>
    %27 = stablehlo.reduce(%25 init: %26) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %28 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %29 = stablehlo.divide %25, %28 : tensor<2x3x5x5xf64>
    %30 = stablehlo.dot_general %29, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %31 = stablehlo.dot_general %29, %dout, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %32 = stablehlo.dot_general %dout, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x5xf64>
    %33 = stablehlo.multiply %29, %32 : tensor<2x3x5x5xf64>
    %34 = stablehlo.constant dense<0.0> : tensor<f64>
    %35 = stablehlo.reduce(%33 init: %34) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %37 = stablehlo.subtract %32, %36 : tensor<2x3x5x5xf64>
    %38 = stablehlo.multiply %29, %37 : tensor<2x3x5x5xf64>
    %39 = stablehlo.negate %38 : tensor<2x3x5x5xf64>
    %40 = stablehlo.constant dense<0.0> : tensor<f64>
    %41 = stablehlo.reduce(%39 init: %40) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %42 = stablehlo.divide %41, %23 : tensor<2x3x5xf64>
    %43 = stablehlo.broadcast_in_dim %42, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %44 = stablehlo.multiply %43, %21 : tensor<2x3x5x5xf64>
    %45 = stablehlo.add %38, %44 : tensor<2x3x5x5xf64>
    %46 = stablehlo.dot_general %45, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %47 = stablehlo.constant dense<0.5> : tensor<f64>
    %48 = stablehlo.broadcast_in_dim %47, dims = [] : (tensor<f64>) -> tensor<2x3x5x4xf64>
    %49 = stablehlo.multiply %46, %48 : tensor<2x3x5x4xf64>
    %50 = stablehlo.dot_general %45, %q, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x3x5x5xf64>, tensor<2x3x5x4xf64>) -> tensor<2x3x5x4xf64>
    %51 = stablehlo.constant dense<0.5> : tensor<f64>
    %52 = stablehlo.broadcast_in_dim %51, dims = [] : (tensor<f64>) -> tensor<2x3x5x4xf64>
    %53 = stablehlo.multiply %50, %52 : tensor<2x3x5x4xf64>
    return %30, %49, %53, %31 : tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>, tensor<2x3x5x4xf64>
  }
}
