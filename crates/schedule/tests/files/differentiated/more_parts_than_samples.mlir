// A batch of four rows.
// loss = result[3], gradients = grad.bias, batched = 3 4, carried = 0:0 1:1 2:2
// microbatches = 5, stages = 1
// error = E225 5
module @jit_step {
  func.func public @main(%arg0: tensor<3x5xf64>, %arg1: tensor<5xf64>, %arg2: tensor<5x2xf64>, %arg3: tensor<4x3xf64>, %arg4: tensor<4x2xf64>) -> (tensor<3x5xf64> {jax.result_info = "result[0]"}, tensor<5xf64> {jax.result_info = "result[1]"}, tensor<5x2xf64> {jax.result_info = "result[2]"}, tensor<f64> {jax.result_info = "result[3]"}) {
    %0 = stablehlo.dot_general %arg3, %arg0, contracting_dims = [1] x [0] : (tensor<4x3xf64>, tensor<3x5xf64>) -> tensor<4x5xf64>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<5xf64>) -> tensor<4x5xf64>
    %2 = stablehlo.add %0, %1 : tensor<4x5xf64>
    %3 = stablehlo.tanh %2 : tensor<4x5xf64>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f64>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f64>) -> tensor<4x5xf64>
    %5 = stablehlo.multiply %3, %3 : tensor<4x5xf64>
    %6 = stablehlo.subtract %4, %5 : tensor<4x5xf64>
    %7 = stablehlo.dot_general %3, %arg2, contracting_dims = [1] x [0] : (tensor<4x5xf64>, tensor<5x2xf64>) -> tensor<4x2xf64>
    %8 = stablehlo.subtract %7, %arg4 : tensor<4x2xf64>
    %9 = stablehlo.multiply %8, %8 : tensor<4x2xf64>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %10 = stablehlo.reduce(%9 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x2xf64>, tensor<f64>) -> tensor<f64>
    %cst_1 = stablehlo.constant dense<8.000000e+00> : tensor<f64>
    %11 = stablehlo.divide %10, %cst_1 : tensor<f64>
    %cst_2 = stablehlo.constant dense<2.500000e-01> : tensor<f64>
    %12 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f64>) -> tensor<4x2xf64>
    %13 = stablehlo.multiply %12, %8 : tensor<4x2xf64>
    %14 = stablehlo.dot_general %13, %3, contracting_dims = [0] x [0] : (tensor<4x2xf64>, tensor<4x5xf64>) -> tensor<2x5xf64>
    %15 = stablehlo.transpose %14, dims = [1, 0] {partita.role = "grad_of %arg2"} : (tensor<2x5xf64>) -> tensor<5x2xf64>
    %16 = stablehlo.dot_general %13, %arg2, contracting_dims = [1] x [1] : (tensor<4x2xf64>, tensor<5x2xf64>) -> tensor<4x5xf64>
    %17 = stablehlo.multiply %16, %6 : tensor<4x5xf64>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %18 = stablehlo.reduce(%17 init: %cst_3) applies stablehlo.add across dimensions = [0] {partita.name = "grad.bias"} : (tensor<4x5xf64>, tensor<f64>) -> tensor<5xf64>
    %19 = stablehlo.dot_general %arg3, %17, contracting_dims = [0] x [0] {partita.role = "grad_of %arg0"} : (tensor<4x3xf64>, tensor<4x5xf64>) -> tensor<3x5xf64>
    %cst_4 = stablehlo.constant dense<1.000000e-01> : tensor<f64>
    %20 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f64>) -> tensor<3x5xf64>
    %21 = stablehlo.multiply %20, %19 : tensor<3x5xf64>
    %22 = stablehlo.subtract %arg0, %21 : tensor<3x5xf64>
    %23 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f64>) -> tensor<5xf64>
    %24 = stablehlo.multiply %23, %18 : tensor<5xf64>
    %25 = stablehlo.subtract %arg1, %24 : tensor<5xf64>
    %26 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f64>) -> tensor<5x2xf64>
    %27 = stablehlo.multiply %26, %15 : tensor<5x2xf64>
    %28 = stablehlo.subtract %arg2, %27 : tensor<5x2xf64>
    return %22, %25, %28, %11 : tensor<3x5xf64>, tensor<5xf64>, tensor<5x2xf64>, tensor<f64>
  }
}
