// A mask that is an input may hide all keys of a query, where a softmax over finite numbers still gives weights. The ops
// stay.
// RUN: attention
// ABSENT: partita.attention
// EQUAL: exact
module {
  func.func @main(%q: tensor<2x5x3x4xf64>, %k: tensor<2x5x3x4xf64>, %v: tensor<2x5x3x4xf64>, %dout: tensor<2x5x3x4xf64>, %seen: tensor<2x5xi1>) -> (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %1 = stablehlo.constant dense<2.5> : tensor<f64>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %3 = stablehlo.divide %0, %2 : tensor<2x3x5x5xf64>
    %4 = stablehlo.broadcast_in_dim %seen, dims = [0, 3] : (tensor<2x5xi1>) -> tensor<2x3x5x5xi1>
    %5 = stablehlo.constant dense<-1.0e+09> : tensor<f64>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %7 = stablehlo.select %4, %3, %6 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
    %8 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %9 = stablehlo.reduce(%7 init: %8) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %10 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %11 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f64>) -> tensor<2x3x5xf64>
    %12 = stablehlo.maximum %11, %9 : tensor<2x3x5xf64>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %15 = stablehlo.subtract %7, %14 : tensor<2x3x5x5xf64>
    %16 = stablehlo.exponential %15 : tensor<2x3x5x5xf64>
    %17 = stablehlo.constant dense<0.0> : tensor<f64>
    %18 = stablehlo.reduce(%16 init: %17) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %21 = stablehlo.divide %16, %20 : tensor<2x3x5x5xf64>
    %22 = stablehlo.constant dense<1.0> : tensor<f64>
    %23 = stablehlo.broadcast_in_dim %22, dims = [] : (tensor<f64>) -> tensor<2x3x5x1xf64>
    %24 = stablehlo.multiply %19, %19 : tensor<2x3x5x1xf64>
    %25 = stablehlo.divide %23, %24 : tensor<2x3x5x1xf64>
    %26 = stablehlo.dot_general %v, %21, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x5x3x4xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %27 = stablehlo.transpose %26, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %28 = stablehlo.transpose %dout, dims = [0, 2, 3, 1] : (tensor<2x5x3x4xf64>) -> tensor<2x3x4x5xf64>
    %29 = stablehlo.dot_general %28, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3] : (tensor<2x3x4x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x5xf64>
    %30 = stablehlo.dot_general %28, %21, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x4x5xf64>, tensor<2x3x5x5xf64>) -> tensor<2x3x4x5xf64>
    %31 = stablehlo.transpose %30, dims = [0, 3, 1, 2] : (tensor<2x3x4x5xf64>) -> tensor<2x5x3x4xf64>
    %32 = stablehlo.broadcast_in_dim %25, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %33 = stablehlo.multiply %29, %32 : tensor<2x3x5x5xf64>
    %34 = stablehlo.multiply %33, %16 : tensor<2x3x5x5xf64>
    %35 = stablehlo.constant dense<0.0> : tensor<f64>
    %36 = stablehlo.reduce(%34 init: %35) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x5xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %37 = stablehlo.reshape %36 : (tensor<2x3x5xf64>) -> tensor<2x3x5x1xf64>
    %38 = stablehlo.negate %37 : tensor<2x3x5x1xf64>
    %39 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2, 3] : (tensor<2x3x5x1xf64>) -> tensor<2x3x5x5xf64>
    %40 = stablehlo.divide %29, %39 : tensor<2x3x5x5xf64>
    %41 = stablehlo.constant dense<0.0> : tensor<f64>
    %42 = stablehlo.reduce(%38 init: %41) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x1xf64>, tensor<f64>) -> tensor<2x3x5xf64>
    %43 = stablehlo.broadcast_in_dim %42, dims = [0, 1, 2] : (tensor<2x3x5xf64>) -> tensor<2x3x5x5xf64>
    %44 = stablehlo.add %40, %43 : tensor<2x3x5x5xf64>
    %45 = stablehlo.multiply %44, %16 : tensor<2x3x5x5xf64>
    %46 = stablehlo.constant dense<0.0> : tensor<f64>
    %47 = stablehlo.broadcast_in_dim %46, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %48 = stablehlo.select %4, %45, %47 : tensor<2x3x5x5xi1>, tensor<2x3x5x5xf64>
    %49 = stablehlo.constant dense<2.5> : tensor<f64>
    %50 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<f64>) -> tensor<2x3x5x5xf64>
    %51 = stablehlo.divide %48, %50 : tensor<2x3x5x5xf64>
    %52 = stablehlo.dot_general %51, %q, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %53 = stablehlo.transpose %52, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    %54 = stablehlo.dot_general %51, %k, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<2x3x5x5xf64>, tensor<2x5x3x4xf64>) -> tensor<2x3x5x4xf64>
    %55 = stablehlo.transpose %54, dims = [0, 2, 1, 3] : (tensor<2x3x5x4xf64>) -> tensor<2x5x3x4xf64>
    return %27, %55, %53, %31 : tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>, tensor<2x5x3x4xf64>
  }
}
