module @jit_constrained_attention attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=2]> {stablehlo.mesh = {axes = [{name = "data", size = 2 : i64}, {name = "model", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}, {}]>}, %arg1: tensor<16x48xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}) -> (tensor<4x8x4x4xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x48xf32>) -> tensor<4x8x48xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {}, {"model"}]> : tensor<4x8x48xf32>
    %2 = stablehlo.slice %1 [0:4, 0:8, 0:16] : (tensor<4x8x48xf32>) -> tensor<4x8x16xf32>
    %3 = stablehlo.slice %1 [0:4, 0:8, 16:32] : (tensor<4x8x48xf32>) -> tensor<4x8x16xf32>
    %4 = stablehlo.slice %1 [0:4, 0:8, 32:48] : (tensor<4x8x48xf32>) -> tensor<4x8x16xf32>
    %5 = stablehlo.reshape %2 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %6 = stablehlo.reshape %3 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %7 = stablehlo.reshape %4 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %8 = sdy.sharding_constraint %5 <@mesh, [{"data"}, {?}, {"model"}, {}]> : tensor<4x8x4x4xf32>
    %9 = stablehlo.dot_general %8, %6, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %10 = stablehlo.reduce(%9 init: %cst) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4x8xf32>
    %12 = stablehlo.maximum %11, %10 : tensor<4x4x8xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %15 = stablehlo.subtract %9, %14 : tensor<4x4x8x8xf32>
    %16 = stablehlo.exponential %15 : tensor<4x4x8x8xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %17 = stablehlo.reduce(%16 init: %cst_1) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %20 = stablehlo.divide %16, %19 : tensor<4x4x8x8xf32>
    %21 = stablehlo.dot_general %7, %20, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %22 = stablehlo.transpose %21, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %23 = sdy.sharding_constraint %22 <@mesh, [{"data", "model"}, {}, {}, {}]> : tensor<4x8x4x4xf32>
    return %23 : tensor<4x8x4x4xf32>
  }
}
