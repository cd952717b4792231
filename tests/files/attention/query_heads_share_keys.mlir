// Three query heads for each key head, by free dimensions of the queries: the composite has heads for queries and groups of
// them for keys.
// RUN: attention
// COUNT: stablehlo.composite "partita.attention" 1
// COUNT: stablehlo.composite "partita.attention.vjp" 1
// CHECK: (tensor<2x6x5x4xf64>, tensor<2x2x5x4xf64>, tensor<2x2x5x4xf64>) -> tensor<2x6x5x4xf64>
// EQUAL: 1e-12
module {
  func.func @main(%q: tensor<2x5x6x4xf64>, %k: tensor<2x5x2x4xf64>, %v: tensor<2x5x2x4xf64>, %dout: tensor<2x5x6x4xf64>) -> (tensor<2x5x6x4xf64>, tensor<2x5x6x4xf64>, tensor<2x5x2x4xf64>, tensor<2x5x2x4xf64>) {
    %0 = stablehlo.reshape %q : (tensor<2x5x6x4xf64>) -> tensor<2x5x2x3x4xf64>
    %1 = stablehlo.reshape %dout : (tensor<2x5x6x4xf64>) -> tensor<2x5x2x3x4xf64>
    %2 = stablehlo.dot_general %0, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [4] x [3] : (tensor<2x5x2x3x4xf64>, tensor<2x5x2x4xf64>) -> tensor<2x2x5x3x5xf64>
    %3 = stablehlo.constant dense<0.5> : tensor<f64>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f64>) -> tensor<2x2x5x3x5xf64>
    %5 = stablehlo.multiply %2, %4 : tensor<2x2x5x3x5xf64>
    %6 = stablehlo.iota dim = 0 : tensor<5x5xi32>
    %7 = stablehlo.iota dim = 1 : tensor<5x5xi32>
    %8 = stablehlo.compare GE, %6, %7, SIGNED : (tensor<5x5xi32>, tensor<5x5xi32>) -> tensor<5x5xi1>
    %9 = stablehlo.broadcast_in_dim %8, dims = [2, 4] : (tensor<5x5xi1>) -> tensor<2x2x5x3x5xi1>
    %10 = stablehlo.constant dense<-1.0e+09> : tensor<f64>
    %11 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f64>) -> tensor<2x2x5x3x5xf64>
    %12 = stablehlo.select %9, %5, %11 : tensor<2x2x5x3x5xi1>, tensor<2x2x5x3x5xf64>
    %13 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %14 = stablehlo.reduce(%12 init: %13) applies stablehlo.maximum across dimensions = [4] : (tensor<2x2x5x3x5xf64>, tensor<f64>) -> tensor<2x2x5x3xf64>
    %15 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %16 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<f64>) -> tensor<2x2x5x3xf64>
    %17 = stablehlo.maximum %16, %14 : tensor<2x2x5x3xf64>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0, 1, 2, 3] : (tensor<2x2x5x3xf64>) -> tensor<2x2x5x3x1xf64>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2, 3, 4] : (tensor<2x2x5x3x1xf64>) -> tensor<2x2x5x3x5xf64>
    %20 = stablehlo.subtract %12, %19 : tensor<2x2x5x3x5xf64>
    %21 = stablehlo.exponential %20 : tensor<2x2x5x3x5xf64>
    %22 = stablehlo.constant dense<0.0> : tensor<f64>
    %23 = stablehlo.reduce(%21 init: %22) applies stablehlo.add across dimensions = [4] : (tensor<2x2x5x3x5xf64>, tensor<f64>) -> tensor<2x2x5x3xf64>
    %24 = stablehlo.broadcast_in_dim %23, dims = [0, 1, 2, 3] : (tensor<2x2x5x3xf64>) -> tensor<2x2x5x3x1xf64>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1, 2, 3, 4] : (tensor<2x2x5x3x1xf64>) -> tensor<2x2x5x3x5xf64>
    %26 = stablehlo.divide %21, %25 : tensor<2x2x5x3x5xf64>
    %27 = stablehlo.dot_general %26, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [4] x [1] : (tensor<2x2x5x3x5xf64>, tensor<2x5x2x4xf64>) -> tensor<2x2x5x3x4xf64>
    %28 = stablehlo.transpose %27, dims = [0, 2, 1, 3, 4] : (tensor<2x2x5x3x4xf64>) -> tensor<2x5x2x3x4xf64>
    %29 = stablehlo.reshape %28 : (tensor<2x5x2x3x4xf64>) -> tensor<2x5x6x4xf64>
    %30 = stablehlo.dot_general %26, %1, batching_dims = [0, 1] x [0, 2], contracting_dims = [2, 3] x [1, 3] : (tensor<2x2x5x3x5xf64>, tensor<2x5x2x3x4xf64>) -> tensor<2x2x5x4xf64>
    %31 = stablehlo.transpose %30, dims = [0, 2, 1, 3] : (tensor<2x2x5x4xf64>) -> tensor<2x5x2x4xf64>
    %32 = stablehlo.dot_general %v, %1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [4] : (tensor<2x5x2x4xf64>, tensor<2x5x2x3x4xf64>) -> tensor<2x2x5x5x3xf64>
    %33 = stablehlo.transpose %32, dims = [0, 1, 3, 4, 2] : (tensor<2x2x5x5x3xf64>) -> tensor<2x2x5x3x5xf64>
    %34 = stablehlo.multiply %26, %33 : tensor<2x2x5x3x5xf64>
    %35 = stablehlo.constant dense<0.0> : tensor<f64>
    %36 = stablehlo.reduce(%34 init: %35) applies stablehlo.add across dimensions = [4] : (tensor<2x2x5x3x5xf64>, tensor<f64>) -> tensor<2x2x5x3xf64>
    %37 = stablehlo.broadcast_in_dim %36, dims = [0, 1, 2, 3] : (tensor<2x2x5x3xf64>) -> tensor<2x2x5x3x5xf64>
    %38 = stablehlo.subtract %33, %37 : tensor<2x2x5x3x5xf64>
    %39 = stablehlo.multiply %26, %38 : tensor<2x2x5x3x5xf64>
    %40 = stablehlo.constant dense<0.0> : tensor<f64>
    %41 = stablehlo.broadcast_in_dim %40, dims = [] : (tensor<f64>) -> tensor<2x2x5x3x5xf64>
    %42 = stablehlo.select %9, %39, %41 : tensor<2x2x5x3x5xi1>, tensor<2x2x5x3x5xf64>
    %43 = stablehlo.constant dense<0.5> : tensor<f64>
    %44 = stablehlo.broadcast_in_dim %43, dims = [] : (tensor<f64>) -> tensor<2x2x5x3x5xf64>
    %45 = stablehlo.multiply %42, %44 : tensor<2x2x5x3x5xf64>
    %46 = stablehlo.dot_general %45, %k, batching_dims = [0, 1] x [0, 2], contracting_dims = [4] x [1] : (tensor<2x2x5x3x5xf64>, tensor<2x5x2x4xf64>) -> tensor<2x2x5x3x4xf64>
    %47 = stablehlo.transpose %46, dims = [0, 2, 1, 3, 4] : (tensor<2x2x5x3x4xf64>) -> tensor<2x5x2x3x4xf64>
    %48 = stablehlo.reshape %47 : (tensor<2x5x2x3x4xf64>) -> tensor<2x5x6x4xf64>
    %49 = stablehlo.dot_general %45, %0, batching_dims = [0, 1] x [0, 2], contracting_dims = [2, 3] x [1, 3] : (tensor<2x2x5x3x5xf64>, tensor<2x5x2x3x4xf64>) -> tensor<2x2x5x4xf64>
    %50 = stablehlo.transpose %49, dims = [0, 2, 1, 3] : (tensor<2x2x5x4xf64>) -> tensor<2x5x2x4xf64>
    return %29, %48, %50, %31 : tensor<2x5x6x4xf64>, tensor<2x5x6x4xf64>, tensor<2x5x2x4xf64>, tensor<2x5x2x4xf64>
  }
}
