// The weights are a result of the program: the ops stay.
// RUN: attention
// ABSENT: partita.attention
// EQUAL: exact
module {
  func.func @main(%q: tensor<2x5x3x4xf64>, %k: tensor<2x5x3x4xf64>, %v: tensor<2x5x3x4xf64>, %dout: tensor<2x5x3x4xf64>) -> (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x3x5x5xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.constant dense<2.5> : tensor<f64>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %3 = stablehlo.divide %0, %2 : tensor<2x3x5x5xf64>
    %4 = stablehlo.iota dim = 0 : tensor<5x5xi32>
    %5 = stablehlo.iota dim = 1 : tensor<5x5xi32>
    %6 = stablehlo.compare GE, %4, %5, SIGNED : (tensor<5x5xi32>, tensor<5x5xi32>) -> tensor<5x5xi1>
    %7 = stablehlo.broadcast_in_dim %6, dims = [2, 3] : (tensor<5x5xi1>) -> tensor<2x3x5x5xi1>
    %8 = stablehlo.constant dense<-1.0e+09> : tensor<f64>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %10 = stablehlo.select %7, %3, %9 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
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
    %25 = stablehlo.constant dense<1.0> : tensor<f64>
    %26 = stablehlo.broadcast_in_dim %25, dims = [] : (tensor<f64>) -> tensor<2x3x5x1xf64>
    %27 = stablehlo.multiply %22, %22 : tensor<2x3x5x1xf64>
    %28 = stablehlo.divide %26, %27 : tensor<2x3x5x1xf64>
    %29 = stablehlo.dot_general %v, %24, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x5x3x4xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %30 = stablehlo.transpose %29, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %31 = stablehlo.transpose %dout, dims = [0, 2, 3, 1] : (tensor<2x5x3x4xf64>) -> tensor<2x3x4x5xf64>
    %32 = stablehlo.dot_general %31, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3] : (tensor<2x3x4x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %33 = stablehlo.dot_general %31, %24, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x4x5xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %34 = stablehlo.transpose %33, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %35 = stablehlo.broadcast_in_dim %28, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %36 = stablehlo.multiply %32, %35 : tensor<2x3x5x5xf64>
    %37 = stablehlo.multiply %36, %19 : tensor<2x3x5x5xf64>
    %38 = stablehlo.constant dense<0.0> : tensor<f64>
    %39 = stablehlo.reduce(%37 init: %38) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %40 = stablehlo.reshape %39 : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %41 = stablehlo.negate %40 : tensor<2x3x5x1xf64>
    %42 = stablehlo.broadcast_in_dim %22, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %43 = stablehlo.divide %32, %42 : tensor<2x3x5x5xf64>
    %44 = stablehlo.constant dense<0.0> : tensor<f64>
    %45 = stablehlo.reduce(%41 init: %44) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x1xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %46 = stablehlo.broadcast_in_dim %45, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %47 = stablehlo.add %43, %46 : tensor<2x3x5x5xf64>
    %48 = stablehlo.multiply %47, %19 : tensor<2x3x5x5xf64>
    %49 = stablehlo.constant dense<0.0> : tensor<f64>
    %50 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %51 = stablehlo.select %7, %48, %50 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
    %52 = stablehlo.constant dense<2.5> : tensor<f64>
    %53 = stablehlo.broadcast_in_dim %52, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %54 = stablehlo.divide %51, %53 : tensor<2x3x5x5xf64>
    %55 = stablehlo.dot_general %54, %q, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %56 = stablehlo.transpose %55, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    %57 = stablehlo.dot_general %54, %k, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %58 = stablehlo.transpose %57, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    return %30, %58, %56, %34, %24 : tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x3x5x5xf64>
  }
}
