module @jit_transformer_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<64x32xf32>, %arg1: tensor<16x32xf32>, %arg2: tensor<32xf32>, %arg3: tensor<32xf32>, %arg4: tensor<32x32xf32>, %arg5: tensor<32x32xf32>, %arg6: tensor<32x32xf32>, %arg7: tensor<32x32xf32>, %arg8: tensor<32xf32>, %arg9: tensor<32xf32>, %arg10: tensor<32x128xf32>, %arg11: tensor<128x32xf32>, %arg12: tensor<32xf32>, %arg13: tensor<32xf32>, %arg14: tensor<32x32xf32>, %arg15: tensor<32x32xf32>, %arg16: tensor<32x32xf32>, %arg17: tensor<32x32xf32>, %arg18: tensor<32xf32>, %arg19: tensor<32xf32>, %arg20: tensor<32x128xf32>, %arg21: tensor<128x32xf32>, %arg22: tensor<32xf32>, %arg23: tensor<32xf32>, %arg24: tensor<32x64xf32>, %arg25: tensor<4x16xi32>, %arg26: tensor<4x16xi32>) -> (tensor<64x32xf32> {jax.result_info = "result[0]"}, tensor<16x32xf32> {jax.result_info = "result[1]"}, tensor<32xf32> {jax.result_info = "result[2]"}, tensor<32xf32> {jax.result_info = "result[3]"}, tensor<32x32xf32> {jax.result_info = "result[4]"}, tensor<32x32xf32> {jax.result_info = "result[5]"}, tensor<32x32xf32> {jax.result_info = "result[6]"}, tensor<32x32xf32> {jax.result_info = "result[7]"}, tensor<32xf32> {jax.result_info = "result[8]"}, tensor<32xf32> {jax.result_info = "result[9]"}, tensor<32x128xf32> {jax.result_info = "result[10]"}, tensor<128x32xf32> {jax.result_info = "result[11]"}, tensor<32xf32> {jax.result_info = "result[12]"}, tensor<32xf32> {jax.result_info = "result[13]"}, tensor<32x32xf32> {jax.result_info = "result[14]"}, tensor<32x32xf32> {jax.result_info = "result[15]"}, tensor<32x32xf32> {jax.result_info = "result[16]"}, tensor<32x32xf32> {jax.result_info = "result[17]"}, tensor<32xf32> {jax.result_info = "result[18]"}, tensor<32xf32> {jax.result_info = "result[19]"}, tensor<32x128xf32> {jax.result_info = "result[20]"}, tensor<128x32xf32> {jax.result_info = "result[21]"}, tensor<32xf32> {jax.result_info = "result[22]"}, tensor<32xf32> {jax.result_info = "result[23]"}, tensor<32x64xf32> {jax.result_info = "result[24]"}, tensor<f32> {jax.result_info = "result[25]"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x16xi32>
    %1 = stablehlo.compare LT, %arg25, %0, SIGNED : (tensor<4x16xi32>, tensor<4x16xi32>) -> tensor<4x16xi1>
    %c_0 = stablehlo.constant dense<64> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x16xi32>
    %3 = stablehlo.add %arg25, %2 : tensor<4x16xi32>
    %4 = stablehlo.select %1, %3, %arg25 : tensor<4x16xi1>, tensor<4x16xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x16xi32>) -> tensor<4x16x1xi32>
    %6 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<64x32xf32>, tensor<4x16x1xi32>) -> tensor<4x16x32xf32>
    %7 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<16x32xf32>) -> tensor<1x16x32xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<1x16x32xf32>) -> tensor<4x16x32xf32>
    %9 = stablehlo.add %6, %8 : tensor<4x16x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.reduce(%9 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_1 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %13 = stablehlo.divide %11, %12 : tensor<4x16x1xf32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %15 = stablehlo.subtract %9, %14 : tensor<4x16x32xf32>
    %16 = stablehlo.multiply %15, %15 : tensor<4x16x32xf32>
    %cst_2 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x16x32xf32>
    %18 = stablehlo.multiply %17, %15 : tensor<4x16x32xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %19 = stablehlo.reduce(%16 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_4 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %22 = stablehlo.divide %20, %21 : tensor<4x16x1xf32>
    %23 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %24 = stablehlo.subtract %9, %23 : tensor<4x16x32xf32>
    %cst_5 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %26 = stablehlo.add %22, %25 : tensor<4x16x1xf32>
    %27 = stablehlo.rsqrt %26 : tensor<4x16x1xf32>
    %28 = stablehlo.divide %27, %26 : tensor<4x16x1xf32>
    %cst_6 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %30 = stablehlo.multiply %29, %28 : tensor<4x16x1xf32>
    %31 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %32 = stablehlo.multiply %24, %31 : tensor<4x16x32xf32>
    %33 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %34 = stablehlo.broadcast_in_dim %33, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %35 = stablehlo.multiply %32, %34 : tensor<4x16x32xf32>
    %36 = stablehlo.broadcast_in_dim %arg3, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %38 = stablehlo.add %35, %37 : tensor<4x16x32xf32>
    %39 = stablehlo.dot_general %38, %arg4, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %40 = stablehlo.reshape %39 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %41 = stablehlo.dot_general %38, %arg5, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %42 = stablehlo.reshape %41 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %43 = stablehlo.dot_general %38, %arg6, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %44 = stablehlo.reshape %43 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %45 = stablehlo.dot_general %40, %42, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x16x4x8xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x16xf32>
    %cst_7 = stablehlo.constant dense<2.82842708> : tensor<f32>
    %46 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x4x16x16xf32>
    %47 = stablehlo.divide %45, %46 : tensor<4x4x16x16xf32>
    %c_8 = stablehlo.constant dense<true> : tensor<i1>
    %48 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<i1>) -> tensor<16x16xi1>
    %49 = call @tril(%48) : (tensor<16x16xi1>) -> tensor<16x16xi1>
    %cst_9 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %50:2 = call @_where(%49, %47, %cst_9) : (tensor<16x16xi1>, tensor<4x4x16x16xf32>, tensor<f32>) -> (tensor<4x4x16x16xf32>, tensor<4x4x16x16xi1>)
    %cst_10 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %51 = stablehlo.reduce(%50#0 init: %cst_10) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x16x16xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %cst_11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %52 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x4x16xf32>
    %53 = stablehlo.maximum %52, %51 : tensor<4x4x16xf32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [0, 1, 2] : (tensor<4x4x16xf32>) -> tensor<4x4x16x1xf32>
    %55 = stablehlo.broadcast_in_dim %54, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %56 = stablehlo.subtract %50#0, %55 : tensor<4x4x16x16xf32>
    %57 = stablehlo.exponential %56 : tensor<4x4x16x16xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %58 = stablehlo.reduce(%57 init: %cst_12) applies stablehlo.add across dimensions = [3] : (tensor<4x4x16x16xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %59 = stablehlo.broadcast_in_dim %58, dims = [0, 1, 2] : (tensor<4x4x16xf32>) -> tensor<4x4x16x1xf32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %61 = stablehlo.divide %57, %60 : tensor<4x4x16x16xf32>
    %62 = stablehlo.multiply %59, %59 : tensor<4x4x16x1xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %63 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x4x16x1xf32>
    %64 = stablehlo.divide %63, %62 : tensor<4x4x16x1xf32>
    %65 = stablehlo.dot_general %44, %61, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x16x4x8xf32>, tensor<4x4x16x16xf32>) -> tensor<4x4x8x16xf32>
    %66 = stablehlo.transpose %65, dims = [0, 3, 1, 2] : (tensor<4x4x8x16xf32>) -> tensor<4x16x4x8xf32>
    %67 = stablehlo.reshape %66 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %68 = stablehlo.dot_general %67, %arg7, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %69 = stablehlo.add %9, %68 : tensor<4x16x32xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %70 = stablehlo.reduce(%69 init: %cst_14) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %71 = stablehlo.broadcast_in_dim %70, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_15 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %72 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %73 = stablehlo.divide %71, %72 : tensor<4x16x1xf32>
    %74 = stablehlo.broadcast_in_dim %73, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %75 = stablehlo.subtract %69, %74 : tensor<4x16x32xf32>
    %76 = stablehlo.multiply %75, %75 : tensor<4x16x32xf32>
    %cst_16 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %77 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<4x16x32xf32>
    %78 = stablehlo.multiply %77, %75 : tensor<4x16x32xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %79 = stablehlo.reduce(%76 init: %cst_17) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %80 = stablehlo.broadcast_in_dim %79, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_18 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %82 = stablehlo.divide %80, %81 : tensor<4x16x1xf32>
    %83 = stablehlo.broadcast_in_dim %73, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %84 = stablehlo.subtract %69, %83 : tensor<4x16x32xf32>
    %cst_19 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %85 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %86 = stablehlo.add %82, %85 : tensor<4x16x1xf32>
    %87 = stablehlo.rsqrt %86 : tensor<4x16x1xf32>
    %88 = stablehlo.divide %87, %86 : tensor<4x16x1xf32>
    %cst_20 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %89 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %90 = stablehlo.multiply %89, %88 : tensor<4x16x1xf32>
    %91 = stablehlo.broadcast_in_dim %87, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %92 = stablehlo.multiply %84, %91 : tensor<4x16x32xf32>
    %93 = stablehlo.broadcast_in_dim %arg8, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %94 = stablehlo.broadcast_in_dim %93, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %95 = stablehlo.multiply %92, %94 : tensor<4x16x32xf32>
    %96 = stablehlo.broadcast_in_dim %arg9, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %97 = stablehlo.broadcast_in_dim %96, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %98 = stablehlo.add %95, %97 : tensor<4x16x32xf32>
    %99 = stablehlo.dot_general %98, %arg10, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x128xf32>) -> tensor<4x16x128xf32>
    %100 = stablehlo.multiply %99, %99 : tensor<4x16x128xf32>
    %101 = stablehlo.multiply %100, %99 : tensor<4x16x128xf32>
    %102 = stablehlo.multiply %99, %99 : tensor<4x16x128xf32>
    %cst_21 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %103 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %104 = stablehlo.multiply %103, %102 : tensor<4x16x128xf32>
    %cst_22 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %105 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %106 = stablehlo.multiply %105, %101 : tensor<4x16x128xf32>
    %107 = stablehlo.add %99, %106 : tensor<4x16x128xf32>
    %cst_23 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %108 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %109 = stablehlo.multiply %108, %107 : tensor<4x16x128xf32>
    %110 = stablehlo.tanh %109 : tensor<4x16x128xf32>
    %cst_24 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %111 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %112 = stablehlo.subtract %111, %110 : tensor<4x16x128xf32>
    %cst_25 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %113 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %114 = stablehlo.add %113, %110 : tensor<4x16x128xf32>
    %cst_26 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %115 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %116 = stablehlo.multiply %115, %114 : tensor<4x16x128xf32>
    %117 = stablehlo.multiply %99, %116 : tensor<4x16x128xf32>
    %118 = stablehlo.dot_general %117, %arg11, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x128xf32>, tensor<128x32xf32>) -> tensor<4x16x32xf32>
    %119 = stablehlo.add %69, %118 : tensor<4x16x32xf32>
    %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %120 = stablehlo.reduce(%119 init: %cst_27) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %121 = stablehlo.broadcast_in_dim %120, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_28 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %122 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %123 = stablehlo.divide %121, %122 : tensor<4x16x1xf32>
    %124 = stablehlo.broadcast_in_dim %123, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %125 = stablehlo.subtract %119, %124 : tensor<4x16x32xf32>
    %126 = stablehlo.multiply %125, %125 : tensor<4x16x32xf32>
    %cst_29 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %127 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<4x16x32xf32>
    %128 = stablehlo.multiply %127, %125 : tensor<4x16x32xf32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %129 = stablehlo.reduce(%126 init: %cst_30) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %130 = stablehlo.broadcast_in_dim %129, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_31 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %131 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %132 = stablehlo.divide %130, %131 : tensor<4x16x1xf32>
    %133 = stablehlo.broadcast_in_dim %123, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %134 = stablehlo.subtract %119, %133 : tensor<4x16x32xf32>
    %cst_32 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %135 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %136 = stablehlo.add %132, %135 : tensor<4x16x1xf32>
    %137 = stablehlo.rsqrt %136 : tensor<4x16x1xf32>
    %138 = stablehlo.divide %137, %136 : tensor<4x16x1xf32>
    %cst_33 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %139 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %140 = stablehlo.multiply %139, %138 : tensor<4x16x1xf32>
    %141 = stablehlo.broadcast_in_dim %137, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %142 = stablehlo.multiply %134, %141 : tensor<4x16x32xf32>
    %143 = stablehlo.broadcast_in_dim %arg12, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %144 = stablehlo.broadcast_in_dim %143, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %145 = stablehlo.multiply %142, %144 : tensor<4x16x32xf32>
    %146 = stablehlo.broadcast_in_dim %arg13, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %147 = stablehlo.broadcast_in_dim %146, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %148 = stablehlo.add %145, %147 : tensor<4x16x32xf32>
    %149 = stablehlo.dot_general %148, %arg14, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %150 = stablehlo.reshape %149 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %151 = stablehlo.dot_general %148, %arg15, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %152 = stablehlo.reshape %151 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %153 = stablehlo.dot_general %148, %arg16, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %154 = stablehlo.reshape %153 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %155 = stablehlo.dot_general %150, %152, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x16x4x8xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x16xf32>
    %cst_34 = stablehlo.constant dense<2.82842708> : tensor<f32>
    %156 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<4x4x16x16xf32>
    %157 = stablehlo.divide %155, %156 : tensor<4x4x16x16xf32>
    %c_35 = stablehlo.constant dense<true> : tensor<i1>
    %158 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<i1>) -> tensor<16x16xi1>
    %159 = call @tril(%158) : (tensor<16x16xi1>) -> tensor<16x16xi1>
    %cst_36 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %160:2 = call @_where(%159, %157, %cst_36) : (tensor<16x16xi1>, tensor<4x4x16x16xf32>, tensor<f32>) -> (tensor<4x4x16x16xf32>, tensor<4x4x16x16xi1>)
    %cst_37 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %161 = stablehlo.reduce(%160#0 init: %cst_37) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x16x16xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %cst_38 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %162 = stablehlo.broadcast_in_dim %cst_38, dims = [] : (tensor<f32>) -> tensor<4x4x16xf32>
    %163 = stablehlo.maximum %162, %161 : tensor<4x4x16xf32>
    %164 = stablehlo.broadcast_in_dim %163, dims = [0, 1, 2] : (tensor<4x4x16xf32>) -> tensor<4x4x16x1xf32>
    %165 = stablehlo.broadcast_in_dim %164, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %166 = stablehlo.subtract %160#0, %165 : tensor<4x4x16x16xf32>
    %167 = stablehlo.exponential %166 : tensor<4x4x16x16xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %168 = stablehlo.reduce(%167 init: %cst_39) applies stablehlo.add across dimensions = [3] : (tensor<4x4x16x16xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %169 = stablehlo.broadcast_in_dim %168, dims = [0, 1, 2] : (tensor<4x4x16xf32>) -> tensor<4x4x16x1xf32>
    %170 = stablehlo.broadcast_in_dim %169, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %171 = stablehlo.divide %167, %170 : tensor<4x4x16x16xf32>
    %172 = stablehlo.multiply %169, %169 : tensor<4x4x16x1xf32>
    %cst_40 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %173 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<4x4x16x1xf32>
    %174 = stablehlo.divide %173, %172 : tensor<4x4x16x1xf32>
    %175 = stablehlo.dot_general %154, %171, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x16x4x8xf32>, tensor<4x4x16x16xf32>) -> tensor<4x4x8x16xf32>
    %176 = stablehlo.transpose %175, dims = [0, 3, 1, 2] : (tensor<4x4x8x16xf32>) -> tensor<4x16x4x8xf32>
    %177 = stablehlo.reshape %176 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %178 = stablehlo.dot_general %177, %arg17, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %179 = stablehlo.add %119, %178 : tensor<4x16x32xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %180 = stablehlo.reduce(%179 init: %cst_41) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %181 = stablehlo.broadcast_in_dim %180, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_42 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %182 = stablehlo.broadcast_in_dim %cst_42, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %183 = stablehlo.divide %181, %182 : tensor<4x16x1xf32>
    %184 = stablehlo.broadcast_in_dim %183, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %185 = stablehlo.subtract %179, %184 : tensor<4x16x32xf32>
    %186 = stablehlo.multiply %185, %185 : tensor<4x16x32xf32>
    %cst_43 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %187 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<4x16x32xf32>
    %188 = stablehlo.multiply %187, %185 : tensor<4x16x32xf32>
    %cst_44 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %189 = stablehlo.reduce(%186 init: %cst_44) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %190 = stablehlo.broadcast_in_dim %189, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_45 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %191 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %192 = stablehlo.divide %190, %191 : tensor<4x16x1xf32>
    %193 = stablehlo.broadcast_in_dim %183, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %194 = stablehlo.subtract %179, %193 : tensor<4x16x32xf32>
    %cst_46 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %195 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %196 = stablehlo.add %192, %195 : tensor<4x16x1xf32>
    %197 = stablehlo.rsqrt %196 : tensor<4x16x1xf32>
    %198 = stablehlo.divide %197, %196 : tensor<4x16x1xf32>
    %cst_47 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %199 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %200 = stablehlo.multiply %199, %198 : tensor<4x16x1xf32>
    %201 = stablehlo.broadcast_in_dim %197, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %202 = stablehlo.multiply %194, %201 : tensor<4x16x32xf32>
    %203 = stablehlo.broadcast_in_dim %arg18, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %204 = stablehlo.broadcast_in_dim %203, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %205 = stablehlo.multiply %202, %204 : tensor<4x16x32xf32>
    %206 = stablehlo.broadcast_in_dim %arg19, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %207 = stablehlo.broadcast_in_dim %206, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %208 = stablehlo.add %205, %207 : tensor<4x16x32xf32>
    %209 = stablehlo.dot_general %208, %arg20, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x128xf32>) -> tensor<4x16x128xf32>
    %210 = stablehlo.multiply %209, %209 : tensor<4x16x128xf32>
    %211 = stablehlo.multiply %210, %209 : tensor<4x16x128xf32>
    %212 = stablehlo.multiply %209, %209 : tensor<4x16x128xf32>
    %cst_48 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %213 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %214 = stablehlo.multiply %213, %212 : tensor<4x16x128xf32>
    %cst_49 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %215 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %216 = stablehlo.multiply %215, %211 : tensor<4x16x128xf32>
    %217 = stablehlo.add %209, %216 : tensor<4x16x128xf32>
    %cst_50 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %218 = stablehlo.broadcast_in_dim %cst_50, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %219 = stablehlo.multiply %218, %217 : tensor<4x16x128xf32>
    %220 = stablehlo.tanh %219 : tensor<4x16x128xf32>
    %cst_51 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %221 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %222 = stablehlo.subtract %221, %220 : tensor<4x16x128xf32>
    %cst_52 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %223 = stablehlo.broadcast_in_dim %cst_52, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %224 = stablehlo.add %223, %220 : tensor<4x16x128xf32>
    %cst_53 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %225 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %226 = stablehlo.multiply %225, %224 : tensor<4x16x128xf32>
    %227 = stablehlo.multiply %209, %226 : tensor<4x16x128xf32>
    %228 = stablehlo.dot_general %227, %arg21, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x128xf32>, tensor<128x32xf32>) -> tensor<4x16x32xf32>
    %229 = stablehlo.add %179, %228 : tensor<4x16x32xf32>
    %cst_54 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %230 = stablehlo.reduce(%229 init: %cst_54) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %231 = stablehlo.broadcast_in_dim %230, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_55 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %232 = stablehlo.broadcast_in_dim %cst_55, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %233 = stablehlo.divide %231, %232 : tensor<4x16x1xf32>
    %234 = stablehlo.broadcast_in_dim %233, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %235 = stablehlo.subtract %229, %234 : tensor<4x16x32xf32>
    %236 = stablehlo.multiply %235, %235 : tensor<4x16x32xf32>
    %cst_56 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %237 = stablehlo.broadcast_in_dim %cst_56, dims = [] : (tensor<f32>) -> tensor<4x16x32xf32>
    %238 = stablehlo.multiply %237, %235 : tensor<4x16x32xf32>
    %cst_57 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %239 = stablehlo.reduce(%236 init: %cst_57) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %240 = stablehlo.broadcast_in_dim %239, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_58 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %241 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %242 = stablehlo.divide %240, %241 : tensor<4x16x1xf32>
    %243 = stablehlo.broadcast_in_dim %233, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %244 = stablehlo.subtract %229, %243 : tensor<4x16x32xf32>
    %cst_59 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %245 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %246 = stablehlo.add %242, %245 : tensor<4x16x1xf32>
    %247 = stablehlo.rsqrt %246 : tensor<4x16x1xf32>
    %248 = stablehlo.divide %247, %246 : tensor<4x16x1xf32>
    %cst_60 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %249 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %250 = stablehlo.multiply %249, %248 : tensor<4x16x1xf32>
    %251 = stablehlo.broadcast_in_dim %247, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %252 = stablehlo.multiply %244, %251 : tensor<4x16x32xf32>
    %253 = stablehlo.broadcast_in_dim %arg22, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %254 = stablehlo.broadcast_in_dim %253, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %255 = stablehlo.multiply %252, %254 : tensor<4x16x32xf32>
    %256 = stablehlo.broadcast_in_dim %arg23, dims = [2] : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %257 = stablehlo.broadcast_in_dim %256, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %258 = stablehlo.add %255, %257 : tensor<4x16x32xf32>
    %259 = stablehlo.dot_general %258, %arg24, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x64xf32>) -> tensor<4x16x64xf32>
    %260:3 = call @log_softmax(%259) : (tensor<4x16x64xf32>) -> (tensor<4x16x64xf32>, tensor<4x16x64xf32>, tensor<4x16x1xf32>)
    %261 = stablehlo.broadcast_in_dim %arg26, dims = [0, 1] : (tensor<4x16xi32>) -> tensor<4x16x1xi32>
    %262:2 = call @take_along_axis(%260#0, %261) : (tensor<4x16x64xf32>, tensor<4x16x1xi32>) -> (tensor<4x16x1xf32>, tensor<4x16x1x1xi32>)
    %cst_61 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %263 = stablehlo.reduce(%262#0 init: %cst_61) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<f32>
    %cst_62 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %264 = stablehlo.divide %263, %cst_62 : tensor<f32>
    %265 = stablehlo.negate %264 : tensor<f32>
    %cst_63 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %266 = stablehlo.negate %cst_63 : tensor<f32>
    %cst_64 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %267 = stablehlo.divide %266, %cst_64 : tensor<f32>
    %268 = stablehlo.broadcast_in_dim %267, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %269 = call @take_along_axis_0(%262#1, %268) : (tensor<4x16x1x1xi32>, tensor<4x16x1xf32>) -> tensor<4x16x64xf32>
    %270 = call @log_softmax_1(%260#1, %260#2, %269) : (tensor<4x16x64xf32>, tensor<4x16x1xf32>, tensor<4x16x64xf32>) -> tensor<4x16x64xf32>
    %271 = stablehlo.dot_general %270, %258, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x64xf32>, tensor<4x16x32xf32>) -> tensor<64x32xf32>
    %272 = stablehlo.transpose %271, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
    %273 = stablehlo.dot_general %270, %arg24, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x64xf32>, tensor<32x64xf32>) -> tensor<4x16x32xf32>
    %cst_65 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %274 = stablehlo.reduce(%273 init: %cst_65) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %275 = stablehlo.reshape %274 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %276 = stablehlo.reduce(%275 init: %cst_66) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %277 = stablehlo.multiply %252, %273 : tensor<4x16x32xf32>
    %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %278 = stablehlo.reduce(%277 init: %cst_67) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %279 = stablehlo.reshape %278 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %280 = stablehlo.broadcast_in_dim %253, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %281 = stablehlo.multiply %273, %280 : tensor<4x16x32xf32>
    %cst_68 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %282 = stablehlo.reduce(%279 init: %cst_68) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %283 = stablehlo.multiply %244, %281 : tensor<4x16x32xf32>
    %cst_69 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %284 = stablehlo.reduce(%283 init: %cst_69) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %285 = stablehlo.reshape %284 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %286 = stablehlo.broadcast_in_dim %247, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %287 = stablehlo.multiply %281, %286 : tensor<4x16x32xf32>
    %288 = stablehlo.multiply %285, %250 : tensor<4x16x1xf32>
    %289 = stablehlo.negate %287 : tensor<4x16x32xf32>
    %cst_70 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %290 = stablehlo.reduce(%289 init: %cst_70) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %291 = stablehlo.reshape %290 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %cst_71 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %292 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %293 = stablehlo.divide %288, %292 : tensor<4x16x1xf32>
    %cst_72 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %294 = stablehlo.reduce(%293 init: %cst_72) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %295 = stablehlo.broadcast_in_dim %294, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %296 = stablehlo.multiply %295, %238 : tensor<4x16x32xf32>
    %297 = stablehlo.negate %296 : tensor<4x16x32xf32>
    %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %298 = stablehlo.reduce(%297 init: %cst_73) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %299 = stablehlo.reshape %298 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %300 = stablehlo.add %287, %296 : tensor<4x16x32xf32>
    %301 = stablehlo.add %291, %299 : tensor<4x16x1xf32>
    %cst_74 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %302 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %303 = stablehlo.divide %301, %302 : tensor<4x16x1xf32>
    %cst_75 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %304 = stablehlo.reduce(%303 init: %cst_75) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %305 = stablehlo.broadcast_in_dim %304, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %306 = stablehlo.add %300, %305 : tensor<4x16x32xf32>
    %307 = stablehlo.dot_general %306, %227, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x128xf32>) -> tensor<32x128xf32>
    %308 = stablehlo.transpose %307, dims = [1, 0] : (tensor<32x128xf32>) -> tensor<128x32xf32>
    %309 = stablehlo.dot_general %306, %arg21, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<128x32xf32>) -> tensor<4x16x128xf32>
    %310 = stablehlo.multiply %209, %309 : tensor<4x16x128xf32>
    %311 = stablehlo.multiply %309, %226 : tensor<4x16x128xf32>
    %cst_76 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %312 = stablehlo.broadcast_in_dim %cst_76, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %313 = stablehlo.multiply %312, %310 : tensor<4x16x128xf32>
    %314 = stablehlo.multiply %313, %222 : tensor<4x16x128xf32>
    %315 = stablehlo.multiply %314, %220 : tensor<4x16x128xf32>
    %316 = stablehlo.add %314, %315 : tensor<4x16x128xf32>
    %cst_77 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %317 = stablehlo.broadcast_in_dim %cst_77, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %318 = stablehlo.multiply %317, %316 : tensor<4x16x128xf32>
    %319 = stablehlo.add %311, %318 : tensor<4x16x128xf32>
    %cst_78 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %320 = stablehlo.broadcast_in_dim %cst_78, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %321 = stablehlo.multiply %320, %318 : tensor<4x16x128xf32>
    %322 = stablehlo.multiply %321, %214 : tensor<4x16x128xf32>
    %323 = stablehlo.add %319, %322 : tensor<4x16x128xf32>
    %324 = stablehlo.dot_general %323, %208, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x128xf32>, tensor<4x16x32xf32>) -> tensor<128x32xf32>
    %325 = stablehlo.transpose %324, dims = [1, 0] : (tensor<128x32xf32>) -> tensor<32x128xf32>
    %326 = stablehlo.dot_general %323, %arg20, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x128xf32>, tensor<32x128xf32>) -> tensor<4x16x32xf32>
    %cst_79 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %327 = stablehlo.reduce(%326 init: %cst_79) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %328 = stablehlo.reshape %327 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %cst_80 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %329 = stablehlo.reduce(%328 init: %cst_80) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %330 = stablehlo.multiply %202, %326 : tensor<4x16x32xf32>
    %cst_81 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %331 = stablehlo.reduce(%330 init: %cst_81) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %332 = stablehlo.reshape %331 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %333 = stablehlo.broadcast_in_dim %203, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %334 = stablehlo.multiply %326, %333 : tensor<4x16x32xf32>
    %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %335 = stablehlo.reduce(%332 init: %cst_82) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %336 = stablehlo.multiply %194, %334 : tensor<4x16x32xf32>
    %cst_83 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %337 = stablehlo.reduce(%336 init: %cst_83) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %338 = stablehlo.reshape %337 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %339 = stablehlo.broadcast_in_dim %197, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %340 = stablehlo.multiply %334, %339 : tensor<4x16x32xf32>
    %341 = stablehlo.multiply %338, %200 : tensor<4x16x1xf32>
    %342 = stablehlo.negate %340 : tensor<4x16x32xf32>
    %cst_84 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %343 = stablehlo.reduce(%342 init: %cst_84) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %344 = stablehlo.reshape %343 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %345 = stablehlo.add %306, %340 : tensor<4x16x32xf32>
    %cst_85 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %346 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %347 = stablehlo.divide %341, %346 : tensor<4x16x1xf32>
    %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %348 = stablehlo.reduce(%347 init: %cst_86) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %349 = stablehlo.broadcast_in_dim %348, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %350 = stablehlo.multiply %349, %188 : tensor<4x16x32xf32>
    %351 = stablehlo.negate %350 : tensor<4x16x32xf32>
    %cst_87 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %352 = stablehlo.reduce(%351 init: %cst_87) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %353 = stablehlo.reshape %352 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %354 = stablehlo.add %345, %350 : tensor<4x16x32xf32>
    %355 = stablehlo.add %344, %353 : tensor<4x16x1xf32>
    %cst_88 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %356 = stablehlo.broadcast_in_dim %cst_88, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %357 = stablehlo.divide %355, %356 : tensor<4x16x1xf32>
    %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %358 = stablehlo.reduce(%357 init: %cst_89) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %359 = stablehlo.broadcast_in_dim %358, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %360 = stablehlo.add %354, %359 : tensor<4x16x32xf32>
    %361 = stablehlo.dot_general %360, %177, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %362 = stablehlo.transpose %361, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %363 = stablehlo.dot_general %360, %arg17, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %364 = stablehlo.reshape %363 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %365 = stablehlo.transpose %364, dims = [0, 2, 3, 1] : (tensor<4x16x4x8xf32>) -> tensor<4x4x8x16xf32>
    %366 = stablehlo.dot_general %365, %154, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x16xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x16xf32>
    %367 = stablehlo.dot_general %365, %171, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x16xf32>, tensor<4x4x16x16xf32>) -> tensor<4x4x8x16xf32>
    %368 = stablehlo.transpose %367, dims = [0, 3, 1, 2] : (tensor<4x4x8x16xf32>) -> tensor<4x16x4x8xf32>
    %369 = stablehlo.broadcast_in_dim %174, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %370 = stablehlo.multiply %366, %369 : tensor<4x4x16x16xf32>
    %371 = stablehlo.multiply %370, %167 : tensor<4x4x16x16xf32>
    %cst_90 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %372 = stablehlo.reduce(%371 init: %cst_90) applies stablehlo.add across dimensions = [3] : (tensor<4x4x16x16xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %373 = stablehlo.reshape %372 : (tensor<4x4x16xf32>) -> tensor<4x4x16x1xf32>
    %374 = stablehlo.negate %373 : tensor<4x4x16x1xf32>
    %375 = stablehlo.broadcast_in_dim %169, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %376 = stablehlo.divide %366, %375 : tensor<4x4x16x16xf32>
    %cst_91 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %377 = stablehlo.reduce(%374 init: %cst_91) applies stablehlo.add across dimensions = [3] : (tensor<4x4x16x1xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %378 = stablehlo.broadcast_in_dim %377, dims = [0, 1, 2] : (tensor<4x4x16xf32>) -> tensor<4x4x16x16xf32>
    %379 = stablehlo.add %376, %378 : tensor<4x4x16x16xf32>
    %380 = stablehlo.multiply %379, %167 : tensor<4x4x16x16xf32>
    %381 = call @_where_2(%160#1, %380) : (tensor<4x4x16x16xi1>, tensor<4x4x16x16xf32>) -> tensor<4x4x16x16xf32>
    %cst_92 = stablehlo.constant dense<2.82842708> : tensor<f32>
    %382 = stablehlo.broadcast_in_dim %cst_92, dims = [] : (tensor<f32>) -> tensor<4x4x16x16xf32>
    %383 = stablehlo.divide %381, %382 : tensor<4x4x16x16xf32>
    %384 = stablehlo.dot_general %383, %150, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x16x16xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x8xf32>
    %385 = stablehlo.transpose %384, dims = [0, 2, 1, 3] : (tensor<4x4x16x8xf32>) -> tensor<4x16x4x8xf32>
    %386 = stablehlo.dot_general %383, %152, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x16x16xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x8xf32>
    %387 = stablehlo.transpose %386, dims = [0, 2, 1, 3] : (tensor<4x4x16x8xf32>) -> tensor<4x16x4x8xf32>
    %388 = stablehlo.reshape %368 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %389 = stablehlo.dot_general %388, %148, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %390 = stablehlo.transpose %389, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %391 = stablehlo.dot_general %388, %arg16, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %392 = stablehlo.reshape %385 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %393 = stablehlo.dot_general %392, %148, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %394 = stablehlo.transpose %393, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %395 = stablehlo.dot_general %392, %arg15, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %396 = stablehlo.add %391, %395 : tensor<4x16x32xf32>
    %397 = stablehlo.reshape %387 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %398 = stablehlo.dot_general %397, %148, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %399 = stablehlo.transpose %398, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %400 = stablehlo.dot_general %397, %arg14, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %401 = stablehlo.add %396, %400 : tensor<4x16x32xf32>
    %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %402 = stablehlo.reduce(%401 init: %cst_93) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %403 = stablehlo.reshape %402 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %cst_94 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %404 = stablehlo.reduce(%403 init: %cst_94) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %405 = stablehlo.multiply %142, %401 : tensor<4x16x32xf32>
    %cst_95 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %406 = stablehlo.reduce(%405 init: %cst_95) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %407 = stablehlo.reshape %406 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %408 = stablehlo.broadcast_in_dim %143, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %409 = stablehlo.multiply %401, %408 : tensor<4x16x32xf32>
    %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %410 = stablehlo.reduce(%407 init: %cst_96) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %411 = stablehlo.multiply %134, %409 : tensor<4x16x32xf32>
    %cst_97 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %412 = stablehlo.reduce(%411 init: %cst_97) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %413 = stablehlo.reshape %412 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %414 = stablehlo.broadcast_in_dim %137, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %415 = stablehlo.multiply %409, %414 : tensor<4x16x32xf32>
    %416 = stablehlo.multiply %413, %140 : tensor<4x16x1xf32>
    %417 = stablehlo.negate %415 : tensor<4x16x32xf32>
    %cst_98 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %418 = stablehlo.reduce(%417 init: %cst_98) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %419 = stablehlo.reshape %418 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %420 = stablehlo.add %360, %415 : tensor<4x16x32xf32>
    %cst_99 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %421 = stablehlo.broadcast_in_dim %cst_99, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %422 = stablehlo.divide %416, %421 : tensor<4x16x1xf32>
    %cst_100 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %423 = stablehlo.reduce(%422 init: %cst_100) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %424 = stablehlo.broadcast_in_dim %423, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %425 = stablehlo.multiply %424, %128 : tensor<4x16x32xf32>
    %426 = stablehlo.negate %425 : tensor<4x16x32xf32>
    %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %427 = stablehlo.reduce(%426 init: %cst_101) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %428 = stablehlo.reshape %427 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %429 = stablehlo.add %420, %425 : tensor<4x16x32xf32>
    %430 = stablehlo.add %419, %428 : tensor<4x16x1xf32>
    %cst_102 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %431 = stablehlo.broadcast_in_dim %cst_102, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %432 = stablehlo.divide %430, %431 : tensor<4x16x1xf32>
    %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %433 = stablehlo.reduce(%432 init: %cst_103) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %434 = stablehlo.broadcast_in_dim %433, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %435 = stablehlo.add %429, %434 : tensor<4x16x32xf32>
    %436 = stablehlo.dot_general %435, %117, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x128xf32>) -> tensor<32x128xf32>
    %437 = stablehlo.transpose %436, dims = [1, 0] : (tensor<32x128xf32>) -> tensor<128x32xf32>
    %438 = stablehlo.dot_general %435, %arg11, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<128x32xf32>) -> tensor<4x16x128xf32>
    %439 = stablehlo.multiply %99, %438 : tensor<4x16x128xf32>
    %440 = stablehlo.multiply %438, %116 : tensor<4x16x128xf32>
    %cst_104 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %441 = stablehlo.broadcast_in_dim %cst_104, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %442 = stablehlo.multiply %441, %439 : tensor<4x16x128xf32>
    %443 = stablehlo.multiply %442, %112 : tensor<4x16x128xf32>
    %444 = stablehlo.multiply %443, %110 : tensor<4x16x128xf32>
    %445 = stablehlo.add %443, %444 : tensor<4x16x128xf32>
    %cst_105 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %446 = stablehlo.broadcast_in_dim %cst_105, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %447 = stablehlo.multiply %446, %445 : tensor<4x16x128xf32>
    %448 = stablehlo.add %440, %447 : tensor<4x16x128xf32>
    %cst_106 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %449 = stablehlo.broadcast_in_dim %cst_106, dims = [] : (tensor<f32>) -> tensor<4x16x128xf32>
    %450 = stablehlo.multiply %449, %447 : tensor<4x16x128xf32>
    %451 = stablehlo.multiply %450, %104 : tensor<4x16x128xf32>
    %452 = stablehlo.add %448, %451 : tensor<4x16x128xf32>
    %453 = stablehlo.dot_general %452, %98, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x128xf32>, tensor<4x16x32xf32>) -> tensor<128x32xf32>
    %454 = stablehlo.transpose %453, dims = [1, 0] : (tensor<128x32xf32>) -> tensor<32x128xf32>
    %455 = stablehlo.dot_general %452, %arg10, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x128xf32>, tensor<32x128xf32>) -> tensor<4x16x32xf32>
    %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %456 = stablehlo.reduce(%455 init: %cst_107) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %457 = stablehlo.reshape %456 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %cst_108 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %458 = stablehlo.reduce(%457 init: %cst_108) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %459 = stablehlo.multiply %92, %455 : tensor<4x16x32xf32>
    %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %460 = stablehlo.reduce(%459 init: %cst_109) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %461 = stablehlo.reshape %460 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %462 = stablehlo.broadcast_in_dim %93, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %463 = stablehlo.multiply %455, %462 : tensor<4x16x32xf32>
    %cst_110 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %464 = stablehlo.reduce(%461 init: %cst_110) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %465 = stablehlo.multiply %84, %463 : tensor<4x16x32xf32>
    %cst_111 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %466 = stablehlo.reduce(%465 init: %cst_111) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %467 = stablehlo.reshape %466 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %468 = stablehlo.broadcast_in_dim %87, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %469 = stablehlo.multiply %463, %468 : tensor<4x16x32xf32>
    %470 = stablehlo.multiply %467, %90 : tensor<4x16x1xf32>
    %471 = stablehlo.negate %469 : tensor<4x16x32xf32>
    %cst_112 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %472 = stablehlo.reduce(%471 init: %cst_112) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %473 = stablehlo.reshape %472 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %474 = stablehlo.add %435, %469 : tensor<4x16x32xf32>
    %cst_113 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %475 = stablehlo.broadcast_in_dim %cst_113, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %476 = stablehlo.divide %470, %475 : tensor<4x16x1xf32>
    %cst_114 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %477 = stablehlo.reduce(%476 init: %cst_114) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %478 = stablehlo.broadcast_in_dim %477, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %479 = stablehlo.multiply %478, %78 : tensor<4x16x32xf32>
    %480 = stablehlo.negate %479 : tensor<4x16x32xf32>
    %cst_115 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %481 = stablehlo.reduce(%480 init: %cst_115) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %482 = stablehlo.reshape %481 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %483 = stablehlo.add %474, %479 : tensor<4x16x32xf32>
    %484 = stablehlo.add %473, %482 : tensor<4x16x1xf32>
    %cst_116 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %485 = stablehlo.broadcast_in_dim %cst_116, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %486 = stablehlo.divide %484, %485 : tensor<4x16x1xf32>
    %cst_117 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %487 = stablehlo.reduce(%486 init: %cst_117) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %488 = stablehlo.broadcast_in_dim %487, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %489 = stablehlo.add %483, %488 : tensor<4x16x32xf32>
    %490 = stablehlo.dot_general %489, %67, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %491 = stablehlo.transpose %490, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %492 = stablehlo.dot_general %489, %arg7, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %493 = stablehlo.reshape %492 : (tensor<4x16x32xf32>) -> tensor<4x16x4x8xf32>
    %494 = stablehlo.transpose %493, dims = [0, 2, 3, 1] : (tensor<4x16x4x8xf32>) -> tensor<4x4x8x16xf32>
    %495 = stablehlo.dot_general %494, %44, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x16xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x16xf32>
    %496 = stablehlo.dot_general %494, %61, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x16xf32>, tensor<4x4x16x16xf32>) -> tensor<4x4x8x16xf32>
    %497 = stablehlo.transpose %496, dims = [0, 3, 1, 2] : (tensor<4x4x8x16xf32>) -> tensor<4x16x4x8xf32>
    %498 = stablehlo.broadcast_in_dim %64, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %499 = stablehlo.multiply %495, %498 : tensor<4x4x16x16xf32>
    %500 = stablehlo.multiply %499, %57 : tensor<4x4x16x16xf32>
    %cst_118 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %501 = stablehlo.reduce(%500 init: %cst_118) applies stablehlo.add across dimensions = [3] : (tensor<4x4x16x16xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %502 = stablehlo.reshape %501 : (tensor<4x4x16xf32>) -> tensor<4x4x16x1xf32>
    %503 = stablehlo.negate %502 : tensor<4x4x16x1xf32>
    %504 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<4x4x16x1xf32>) -> tensor<4x4x16x16xf32>
    %505 = stablehlo.divide %495, %504 : tensor<4x4x16x16xf32>
    %cst_119 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %506 = stablehlo.reduce(%503 init: %cst_119) applies stablehlo.add across dimensions = [3] : (tensor<4x4x16x1xf32>, tensor<f32>) -> tensor<4x4x16xf32>
    %507 = stablehlo.broadcast_in_dim %506, dims = [0, 1, 2] : (tensor<4x4x16xf32>) -> tensor<4x4x16x16xf32>
    %508 = stablehlo.add %505, %507 : tensor<4x4x16x16xf32>
    %509 = stablehlo.multiply %508, %57 : tensor<4x4x16x16xf32>
    %510 = call @_where_2(%50#1, %509) : (tensor<4x4x16x16xi1>, tensor<4x4x16x16xf32>) -> tensor<4x4x16x16xf32>
    %cst_120 = stablehlo.constant dense<2.82842708> : tensor<f32>
    %511 = stablehlo.broadcast_in_dim %cst_120, dims = [] : (tensor<f32>) -> tensor<4x4x16x16xf32>
    %512 = stablehlo.divide %510, %511 : tensor<4x4x16x16xf32>
    %513 = stablehlo.dot_general %512, %40, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x16x16xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x8xf32>
    %514 = stablehlo.transpose %513, dims = [0, 2, 1, 3] : (tensor<4x4x16x8xf32>) -> tensor<4x16x4x8xf32>
    %515 = stablehlo.dot_general %512, %42, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x16x16xf32>, tensor<4x16x4x8xf32>) -> tensor<4x4x16x8xf32>
    %516 = stablehlo.transpose %515, dims = [0, 2, 1, 3] : (tensor<4x4x16x8xf32>) -> tensor<4x16x4x8xf32>
    %517 = stablehlo.reshape %497 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %518 = stablehlo.dot_general %517, %38, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %519 = stablehlo.transpose %518, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %520 = stablehlo.dot_general %517, %arg6, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %521 = stablehlo.reshape %514 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %522 = stablehlo.dot_general %521, %38, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %523 = stablehlo.transpose %522, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %524 = stablehlo.dot_general %521, %arg5, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %525 = stablehlo.add %520, %524 : tensor<4x16x32xf32>
    %526 = stablehlo.reshape %516 : (tensor<4x16x4x8xf32>) -> tensor<4x16x32xf32>
    %527 = stablehlo.dot_general %526, %38, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<4x16x32xf32>) -> tensor<32x32xf32>
    %528 = stablehlo.transpose %527, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %529 = stablehlo.dot_general %526, %arg4, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x32xf32>, tensor<32x32xf32>) -> tensor<4x16x32xf32>
    %530 = stablehlo.add %525, %529 : tensor<4x16x32xf32>
    %cst_121 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %531 = stablehlo.reduce(%530 init: %cst_121) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %532 = stablehlo.reshape %531 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %cst_122 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %533 = stablehlo.reduce(%532 init: %cst_122) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %534 = stablehlo.multiply %32, %530 : tensor<4x16x32xf32>
    %cst_123 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %535 = stablehlo.reduce(%534 init: %cst_123) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %536 = stablehlo.reshape %535 : (tensor<32xf32>) -> tensor<1x1x32xf32>
    %537 = stablehlo.broadcast_in_dim %33, dims = [0, 1, 2] : (tensor<1x1x32xf32>) -> tensor<4x16x32xf32>
    %538 = stablehlo.multiply %530, %537 : tensor<4x16x32xf32>
    %cst_124 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %539 = stablehlo.reduce(%536 init: %cst_124) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %540 = stablehlo.multiply %24, %538 : tensor<4x16x32xf32>
    %cst_125 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %541 = stablehlo.reduce(%540 init: %cst_125) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %542 = stablehlo.reshape %541 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %543 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x32xf32>
    %544 = stablehlo.multiply %538, %543 : tensor<4x16x32xf32>
    %545 = stablehlo.multiply %542, %30 : tensor<4x16x1xf32>
    %546 = stablehlo.negate %544 : tensor<4x16x32xf32>
    %cst_126 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %547 = stablehlo.reduce(%546 init: %cst_126) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %548 = stablehlo.reshape %547 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %549 = stablehlo.add %489, %544 : tensor<4x16x32xf32>
    %cst_127 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %550 = stablehlo.broadcast_in_dim %cst_127, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %551 = stablehlo.divide %545, %550 : tensor<4x16x1xf32>
    %cst_128 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %552 = stablehlo.reduce(%551 init: %cst_128) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %553 = stablehlo.broadcast_in_dim %552, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %554 = stablehlo.multiply %553, %18 : tensor<4x16x32xf32>
    %555 = stablehlo.negate %554 : tensor<4x16x32xf32>
    %cst_129 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %556 = stablehlo.reduce(%555 init: %cst_129) applies stablehlo.add across dimensions = [2] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<4x16xf32>
    %557 = stablehlo.reshape %556 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %558 = stablehlo.add %549, %554 : tensor<4x16x32xf32>
    %559 = stablehlo.add %548, %557 : tensor<4x16x1xf32>
    %cst_130 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %560 = stablehlo.broadcast_in_dim %cst_130, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %561 = stablehlo.divide %559, %560 : tensor<4x16x1xf32>
    %cst_131 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %562 = stablehlo.reduce(%561 init: %cst_131) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %563 = stablehlo.broadcast_in_dim %562, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x32xf32>
    %564 = stablehlo.add %558, %563 : tensor<4x16x32xf32>
    %cst_132 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %565 = stablehlo.reduce(%564 init: %cst_132) applies stablehlo.add across dimensions = [0] : (tensor<4x16x32xf32>, tensor<f32>) -> tensor<16x32xf32>
    %566 = stablehlo.reshape %565 : (tensor<16x32xf32>) -> tensor<1x16x32xf32>
    %cst_133 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %567 = stablehlo.reduce(%566 init: %cst_133) applies stablehlo.add across dimensions = [0] : (tensor<1x16x32xf32>, tensor<f32>) -> tensor<16x32xf32>
    %cst_134 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %568 = stablehlo.broadcast_in_dim %cst_134, dims = [] : (tensor<f32>) -> tensor<64x32xf32>
    %569 = "stablehlo.scatter"(%568, %5, %564) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg27: tensor<f32>, %arg28: tensor<f32>):
      %645 = stablehlo.add %arg27, %arg28 : tensor<f32>
      stablehlo.return %645 : tensor<f32>
    }) : (tensor<64x32xf32>, tensor<4x16x1xi32>, tensor<4x16x32xf32>) -> tensor<64x32xf32>
    %cst_135 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %570 = stablehlo.broadcast_in_dim %cst_135, dims = [] : (tensor<f32>) -> tensor<64x32xf32>
    %571 = stablehlo.multiply %570, %569 : tensor<64x32xf32>
    %572 = stablehlo.subtract %arg0, %571 : tensor<64x32xf32>
    %cst_136 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %573 = stablehlo.broadcast_in_dim %cst_136, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %574 = stablehlo.multiply %573, %567 : tensor<16x32xf32>
    %575 = stablehlo.subtract %arg1, %574 : tensor<16x32xf32>
    %cst_137 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %576 = stablehlo.broadcast_in_dim %cst_137, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %577 = stablehlo.multiply %576, %539 : tensor<32xf32>
    %578 = stablehlo.subtract %arg2, %577 : tensor<32xf32>
    %cst_138 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %579 = stablehlo.broadcast_in_dim %cst_138, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %580 = stablehlo.multiply %579, %533 : tensor<32xf32>
    %581 = stablehlo.subtract %arg3, %580 : tensor<32xf32>
    %cst_139 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %582 = stablehlo.broadcast_in_dim %cst_139, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %583 = stablehlo.multiply %582, %528 : tensor<32x32xf32>
    %584 = stablehlo.subtract %arg4, %583 : tensor<32x32xf32>
    %cst_140 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %585 = stablehlo.broadcast_in_dim %cst_140, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %586 = stablehlo.multiply %585, %523 : tensor<32x32xf32>
    %587 = stablehlo.subtract %arg5, %586 : tensor<32x32xf32>
    %cst_141 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %588 = stablehlo.broadcast_in_dim %cst_141, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %589 = stablehlo.multiply %588, %519 : tensor<32x32xf32>
    %590 = stablehlo.subtract %arg6, %589 : tensor<32x32xf32>
    %cst_142 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %591 = stablehlo.broadcast_in_dim %cst_142, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %592 = stablehlo.multiply %591, %491 : tensor<32x32xf32>
    %593 = stablehlo.subtract %arg7, %592 : tensor<32x32xf32>
    %cst_143 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %594 = stablehlo.broadcast_in_dim %cst_143, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %595 = stablehlo.multiply %594, %464 : tensor<32xf32>
    %596 = stablehlo.subtract %arg8, %595 : tensor<32xf32>
    %cst_144 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %597 = stablehlo.broadcast_in_dim %cst_144, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %598 = stablehlo.multiply %597, %458 : tensor<32xf32>
    %599 = stablehlo.subtract %arg9, %598 : tensor<32xf32>
    %cst_145 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %600 = stablehlo.broadcast_in_dim %cst_145, dims = [] : (tensor<f32>) -> tensor<32x128xf32>
    %601 = stablehlo.multiply %600, %454 : tensor<32x128xf32>
    %602 = stablehlo.subtract %arg10, %601 : tensor<32x128xf32>
    %cst_146 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %603 = stablehlo.broadcast_in_dim %cst_146, dims = [] : (tensor<f32>) -> tensor<128x32xf32>
    %604 = stablehlo.multiply %603, %437 : tensor<128x32xf32>
    %605 = stablehlo.subtract %arg11, %604 : tensor<128x32xf32>
    %cst_147 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %606 = stablehlo.broadcast_in_dim %cst_147, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %607 = stablehlo.multiply %606, %410 : tensor<32xf32>
    %608 = stablehlo.subtract %arg12, %607 : tensor<32xf32>
    %cst_148 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %609 = stablehlo.broadcast_in_dim %cst_148, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %610 = stablehlo.multiply %609, %404 : tensor<32xf32>
    %611 = stablehlo.subtract %arg13, %610 : tensor<32xf32>
    %cst_149 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %612 = stablehlo.broadcast_in_dim %cst_149, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %613 = stablehlo.multiply %612, %399 : tensor<32x32xf32>
    %614 = stablehlo.subtract %arg14, %613 : tensor<32x32xf32>
    %cst_150 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %615 = stablehlo.broadcast_in_dim %cst_150, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %616 = stablehlo.multiply %615, %394 : tensor<32x32xf32>
    %617 = stablehlo.subtract %arg15, %616 : tensor<32x32xf32>
    %cst_151 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %618 = stablehlo.broadcast_in_dim %cst_151, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %619 = stablehlo.multiply %618, %390 : tensor<32x32xf32>
    %620 = stablehlo.subtract %arg16, %619 : tensor<32x32xf32>
    %cst_152 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %621 = stablehlo.broadcast_in_dim %cst_152, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %622 = stablehlo.multiply %621, %362 : tensor<32x32xf32>
    %623 = stablehlo.subtract %arg17, %622 : tensor<32x32xf32>
    %cst_153 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %624 = stablehlo.broadcast_in_dim %cst_153, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %625 = stablehlo.multiply %624, %335 : tensor<32xf32>
    %626 = stablehlo.subtract %arg18, %625 : tensor<32xf32>
    %cst_154 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %627 = stablehlo.broadcast_in_dim %cst_154, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %628 = stablehlo.multiply %627, %329 : tensor<32xf32>
    %629 = stablehlo.subtract %arg19, %628 : tensor<32xf32>
    %cst_155 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %630 = stablehlo.broadcast_in_dim %cst_155, dims = [] : (tensor<f32>) -> tensor<32x128xf32>
    %631 = stablehlo.multiply %630, %325 : tensor<32x128xf32>
    %632 = stablehlo.subtract %arg20, %631 : tensor<32x128xf32>
    %cst_156 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %633 = stablehlo.broadcast_in_dim %cst_156, dims = [] : (tensor<f32>) -> tensor<128x32xf32>
    %634 = stablehlo.multiply %633, %308 : tensor<128x32xf32>
    %635 = stablehlo.subtract %arg21, %634 : tensor<128x32xf32>
    %cst_157 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %636 = stablehlo.broadcast_in_dim %cst_157, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %637 = stablehlo.multiply %636, %282 : tensor<32xf32>
    %638 = stablehlo.subtract %arg22, %637 : tensor<32xf32>
    %cst_158 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %639 = stablehlo.broadcast_in_dim %cst_158, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %640 = stablehlo.multiply %639, %276 : tensor<32xf32>
    %641 = stablehlo.subtract %arg23, %640 : tensor<32xf32>
    %cst_159 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %642 = stablehlo.broadcast_in_dim %cst_159, dims = [] : (tensor<f32>) -> tensor<32x64xf32>
    %643 = stablehlo.multiply %642, %272 : tensor<32x64xf32>
    %644 = stablehlo.subtract %arg24, %643 : tensor<32x64xf32>
    return %572, %575, %578, %581, %584, %587, %590, %593, %596, %599, %602, %605, %608, %611, %614, %617, %620, %623, %626, %629, %632, %635, %638, %641, %644, %265 : tensor<64x32xf32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x128xf32>, tensor<128x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x128xf32>, tensor<128x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x64xf32>, tensor<f32>
  }
  func.func private @tril(%arg0: tensor<16x16xi1>) -> tensor<16x16xi1> {
    %0 = stablehlo.iota dim = 0 : tensor<16x16xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<16x16xi32>
    %2 = stablehlo.add %0, %1 : tensor<16x16xi32>
    %3 = stablehlo.iota dim = 1 : tensor<16x16xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<16x16xi32>, tensor<16x16xi32>) -> tensor<16x16xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %5 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i1>) -> tensor<16x16xi1>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<16x16xi1>, tensor<16x16xi1>
    return %6 : tensor<16x16xi1>
  }
  func.func private @_where(%arg0: tensor<16x16xi1>, %arg1: tensor<4x4x16x16xf32>, %arg2: tensor<f32>) -> (tensor<4x4x16x16xf32>, tensor<4x4x16x16xi1>) {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<16x16xi1>) -> tensor<4x4x16x16xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x4x16x16xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<4x4x16x16xi1>, tensor<4x4x16x16xf32>
    return %3, %1 : tensor<4x4x16x16xf32>, tensor<4x4x16x16xi1>
  }
  func.func private @log_softmax(%arg0: tensor<4x16x64xf32>) -> (tensor<4x16x64xf32>, tensor<4x16x64xf32>, tensor<4x16x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [2] : (tensor<4x16x64xf32>, tensor<f32>) -> tensor<4x16xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<4x16xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x64xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x16x64xf32>
    %6 = stablehlo.exponential %5 : tensor<4x16x64xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<4x16x64xf32>, tensor<f32>) -> tensor<4x16xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %9 = stablehlo.log %8 : tensor<4x16x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<4x16x1xf32>) -> tensor<4x16x64xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<4x16x64xf32>
    return %11, %6, %8 : tensor<4x16x64xf32>, tensor<4x16x64xf32>, tensor<4x16x1xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x16x64xf32>, %arg1: tensor<4x16x1xi32>) -> (tensor<4x16x1xf32>, tensor<4x16x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x16x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x16x1xi32>, tensor<4x16x1xi32>) -> tensor<4x16x1xi1>
    %c_0 = stablehlo.constant dense<64> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x16x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<4x16x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x16x1xi1>, tensor<4x16x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<4x16x1xi32>) -> tensor<4x16x1x1xi32>
    %c_1 = stablehlo.constant dense<63> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x16x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x16x1x1xi32>, tensor<4x16x1x1xi32>) -> tensor<4x16x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [3] : (tensor<1xi32>) -> tensor<1x1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x1x1x1xi32>) -> tensor<4x16x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x16x1x1xi32>, tensor<4x16x1x1xi32>) -> tensor<4x16x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<4x16x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [3] : (tensor<4x16x1x1xi1>, tensor<i1>) -> tensor<4x16x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<4x16x64xf32>, tensor<4x16x1x1xi32>) -> tensor<4x16x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<4x16x1xi1>, tensor<4x16x1xf32>
    return %15, %5 : tensor<4x16x1xf32>, tensor<4x16x1x1xi32>
  }
  func.func private @take_along_axis_0(%arg0: tensor<4x16x1x1xi32>, %arg1: tensor<4x16x1xf32>) -> tensor<4x16x64xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16x64xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x16x64xf32>, tensor<4x16x1x1xi32>, tensor<4x16x1xf32>) -> tensor<4x16x64xf32>
    return %1 : tensor<4x16x64xf32>
  }
  func.func private @log_softmax_1(%arg0: tensor<4x16x64xf32>, %arg1: tensor<4x16x1xf32>, %arg2: tensor<4x16x64xf32>) -> tensor<4x16x64xf32> {
    %0 = stablehlo.negate %arg2 : tensor<4x16x64xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x16x64xf32>, tensor<f32>) -> tensor<4x16xf32>
    %2 = stablehlo.reshape %1 : (tensor<4x16xf32>) -> tensor<4x16x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<4x16x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<4x16x1xf32>, tensor<f32>) -> tensor<4x16xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x64xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<4x16x64xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<4x16x64xf32>
    return %7 : tensor<4x16x64xf32>
  }
  func.func private @_where_2(%arg0: tensor<4x4x16x16xi1>, %arg1: tensor<4x4x16x16xf32>) -> tensor<4x4x16x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4x16x16xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<4x4x16x16xi1>, tensor<4x4x16x16xf32>
    return %1 : tensor<4x4x16x16xf32>
  }
}
