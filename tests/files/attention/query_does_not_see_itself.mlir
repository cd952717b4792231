// A mask whose first query sees no key: a softmax gives equal weights there, the composite 0. The ops stay.
// RUN: attention
// ABSENT: partita.attention
// EQUAL: exact
module {
  func.func @main(%q: tensor<2x5x3x4xf64>, %k: tensor<2x5x3x4xf64>, %v: tensor<2x5x3x4xf64>, %dout: tensor<2x5x3x4xf64>) -> (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.constant dense<2.5> : tensor<f64>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %3 = stablehlo.divide %0, %2 : tensor<2x3x5x5xf64>
    %4 = stablehlo.iota dim = 0 : tensor<5x5xi32>
    %5 = stablehlo.constant dense<-1> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<i32>) -> tensor<5x5xi32>
    %7 = stablehlo.add %4, %6 : tensor<5x5xi32>
    %8 = stablehlo.iota dim = 1 : tensor<5x5xi32>
    %9 = stablehlo.compare GE, %7, %8, SIGNED : (tensor<5x5xi32>, tensor<5x5xi32>) -> tensor<5x5xi1>
    %10 = stablehlo.broadcast_in_dim %9, dims = [2, 3] : (tensor<5x5xi1>) -> tensor<2x3x5x5xi1>
    %11 = stablehlo.constant dense<-1.0e+09> : tensor<f64>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %13 = stablehlo.select %10, %3, %12 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
    %14 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %15 = stablehlo.reduce(%13 init: %14) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %16 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %18 = stablehlo.maximum %17, %15 : tensor<2x3x5xf64>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %21 = stablehlo.subtract %13, %20 : tensor<2x3x5x5xf64>
    %22 = stablehlo.exponential %21 : tensor<2x3x5x5xf64>
    %23 = stablehlo.constant dense<0.0> : tensor<f64>
    %24 = stablehlo.reduce(%22 init: %23) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %27 = stablehlo.divide %22, %26 : tensor<2x3x5x5xf64>
    %28 = stablehlo.constant dense<1.0> : tensor<f64>
    %29 = stablehlo.broadcast_in_dim %28, dims = [] : (tensor<f64>) -> tensor<2x3x5x1xf64>
    %30 = stablehlo.multiply %25, %25 : tensor<2x3x5x1xf64>
    %31 = stablehlo.divide %29, %30 : tensor<2x3x5x1xf64>
    %32 = stablehlo.dot_general %v, %27, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x5x3x4xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %33 = stablehlo.transpose %32, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %34 = stablehlo.transpose %dout, dims = [0, 2, 3, 1] : (tensor<2x5x3x4xf64>) -> tensor<2x3x4x5xf64>
    %35 = stablehlo.dot_general %34, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3] : (tensor<2x3x4x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %36 = stablehlo.dot_general %34, %27, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x4x5xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %37 = stablehlo.transpose %36, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %38 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %39 = stablehlo.multiply %35, %38 : tensor<2x3x5x5xf64>
    %40 = stablehlo.multiply %39, %22 : tensor<2x3x5x5xf64>
    %41 = stablehlo.constant dense<0.0> : tensor<f64>
    %42 = stablehlo.reduce(%40 init: %41) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %43 = stablehlo.reshape %42 : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %44 = stablehlo.negate %43 : tensor<2x3x5x1xf64>
    %45 = stablehlo.broadcast_in_dim %25, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %46 = stablehlo.divide %35, %45 : tensor<2x3x5x5xf64>
    %47 = stablehlo.constant dense<0.0> : tensor<f64>
    %48 = stablehlo.reduce(%44 init: %47) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x1xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %49 = stablehlo.broadcast_in_dim %48, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %50 = stablehlo.add %46, %49 : tensor<2x3x5x5xf64>
    %51 = stablehlo.multiply %50, %22 : tensor<2x3x5x5xf64>
    %52 = stablehlo.constant dense<0.0> : tensor<f64>
    %53 = stablehlo.broadcast_in_dim %52, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %54 = stablehlo.select %10, %51, %53 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
    %55 = stablehlo.constant dense<2.5> : tensor<f64>
    %56 = stablehlo.broadcast_in_dim %55, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %57 = stablehlo.divide %54, %56 : tensor<2x3x5x5xf64>
    %58 = stablehlo.dot_general %57, %q, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %59 = stablehlo.transpose %58, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    %60 = stablehlo.dot_general %57, %k, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %61 = stablehlo.transpose %60, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    return %33, %61, %59, %37 : tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>
  }
}
