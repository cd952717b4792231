module @jit_mlp_adam attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<16xf32>, %arg2: tensor<8x16xf32>, %arg3: tensor<16xf32>, %arg4: tensor<16x16xf32>, %arg5: tensor<4xf32>, %arg6: tensor<16x4xf32>, %arg7: tensor<16xf32>, %arg8: tensor<8x16xf32>, %arg9: tensor<16xf32>, %arg10: tensor<16x16xf32>, %arg11: tensor<4xf32>, %arg12: tensor<16x4xf32>, %arg13: tensor<16xf32>, %arg14: tensor<8x16xf32>, %arg15: tensor<16xf32>, %arg16: tensor<16x16xf32>, %arg17: tensor<4xf32>, %arg18: tensor<16x4xf32>, %arg19: tensor<8x8xf32>, %arg20: tensor<8x4xf32>) -> (tensor<i32> {jax.result_info = "result[0]"}, tensor<16xf32> {jax.result_info = "result[1]"}, tensor<8x16xf32> {jax.result_info = "result[2]"}, tensor<16xf32> {jax.result_info = "result[3]"}, tensor<16x16xf32> {jax.result_info = "result[4]"}, tensor<4xf32> {jax.result_info = "result[5]"}, tensor<16x4xf32> {jax.result_info = "result[6]"}, tensor<16xf32> {jax.result_info = "result[7]"}, tensor<8x16xf32> {jax.result_info = "result[8]"}, tensor<16xf32> {jax.result_info = "result[9]"}, tensor<16x16xf32> {jax.result_info = "result[10]"}, tensor<4xf32> {jax.result_info = "result[11]"}, tensor<16x4xf32> {jax.result_info = "result[12]"}, tensor<16xf32> {jax.result_info = "result[13]"}, tensor<8x16xf32> {jax.result_info = "result[14]"}, tensor<16xf32> {jax.result_info = "result[15]"}, tensor<16x16xf32> {jax.result_info = "result[16]"}, tensor<4xf32> {jax.result_info = "result[17]"}, tensor<16x4xf32> {jax.result_info = "result[18]"}, tensor<f32> {jax.result_info = "result[19]"}) {
    %0 = stablehlo.dot_general %arg19, %arg14, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.broadcast_in_dim %arg13, dims = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x16xf32>) -> tensor<8x16xf32>
    %3 = stablehlo.add %0, %2 : tensor<8x16xf32>
    %4 = call @relu(%3) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %6 = stablehlo.compare GT, %3, %5, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %7 = stablehlo.dot_general %4, %arg16, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %8 = stablehlo.broadcast_in_dim %arg15, dims = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x16xf32>) -> tensor<8x16xf32>
    %10 = stablehlo.add %7, %9 : tensor<8x16xf32>
    %11 = call @relu(%10) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %13 = stablehlo.compare GT, %10, %12, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %14 = stablehlo.dot_general %11, %arg18, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %15 = stablehlo.broadcast_in_dim %arg17, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<8x4xf32>
    %17 = stablehlo.add %14, %16 : tensor<8x4xf32>
    %18 = stablehlo.subtract %17, %arg20 : tensor<8x4xf32>
    %19 = stablehlo.multiply %18, %18 : tensor<8x4xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %21 = stablehlo.multiply %20, %18 : tensor<8x4xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.reduce(%19 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %23 = stablehlo.divide %22, %cst_3 : tensor<f32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_5 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %24 = stablehlo.divide %cst_4, %cst_5 : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %26 = stablehlo.multiply %25, %21 : tensor<8x4xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %27 = stablehlo.reduce(%26 init: %cst_6) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %28 = stablehlo.reshape %27 : (tensor<4xf32>) -> tensor<1x4xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %29 = stablehlo.reduce(%28 init: %cst_7) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %30 = stablehlo.dot_general %26, %11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %31 = stablehlo.transpose %30, dims = [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>
    %32 = stablehlo.dot_general %26, %arg18, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %34 = stablehlo.select %13, %32, %33 : tensor<8x16xi1>, tensor<8x16xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %35 = stablehlo.reduce(%34 init: %cst_9) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %36 = stablehlo.reshape %35 : (tensor<16xf32>) -> tensor<1x16xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %37 = stablehlo.reduce(%36 init: %cst_10) applies stablehlo.add across dimensions = [0] : (tensor<1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %38 = stablehlo.dot_general %34, %4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
    %39 = stablehlo.transpose %38, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %40 = stablehlo.dot_general %34, %arg16, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %42 = stablehlo.select %6, %40, %41 : tensor<8x16xi1>, tensor<8x16xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %43 = stablehlo.reduce(%42 init: %cst_12) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %44 = stablehlo.reshape %43 : (tensor<16xf32>) -> tensor<1x16xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %45 = stablehlo.reduce(%44 init: %cst_13) applies stablehlo.add across dimensions = [0] : (tensor<1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %46 = stablehlo.dot_general %42, %arg19, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %47 = stablehlo.transpose %46, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %cst_14 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %48 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %49 = stablehlo.multiply %48, %45 : tensor<16xf32>
    %cst_15 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %50 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %51 = stablehlo.multiply %50, %arg1 : tensor<16xf32>
    %52 = stablehlo.add %49, %51 : tensor<16xf32>
    %cst_16 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %53 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %54 = stablehlo.multiply %53, %47 : tensor<8x16xf32>
    %cst_17 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %55 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %56 = stablehlo.multiply %55, %arg2 : tensor<8x16xf32>
    %57 = stablehlo.add %54, %56 : tensor<8x16xf32>
    %cst_18 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %58 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %59 = stablehlo.multiply %58, %37 : tensor<16xf32>
    %cst_19 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %60 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %61 = stablehlo.multiply %60, %arg3 : tensor<16xf32>
    %62 = stablehlo.add %59, %61 : tensor<16xf32>
    %cst_20 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %63 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %64 = stablehlo.multiply %63, %39 : tensor<16x16xf32>
    %cst_21 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %65 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %66 = stablehlo.multiply %65, %arg4 : tensor<16x16xf32>
    %67 = stablehlo.add %64, %66 : tensor<16x16xf32>
    %cst_22 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %68 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %69 = stablehlo.multiply %68, %29 : tensor<4xf32>
    %cst_23 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %70 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %71 = stablehlo.multiply %70, %arg5 : tensor<4xf32>
    %72 = stablehlo.add %69, %71 : tensor<4xf32>
    %cst_24 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %73 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %74 = stablehlo.multiply %73, %31 : tensor<16x4xf32>
    %cst_25 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %75 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %76 = stablehlo.multiply %75, %arg6 : tensor<16x4xf32>
    %77 = stablehlo.add %74, %76 : tensor<16x4xf32>
    %78 = stablehlo.multiply %45, %45 : tensor<16xf32>
    %cst_26 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %79 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %80 = stablehlo.multiply %79, %78 : tensor<16xf32>
    %cst_27 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %82 = stablehlo.multiply %81, %arg7 : tensor<16xf32>
    %83 = stablehlo.add %80, %82 : tensor<16xf32>
    %84 = stablehlo.multiply %47, %47 : tensor<8x16xf32>
    %cst_28 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %85 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %86 = stablehlo.multiply %85, %84 : tensor<8x16xf32>
    %cst_29 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %87 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %88 = stablehlo.multiply %87, %arg8 : tensor<8x16xf32>
    %89 = stablehlo.add %86, %88 : tensor<8x16xf32>
    %90 = stablehlo.multiply %37, %37 : tensor<16xf32>
    %cst_30 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %91 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %92 = stablehlo.multiply %91, %90 : tensor<16xf32>
    %cst_31 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %93 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %94 = stablehlo.multiply %93, %arg9 : tensor<16xf32>
    %95 = stablehlo.add %92, %94 : tensor<16xf32>
    %96 = stablehlo.multiply %39, %39 : tensor<16x16xf32>
    %cst_32 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %97 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %98 = stablehlo.multiply %97, %96 : tensor<16x16xf32>
    %cst_33 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %99 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %100 = stablehlo.multiply %99, %arg10 : tensor<16x16xf32>
    %101 = stablehlo.add %98, %100 : tensor<16x16xf32>
    %102 = stablehlo.multiply %29, %29 : tensor<4xf32>
    %cst_34 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %103 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %104 = stablehlo.multiply %103, %102 : tensor<4xf32>
    %cst_35 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %105 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %106 = stablehlo.multiply %105, %arg11 : tensor<4xf32>
    %107 = stablehlo.add %104, %106 : tensor<4xf32>
    %108 = stablehlo.multiply %31, %31 : tensor<16x4xf32>
    %cst_36 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %109 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %110 = stablehlo.multiply %109, %108 : tensor<16x4xf32>
    %cst_37 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %111 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %112 = stablehlo.multiply %111, %arg12 : tensor<16x4xf32>
    %113 = stablehlo.add %110, %112 : tensor<16x4xf32>
    %c = stablehlo.constant dense<2147483647> : tensor<i32>
    %114 = stablehlo.compare LT, %arg0, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_38 = stablehlo.constant dense<1> : tensor<i32>
    %115 = stablehlo.add %arg0, %c_38 : tensor<i32>
    %c_39 = stablehlo.constant dense<2147483647> : tensor<i32>
    %116 = call @_where(%114, %115, %c_39) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %cst_40 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %117 = stablehlo.convert %116 : (tensor<i32>) -> tensor<f32>
    %118 = stablehlo.power %cst_40, %117 : tensor<f32>
    %cst_41 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %119 = stablehlo.subtract %cst_41, %118 : tensor<f32>
    %120 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %121 = stablehlo.divide %52, %120 : tensor<16xf32>
    %122 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %123 = stablehlo.divide %57, %122 : tensor<8x16xf32>
    %124 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %125 = stablehlo.divide %62, %124 : tensor<16xf32>
    %126 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %127 = stablehlo.divide %67, %126 : tensor<16x16xf32>
    %128 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %129 = stablehlo.divide %72, %128 : tensor<4xf32>
    %130 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %131 = stablehlo.divide %77, %130 : tensor<16x4xf32>
    %cst_42 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %132 = stablehlo.convert %116 : (tensor<i32>) -> tensor<f32>
    %133 = stablehlo.power %cst_42, %132 : tensor<f32>
    %cst_43 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %134 = stablehlo.subtract %cst_43, %133 : tensor<f32>
    %135 = stablehlo.broadcast_in_dim %134, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %136 = stablehlo.divide %83, %135 : tensor<16xf32>
    %137 = stablehlo.broadcast_in_dim %134, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %138 = stablehlo.divide %89, %137 : tensor<8x16xf32>
    %139 = stablehlo.broadcast_in_dim %134, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %140 = stablehlo.divide %95, %139 : tensor<16xf32>
    %141 = stablehlo.broadcast_in_dim %134, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %142 = stablehlo.divide %101, %141 : tensor<16x16xf32>
    %143 = stablehlo.broadcast_in_dim %134, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %144 = stablehlo.divide %107, %143 : tensor<4xf32>
    %145 = stablehlo.broadcast_in_dim %134, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %146 = stablehlo.divide %113, %145 : tensor<16x4xf32>
    %cst_44 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %147 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %148 = stablehlo.add %136, %147 : tensor<16xf32>
    %149 = stablehlo.sqrt %148 : tensor<16xf32>
    %cst_45 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %150 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %151 = stablehlo.add %149, %150 : tensor<16xf32>
    %152 = stablehlo.divide %121, %151 : tensor<16xf32>
    %cst_46 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %153 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %154 = stablehlo.add %138, %153 : tensor<8x16xf32>
    %155 = stablehlo.sqrt %154 : tensor<8x16xf32>
    %cst_47 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %156 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %157 = stablehlo.add %155, %156 : tensor<8x16xf32>
    %158 = stablehlo.divide %123, %157 : tensor<8x16xf32>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %159 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %160 = stablehlo.add %140, %159 : tensor<16xf32>
    %161 = stablehlo.sqrt %160 : tensor<16xf32>
    %cst_49 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %162 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %163 = stablehlo.add %161, %162 : tensor<16xf32>
    %164 = stablehlo.divide %125, %163 : tensor<16xf32>
    %cst_50 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %165 = stablehlo.broadcast_in_dim %cst_50, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %166 = stablehlo.add %142, %165 : tensor<16x16xf32>
    %167 = stablehlo.sqrt %166 : tensor<16x16xf32>
    %cst_51 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %168 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %169 = stablehlo.add %167, %168 : tensor<16x16xf32>
    %170 = stablehlo.divide %127, %169 : tensor<16x16xf32>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %171 = stablehlo.broadcast_in_dim %cst_52, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %172 = stablehlo.add %144, %171 : tensor<4xf32>
    %173 = stablehlo.sqrt %172 : tensor<4xf32>
    %cst_53 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %174 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %175 = stablehlo.add %173, %174 : tensor<4xf32>
    %176 = stablehlo.divide %129, %175 : tensor<4xf32>
    %cst_54 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %177 = stablehlo.broadcast_in_dim %cst_54, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %178 = stablehlo.add %146, %177 : tensor<16x4xf32>
    %179 = stablehlo.sqrt %178 : tensor<16x4xf32>
    %cst_55 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %180 = stablehlo.broadcast_in_dim %cst_55, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %181 = stablehlo.add %179, %180 : tensor<16x4xf32>
    %182 = stablehlo.divide %131, %181 : tensor<16x4xf32>
    %cst_56 = stablehlo.constant dense<-0.00999999977> : tensor<f32>
    %183 = stablehlo.broadcast_in_dim %cst_56, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %184 = stablehlo.multiply %183, %152 : tensor<16xf32>
    %cst_57 = stablehlo.constant dense<-0.00999999977> : tensor<f32>
    %185 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %186 = stablehlo.multiply %185, %158 : tensor<8x16xf32>
    %cst_58 = stablehlo.constant dense<-0.00999999977> : tensor<f32>
    %187 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %188 = stablehlo.multiply %187, %164 : tensor<16xf32>
    %cst_59 = stablehlo.constant dense<-0.00999999977> : tensor<f32>
    %189 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %190 = stablehlo.multiply %189, %170 : tensor<16x16xf32>
    %cst_60 = stablehlo.constant dense<-0.00999999977> : tensor<f32>
    %191 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %192 = stablehlo.multiply %191, %176 : tensor<4xf32>
    %cst_61 = stablehlo.constant dense<-0.00999999977> : tensor<f32>
    %193 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %194 = stablehlo.multiply %193, %182 : tensor<16x4xf32>
    %195 = stablehlo.add %arg13, %184 : tensor<16xf32>
    %196 = stablehlo.add %arg14, %186 : tensor<8x16xf32>
    %197 = stablehlo.add %arg15, %188 : tensor<16xf32>
    %198 = stablehlo.add %arg16, %190 : tensor<16x16xf32>
    %199 = stablehlo.add %arg17, %192 : tensor<4xf32>
    %200 = stablehlo.add %arg18, %194 : tensor<16x4xf32>
    return %116, %52, %57, %62, %67, %72, %77, %83, %89, %95, %101, %107, %113, %195, %196, %197, %198, %199, %200, %23 : tensor<i32>, tensor<16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<4xf32>, tensor<16x4xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<4xf32>, tensor<16x4xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<4xf32>, tensor<16x4xf32>, tensor<f32>
  }
  func.func private @relu(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
}
// -----
module @jit_decoder_adamw_clipped attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<16xf32>, %arg2: tensor<32x16xf32>, %arg3: tensor<16xf32>, %arg4: tensor<16x32xf32>, %arg5: tensor<16xf32>, %arg6: tensor<64x16xf32>, %arg7: tensor<16xf32>, %arg8: tensor<16x16xf32>, %arg9: tensor<16x16xf32>, %arg10: tensor<16x16xf32>, %arg11: tensor<16x64xf32>, %arg12: tensor<16x16xf32>, %arg13: tensor<8x16xf32>, %arg14: tensor<16xf32>, %arg15: tensor<32x16xf32>, %arg16: tensor<16xf32>, %arg17: tensor<16x32xf32>, %arg18: tensor<16xf32>, %arg19: tensor<64x16xf32>, %arg20: tensor<16xf32>, %arg21: tensor<16x16xf32>, %arg22: tensor<16x16xf32>, %arg23: tensor<16x16xf32>, %arg24: tensor<16x64xf32>, %arg25: tensor<16x16xf32>, %arg26: tensor<8x16xf32>, %arg27: tensor<16xf32>, %arg28: tensor<32x16xf32>, %arg29: tensor<16xf32>, %arg30: tensor<16x32xf32>, %arg31: tensor<16xf32>, %arg32: tensor<64x16xf32>, %arg33: tensor<16xf32>, %arg34: tensor<16x16xf32>, %arg35: tensor<16x16xf32>, %arg36: tensor<16x16xf32>, %arg37: tensor<16x64xf32>, %arg38: tensor<16x16xf32>, %arg39: tensor<8x16xf32>, %arg40: tensor<4x8xi32>, %arg41: tensor<4x8xi32>) -> (tensor<i32> {jax.result_info = "result[0]"}, tensor<16xf32> {jax.result_info = "result[1]"}, tensor<32x16xf32> {jax.result_info = "result[2]"}, tensor<16xf32> {jax.result_info = "result[3]"}, tensor<16x32xf32> {jax.result_info = "result[4]"}, tensor<16xf32> {jax.result_info = "result[5]"}, tensor<64x16xf32> {jax.result_info = "result[6]"}, tensor<16xf32> {jax.result_info = "result[7]"}, tensor<16x16xf32> {jax.result_info = "result[8]"}, tensor<16x16xf32> {jax.result_info = "result[9]"}, tensor<16x16xf32> {jax.result_info = "result[10]"}, tensor<16x64xf32> {jax.result_info = "result[11]"}, tensor<16x16xf32> {jax.result_info = "result[12]"}, tensor<8x16xf32> {jax.result_info = "result[13]"}, tensor<16xf32> {jax.result_info = "result[14]"}, tensor<32x16xf32> {jax.result_info = "result[15]"}, tensor<16xf32> {jax.result_info = "result[16]"}, tensor<16x32xf32> {jax.result_info = "result[17]"}, tensor<16xf32> {jax.result_info = "result[18]"}, tensor<64x16xf32> {jax.result_info = "result[19]"}, tensor<16xf32> {jax.result_info = "result[20]"}, tensor<16x16xf32> {jax.result_info = "result[21]"}, tensor<16x16xf32> {jax.result_info = "result[22]"}, tensor<16x16xf32> {jax.result_info = "result[23]"}, tensor<16x64xf32> {jax.result_info = "result[24]"}, tensor<16x16xf32> {jax.result_info = "result[25]"}, tensor<8x16xf32> {jax.result_info = "result[26]"}, tensor<16xf32> {jax.result_info = "result[27]"}, tensor<32x16xf32> {jax.result_info = "result[28]"}, tensor<16xf32> {jax.result_info = "result[29]"}, tensor<16x32xf32> {jax.result_info = "result[30]"}, tensor<16xf32> {jax.result_info = "result[31]"}, tensor<64x16xf32> {jax.result_info = "result[32]"}, tensor<16xf32> {jax.result_info = "result[33]"}, tensor<16x16xf32> {jax.result_info = "result[34]"}, tensor<16x16xf32> {jax.result_info = "result[35]"}, tensor<16x16xf32> {jax.result_info = "result[36]"}, tensor<16x64xf32> {jax.result_info = "result[37]"}, tensor<16x16xf32> {jax.result_info = "result[38]"}, tensor<8x16xf32> {jax.result_info = "result[39]"}, tensor<f32> {jax.result_info = "result[40]"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %1 = stablehlo.compare LT, %arg40, %0, SIGNED : (tensor<4x8xi32>, tensor<4x8xi32>) -> tensor<4x8xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %3 = stablehlo.add %arg40, %2 : tensor<4x8xi32>
    %4 = stablehlo.select %1, %3, %arg40 : tensor<4x8xi1>, tensor<4x8xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %6 = "stablehlo.gather"(%arg28, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<4x8x1xi32>) -> tensor<4x8x16xf32>
    %7 = stablehlo.broadcast_in_dim %arg39, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<1x8x16xf32>) -> tensor<4x8x16xf32>
    %9 = stablehlo.add %6, %8 : tensor<4x8x16xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.reduce(%9 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_1 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %13 = stablehlo.divide %11, %12 : tensor<4x8x1xf32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %15 = stablehlo.subtract %9, %14 : tensor<4x8x16xf32>
    %16 = stablehlo.multiply %15, %15 : tensor<4x8x16xf32>
    %cst_2 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x8x16xf32>
    %18 = stablehlo.multiply %17, %15 : tensor<4x8x16xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %19 = stablehlo.reduce(%16 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_4 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %22 = stablehlo.divide %20, %21 : tensor<4x8x1xf32>
    %23 = stablehlo.broadcast_in_dim %13, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %24 = stablehlo.subtract %9, %23 : tensor<4x8x16xf32>
    %cst_5 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %26 = stablehlo.add %22, %25 : tensor<4x8x1xf32>
    %27 = stablehlo.rsqrt %26 : tensor<4x8x1xf32>
    %28 = stablehlo.divide %27, %26 : tensor<4x8x1xf32>
    %cst_6 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %30 = stablehlo.multiply %29, %28 : tensor<4x8x1xf32>
    %31 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %32 = stablehlo.multiply %24, %31 : tensor<4x8x16xf32>
    %33 = stablehlo.broadcast_in_dim %arg33, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %34 = stablehlo.broadcast_in_dim %33, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %35 = stablehlo.multiply %32, %34 : tensor<4x8x16xf32>
    %36 = stablehlo.broadcast_in_dim %arg31, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %38 = stablehlo.add %35, %37 : tensor<4x8x16xf32>
    %39 = stablehlo.dot_general %38, %arg36, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %40 = stablehlo.reshape %39 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %41 = stablehlo.dot_general %38, %arg34, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %42 = stablehlo.reshape %41 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %43 = stablehlo.dot_general %38, %arg38, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %44 = stablehlo.reshape %43 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %45 = stablehlo.dot_general %40, %42, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %cst_7 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %46 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %47 = stablehlo.divide %45, %46 : tensor<4x4x8x8xf32>
    %c_8 = stablehlo.constant dense<true> : tensor<i1>
    %48 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %49 = call @tril(%48) : (tensor<8x8xi1>) -> tensor<8x8xi1>
    %cst_9 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %50:2 = call @_where(%49, %47, %cst_9) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> (tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>)
    %cst_10 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %51 = stablehlo.reduce(%50#0 init: %cst_10) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %cst_11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %52 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x4x8xf32>
    %53 = stablehlo.maximum %52, %51 : tensor<4x4x8xf32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %55 = stablehlo.broadcast_in_dim %54, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %56 = stablehlo.subtract %50#0, %55 : tensor<4x4x8x8xf32>
    %57 = stablehlo.exponential %56 : tensor<4x4x8x8xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %58 = stablehlo.reduce(%57 init: %cst_12) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %59 = stablehlo.broadcast_in_dim %58, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %61 = stablehlo.divide %57, %60 : tensor<4x4x8x8xf32>
    %62 = stablehlo.multiply %59, %59 : tensor<4x4x8x1xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %63 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x4x8x1xf32>
    %64 = stablehlo.divide %63, %62 : tensor<4x4x8x1xf32>
    %65 = stablehlo.dot_general %44, %61, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %66 = stablehlo.transpose %65, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %67 = stablehlo.reshape %66 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %68 = stablehlo.dot_general %67, %arg35, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %69 = stablehlo.add %9, %68 : tensor<4x8x16xf32>
    %70 = stablehlo.dot_general %69, %arg37, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x64xf32>) -> tensor<4x8x64xf32>
    %71 = stablehlo.multiply %70, %70 : tensor<4x8x64xf32>
    %72 = stablehlo.multiply %71, %70 : tensor<4x8x64xf32>
    %73 = stablehlo.multiply %70, %70 : tensor<4x8x64xf32>
    %cst_14 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %74 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %75 = stablehlo.multiply %74, %73 : tensor<4x8x64xf32>
    %cst_15 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %76 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %77 = stablehlo.multiply %76, %72 : tensor<4x8x64xf32>
    %78 = stablehlo.add %70, %77 : tensor<4x8x64xf32>
    %cst_16 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %79 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %80 = stablehlo.multiply %79, %78 : tensor<4x8x64xf32>
    %81 = stablehlo.tanh %80 : tensor<4x8x64xf32>
    %cst_17 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %82 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %83 = stablehlo.subtract %82, %81 : tensor<4x8x64xf32>
    %cst_18 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %84 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %85 = stablehlo.add %84, %81 : tensor<4x8x64xf32>
    %cst_19 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %86 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %87 = stablehlo.multiply %86, %85 : tensor<4x8x64xf32>
    %88 = stablehlo.multiply %70, %87 : tensor<4x8x64xf32>
    %89 = stablehlo.dot_general %88, %arg32, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<64x16xf32>) -> tensor<4x8x16xf32>
    %90 = stablehlo.add %69, %89 : tensor<4x8x16xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %91 = stablehlo.reduce(%90 init: %cst_20) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %92 = stablehlo.broadcast_in_dim %91, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_21 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %93 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %94 = stablehlo.divide %92, %93 : tensor<4x8x1xf32>
    %95 = stablehlo.broadcast_in_dim %94, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %96 = stablehlo.subtract %90, %95 : tensor<4x8x16xf32>
    %97 = stablehlo.multiply %96, %96 : tensor<4x8x16xf32>
    %cst_22 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %98 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4x8x16xf32>
    %99 = stablehlo.multiply %98, %96 : tensor<4x8x16xf32>
    %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %100 = stablehlo.reduce(%97 init: %cst_23) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %101 = stablehlo.broadcast_in_dim %100, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_24 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %102 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %103 = stablehlo.divide %101, %102 : tensor<4x8x1xf32>
    %104 = stablehlo.broadcast_in_dim %94, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %105 = stablehlo.subtract %90, %104 : tensor<4x8x16xf32>
    %cst_25 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %106 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %107 = stablehlo.add %103, %106 : tensor<4x8x1xf32>
    %108 = stablehlo.rsqrt %107 : tensor<4x8x1xf32>
    %109 = stablehlo.divide %108, %107 : tensor<4x8x1xf32>
    %cst_26 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %110 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %111 = stablehlo.multiply %110, %109 : tensor<4x8x1xf32>
    %112 = stablehlo.broadcast_in_dim %108, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %113 = stablehlo.multiply %105, %112 : tensor<4x8x16xf32>
    %114 = stablehlo.broadcast_in_dim %arg29, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %115 = stablehlo.broadcast_in_dim %114, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %116 = stablehlo.multiply %113, %115 : tensor<4x8x16xf32>
    %117 = stablehlo.broadcast_in_dim %arg27, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %118 = stablehlo.broadcast_in_dim %117, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %119 = stablehlo.add %116, %118 : tensor<4x8x16xf32>
    %120 = stablehlo.dot_general %119, %arg30, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x32xf32>) -> tensor<4x8x32xf32>
    %121:3 = call @log_softmax(%120) : (tensor<4x8x32xf32>) -> (tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>)
    %122 = stablehlo.broadcast_in_dim %arg41, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %123:2 = call @take_along_axis(%121#0, %122) : (tensor<4x8x32xf32>, tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>)
    %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %124 = stablehlo.reduce(%123#0 init: %cst_27) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<f32>
    %cst_28 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %125 = stablehlo.divide %124, %cst_28 : tensor<f32>
    %126 = stablehlo.negate %125 : tensor<f32>
    %cst_29 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %127 = stablehlo.negate %cst_29 : tensor<f32>
    %cst_30 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %128 = stablehlo.divide %127, %cst_30 : tensor<f32>
    %129 = stablehlo.broadcast_in_dim %128, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %130 = call @take_along_axis_0(%123#1, %129) : (tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %131 = call @log_softmax_1(%121#1, %121#2, %130) : (tensor<4x8x32xf32>, tensor<4x8x1xf32>, tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %132 = stablehlo.dot_general %131, %119, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x32xf32>, tensor<4x8x16xf32>) -> tensor<32x16xf32>
    %133 = stablehlo.transpose %132, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %134 = stablehlo.dot_general %131, %arg30, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x32xf32>, tensor<16x32xf32>) -> tensor<4x8x16xf32>
    %cst_31 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %135 = stablehlo.reduce(%134 init: %cst_31) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %136 = stablehlo.reshape %135 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %cst_32 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %137 = stablehlo.reduce(%136 init: %cst_32) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %138 = stablehlo.multiply %113, %134 : tensor<4x8x16xf32>
    %cst_33 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %139 = stablehlo.reduce(%138 init: %cst_33) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %140 = stablehlo.reshape %139 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %141 = stablehlo.broadcast_in_dim %114, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %142 = stablehlo.multiply %134, %141 : tensor<4x8x16xf32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %143 = stablehlo.reduce(%140 init: %cst_34) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %144 = stablehlo.multiply %105, %142 : tensor<4x8x16xf32>
    %cst_35 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %145 = stablehlo.reduce(%144 init: %cst_35) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %146 = stablehlo.reshape %145 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %147 = stablehlo.broadcast_in_dim %108, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %148 = stablehlo.multiply %142, %147 : tensor<4x8x16xf32>
    %149 = stablehlo.multiply %146, %111 : tensor<4x8x1xf32>
    %150 = stablehlo.negate %148 : tensor<4x8x16xf32>
    %cst_36 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %151 = stablehlo.reduce(%150 init: %cst_36) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %152 = stablehlo.reshape %151 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_37 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %153 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %154 = stablehlo.divide %149, %153 : tensor<4x8x1xf32>
    %cst_38 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %155 = stablehlo.reduce(%154 init: %cst_38) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %156 = stablehlo.broadcast_in_dim %155, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %157 = stablehlo.multiply %156, %99 : tensor<4x8x16xf32>
    %158 = stablehlo.negate %157 : tensor<4x8x16xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %159 = stablehlo.reduce(%158 init: %cst_39) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %160 = stablehlo.reshape %159 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %161 = stablehlo.add %148, %157 : tensor<4x8x16xf32>
    %162 = stablehlo.add %152, %160 : tensor<4x8x1xf32>
    %cst_40 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %163 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %164 = stablehlo.divide %162, %163 : tensor<4x8x1xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %165 = stablehlo.reduce(%164 init: %cst_41) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %166 = stablehlo.broadcast_in_dim %165, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %167 = stablehlo.add %161, %166 : tensor<4x8x16xf32>
    %168 = stablehlo.dot_general %167, %88, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x64xf32>) -> tensor<16x64xf32>
    %169 = stablehlo.transpose %168, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %170 = stablehlo.dot_general %167, %arg32, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<64x16xf32>) -> tensor<4x8x64xf32>
    %171 = stablehlo.multiply %70, %170 : tensor<4x8x64xf32>
    %172 = stablehlo.multiply %170, %87 : tensor<4x8x64xf32>
    %cst_42 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %173 = stablehlo.broadcast_in_dim %cst_42, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %174 = stablehlo.multiply %173, %171 : tensor<4x8x64xf32>
    %175 = stablehlo.multiply %174, %83 : tensor<4x8x64xf32>
    %176 = stablehlo.multiply %175, %81 : tensor<4x8x64xf32>
    %177 = stablehlo.add %175, %176 : tensor<4x8x64xf32>
    %cst_43 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %178 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %179 = stablehlo.multiply %178, %177 : tensor<4x8x64xf32>
    %180 = stablehlo.add %172, %179 : tensor<4x8x64xf32>
    %cst_44 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %181 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %182 = stablehlo.multiply %181, %179 : tensor<4x8x64xf32>
    %183 = stablehlo.multiply %182, %75 : tensor<4x8x64xf32>
    %184 = stablehlo.add %180, %183 : tensor<4x8x64xf32>
    %185 = stablehlo.dot_general %184, %69, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<4x8x16xf32>) -> tensor<64x16xf32>
    %186 = stablehlo.transpose %185, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %187 = stablehlo.dot_general %184, %arg37, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<16x64xf32>) -> tensor<4x8x16xf32>
    %188 = stablehlo.add %167, %187 : tensor<4x8x16xf32>
    %189 = stablehlo.dot_general %188, %67, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %190 = stablehlo.transpose %189, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %191 = stablehlo.dot_general %188, %arg35, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %192 = stablehlo.reshape %191 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %193 = stablehlo.transpose %192, dims = [0, 2, 3, 1] : (tensor<4x8x4x4xf32>) -> tensor<4x4x4x8xf32>
    %194 = stablehlo.dot_general %193, %44, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x4x4x8xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %195 = stablehlo.dot_general %193, %61, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x4x4x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %196 = stablehlo.transpose %195, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %197 = stablehlo.broadcast_in_dim %64, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %198 = stablehlo.multiply %194, %197 : tensor<4x4x8x8xf32>
    %199 = stablehlo.multiply %198, %57 : tensor<4x4x8x8xf32>
    %cst_45 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %200 = stablehlo.reduce(%199 init: %cst_45) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %201 = stablehlo.reshape %200 : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %202 = stablehlo.negate %201 : tensor<4x4x8x1xf32>
    %203 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %204 = stablehlo.divide %194, %203 : tensor<4x4x8x8xf32>
    %cst_46 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %205 = stablehlo.reduce(%202 init: %cst_46) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x1xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %206 = stablehlo.broadcast_in_dim %205, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x8xf32>
    %207 = stablehlo.add %204, %206 : tensor<4x4x8x8xf32>
    %208 = stablehlo.multiply %207, %57 : tensor<4x4x8x8xf32>
    %209 = call @_where_2(%50#1, %208) : (tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_47 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %210 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %211 = stablehlo.divide %209, %210 : tensor<4x4x8x8xf32>
    %212 = stablehlo.dot_general %211, %40, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x4xf32>
    %213 = stablehlo.transpose %212, dims = [0, 2, 1, 3] : (tensor<4x4x8x4xf32>) -> tensor<4x8x4x4xf32>
    %214 = stablehlo.dot_general %211, %42, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x4xf32>
    %215 = stablehlo.transpose %214, dims = [0, 2, 1, 3] : (tensor<4x4x8x4xf32>) -> tensor<4x8x4x4xf32>
    %216 = stablehlo.reshape %196 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %217 = stablehlo.dot_general %216, %38, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %218 = stablehlo.transpose %217, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %219 = stablehlo.dot_general %216, %arg38, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %220 = stablehlo.reshape %213 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %221 = stablehlo.dot_general %220, %38, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %222 = stablehlo.transpose %221, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %223 = stablehlo.dot_general %220, %arg34, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %224 = stablehlo.add %219, %223 : tensor<4x8x16xf32>
    %225 = stablehlo.reshape %215 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %226 = stablehlo.dot_general %225, %38, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %227 = stablehlo.transpose %226, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %228 = stablehlo.dot_general %225, %arg36, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %229 = stablehlo.add %224, %228 : tensor<4x8x16xf32>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %230 = stablehlo.reduce(%229 init: %cst_48) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %231 = stablehlo.reshape %230 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %cst_49 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %232 = stablehlo.reduce(%231 init: %cst_49) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %233 = stablehlo.multiply %32, %229 : tensor<4x8x16xf32>
    %cst_50 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %234 = stablehlo.reduce(%233 init: %cst_50) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %235 = stablehlo.reshape %234 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %236 = stablehlo.broadcast_in_dim %33, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %237 = stablehlo.multiply %229, %236 : tensor<4x8x16xf32>
    %cst_51 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %238 = stablehlo.reduce(%235 init: %cst_51) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %239 = stablehlo.multiply %24, %237 : tensor<4x8x16xf32>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %240 = stablehlo.reduce(%239 init: %cst_52) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %241 = stablehlo.reshape %240 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %242 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %243 = stablehlo.multiply %237, %242 : tensor<4x8x16xf32>
    %244 = stablehlo.multiply %241, %30 : tensor<4x8x1xf32>
    %245 = stablehlo.negate %243 : tensor<4x8x16xf32>
    %cst_53 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %246 = stablehlo.reduce(%245 init: %cst_53) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %247 = stablehlo.reshape %246 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %248 = stablehlo.add %188, %243 : tensor<4x8x16xf32>
    %cst_54 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %249 = stablehlo.broadcast_in_dim %cst_54, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %250 = stablehlo.divide %244, %249 : tensor<4x8x1xf32>
    %cst_55 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %251 = stablehlo.reduce(%250 init: %cst_55) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %252 = stablehlo.broadcast_in_dim %251, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %253 = stablehlo.multiply %252, %18 : tensor<4x8x16xf32>
    %254 = stablehlo.negate %253 : tensor<4x8x16xf32>
    %cst_56 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %255 = stablehlo.reduce(%254 init: %cst_56) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %256 = stablehlo.reshape %255 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %257 = stablehlo.add %248, %253 : tensor<4x8x16xf32>
    %258 = stablehlo.add %247, %256 : tensor<4x8x1xf32>
    %cst_57 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %259 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %260 = stablehlo.divide %258, %259 : tensor<4x8x1xf32>
    %cst_58 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %261 = stablehlo.reduce(%260 init: %cst_58) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %262 = stablehlo.broadcast_in_dim %261, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %263 = stablehlo.add %257, %262 : tensor<4x8x16xf32>
    %cst_59 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %264 = stablehlo.reduce(%263 init: %cst_59) applies stablehlo.add across dimensions = [0] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %265 = stablehlo.reshape %264 : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %cst_60 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %266 = stablehlo.reduce(%265 init: %cst_60) applies stablehlo.add across dimensions = [0] : (tensor<1x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %cst_61 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %267 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %268 = "stablehlo.scatter"(%267, %5, %263) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg42: tensor<f32>, %arg43: tensor<f32>):
      %774 = stablehlo.add %arg42, %arg43 : tensor<f32>
      stablehlo.return %774 : tensor<f32>
    }) : (tensor<32x16xf32>, tensor<4x8x1xi32>, tensor<4x8x16xf32>) -> tensor<32x16xf32>
    %269 = chlo.square %137 : tensor<16xf32> -> tensor<16xf32>
    %cst_62 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %270 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %271 = chlo.square %270 : tensor<16xf32> -> tensor<16xf32>
    %272 = stablehlo.add %269, %271 : tensor<16xf32>
    %273 = chlo.square %268 : tensor<32x16xf32> -> tensor<32x16xf32>
    %cst_63 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %274 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %275 = chlo.square %274 : tensor<32x16xf32> -> tensor<32x16xf32>
    %276 = stablehlo.add %273, %275 : tensor<32x16xf32>
    %277 = chlo.square %143 : tensor<16xf32> -> tensor<16xf32>
    %cst_64 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %278 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %279 = chlo.square %278 : tensor<16xf32> -> tensor<16xf32>
    %280 = stablehlo.add %277, %279 : tensor<16xf32>
    %281 = chlo.square %133 : tensor<16x32xf32> -> tensor<16x32xf32>
    %cst_65 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %282 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %283 = chlo.square %282 : tensor<16x32xf32> -> tensor<16x32xf32>
    %284 = stablehlo.add %281, %283 : tensor<16x32xf32>
    %285 = chlo.square %232 : tensor<16xf32> -> tensor<16xf32>
    %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %286 = stablehlo.broadcast_in_dim %cst_66, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %287 = chlo.square %286 : tensor<16xf32> -> tensor<16xf32>
    %288 = stablehlo.add %285, %287 : tensor<16xf32>
    %289 = chlo.square %169 : tensor<64x16xf32> -> tensor<64x16xf32>
    %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %290 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %291 = chlo.square %290 : tensor<64x16xf32> -> tensor<64x16xf32>
    %292 = stablehlo.add %289, %291 : tensor<64x16xf32>
    %293 = chlo.square %238 : tensor<16xf32> -> tensor<16xf32>
    %cst_68 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %294 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %295 = chlo.square %294 : tensor<16xf32> -> tensor<16xf32>
    %296 = stablehlo.add %293, %295 : tensor<16xf32>
    %297 = chlo.square %222 : tensor<16x16xf32> -> tensor<16x16xf32>
    %cst_69 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %298 = stablehlo.broadcast_in_dim %cst_69, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %299 = chlo.square %298 : tensor<16x16xf32> -> tensor<16x16xf32>
    %300 = stablehlo.add %297, %299 : tensor<16x16xf32>
    %301 = chlo.square %190 : tensor<16x16xf32> -> tensor<16x16xf32>
    %cst_70 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %302 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %303 = chlo.square %302 : tensor<16x16xf32> -> tensor<16x16xf32>
    %304 = stablehlo.add %301, %303 : tensor<16x16xf32>
    %305 = chlo.square %227 : tensor<16x16xf32> -> tensor<16x16xf32>
    %cst_71 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %306 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %307 = chlo.square %306 : tensor<16x16xf32> -> tensor<16x16xf32>
    %308 = stablehlo.add %305, %307 : tensor<16x16xf32>
    %309 = chlo.square %186 : tensor<16x64xf32> -> tensor<16x64xf32>
    %cst_72 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %310 = stablehlo.broadcast_in_dim %cst_72, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %311 = chlo.square %310 : tensor<16x64xf32> -> tensor<16x64xf32>
    %312 = stablehlo.add %309, %311 : tensor<16x64xf32>
    %313 = chlo.square %218 : tensor<16x16xf32> -> tensor<16x16xf32>
    %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %314 = stablehlo.broadcast_in_dim %cst_73, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %315 = chlo.square %314 : tensor<16x16xf32> -> tensor<16x16xf32>
    %316 = stablehlo.add %313, %315 : tensor<16x16xf32>
    %317 = chlo.square %266 : tensor<8x16xf32> -> tensor<8x16xf32>
    %cst_74 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %318 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %319 = chlo.square %318 : tensor<8x16xf32> -> tensor<8x16xf32>
    %320 = stablehlo.add %317, %319 : tensor<8x16xf32>
    %cst_75 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %321 = stablehlo.reduce(%272 init: %cst_75) applies stablehlo.add across dimensions = [0] : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    %cst_76 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %322 = stablehlo.reduce(%276 init: %cst_76) applies stablehlo.add across dimensions = [0, 1] : (tensor<32x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_77 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %323 = stablehlo.reduce(%280 init: %cst_77) applies stablehlo.add across dimensions = [0] : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    %cst_78 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %324 = stablehlo.reduce(%284 init: %cst_78) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<f32>
    %cst_79 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %325 = stablehlo.reduce(%288 init: %cst_79) applies stablehlo.add across dimensions = [0] : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    %cst_80 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %326 = stablehlo.reduce(%292 init: %cst_80) applies stablehlo.add across dimensions = [0, 1] : (tensor<64x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_81 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %327 = stablehlo.reduce(%296 init: %cst_81) applies stablehlo.add across dimensions = [0] : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %328 = stablehlo.reduce(%300 init: %cst_82) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_83 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %329 = stablehlo.reduce(%304 init: %cst_83) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_84 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %330 = stablehlo.reduce(%308 init: %cst_84) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_85 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %331 = stablehlo.reduce(%312 init: %cst_85) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x64xf32>, tensor<f32>) -> tensor<f32>
    %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %332 = stablehlo.reduce(%316 init: %cst_86) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_87 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %333 = stablehlo.reduce(%320 init: %cst_87) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %334 = stablehlo.add %cst_88, %321 : tensor<f32>
    %335 = stablehlo.add %334, %322 : tensor<f32>
    %336 = stablehlo.add %335, %323 : tensor<f32>
    %337 = stablehlo.add %336, %324 : tensor<f32>
    %338 = stablehlo.add %337, %325 : tensor<f32>
    %339 = stablehlo.add %338, %326 : tensor<f32>
    %340 = stablehlo.add %339, %327 : tensor<f32>
    %341 = stablehlo.add %340, %328 : tensor<f32>
    %342 = stablehlo.add %341, %329 : tensor<f32>
    %343 = stablehlo.add %342, %330 : tensor<f32>
    %344 = stablehlo.add %343, %331 : tensor<f32>
    %345 = stablehlo.add %344, %332 : tensor<f32>
    %346 = stablehlo.add %345, %333 : tensor<f32>
    %347 = stablehlo.sqrt %346 : tensor<f32>
    %cst_89 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %348 = stablehlo.compare LT, %347, %cst_89, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %349 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %350 = stablehlo.divide %137, %349 : tensor<16xf32>
    %cst_90 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %351 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %352 = stablehlo.multiply %350, %351 : tensor<16xf32>
    %353 = stablehlo.select %348, %137, %352 : tensor<i1>, tensor<16xf32>
    %354 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %355 = stablehlo.divide %268, %354 : tensor<32x16xf32>
    %cst_91 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %356 = stablehlo.broadcast_in_dim %cst_91, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %357 = stablehlo.multiply %355, %356 : tensor<32x16xf32>
    %358 = stablehlo.select %348, %268, %357 : tensor<i1>, tensor<32x16xf32>
    %359 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %360 = stablehlo.divide %143, %359 : tensor<16xf32>
    %cst_92 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %361 = stablehlo.broadcast_in_dim %cst_92, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %362 = stablehlo.multiply %360, %361 : tensor<16xf32>
    %363 = stablehlo.select %348, %143, %362 : tensor<i1>, tensor<16xf32>
    %364 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %365 = stablehlo.divide %133, %364 : tensor<16x32xf32>
    %cst_93 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %366 = stablehlo.broadcast_in_dim %cst_93, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %367 = stablehlo.multiply %365, %366 : tensor<16x32xf32>
    %368 = stablehlo.select %348, %133, %367 : tensor<i1>, tensor<16x32xf32>
    %369 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %370 = stablehlo.divide %232, %369 : tensor<16xf32>
    %cst_94 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %371 = stablehlo.broadcast_in_dim %cst_94, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %372 = stablehlo.multiply %370, %371 : tensor<16xf32>
    %373 = stablehlo.select %348, %232, %372 : tensor<i1>, tensor<16xf32>
    %374 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %375 = stablehlo.divide %169, %374 : tensor<64x16xf32>
    %cst_95 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %376 = stablehlo.broadcast_in_dim %cst_95, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %377 = stablehlo.multiply %375, %376 : tensor<64x16xf32>
    %378 = stablehlo.select %348, %169, %377 : tensor<i1>, tensor<64x16xf32>
    %379 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %380 = stablehlo.divide %238, %379 : tensor<16xf32>
    %cst_96 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %381 = stablehlo.broadcast_in_dim %cst_96, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %382 = stablehlo.multiply %380, %381 : tensor<16xf32>
    %383 = stablehlo.select %348, %238, %382 : tensor<i1>, tensor<16xf32>
    %384 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %385 = stablehlo.divide %222, %384 : tensor<16x16xf32>
    %cst_97 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %386 = stablehlo.broadcast_in_dim %cst_97, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %387 = stablehlo.multiply %385, %386 : tensor<16x16xf32>
    %388 = stablehlo.select %348, %222, %387 : tensor<i1>, tensor<16x16xf32>
    %389 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %390 = stablehlo.divide %190, %389 : tensor<16x16xf32>
    %cst_98 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %391 = stablehlo.broadcast_in_dim %cst_98, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %392 = stablehlo.multiply %390, %391 : tensor<16x16xf32>
    %393 = stablehlo.select %348, %190, %392 : tensor<i1>, tensor<16x16xf32>
    %394 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %395 = stablehlo.divide %227, %394 : tensor<16x16xf32>
    %cst_99 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %396 = stablehlo.broadcast_in_dim %cst_99, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %397 = stablehlo.multiply %395, %396 : tensor<16x16xf32>
    %398 = stablehlo.select %348, %227, %397 : tensor<i1>, tensor<16x16xf32>
    %399 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %400 = stablehlo.divide %186, %399 : tensor<16x64xf32>
    %cst_100 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %401 = stablehlo.broadcast_in_dim %cst_100, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %402 = stablehlo.multiply %400, %401 : tensor<16x64xf32>
    %403 = stablehlo.select %348, %186, %402 : tensor<i1>, tensor<16x64xf32>
    %404 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %405 = stablehlo.divide %218, %404 : tensor<16x16xf32>
    %cst_101 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %406 = stablehlo.broadcast_in_dim %cst_101, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %407 = stablehlo.multiply %405, %406 : tensor<16x16xf32>
    %408 = stablehlo.select %348, %218, %407 : tensor<i1>, tensor<16x16xf32>
    %409 = stablehlo.broadcast_in_dim %347, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %410 = stablehlo.divide %266, %409 : tensor<8x16xf32>
    %cst_102 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %411 = stablehlo.broadcast_in_dim %cst_102, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %412 = stablehlo.multiply %410, %411 : tensor<8x16xf32>
    %413 = stablehlo.select %348, %266, %412 : tensor<i1>, tensor<8x16xf32>
    %cst_103 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %414 = stablehlo.broadcast_in_dim %cst_103, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %415 = stablehlo.multiply %414, %353 : tensor<16xf32>
    %cst_104 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %416 = stablehlo.broadcast_in_dim %cst_104, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %417 = stablehlo.multiply %416, %arg1 : tensor<16xf32>
    %418 = stablehlo.add %415, %417 : tensor<16xf32>
    %cst_105 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %419 = stablehlo.broadcast_in_dim %cst_105, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %420 = stablehlo.multiply %419, %358 : tensor<32x16xf32>
    %cst_106 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %421 = stablehlo.broadcast_in_dim %cst_106, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %422 = stablehlo.multiply %421, %arg2 : tensor<32x16xf32>
    %423 = stablehlo.add %420, %422 : tensor<32x16xf32>
    %cst_107 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %424 = stablehlo.broadcast_in_dim %cst_107, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %425 = stablehlo.multiply %424, %363 : tensor<16xf32>
    %cst_108 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %426 = stablehlo.broadcast_in_dim %cst_108, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %427 = stablehlo.multiply %426, %arg3 : tensor<16xf32>
    %428 = stablehlo.add %425, %427 : tensor<16xf32>
    %cst_109 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %429 = stablehlo.broadcast_in_dim %cst_109, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %430 = stablehlo.multiply %429, %368 : tensor<16x32xf32>
    %cst_110 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %431 = stablehlo.broadcast_in_dim %cst_110, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %432 = stablehlo.multiply %431, %arg4 : tensor<16x32xf32>
    %433 = stablehlo.add %430, %432 : tensor<16x32xf32>
    %cst_111 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %434 = stablehlo.broadcast_in_dim %cst_111, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %435 = stablehlo.multiply %434, %373 : tensor<16xf32>
    %cst_112 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %436 = stablehlo.broadcast_in_dim %cst_112, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %437 = stablehlo.multiply %436, %arg5 : tensor<16xf32>
    %438 = stablehlo.add %435, %437 : tensor<16xf32>
    %cst_113 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %439 = stablehlo.broadcast_in_dim %cst_113, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %440 = stablehlo.multiply %439, %378 : tensor<64x16xf32>
    %cst_114 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %441 = stablehlo.broadcast_in_dim %cst_114, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %442 = stablehlo.multiply %441, %arg6 : tensor<64x16xf32>
    %443 = stablehlo.add %440, %442 : tensor<64x16xf32>
    %cst_115 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %444 = stablehlo.broadcast_in_dim %cst_115, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %445 = stablehlo.multiply %444, %383 : tensor<16xf32>
    %cst_116 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %446 = stablehlo.broadcast_in_dim %cst_116, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %447 = stablehlo.multiply %446, %arg7 : tensor<16xf32>
    %448 = stablehlo.add %445, %447 : tensor<16xf32>
    %cst_117 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %449 = stablehlo.broadcast_in_dim %cst_117, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %450 = stablehlo.multiply %449, %388 : tensor<16x16xf32>
    %cst_118 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %451 = stablehlo.broadcast_in_dim %cst_118, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %452 = stablehlo.multiply %451, %arg8 : tensor<16x16xf32>
    %453 = stablehlo.add %450, %452 : tensor<16x16xf32>
    %cst_119 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %454 = stablehlo.broadcast_in_dim %cst_119, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %455 = stablehlo.multiply %454, %393 : tensor<16x16xf32>
    %cst_120 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %456 = stablehlo.broadcast_in_dim %cst_120, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %457 = stablehlo.multiply %456, %arg9 : tensor<16x16xf32>
    %458 = stablehlo.add %455, %457 : tensor<16x16xf32>
    %cst_121 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %459 = stablehlo.broadcast_in_dim %cst_121, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %460 = stablehlo.multiply %459, %398 : tensor<16x16xf32>
    %cst_122 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %461 = stablehlo.broadcast_in_dim %cst_122, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %462 = stablehlo.multiply %461, %arg10 : tensor<16x16xf32>
    %463 = stablehlo.add %460, %462 : tensor<16x16xf32>
    %cst_123 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %464 = stablehlo.broadcast_in_dim %cst_123, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %465 = stablehlo.multiply %464, %403 : tensor<16x64xf32>
    %cst_124 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %466 = stablehlo.broadcast_in_dim %cst_124, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %467 = stablehlo.multiply %466, %arg11 : tensor<16x64xf32>
    %468 = stablehlo.add %465, %467 : tensor<16x64xf32>
    %cst_125 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %469 = stablehlo.broadcast_in_dim %cst_125, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %470 = stablehlo.multiply %469, %408 : tensor<16x16xf32>
    %cst_126 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %471 = stablehlo.broadcast_in_dim %cst_126, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %472 = stablehlo.multiply %471, %arg12 : tensor<16x16xf32>
    %473 = stablehlo.add %470, %472 : tensor<16x16xf32>
    %cst_127 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %474 = stablehlo.broadcast_in_dim %cst_127, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %475 = stablehlo.multiply %474, %413 : tensor<8x16xf32>
    %cst_128 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %476 = stablehlo.broadcast_in_dim %cst_128, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %477 = stablehlo.multiply %476, %arg13 : tensor<8x16xf32>
    %478 = stablehlo.add %475, %477 : tensor<8x16xf32>
    %479 = stablehlo.multiply %353, %353 : tensor<16xf32>
    %cst_129 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %480 = stablehlo.broadcast_in_dim %cst_129, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %481 = stablehlo.multiply %480, %479 : tensor<16xf32>
    %cst_130 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %482 = stablehlo.broadcast_in_dim %cst_130, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %483 = stablehlo.multiply %482, %arg14 : tensor<16xf32>
    %484 = stablehlo.add %481, %483 : tensor<16xf32>
    %485 = stablehlo.multiply %358, %358 : tensor<32x16xf32>
    %cst_131 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %486 = stablehlo.broadcast_in_dim %cst_131, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %487 = stablehlo.multiply %486, %485 : tensor<32x16xf32>
    %cst_132 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %488 = stablehlo.broadcast_in_dim %cst_132, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %489 = stablehlo.multiply %488, %arg15 : tensor<32x16xf32>
    %490 = stablehlo.add %487, %489 : tensor<32x16xf32>
    %491 = stablehlo.multiply %363, %363 : tensor<16xf32>
    %cst_133 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %492 = stablehlo.broadcast_in_dim %cst_133, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %493 = stablehlo.multiply %492, %491 : tensor<16xf32>
    %cst_134 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %494 = stablehlo.broadcast_in_dim %cst_134, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %495 = stablehlo.multiply %494, %arg16 : tensor<16xf32>
    %496 = stablehlo.add %493, %495 : tensor<16xf32>
    %497 = stablehlo.multiply %368, %368 : tensor<16x32xf32>
    %cst_135 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %498 = stablehlo.broadcast_in_dim %cst_135, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %499 = stablehlo.multiply %498, %497 : tensor<16x32xf32>
    %cst_136 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %500 = stablehlo.broadcast_in_dim %cst_136, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %501 = stablehlo.multiply %500, %arg17 : tensor<16x32xf32>
    %502 = stablehlo.add %499, %501 : tensor<16x32xf32>
    %503 = stablehlo.multiply %373, %373 : tensor<16xf32>
    %cst_137 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %504 = stablehlo.broadcast_in_dim %cst_137, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %505 = stablehlo.multiply %504, %503 : tensor<16xf32>
    %cst_138 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %506 = stablehlo.broadcast_in_dim %cst_138, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %507 = stablehlo.multiply %506, %arg18 : tensor<16xf32>
    %508 = stablehlo.add %505, %507 : tensor<16xf32>
    %509 = stablehlo.multiply %378, %378 : tensor<64x16xf32>
    %cst_139 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %510 = stablehlo.broadcast_in_dim %cst_139, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %511 = stablehlo.multiply %510, %509 : tensor<64x16xf32>
    %cst_140 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %512 = stablehlo.broadcast_in_dim %cst_140, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %513 = stablehlo.multiply %512, %arg19 : tensor<64x16xf32>
    %514 = stablehlo.add %511, %513 : tensor<64x16xf32>
    %515 = stablehlo.multiply %383, %383 : tensor<16xf32>
    %cst_141 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %516 = stablehlo.broadcast_in_dim %cst_141, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %517 = stablehlo.multiply %516, %515 : tensor<16xf32>
    %cst_142 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %518 = stablehlo.broadcast_in_dim %cst_142, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %519 = stablehlo.multiply %518, %arg20 : tensor<16xf32>
    %520 = stablehlo.add %517, %519 : tensor<16xf32>
    %521 = stablehlo.multiply %388, %388 : tensor<16x16xf32>
    %cst_143 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %522 = stablehlo.broadcast_in_dim %cst_143, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %523 = stablehlo.multiply %522, %521 : tensor<16x16xf32>
    %cst_144 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %524 = stablehlo.broadcast_in_dim %cst_144, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %525 = stablehlo.multiply %524, %arg21 : tensor<16x16xf32>
    %526 = stablehlo.add %523, %525 : tensor<16x16xf32>
    %527 = stablehlo.multiply %393, %393 : tensor<16x16xf32>
    %cst_145 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %528 = stablehlo.broadcast_in_dim %cst_145, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %529 = stablehlo.multiply %528, %527 : tensor<16x16xf32>
    %cst_146 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %530 = stablehlo.broadcast_in_dim %cst_146, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %531 = stablehlo.multiply %530, %arg22 : tensor<16x16xf32>
    %532 = stablehlo.add %529, %531 : tensor<16x16xf32>
    %533 = stablehlo.multiply %398, %398 : tensor<16x16xf32>
    %cst_147 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %534 = stablehlo.broadcast_in_dim %cst_147, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %535 = stablehlo.multiply %534, %533 : tensor<16x16xf32>
    %cst_148 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %536 = stablehlo.broadcast_in_dim %cst_148, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %537 = stablehlo.multiply %536, %arg23 : tensor<16x16xf32>
    %538 = stablehlo.add %535, %537 : tensor<16x16xf32>
    %539 = stablehlo.multiply %403, %403 : tensor<16x64xf32>
    %cst_149 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %540 = stablehlo.broadcast_in_dim %cst_149, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %541 = stablehlo.multiply %540, %539 : tensor<16x64xf32>
    %cst_150 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %542 = stablehlo.broadcast_in_dim %cst_150, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %543 = stablehlo.multiply %542, %arg24 : tensor<16x64xf32>
    %544 = stablehlo.add %541, %543 : tensor<16x64xf32>
    %545 = stablehlo.multiply %408, %408 : tensor<16x16xf32>
    %cst_151 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %546 = stablehlo.broadcast_in_dim %cst_151, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %547 = stablehlo.multiply %546, %545 : tensor<16x16xf32>
    %cst_152 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %548 = stablehlo.broadcast_in_dim %cst_152, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %549 = stablehlo.multiply %548, %arg25 : tensor<16x16xf32>
    %550 = stablehlo.add %547, %549 : tensor<16x16xf32>
    %551 = stablehlo.multiply %413, %413 : tensor<8x16xf32>
    %cst_153 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %552 = stablehlo.broadcast_in_dim %cst_153, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %553 = stablehlo.multiply %552, %551 : tensor<8x16xf32>
    %cst_154 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %554 = stablehlo.broadcast_in_dim %cst_154, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %555 = stablehlo.multiply %554, %arg26 : tensor<8x16xf32>
    %556 = stablehlo.add %553, %555 : tensor<8x16xf32>
    %c_155 = stablehlo.constant dense<2147483647> : tensor<i32>
    %557 = stablehlo.compare LT, %arg0, %c_155, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_156 = stablehlo.constant dense<1> : tensor<i32>
    %558 = stablehlo.add %arg0, %c_156 : tensor<i32>
    %c_157 = stablehlo.constant dense<2147483647> : tensor<i32>
    %559 = call @_where_3(%557, %558, %c_157) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %cst_158 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %560 = stablehlo.convert %559 : (tensor<i32>) -> tensor<f32>
    %561 = stablehlo.power %cst_158, %560 : tensor<f32>
    %cst_159 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %562 = stablehlo.subtract %cst_159, %561 : tensor<f32>
    %563 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %564 = stablehlo.divide %418, %563 : tensor<16xf32>
    %565 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %566 = stablehlo.divide %423, %565 : tensor<32x16xf32>
    %567 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %568 = stablehlo.divide %428, %567 : tensor<16xf32>
    %569 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %570 = stablehlo.divide %433, %569 : tensor<16x32xf32>
    %571 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %572 = stablehlo.divide %438, %571 : tensor<16xf32>
    %573 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %574 = stablehlo.divide %443, %573 : tensor<64x16xf32>
    %575 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %576 = stablehlo.divide %448, %575 : tensor<16xf32>
    %577 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %578 = stablehlo.divide %453, %577 : tensor<16x16xf32>
    %579 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %580 = stablehlo.divide %458, %579 : tensor<16x16xf32>
    %581 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %582 = stablehlo.divide %463, %581 : tensor<16x16xf32>
    %583 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %584 = stablehlo.divide %468, %583 : tensor<16x64xf32>
    %585 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %586 = stablehlo.divide %473, %585 : tensor<16x16xf32>
    %587 = stablehlo.broadcast_in_dim %562, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %588 = stablehlo.divide %478, %587 : tensor<8x16xf32>
    %cst_160 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %589 = stablehlo.convert %559 : (tensor<i32>) -> tensor<f32>
    %590 = stablehlo.power %cst_160, %589 : tensor<f32>
    %cst_161 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %591 = stablehlo.subtract %cst_161, %590 : tensor<f32>
    %592 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %593 = stablehlo.divide %484, %592 : tensor<16xf32>
    %594 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %595 = stablehlo.divide %490, %594 : tensor<32x16xf32>
    %596 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %597 = stablehlo.divide %496, %596 : tensor<16xf32>
    %598 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %599 = stablehlo.divide %502, %598 : tensor<16x32xf32>
    %600 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %601 = stablehlo.divide %508, %600 : tensor<16xf32>
    %602 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %603 = stablehlo.divide %514, %602 : tensor<64x16xf32>
    %604 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %605 = stablehlo.divide %520, %604 : tensor<16xf32>
    %606 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %607 = stablehlo.divide %526, %606 : tensor<16x16xf32>
    %608 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %609 = stablehlo.divide %532, %608 : tensor<16x16xf32>
    %610 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %611 = stablehlo.divide %538, %610 : tensor<16x16xf32>
    %612 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %613 = stablehlo.divide %544, %612 : tensor<16x64xf32>
    %614 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %615 = stablehlo.divide %550, %614 : tensor<16x16xf32>
    %616 = stablehlo.broadcast_in_dim %591, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %617 = stablehlo.divide %556, %616 : tensor<8x16xf32>
    %cst_162 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %618 = stablehlo.broadcast_in_dim %cst_162, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %619 = stablehlo.add %593, %618 : tensor<16xf32>
    %620 = stablehlo.sqrt %619 : tensor<16xf32>
    %cst_163 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %621 = stablehlo.broadcast_in_dim %cst_163, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %622 = stablehlo.add %620, %621 : tensor<16xf32>
    %623 = stablehlo.divide %564, %622 : tensor<16xf32>
    %cst_164 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %624 = stablehlo.broadcast_in_dim %cst_164, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %625 = stablehlo.add %595, %624 : tensor<32x16xf32>
    %626 = stablehlo.sqrt %625 : tensor<32x16xf32>
    %cst_165 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %627 = stablehlo.broadcast_in_dim %cst_165, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %628 = stablehlo.add %626, %627 : tensor<32x16xf32>
    %629 = stablehlo.divide %566, %628 : tensor<32x16xf32>
    %cst_166 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %630 = stablehlo.broadcast_in_dim %cst_166, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %631 = stablehlo.add %597, %630 : tensor<16xf32>
    %632 = stablehlo.sqrt %631 : tensor<16xf32>
    %cst_167 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %633 = stablehlo.broadcast_in_dim %cst_167, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %634 = stablehlo.add %632, %633 : tensor<16xf32>
    %635 = stablehlo.divide %568, %634 : tensor<16xf32>
    %cst_168 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %636 = stablehlo.broadcast_in_dim %cst_168, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %637 = stablehlo.add %599, %636 : tensor<16x32xf32>
    %638 = stablehlo.sqrt %637 : tensor<16x32xf32>
    %cst_169 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %639 = stablehlo.broadcast_in_dim %cst_169, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %640 = stablehlo.add %638, %639 : tensor<16x32xf32>
    %641 = stablehlo.divide %570, %640 : tensor<16x32xf32>
    %cst_170 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %642 = stablehlo.broadcast_in_dim %cst_170, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %643 = stablehlo.add %601, %642 : tensor<16xf32>
    %644 = stablehlo.sqrt %643 : tensor<16xf32>
    %cst_171 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %645 = stablehlo.broadcast_in_dim %cst_171, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %646 = stablehlo.add %644, %645 : tensor<16xf32>
    %647 = stablehlo.divide %572, %646 : tensor<16xf32>
    %cst_172 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %648 = stablehlo.broadcast_in_dim %cst_172, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %649 = stablehlo.add %603, %648 : tensor<64x16xf32>
    %650 = stablehlo.sqrt %649 : tensor<64x16xf32>
    %cst_173 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %651 = stablehlo.broadcast_in_dim %cst_173, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %652 = stablehlo.add %650, %651 : tensor<64x16xf32>
    %653 = stablehlo.divide %574, %652 : tensor<64x16xf32>
    %cst_174 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %654 = stablehlo.broadcast_in_dim %cst_174, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %655 = stablehlo.add %605, %654 : tensor<16xf32>
    %656 = stablehlo.sqrt %655 : tensor<16xf32>
    %cst_175 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %657 = stablehlo.broadcast_in_dim %cst_175, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %658 = stablehlo.add %656, %657 : tensor<16xf32>
    %659 = stablehlo.divide %576, %658 : tensor<16xf32>
    %cst_176 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %660 = stablehlo.broadcast_in_dim %cst_176, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %661 = stablehlo.add %607, %660 : tensor<16x16xf32>
    %662 = stablehlo.sqrt %661 : tensor<16x16xf32>
    %cst_177 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %663 = stablehlo.broadcast_in_dim %cst_177, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %664 = stablehlo.add %662, %663 : tensor<16x16xf32>
    %665 = stablehlo.divide %578, %664 : tensor<16x16xf32>
    %cst_178 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %666 = stablehlo.broadcast_in_dim %cst_178, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %667 = stablehlo.add %609, %666 : tensor<16x16xf32>
    %668 = stablehlo.sqrt %667 : tensor<16x16xf32>
    %cst_179 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %669 = stablehlo.broadcast_in_dim %cst_179, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %670 = stablehlo.add %668, %669 : tensor<16x16xf32>
    %671 = stablehlo.divide %580, %670 : tensor<16x16xf32>
    %cst_180 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %672 = stablehlo.broadcast_in_dim %cst_180, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %673 = stablehlo.add %611, %672 : tensor<16x16xf32>
    %674 = stablehlo.sqrt %673 : tensor<16x16xf32>
    %cst_181 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %675 = stablehlo.broadcast_in_dim %cst_181, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %676 = stablehlo.add %674, %675 : tensor<16x16xf32>
    %677 = stablehlo.divide %582, %676 : tensor<16x16xf32>
    %cst_182 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %678 = stablehlo.broadcast_in_dim %cst_182, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %679 = stablehlo.add %613, %678 : tensor<16x64xf32>
    %680 = stablehlo.sqrt %679 : tensor<16x64xf32>
    %cst_183 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %681 = stablehlo.broadcast_in_dim %cst_183, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %682 = stablehlo.add %680, %681 : tensor<16x64xf32>
    %683 = stablehlo.divide %584, %682 : tensor<16x64xf32>
    %cst_184 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %684 = stablehlo.broadcast_in_dim %cst_184, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %685 = stablehlo.add %615, %684 : tensor<16x16xf32>
    %686 = stablehlo.sqrt %685 : tensor<16x16xf32>
    %cst_185 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %687 = stablehlo.broadcast_in_dim %cst_185, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %688 = stablehlo.add %686, %687 : tensor<16x16xf32>
    %689 = stablehlo.divide %586, %688 : tensor<16x16xf32>
    %cst_186 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %690 = stablehlo.broadcast_in_dim %cst_186, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %691 = stablehlo.add %617, %690 : tensor<8x16xf32>
    %692 = stablehlo.sqrt %691 : tensor<8x16xf32>
    %cst_187 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %693 = stablehlo.broadcast_in_dim %cst_187, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %694 = stablehlo.add %692, %693 : tensor<8x16xf32>
    %695 = stablehlo.divide %588, %694 : tensor<8x16xf32>
    %cst_188 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %696 = stablehlo.broadcast_in_dim %cst_188, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %697 = stablehlo.multiply %696, %arg27 : tensor<16xf32>
    %698 = stablehlo.add %623, %697 : tensor<16xf32>
    %cst_189 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %699 = stablehlo.broadcast_in_dim %cst_189, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %700 = stablehlo.multiply %699, %arg28 : tensor<32x16xf32>
    %701 = stablehlo.add %629, %700 : tensor<32x16xf32>
    %cst_190 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %702 = stablehlo.broadcast_in_dim %cst_190, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %703 = stablehlo.multiply %702, %arg29 : tensor<16xf32>
    %704 = stablehlo.add %635, %703 : tensor<16xf32>
    %cst_191 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %705 = stablehlo.broadcast_in_dim %cst_191, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %706 = stablehlo.multiply %705, %arg30 : tensor<16x32xf32>
    %707 = stablehlo.add %641, %706 : tensor<16x32xf32>
    %cst_192 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %708 = stablehlo.broadcast_in_dim %cst_192, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %709 = stablehlo.multiply %708, %arg31 : tensor<16xf32>
    %710 = stablehlo.add %647, %709 : tensor<16xf32>
    %cst_193 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %711 = stablehlo.broadcast_in_dim %cst_193, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %712 = stablehlo.multiply %711, %arg32 : tensor<64x16xf32>
    %713 = stablehlo.add %653, %712 : tensor<64x16xf32>
    %cst_194 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %714 = stablehlo.broadcast_in_dim %cst_194, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %715 = stablehlo.multiply %714, %arg33 : tensor<16xf32>
    %716 = stablehlo.add %659, %715 : tensor<16xf32>
    %cst_195 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %717 = stablehlo.broadcast_in_dim %cst_195, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %718 = stablehlo.multiply %717, %arg34 : tensor<16x16xf32>
    %719 = stablehlo.add %665, %718 : tensor<16x16xf32>
    %cst_196 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %720 = stablehlo.broadcast_in_dim %cst_196, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %721 = stablehlo.multiply %720, %arg35 : tensor<16x16xf32>
    %722 = stablehlo.add %671, %721 : tensor<16x16xf32>
    %cst_197 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %723 = stablehlo.broadcast_in_dim %cst_197, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %724 = stablehlo.multiply %723, %arg36 : tensor<16x16xf32>
    %725 = stablehlo.add %677, %724 : tensor<16x16xf32>
    %cst_198 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %726 = stablehlo.broadcast_in_dim %cst_198, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %727 = stablehlo.multiply %726, %arg37 : tensor<16x64xf32>
    %728 = stablehlo.add %683, %727 : tensor<16x64xf32>
    %cst_199 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %729 = stablehlo.broadcast_in_dim %cst_199, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %730 = stablehlo.multiply %729, %arg38 : tensor<16x16xf32>
    %731 = stablehlo.add %689, %730 : tensor<16x16xf32>
    %cst_200 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %732 = stablehlo.broadcast_in_dim %cst_200, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %733 = stablehlo.multiply %732, %arg39 : tensor<8x16xf32>
    %734 = stablehlo.add %695, %733 : tensor<8x16xf32>
    %cst_201 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %735 = stablehlo.broadcast_in_dim %cst_201, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %736 = stablehlo.multiply %735, %698 : tensor<16xf32>
    %cst_202 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %737 = stablehlo.broadcast_in_dim %cst_202, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %738 = stablehlo.multiply %737, %701 : tensor<32x16xf32>
    %cst_203 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %739 = stablehlo.broadcast_in_dim %cst_203, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %740 = stablehlo.multiply %739, %704 : tensor<16xf32>
    %cst_204 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %741 = stablehlo.broadcast_in_dim %cst_204, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %742 = stablehlo.multiply %741, %707 : tensor<16x32xf32>
    %cst_205 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %743 = stablehlo.broadcast_in_dim %cst_205, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %744 = stablehlo.multiply %743, %710 : tensor<16xf32>
    %cst_206 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %745 = stablehlo.broadcast_in_dim %cst_206, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %746 = stablehlo.multiply %745, %713 : tensor<64x16xf32>
    %cst_207 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %747 = stablehlo.broadcast_in_dim %cst_207, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %748 = stablehlo.multiply %747, %716 : tensor<16xf32>
    %cst_208 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %749 = stablehlo.broadcast_in_dim %cst_208, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %750 = stablehlo.multiply %749, %719 : tensor<16x16xf32>
    %cst_209 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %751 = stablehlo.broadcast_in_dim %cst_209, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %752 = stablehlo.multiply %751, %722 : tensor<16x16xf32>
    %cst_210 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %753 = stablehlo.broadcast_in_dim %cst_210, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %754 = stablehlo.multiply %753, %725 : tensor<16x16xf32>
    %cst_211 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %755 = stablehlo.broadcast_in_dim %cst_211, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %756 = stablehlo.multiply %755, %728 : tensor<16x64xf32>
    %cst_212 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %757 = stablehlo.broadcast_in_dim %cst_212, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %758 = stablehlo.multiply %757, %731 : tensor<16x16xf32>
    %cst_213 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %759 = stablehlo.broadcast_in_dim %cst_213, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %760 = stablehlo.multiply %759, %734 : tensor<8x16xf32>
    %761 = stablehlo.add %arg27, %736 : tensor<16xf32>
    %762 = stablehlo.add %arg28, %738 : tensor<32x16xf32>
    %763 = stablehlo.add %arg29, %740 : tensor<16xf32>
    %764 = stablehlo.add %arg30, %742 : tensor<16x32xf32>
    %765 = stablehlo.add %arg31, %744 : tensor<16xf32>
    %766 = stablehlo.add %arg32, %746 : tensor<64x16xf32>
    %767 = stablehlo.add %arg33, %748 : tensor<16xf32>
    %768 = stablehlo.add %arg34, %750 : tensor<16x16xf32>
    %769 = stablehlo.add %arg35, %752 : tensor<16x16xf32>
    %770 = stablehlo.add %arg36, %754 : tensor<16x16xf32>
    %771 = stablehlo.add %arg37, %756 : tensor<16x64xf32>
    %772 = stablehlo.add %arg38, %758 : tensor<16x16xf32>
    %773 = stablehlo.add %arg39, %760 : tensor<8x16xf32>
    return %559, %418, %423, %428, %433, %438, %443, %448, %453, %458, %463, %468, %473, %478, %484, %490, %496, %502, %508, %514, %520, %526, %532, %538, %544, %550, %556, %761, %762, %763, %764, %765, %766, %767, %768, %769, %770, %771, %772, %773, %126 : tensor<i32>, tensor<16xf32>, tensor<32x16xf32>, tensor<16xf32>, tensor<16x32xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<16xf32>, tensor<16x32xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<32x16xf32>, tensor<16xf32>, tensor<16x32xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<8x16xf32>, tensor<f32>
  }
  func.func private @tril(%arg0: tensor<8x8xi1>) -> tensor<8x8xi1> {
    %0 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<8x8xi32>
    %2 = stablehlo.add %0, %1 : tensor<8x8xi32>
    %3 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %5 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<8x8xi1>, tensor<8x8xi1>
    return %6 : tensor<8x8xi1>
  }
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<4x4x8x8xf32>, %arg2: tensor<f32>) -> (tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>) {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<4x4x8x8xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %3, %1 : tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>
  }
  func.func private @log_softmax(%arg0: tensor<4x8x32xf32>) -> (tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<4x8xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x8x32xf32>
    %6 = stablehlo.exponential %5 : tensor<4x8x32xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %9 = stablehlo.log %8 : tensor<4x8x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<4x8x32xf32>
    return %11, %6, %8 : tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x8x32xf32>, %arg1: tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x8x1xi32>, tensor<4x8x1xi32>) -> tensor<4x8x1xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<4x8x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x8x1xi1>, tensor<4x8x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<4x8x1xi32>) -> tensor<4x8x1x1xi32>
    %c_1 = stablehlo.constant dense<31> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x8x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [3] : (tensor<1xi32>) -> tensor<1x1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x1x1x1xi32>) -> tensor<4x8x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<4x8x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [3] : (tensor<4x8x1x1xi1>, tensor<i1>) -> tensor<4x8x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<4x8x32xf32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<4x8x1xi1>, tensor<4x8x1xf32>
    return %15, %5 : tensor<4x8x1xf32>, tensor<4x8x1x1xi32>
  }
  func.func private @take_along_axis_0(%arg0: tensor<4x8x1x1xi32>, %arg1: tensor<4x8x1xf32>) -> tensor<4x8x32xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x8x32xf32>, tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    return %1 : tensor<4x8x32xf32>
  }
  func.func private @log_softmax_1(%arg0: tensor<4x8x32xf32>, %arg1: tensor<4x8x1xf32>, %arg2: tensor<4x8x32xf32>) -> tensor<4x8x32xf32> {
    %0 = stablehlo.negate %arg2 : tensor<4x8x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %2 = stablehlo.reshape %1 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<4x8x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x32xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<4x8x32xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<4x8x32xf32>
    return %7 : tensor<4x8x32xf32>
  }
  func.func private @_where_2(%arg0: tensor<4x4x8x8xi1>, %arg1: tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %1 : tensor<4x4x8x8xf32>
  }
  func.func private @_where_3(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
}
// -----
module @jit_decoder_bf16 attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16xf32>, %arg1: tensor<32x16xf32>, %arg2: tensor<16xf32>, %arg3: tensor<16x32xf32>, %arg4: tensor<16xf32>, %arg5: tensor<64x16xf32>, %arg6: tensor<16xf32>, %arg7: tensor<16x16xf32>, %arg8: tensor<16x16xf32>, %arg9: tensor<16x16xf32>, %arg10: tensor<16x64xf32>, %arg11: tensor<16x16xf32>, %arg12: tensor<8x16xf32>, %arg13: tensor<4x8xi32>, %arg14: tensor<4x8xi32>) -> (tensor<16xf32> {jax.result_info = "result[0]"}, tensor<32x16xf32> {jax.result_info = "result[1]"}, tensor<16xf32> {jax.result_info = "result[2]"}, tensor<16x32xf32> {jax.result_info = "result[3]"}, tensor<16xf32> {jax.result_info = "result[4]"}, tensor<64x16xf32> {jax.result_info = "result[5]"}, tensor<16xf32> {jax.result_info = "result[6]"}, tensor<16x16xf32> {jax.result_info = "result[7]"}, tensor<16x16xf32> {jax.result_info = "result[8]"}, tensor<16x16xf32> {jax.result_info = "result[9]"}, tensor<16x64xf32> {jax.result_info = "result[10]"}, tensor<16x16xf32> {jax.result_info = "result[11]"}, tensor<8x16xf32> {jax.result_info = "result[12]"}, tensor<f32> {jax.result_info = "result[13]"}) {
    %0 = stablehlo.convert %arg0 : (tensor<16xf32>) -> tensor<16xbf16>
    %1 = stablehlo.convert %arg1 : (tensor<32x16xf32>) -> tensor<32x16xbf16>
    %2 = stablehlo.convert %arg2 : (tensor<16xf32>) -> tensor<16xbf16>
    %3 = stablehlo.convert %arg3 : (tensor<16x32xf32>) -> tensor<16x32xbf16>
    %4 = stablehlo.convert %arg4 : (tensor<16xf32>) -> tensor<16xbf16>
    %5 = stablehlo.convert %arg5 : (tensor<64x16xf32>) -> tensor<64x16xbf16>
    %6 = stablehlo.convert %arg6 : (tensor<16xf32>) -> tensor<16xbf16>
    %7 = stablehlo.convert %arg7 : (tensor<16x16xf32>) -> tensor<16x16xbf16>
    %8 = stablehlo.convert %arg8 : (tensor<16x16xf32>) -> tensor<16x16xbf16>
    %9 = stablehlo.convert %arg9 : (tensor<16x16xf32>) -> tensor<16x16xbf16>
    %10 = stablehlo.convert %arg10 : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %11 = stablehlo.convert %arg11 : (tensor<16x16xf32>) -> tensor<16x16xbf16>
    %12 = stablehlo.convert %arg12 : (tensor<8x16xf32>) -> tensor<8x16xbf16>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %13 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %14 = stablehlo.compare LT, %arg13, %13, SIGNED : (tensor<4x8xi32>, tensor<4x8xi32>) -> tensor<4x8xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %15 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %16 = stablehlo.add %arg13, %15 : tensor<4x8xi32>
    %17 = stablehlo.select %14, %16, %arg13 : tensor<4x8xi1>, tensor<4x8xi32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %19 = "stablehlo.gather"(%1, %18) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xbf16>, tensor<4x8x1xi32>) -> tensor<4x8x16xbf16>
    %20 = stablehlo.broadcast_in_dim %12, dims = [1, 2] : (tensor<8x16xbf16>) -> tensor<1x8x16xbf16>
    %21 = stablehlo.broadcast_in_dim %20, dims = [0, 1, 2] : (tensor<1x8x16xbf16>) -> tensor<4x8x16xbf16>
    %22 = stablehlo.add %19, %21 : tensor<4x8x16xbf16>
    %23 = stablehlo.convert %22 : (tensor<4x8x16xbf16>) -> tensor<4x8x16xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %24 = stablehlo.reduce(%23 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_1 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %27 = stablehlo.divide %25, %26 : tensor<4x8x1xf32>
    %28 = stablehlo.convert %27 : (tensor<4x8x1xf32>) -> tensor<4x8x1xbf16>
    %29 = stablehlo.broadcast_in_dim %28, dims = [0, 1, 2] : (tensor<4x8x1xbf16>) -> tensor<4x8x16xbf16>
    %30 = stablehlo.subtract %22, %29 : tensor<4x8x16xbf16>
    %31 = stablehlo.multiply %30, %30 : tensor<4x8x16xbf16>
    %cst_2 = stablehlo.constant dense<2.000000e+00> : tensor<bf16>
    %32 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<bf16>) -> tensor<4x8x16xbf16>
    %33 = stablehlo.multiply %32, %30 : tensor<4x8x16xbf16>
    %34 = stablehlo.convert %31 : (tensor<4x8x16xbf16>) -> tensor<4x8x16xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %35 = stablehlo.reduce(%34 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_4 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %37 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %38 = stablehlo.divide %36, %37 : tensor<4x8x1xf32>
    %39 = stablehlo.convert %38 : (tensor<4x8x1xf32>) -> tensor<4x8x1xbf16>
    %40 = stablehlo.broadcast_in_dim %28, dims = [0, 1, 2] : (tensor<4x8x1xbf16>) -> tensor<4x8x16xbf16>
    %41 = stablehlo.subtract %22, %40 : tensor<4x8x16xbf16>
    %cst_5 = stablehlo.constant dense<1.001360e-05> : tensor<bf16>
    %42 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<bf16>) -> tensor<4x8x1xbf16>
    %43 = stablehlo.add %39, %42 : tensor<4x8x1xbf16>
    %44 = stablehlo.rsqrt %43 : tensor<4x8x1xbf16>
    %45 = stablehlo.divide %44, %43 : tensor<4x8x1xbf16>
    %cst_6 = stablehlo.constant dense<-5.000000e-01> : tensor<bf16>
    %46 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<bf16>) -> tensor<4x8x1xbf16>
    %47 = stablehlo.multiply %46, %45 : tensor<4x8x1xbf16>
    %48 = stablehlo.broadcast_in_dim %44, dims = [0, 1, 2] : (tensor<4x8x1xbf16>) -> tensor<4x8x16xbf16>
    %49 = stablehlo.multiply %41, %48 : tensor<4x8x16xbf16>
    %50 = stablehlo.broadcast_in_dim %6, dims = [2] : (tensor<16xbf16>) -> tensor<1x1x16xbf16>
    %51 = stablehlo.broadcast_in_dim %50, dims = [0, 1, 2] : (tensor<1x1x16xbf16>) -> tensor<4x8x16xbf16>
    %52 = stablehlo.multiply %49, %51 : tensor<4x8x16xbf16>
    %53 = stablehlo.broadcast_in_dim %4, dims = [2] : (tensor<16xbf16>) -> tensor<1x1x16xbf16>
    %54 = stablehlo.broadcast_in_dim %53, dims = [0, 1, 2] : (tensor<1x1x16xbf16>) -> tensor<4x8x16xbf16>
    %55 = stablehlo.add %52, %54 : tensor<4x8x16xbf16>
    %56 = stablehlo.dot_general %55, %9, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<16x16xbf16>) -> tensor<4x8x16xbf16>
    %57 = stablehlo.reshape %56 : (tensor<4x8x16xbf16>) -> tensor<4x8x4x4xbf16>
    %58 = stablehlo.dot_general %55, %7, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<16x16xbf16>) -> tensor<4x8x16xbf16>
    %59 = stablehlo.reshape %58 : (tensor<4x8x16xbf16>) -> tensor<4x8x4x4xbf16>
    %60 = stablehlo.dot_general %55, %11, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<16x16xbf16>) -> tensor<4x8x16xbf16>
    %61 = stablehlo.reshape %60 : (tensor<4x8x16xbf16>) -> tensor<4x8x4x4xbf16>
    %62 = stablehlo.dot_general %57, %59, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xbf16>, tensor<4x8x4x4xbf16>) -> tensor<4x4x8x8xbf16>
    %63 = stablehlo.convert %62 : (tensor<4x4x8x8xbf16>) -> tensor<4x4x8x8xf32>
    %cst_7 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %64 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %65 = stablehlo.divide %63, %64 : tensor<4x4x8x8xf32>
    %c_8 = stablehlo.constant dense<true> : tensor<i1>
    %66 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %67 = call @tril(%66) : (tensor<8x8xi1>) -> tensor<8x8xi1>
    %cst_9 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %68:2 = call @_where(%67, %65, %cst_9) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> (tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>)
    %cst_10 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %69 = stablehlo.reduce(%68#0 init: %cst_10) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %cst_11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %70 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x4x8xf32>
    %71 = stablehlo.maximum %70, %69 : tensor<4x4x8xf32>
    %72 = stablehlo.broadcast_in_dim %71, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %73 = stablehlo.broadcast_in_dim %72, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %74 = stablehlo.subtract %68#0, %73 : tensor<4x4x8x8xf32>
    %75 = stablehlo.exponential %74 : tensor<4x4x8x8xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %76 = stablehlo.reduce(%75 init: %cst_12) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %77 = stablehlo.broadcast_in_dim %76, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %78 = stablehlo.broadcast_in_dim %77, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %79 = stablehlo.divide %75, %78 : tensor<4x4x8x8xf32>
    %80 = stablehlo.multiply %77, %77 : tensor<4x4x8x1xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x4x8x1xf32>
    %82 = stablehlo.divide %81, %80 : tensor<4x4x8x1xf32>
    %83 = stablehlo.convert %61 : (tensor<4x8x4x4xbf16>) -> tensor<4x8x4x4xf32>
    %84 = stablehlo.convert %79 : tensor<4x4x8x8xf32>
    %85 = stablehlo.dot_general %83, %84, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %86 = stablehlo.transpose %85, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %87 = stablehlo.reshape %86 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %88 = stablehlo.convert %87 : tensor<4x8x16xf32>
    %89 = stablehlo.convert %8 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %90 = stablehlo.dot_general %88, %89, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %91 = stablehlo.convert %22 : (tensor<4x8x16xbf16>) -> tensor<4x8x16xf32>
    %92 = stablehlo.add %91, %90 : tensor<4x8x16xf32>
    %93 = stablehlo.convert %92 : tensor<4x8x16xf32>
    %94 = stablehlo.convert %10 : (tensor<16x64xbf16>) -> tensor<16x64xf32>
    %95 = stablehlo.dot_general %93, %94, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x64xf32>) -> tensor<4x8x64xf32>
    %96 = stablehlo.multiply %95, %95 : tensor<4x8x64xf32>
    %97 = stablehlo.multiply %96, %95 : tensor<4x8x64xf32>
    %98 = stablehlo.multiply %95, %95 : tensor<4x8x64xf32>
    %cst_14 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %99 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %100 = stablehlo.multiply %99, %98 : tensor<4x8x64xf32>
    %cst_15 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %101 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %102 = stablehlo.multiply %101, %97 : tensor<4x8x64xf32>
    %103 = stablehlo.add %95, %102 : tensor<4x8x64xf32>
    %cst_16 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %104 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %105 = stablehlo.multiply %104, %103 : tensor<4x8x64xf32>
    %106 = stablehlo.tanh %105 : tensor<4x8x64xf32>
    %cst_17 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %107 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %108 = stablehlo.subtract %107, %106 : tensor<4x8x64xf32>
    %cst_18 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %109 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %110 = stablehlo.add %109, %106 : tensor<4x8x64xf32>
    %cst_19 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %111 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %112 = stablehlo.multiply %111, %110 : tensor<4x8x64xf32>
    %113 = stablehlo.multiply %95, %112 : tensor<4x8x64xf32>
    %114 = stablehlo.convert %113 : tensor<4x8x64xf32>
    %115 = stablehlo.convert %5 : (tensor<64x16xbf16>) -> tensor<64x16xf32>
    %116 = stablehlo.dot_general %114, %115, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<64x16xf32>) -> tensor<4x8x16xf32>
    %117 = stablehlo.add %92, %116 : tensor<4x8x16xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %118 = stablehlo.reduce(%117 init: %cst_20) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %119 = stablehlo.broadcast_in_dim %118, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_21 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %120 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %121 = stablehlo.divide %119, %120 : tensor<4x8x1xf32>
    %122 = stablehlo.broadcast_in_dim %121, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %123 = stablehlo.subtract %117, %122 : tensor<4x8x16xf32>
    %124 = stablehlo.multiply %123, %123 : tensor<4x8x16xf32>
    %cst_22 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %125 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4x8x16xf32>
    %126 = stablehlo.multiply %125, %123 : tensor<4x8x16xf32>
    %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %127 = stablehlo.reduce(%124 init: %cst_23) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %128 = stablehlo.broadcast_in_dim %127, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_24 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %129 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %130 = stablehlo.divide %128, %129 : tensor<4x8x1xf32>
    %131 = stablehlo.broadcast_in_dim %121, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %132 = stablehlo.subtract %117, %131 : tensor<4x8x16xf32>
    %cst_25 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %133 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %134 = stablehlo.add %130, %133 : tensor<4x8x1xf32>
    %135 = stablehlo.rsqrt %134 : tensor<4x8x1xf32>
    %136 = stablehlo.divide %135, %134 : tensor<4x8x1xf32>
    %cst_26 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %137 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %138 = stablehlo.multiply %137, %136 : tensor<4x8x1xf32>
    %139 = stablehlo.broadcast_in_dim %135, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %140 = stablehlo.multiply %132, %139 : tensor<4x8x16xf32>
    %141 = stablehlo.convert %2 : (tensor<16xbf16>) -> tensor<16xf32>
    %142 = stablehlo.broadcast_in_dim %141, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %143 = stablehlo.broadcast_in_dim %142, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %144 = stablehlo.multiply %140, %143 : tensor<4x8x16xf32>
    %145 = stablehlo.convert %0 : (tensor<16xbf16>) -> tensor<16xf32>
    %146 = stablehlo.broadcast_in_dim %145, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %147 = stablehlo.broadcast_in_dim %146, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %148 = stablehlo.add %144, %147 : tensor<4x8x16xf32>
    %149 = stablehlo.convert %148 : tensor<4x8x16xf32>
    %150 = stablehlo.convert %3 : (tensor<16x32xbf16>) -> tensor<16x32xf32>
    %151 = stablehlo.dot_general %149, %150, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x32xf32>) -> tensor<4x8x32xf32>
    %152:3 = call @log_softmax(%151) : (tensor<4x8x32xf32>) -> (tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>)
    %153 = stablehlo.broadcast_in_dim %arg14, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %154:2 = call @take_along_axis(%152#0, %153) : (tensor<4x8x32xf32>, tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>)
    %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %155 = stablehlo.reduce(%154#0 init: %cst_27) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<f32>
    %cst_28 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %156 = stablehlo.divide %155, %cst_28 : tensor<f32>
    %157 = stablehlo.negate %156 : tensor<f32>
    %cst_29 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %158 = stablehlo.negate %cst_29 : tensor<f32>
    %cst_30 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %159 = stablehlo.divide %158, %cst_30 : tensor<f32>
    %160 = stablehlo.broadcast_in_dim %159, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %161 = call @take_along_axis_0(%154#1, %160) : (tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %162 = call @log_softmax_1(%152#1, %152#2, %161) : (tensor<4x8x32xf32>, tensor<4x8x1xf32>, tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %163 = stablehlo.dot_general %162, %148, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x32xf32>, tensor<4x8x16xf32>) -> tensor<32x16xf32>
    %164 = stablehlo.transpose %163, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %165 = stablehlo.convert %164 : (tensor<16x32xf32>) -> tensor<16x32xbf16>
    %166 = stablehlo.convert %162 : tensor<4x8x32xf32>
    %167 = stablehlo.convert %3 : (tensor<16x32xbf16>) -> tensor<16x32xf32>
    %168 = stablehlo.dot_general %166, %167, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x32xf32>, tensor<16x32xf32>) -> tensor<4x8x16xf32>
    %cst_31 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %169 = stablehlo.reduce(%168 init: %cst_31) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %170 = stablehlo.reshape %169 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %cst_32 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %171 = stablehlo.reduce(%170 init: %cst_32) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %172 = stablehlo.convert %171 : (tensor<16xf32>) -> tensor<16xbf16>
    %173 = stablehlo.multiply %140, %168 : tensor<4x8x16xf32>
    %cst_33 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %174 = stablehlo.reduce(%173 init: %cst_33) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %175 = stablehlo.reshape %174 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %176 = stablehlo.broadcast_in_dim %142, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %177 = stablehlo.multiply %168, %176 : tensor<4x8x16xf32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %178 = stablehlo.reduce(%175 init: %cst_34) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %179 = stablehlo.convert %178 : (tensor<16xf32>) -> tensor<16xbf16>
    %180 = stablehlo.multiply %132, %177 : tensor<4x8x16xf32>
    %cst_35 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %181 = stablehlo.reduce(%180 init: %cst_35) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %182 = stablehlo.reshape %181 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %183 = stablehlo.broadcast_in_dim %135, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %184 = stablehlo.multiply %177, %183 : tensor<4x8x16xf32>
    %185 = stablehlo.multiply %182, %138 : tensor<4x8x1xf32>
    %186 = stablehlo.negate %184 : tensor<4x8x16xf32>
    %cst_36 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %187 = stablehlo.reduce(%186 init: %cst_36) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %188 = stablehlo.reshape %187 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_37 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %189 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %190 = stablehlo.divide %185, %189 : tensor<4x8x1xf32>
    %cst_38 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %191 = stablehlo.reduce(%190 init: %cst_38) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %192 = stablehlo.broadcast_in_dim %191, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %193 = stablehlo.multiply %192, %126 : tensor<4x8x16xf32>
    %194 = stablehlo.negate %193 : tensor<4x8x16xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %195 = stablehlo.reduce(%194 init: %cst_39) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %196 = stablehlo.reshape %195 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %197 = stablehlo.add %184, %193 : tensor<4x8x16xf32>
    %198 = stablehlo.add %188, %196 : tensor<4x8x1xf32>
    %cst_40 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %199 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %200 = stablehlo.divide %198, %199 : tensor<4x8x1xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %201 = stablehlo.reduce(%200 init: %cst_41) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %202 = stablehlo.broadcast_in_dim %201, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %203 = stablehlo.add %197, %202 : tensor<4x8x16xf32>
    %204 = stablehlo.dot_general %203, %113, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x64xf32>) -> tensor<16x64xf32>
    %205 = stablehlo.transpose %204, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %206 = stablehlo.convert %205 : (tensor<64x16xf32>) -> tensor<64x16xbf16>
    %207 = stablehlo.convert %203 : tensor<4x8x16xf32>
    %208 = stablehlo.convert %5 : (tensor<64x16xbf16>) -> tensor<64x16xf32>
    %209 = stablehlo.dot_general %207, %208, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<64x16xf32>) -> tensor<4x8x64xf32>
    %210 = stablehlo.multiply %95, %209 : tensor<4x8x64xf32>
    %211 = stablehlo.multiply %209, %112 : tensor<4x8x64xf32>
    %cst_42 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %212 = stablehlo.broadcast_in_dim %cst_42, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %213 = stablehlo.multiply %212, %210 : tensor<4x8x64xf32>
    %214 = stablehlo.multiply %213, %108 : tensor<4x8x64xf32>
    %215 = stablehlo.multiply %214, %106 : tensor<4x8x64xf32>
    %216 = stablehlo.add %214, %215 : tensor<4x8x64xf32>
    %cst_43 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %217 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %218 = stablehlo.multiply %217, %216 : tensor<4x8x64xf32>
    %219 = stablehlo.add %211, %218 : tensor<4x8x64xf32>
    %cst_44 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %220 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %221 = stablehlo.multiply %220, %218 : tensor<4x8x64xf32>
    %222 = stablehlo.multiply %221, %100 : tensor<4x8x64xf32>
    %223 = stablehlo.add %219, %222 : tensor<4x8x64xf32>
    %224 = stablehlo.dot_general %223, %92, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<4x8x16xf32>) -> tensor<64x16xf32>
    %225 = stablehlo.transpose %224, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %226 = stablehlo.convert %225 : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %227 = stablehlo.convert %223 : tensor<4x8x64xf32>
    %228 = stablehlo.convert %10 : (tensor<16x64xbf16>) -> tensor<16x64xf32>
    %229 = stablehlo.dot_general %227, %228, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<16x64xf32>) -> tensor<4x8x16xf32>
    %230 = stablehlo.add %203, %229 : tensor<4x8x16xf32>
    %231 = stablehlo.convert %230 : (tensor<4x8x16xf32>) -> tensor<4x8x16xbf16>
    %232 = stablehlo.dot_general %230, %87, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %233 = stablehlo.transpose %232, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %234 = stablehlo.convert %233 : (tensor<16x16xf32>) -> tensor<16x16xbf16>
    %235 = stablehlo.convert %230 : tensor<4x8x16xf32>
    %236 = stablehlo.convert %8 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %237 = stablehlo.dot_general %235, %236, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %238 = stablehlo.reshape %237 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %239 = stablehlo.transpose %238, dims = [0, 2, 3, 1] : (tensor<4x8x4x4xf32>) -> tensor<4x4x4x8xf32>
    %240 = stablehlo.convert %239 : tensor<4x4x4x8xf32>
    %241 = stablehlo.convert %61 : (tensor<4x8x4x4xbf16>) -> tensor<4x8x4x4xf32>
    %242 = stablehlo.dot_general %240, %241, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x4x4x8xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %243 = stablehlo.dot_general %239, %79, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x4x4x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %244 = stablehlo.transpose %243, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %245 = stablehlo.convert %244 : (tensor<4x8x4x4xf32>) -> tensor<4x8x4x4xbf16>
    %246 = stablehlo.broadcast_in_dim %82, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %247 = stablehlo.multiply %242, %246 : tensor<4x4x8x8xf32>
    %248 = stablehlo.multiply %247, %75 : tensor<4x4x8x8xf32>
    %cst_45 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %249 = stablehlo.reduce(%248 init: %cst_45) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %250 = stablehlo.reshape %249 : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %251 = stablehlo.negate %250 : tensor<4x4x8x1xf32>
    %252 = stablehlo.broadcast_in_dim %77, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %253 = stablehlo.divide %242, %252 : tensor<4x4x8x8xf32>
    %cst_46 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %254 = stablehlo.reduce(%251 init: %cst_46) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x1xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %255 = stablehlo.broadcast_in_dim %254, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x8xf32>
    %256 = stablehlo.add %253, %255 : tensor<4x4x8x8xf32>
    %257 = stablehlo.multiply %256, %75 : tensor<4x4x8x8xf32>
    %258 = call @_where_2(%68#1, %257) : (tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_47 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %259 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %260 = stablehlo.divide %258, %259 : tensor<4x4x8x8xf32>
    %261 = stablehlo.convert %260 : (tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xbf16>
    %262 = stablehlo.dot_general %261, %57, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x8xbf16>, tensor<4x8x4x4xbf16>) -> tensor<4x4x8x4xbf16>
    %263 = stablehlo.transpose %262, dims = [0, 2, 1, 3] : (tensor<4x4x8x4xbf16>) -> tensor<4x8x4x4xbf16>
    %264 = stablehlo.dot_general %261, %59, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x8xbf16>, tensor<4x8x4x4xbf16>) -> tensor<4x4x8x4xbf16>
    %265 = stablehlo.transpose %264, dims = [0, 2, 1, 3] : (tensor<4x4x8x4xbf16>) -> tensor<4x8x4x4xbf16>
    %266 = stablehlo.reshape %245 : (tensor<4x8x4x4xbf16>) -> tensor<4x8x16xbf16>
    %267 = stablehlo.dot_general %266, %55, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<4x8x16xbf16>) -> tensor<16x16xbf16>
    %268 = stablehlo.transpose %267, dims = [1, 0] : (tensor<16x16xbf16>) -> tensor<16x16xbf16>
    %269 = stablehlo.dot_general %266, %11, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<16x16xbf16>) -> tensor<4x8x16xbf16>
    %270 = stablehlo.reshape %263 : (tensor<4x8x4x4xbf16>) -> tensor<4x8x16xbf16>
    %271 = stablehlo.dot_general %270, %55, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<4x8x16xbf16>) -> tensor<16x16xbf16>
    %272 = stablehlo.transpose %271, dims = [1, 0] : (tensor<16x16xbf16>) -> tensor<16x16xbf16>
    %273 = stablehlo.dot_general %270, %7, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<16x16xbf16>) -> tensor<4x8x16xbf16>
    %274 = stablehlo.add %269, %273 : tensor<4x8x16xbf16>
    %275 = stablehlo.reshape %265 : (tensor<4x8x4x4xbf16>) -> tensor<4x8x16xbf16>
    %276 = stablehlo.dot_general %275, %55, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<4x8x16xbf16>) -> tensor<16x16xbf16>
    %277 = stablehlo.transpose %276, dims = [1, 0] : (tensor<16x16xbf16>) -> tensor<16x16xbf16>
    %278 = stablehlo.dot_general %275, %9, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xbf16>, tensor<16x16xbf16>) -> tensor<4x8x16xbf16>
    %279 = stablehlo.add %274, %278 : tensor<4x8x16xbf16>
    %cst_48 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %280 = stablehlo.reduce(%279 init: %cst_48) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xbf16>, tensor<bf16>) -> tensor<16xbf16>
    %281 = stablehlo.reshape %280 : (tensor<16xbf16>) -> tensor<1x1x16xbf16>
    %cst_49 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %282 = stablehlo.reduce(%281 init: %cst_49) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xbf16>, tensor<bf16>) -> tensor<16xbf16>
    %283 = stablehlo.multiply %49, %279 : tensor<4x8x16xbf16>
    %cst_50 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %284 = stablehlo.reduce(%283 init: %cst_50) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xbf16>, tensor<bf16>) -> tensor<16xbf16>
    %285 = stablehlo.reshape %284 : (tensor<16xbf16>) -> tensor<1x1x16xbf16>
    %286 = stablehlo.broadcast_in_dim %50, dims = [0, 1, 2] : (tensor<1x1x16xbf16>) -> tensor<4x8x16xbf16>
    %287 = stablehlo.multiply %279, %286 : tensor<4x8x16xbf16>
    %cst_51 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %288 = stablehlo.reduce(%285 init: %cst_51) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xbf16>, tensor<bf16>) -> tensor<16xbf16>
    %289 = stablehlo.multiply %41, %287 : tensor<4x8x16xbf16>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %290 = stablehlo.reduce(%289 init: %cst_52) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xbf16>, tensor<bf16>) -> tensor<4x8xbf16>
    %291 = stablehlo.reshape %290 : (tensor<4x8xbf16>) -> tensor<4x8x1xbf16>
    %292 = stablehlo.broadcast_in_dim %44, dims = [0, 1, 2] : (tensor<4x8x1xbf16>) -> tensor<4x8x16xbf16>
    %293 = stablehlo.multiply %287, %292 : tensor<4x8x16xbf16>
    %294 = stablehlo.multiply %291, %47 : tensor<4x8x1xbf16>
    %295 = stablehlo.negate %293 : tensor<4x8x16xbf16>
    %cst_53 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %296 = stablehlo.reduce(%295 init: %cst_53) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xbf16>, tensor<bf16>) -> tensor<4x8xbf16>
    %297 = stablehlo.reshape %296 : (tensor<4x8xbf16>) -> tensor<4x8x1xbf16>
    %298 = stablehlo.add %231, %293 : tensor<4x8x16xbf16>
    %299 = stablehlo.convert %294 : (tensor<4x8x1xbf16>) -> tensor<4x8x1xf32>
    %cst_54 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %300 = stablehlo.broadcast_in_dim %cst_54, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %301 = stablehlo.divide %299, %300 : tensor<4x8x1xf32>
    %cst_55 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %302 = stablehlo.reduce(%301 init: %cst_55) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %303 = stablehlo.broadcast_in_dim %302, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %304 = stablehlo.convert %303 : (tensor<4x8x16xf32>) -> tensor<4x8x16xbf16>
    %305 = stablehlo.multiply %304, %33 : tensor<4x8x16xbf16>
    %306 = stablehlo.negate %305 : tensor<4x8x16xbf16>
    %cst_56 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %307 = stablehlo.reduce(%306 init: %cst_56) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xbf16>, tensor<bf16>) -> tensor<4x8xbf16>
    %308 = stablehlo.reshape %307 : (tensor<4x8xbf16>) -> tensor<4x8x1xbf16>
    %309 = stablehlo.add %298, %305 : tensor<4x8x16xbf16>
    %310 = stablehlo.add %297, %308 : tensor<4x8x1xbf16>
    %311 = stablehlo.convert %310 : (tensor<4x8x1xbf16>) -> tensor<4x8x1xf32>
    %cst_57 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %312 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %313 = stablehlo.divide %311, %312 : tensor<4x8x1xf32>
    %cst_58 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %314 = stablehlo.reduce(%313 init: %cst_58) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %315 = stablehlo.broadcast_in_dim %314, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %316 = stablehlo.convert %315 : (tensor<4x8x16xf32>) -> tensor<4x8x16xbf16>
    %317 = stablehlo.add %309, %316 : tensor<4x8x16xbf16>
    %cst_59 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %318 = stablehlo.reduce(%317 init: %cst_59) applies stablehlo.add across dimensions = [0] : (tensor<4x8x16xbf16>, tensor<bf16>) -> tensor<8x16xbf16>
    %319 = stablehlo.reshape %318 : (tensor<8x16xbf16>) -> tensor<1x8x16xbf16>
    %cst_60 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %320 = stablehlo.reduce(%319 init: %cst_60) applies stablehlo.add across dimensions = [0] : (tensor<1x8x16xbf16>, tensor<bf16>) -> tensor<8x16xbf16>
    %cst_61 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %321 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<bf16>) -> tensor<32x16xbf16>
    %322 = "stablehlo.scatter"(%321, %18, %317) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg15: tensor<bf16>, %arg16: tensor<bf16>):
      %375 = stablehlo.add %arg15, %arg16 : tensor<bf16>
      stablehlo.return %375 : tensor<bf16>
    }) : (tensor<32x16xbf16>, tensor<4x8x1xi32>, tensor<4x8x16xbf16>) -> tensor<32x16xbf16>
    %323 = stablehlo.convert %320 : (tensor<8x16xbf16>) -> tensor<8x16xf32>
    %324 = stablehlo.convert %268 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %325 = stablehlo.convert %226 : (tensor<16x64xbf16>) -> tensor<16x64xf32>
    %326 = stablehlo.convert %277 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %327 = stablehlo.convert %234 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %328 = stablehlo.convert %272 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    %329 = stablehlo.convert %288 : (tensor<16xbf16>) -> tensor<16xf32>
    %330 = stablehlo.convert %206 : (tensor<64x16xbf16>) -> tensor<64x16xf32>
    %331 = stablehlo.convert %282 : (tensor<16xbf16>) -> tensor<16xf32>
    %332 = stablehlo.convert %165 : (tensor<16x32xbf16>) -> tensor<16x32xf32>
    %333 = stablehlo.convert %179 : (tensor<16xbf16>) -> tensor<16xf32>
    %334 = stablehlo.convert %322 : (tensor<32x16xbf16>) -> tensor<32x16xf32>
    %335 = stablehlo.convert %172 : (tensor<16xbf16>) -> tensor<16xf32>
    %cst_62 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %336 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %337 = stablehlo.multiply %336, %335 : tensor<16xf32>
    %cst_63 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %338 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %339 = stablehlo.multiply %338, %334 : tensor<32x16xf32>
    %cst_64 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %340 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %341 = stablehlo.multiply %340, %333 : tensor<16xf32>
    %cst_65 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %342 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %343 = stablehlo.multiply %342, %332 : tensor<16x32xf32>
    %cst_66 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %344 = stablehlo.broadcast_in_dim %cst_66, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %345 = stablehlo.multiply %344, %331 : tensor<16xf32>
    %cst_67 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %346 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
    %347 = stablehlo.multiply %346, %330 : tensor<64x16xf32>
    %cst_68 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %348 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %349 = stablehlo.multiply %348, %329 : tensor<16xf32>
    %cst_69 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %350 = stablehlo.broadcast_in_dim %cst_69, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %351 = stablehlo.multiply %350, %328 : tensor<16x16xf32>
    %cst_70 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %352 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %353 = stablehlo.multiply %352, %327 : tensor<16x16xf32>
    %cst_71 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %354 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %355 = stablehlo.multiply %354, %326 : tensor<16x16xf32>
    %cst_72 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %356 = stablehlo.broadcast_in_dim %cst_72, dims = [] : (tensor<f32>) -> tensor<16x64xf32>
    %357 = stablehlo.multiply %356, %325 : tensor<16x64xf32>
    %cst_73 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %358 = stablehlo.broadcast_in_dim %cst_73, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %359 = stablehlo.multiply %358, %324 : tensor<16x16xf32>
    %cst_74 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %360 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %361 = stablehlo.multiply %360, %323 : tensor<8x16xf32>
    %362 = stablehlo.add %arg0, %337 : tensor<16xf32>
    %363 = stablehlo.add %arg1, %339 : tensor<32x16xf32>
    %364 = stablehlo.add %arg2, %341 : tensor<16xf32>
    %365 = stablehlo.add %arg3, %343 : tensor<16x32xf32>
    %366 = stablehlo.add %arg4, %345 : tensor<16xf32>
    %367 = stablehlo.add %arg5, %347 : tensor<64x16xf32>
    %368 = stablehlo.add %arg6, %349 : tensor<16xf32>
    %369 = stablehlo.add %arg7, %351 : tensor<16x16xf32>
    %370 = stablehlo.add %arg8, %353 : tensor<16x16xf32>
    %371 = stablehlo.add %arg9, %355 : tensor<16x16xf32>
    %372 = stablehlo.add %arg10, %357 : tensor<16x64xf32>
    %373 = stablehlo.add %arg11, %359 : tensor<16x16xf32>
    %374 = stablehlo.add %arg12, %361 : tensor<8x16xf32>
    return %362, %363, %364, %365, %366, %367, %368, %369, %370, %371, %372, %373, %374, %157 : tensor<16xf32>, tensor<32x16xf32>, tensor<16xf32>, tensor<16x32xf32>, tensor<16xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<8x16xf32>, tensor<f32>
  }
  func.func private @tril(%arg0: tensor<8x8xi1>) -> tensor<8x8xi1> {
    %0 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<8x8xi32>
    %2 = stablehlo.add %0, %1 : tensor<8x8xi32>
    %3 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %5 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<8x8xi1>, tensor<8x8xi1>
    return %6 : tensor<8x8xi1>
  }
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<4x4x8x8xf32>, %arg2: tensor<f32>) -> (tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>) {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<4x4x8x8xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %3, %1 : tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>
  }
  func.func private @log_softmax(%arg0: tensor<4x8x32xf32>) -> (tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<4x8xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x8x32xf32>
    %6 = stablehlo.exponential %5 : tensor<4x8x32xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %9 = stablehlo.log %8 : tensor<4x8x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<4x8x32xf32>
    return %11, %6, %8 : tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x8x32xf32>, %arg1: tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x8x1xi32>, tensor<4x8x1xi32>) -> tensor<4x8x1xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<4x8x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x8x1xi1>, tensor<4x8x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<4x8x1xi32>) -> tensor<4x8x1x1xi32>
    %c_1 = stablehlo.constant dense<31> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x8x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [3] : (tensor<1xi32>) -> tensor<1x1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x1x1x1xi32>) -> tensor<4x8x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<4x8x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [3] : (tensor<4x8x1x1xi1>, tensor<i1>) -> tensor<4x8x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<4x8x32xf32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<4x8x1xi1>, tensor<4x8x1xf32>
    return %15, %5 : tensor<4x8x1xf32>, tensor<4x8x1x1xi32>
  }
  func.func private @take_along_axis_0(%arg0: tensor<4x8x1x1xi32>, %arg1: tensor<4x8x1xf32>) -> tensor<4x8x32xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x8x32xf32>, tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    return %1 : tensor<4x8x32xf32>
  }
  func.func private @log_softmax_1(%arg0: tensor<4x8x32xf32>, %arg1: tensor<4x8x1xf32>, %arg2: tensor<4x8x32xf32>) -> tensor<4x8x32xf32> {
    %0 = stablehlo.negate %arg2 : tensor<4x8x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %2 = stablehlo.reshape %1 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<4x8x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x32xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<4x8x32xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<4x8x32xf32>
    return %7 : tensor<4x8x32xf32>
  }
  func.func private @_where_2(%arg0: tensor<4x4x8x8xi1>, %arg1: tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %1 : tensor<4x4x8x8xf32>
  }
}
// -----
module @jit_cnn_batch_norm attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<3x3x1x4xf32>, %arg2: tensor<3x3x4x8xf32>, %arg3: tensor<4xf32>, %arg4: tensor<32x10xf32>, %arg5: tensor<4xf32>, %arg6: tensor<4xf32>, %arg7: tensor<4x8x8x1xf32>, %arg8: tensor<4xi32>) -> (tensor<4xf32> {jax.result_info = "result[0]"}, tensor<3x3x1x4xf32> {jax.result_info = "result[1]"}, tensor<3x3x4x8xf32> {jax.result_info = "result[2]"}, tensor<4xf32> {jax.result_info = "result[3]"}, tensor<32x10xf32> {jax.result_info = "result[4]"}, tensor<4xf32> {jax.result_info = "result[5]"}, tensor<4xf32> {jax.result_info = "result[6]"}, tensor<f32> {jax.result_info = "result[7]"}) {
    %0 = stablehlo.convolution(%arg7, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<4x8x8x1xf32>, tensor<3x3x1x4xf32>) -> tensor<4x8x8x4xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %cst_0 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.divide %1, %2 : tensor<4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4:4 = call @_var(%0, %c) : (tensor<4x8x8x4xf32>, tensor<i32>) -> (tensor<4xf32>, tensor<4x8x8x4xf32>, tensor<f32>, tensor<i1>)
    %cst_1 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %6 = stablehlo.multiply %5, %arg5 : tensor<4xf32>
    %cst_2 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %8 = stablehlo.multiply %7, %3 : tensor<4xf32>
    %9 = stablehlo.add %6, %8 : tensor<4xf32>
    %cst_3 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %11 = stablehlo.multiply %10, %arg6 : tensor<4xf32>
    %cst_4 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %13 = stablehlo.multiply %12, %4#0 : tensor<4xf32>
    %14 = stablehlo.add %11, %13 : tensor<4xf32>
    %15 = stablehlo.broadcast_in_dim %3, dims = [3] : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2, 3] : (tensor<1x1x1x4xf32>) -> tensor<4x8x8x4xf32>
    %17 = stablehlo.subtract %0, %16 : tensor<4x8x8x4xf32>
    %cst_5 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %19 = stablehlo.add %4#0, %18 : tensor<4xf32>
    %20 = stablehlo.rsqrt %19 : tensor<4xf32>
    %21 = stablehlo.divide %20, %19 : tensor<4xf32>
    %cst_6 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %23 = stablehlo.multiply %22, %21 : tensor<4xf32>
    %24 = stablehlo.broadcast_in_dim %20, dims = [3] : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1, 2, 3] : (tensor<1x1x1x4xf32>) -> tensor<4x8x8x4xf32>
    %26 = stablehlo.multiply %17, %25 : tensor<4x8x8x4xf32>
    %27 = stablehlo.broadcast_in_dim %arg3, dims = [3] : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %28 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2, 3] : (tensor<1x1x1x4xf32>) -> tensor<4x8x8x4xf32>
    %29 = stablehlo.multiply %26, %28 : tensor<4x8x8x4xf32>
    %30 = stablehlo.broadcast_in_dim %arg0, dims = [3] : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %31 = stablehlo.broadcast_in_dim %30, dims = [0, 1, 2, 3] : (tensor<1x1x1x4xf32>) -> tensor<4x8x8x4xf32>
    %32 = stablehlo.add %29, %31 : tensor<4x8x8x4xf32>
    %33 = call @relu(%32) : (tensor<4x8x8x4xf32>) -> tensor<4x8x8x4xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x8x8x4xf32>
    %35 = stablehlo.compare GT, %32, %34, FLOAT : (tensor<4x8x8x4xf32>, tensor<4x8x8x4xf32>) -> tensor<4x8x8x4xi1>
    %cst_8 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<f32>
    %37 = "stablehlo.reduce_window"(%33, %36) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg9: tensor<f32>, %arg10: tensor<f32>):
      %116 = stablehlo.maximum %arg9, %arg10 : tensor<f32>
      stablehlo.return %116 : tensor<f32>
    }) : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4x4x4x4xf32>
    %38 = stablehlo.convolution(%37, %arg2) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<4x4x4x4xf32>, tensor<3x3x4x8xf32>) -> tensor<4x4x4x8xf32>
    %39 = call @relu_0(%38) : (tensor<4x4x4x8xf32>) -> tensor<4x4x4x8xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x4x4x8xf32>
    %41 = stablehlo.compare GT, %38, %40, FLOAT : (tensor<4x4x4x8xf32>, tensor<4x4x4x8xf32>) -> tensor<4x4x4x8xi1>
    %cst_10 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %42 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<f32>
    %43 = "stablehlo.reduce_window"(%39, %42) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg9: tensor<f32>, %arg10: tensor<f32>):
      %116 = stablehlo.maximum %arg9, %arg10 : tensor<f32>
      stablehlo.return %116 : tensor<f32>
    }) : (tensor<4x4x4x8xf32>, tensor<f32>) -> tensor<4x2x2x8xf32>
    %44 = stablehlo.reshape %43 : (tensor<4x2x2x8xf32>) -> tensor<4x32xf32>
    %45 = stablehlo.dot_general %44, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x32xf32>, tensor<32x10xf32>) -> tensor<4x10xf32>
    %46:3 = call @log_softmax(%45) : (tensor<4x10xf32>) -> (tensor<4x10xf32>, tensor<4x10xf32>, tensor<4x1xf32>)
    %47 = stablehlo.broadcast_in_dim %arg8, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
    %48:2 = call @take_along_axis(%46#0, %47) : (tensor<4x10xf32>, tensor<4x1xi32>) -> (tensor<4x1xf32>, tensor<4x1x1xi32>)
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %49 = stablehlo.reduce(%48#0 init: %cst_11) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<f32>
    %cst_12 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %50 = stablehlo.divide %49, %cst_12 : tensor<f32>
    %51 = stablehlo.negate %50 : tensor<f32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %52 = stablehlo.negate %cst_13 : tensor<f32>
    %cst_14 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %53 = stablehlo.divide %52, %cst_14 : tensor<f32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %55 = call @take_along_axis_1(%48#1, %54) : (tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x10xf32>
    %56 = call @log_softmax_2(%46#1, %46#2, %55) : (tensor<4x10xf32>, tensor<4x1xf32>, tensor<4x10xf32>) -> tensor<4x10xf32>
    %57 = stablehlo.dot_general %56, %44, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x10xf32>, tensor<4x32xf32>) -> tensor<10x32xf32>
    %58 = stablehlo.transpose %57, dims = [1, 0] : (tensor<10x32xf32>) -> tensor<32x10xf32>
    %59 = stablehlo.dot_general %56, %arg4, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x10xf32>, tensor<32x10xf32>) -> tensor<4x32xf32>
    %60 = stablehlo.reshape %59 : (tensor<4x32xf32>) -> tensor<4x2x2x8xf32>
    %cst_15 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %61 = stablehlo.pad %39, %cst_15, low = [0, 0, 0, 0], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<4x4x4x8xf32>, tensor<f32>) -> tensor<4x4x4x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %62 = "stablehlo.select_and_scatter"(%61, %60, %cst_16) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg9: tensor<f32>, %arg10: tensor<f32>):
      %116 = stablehlo.compare GE, %arg9, %arg10, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %116 : tensor<i1>
    }, {
    ^bb0(%arg9: tensor<f32>, %arg10: tensor<f32>):
      %116 = stablehlo.add %arg9, %arg10 : tensor<f32>
      stablehlo.return %116 : tensor<f32>
    }) : (tensor<4x4x4x8xf32>, tensor<4x2x2x8xf32>, tensor<f32>) -> tensor<4x4x4x8xf32>
    %63 = stablehlo.slice %62 [0:4, 0:4, 0:4, 0:8] : (tensor<4x4x4x8xf32>) -> tensor<4x4x4x8xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %64 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x4x4x8xf32>
    %65 = stablehlo.select %41, %63, %64 : tensor<4x4x4x8xi1>, tensor<4x4x4x8xf32>
    %66 = stablehlo.convolution(%37, %65) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<4x4x4x4xf32>, tensor<4x4x4x8xf32>) -> tensor<3x3x4x8xf32>
    %67 = stablehlo.reverse %arg2, dims = [0, 1] : tensor<3x3x4x8xf32>
    %68 = stablehlo.convolution(%65, %67) dim_numbers = [b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<4x4x4x8xf32>, tensor<3x3x4x8xf32>) -> tensor<4x4x4x4xf32>
    %cst_18 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %69 = stablehlo.pad %33, %cst_18, low = [0, 0, 0, 0], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4x8x8x4xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %70 = "stablehlo.select_and_scatter"(%69, %68, %cst_19) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg9: tensor<f32>, %arg10: tensor<f32>):
      %116 = stablehlo.compare GE, %arg9, %arg10, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %116 : tensor<i1>
    }, {
    ^bb0(%arg9: tensor<f32>, %arg10: tensor<f32>):
      %116 = stablehlo.add %arg9, %arg10 : tensor<f32>
      stablehlo.return %116 : tensor<f32>
    }) : (tensor<4x8x8x4xf32>, tensor<4x4x4x4xf32>, tensor<f32>) -> tensor<4x8x8x4xf32>
    %71 = stablehlo.slice %70 [0:4, 0:8, 0:8, 0:4] : (tensor<4x8x8x4xf32>) -> tensor<4x8x8x4xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %72 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4x8x8x4xf32>
    %73 = stablehlo.select %35, %71, %72 : tensor<4x8x8x4xi1>, tensor<4x8x8x4xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %74 = stablehlo.reduce(%73 init: %cst_21) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %75 = stablehlo.reshape %74 : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %76 = stablehlo.reduce(%75 init: %cst_22) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %77 = stablehlo.multiply %26, %73 : tensor<4x8x8x4xf32>
    %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %78 = stablehlo.reduce(%77 init: %cst_23) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %79 = stablehlo.reshape %78 : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %80 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2, 3] : (tensor<1x1x1x4xf32>) -> tensor<4x8x8x4xf32>
    %81 = stablehlo.multiply %73, %80 : tensor<4x8x8x4xf32>
    %cst_24 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %82 = stablehlo.reduce(%79 init: %cst_24) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %83 = stablehlo.multiply %17, %81 : tensor<4x8x8x4xf32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %84 = stablehlo.reduce(%83 init: %cst_25) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %85 = stablehlo.reshape %84 : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %86 = stablehlo.broadcast_in_dim %24, dims = [0, 1, 2, 3] : (tensor<1x1x1x4xf32>) -> tensor<4x8x8x4xf32>
    %87 = stablehlo.multiply %81, %86 : tensor<4x8x8x4xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %88 = stablehlo.reduce(%85 init: %cst_26) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %89 = stablehlo.multiply %88, %23 : tensor<4xf32>
    %90 = stablehlo.negate %87 : tensor<4x8x8x4xf32>
    %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %91 = stablehlo.reduce(%90 init: %cst_27) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %92 = stablehlo.reshape %91 : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %93 = stablehlo.reduce(%92 init: %cst_28) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %94 = call @_var_3(%4#1, %4#2, %4#3, %89) : (tensor<4x8x8x4xf32>, tensor<f32>, tensor<i1>, tensor<4xf32>) -> tensor<4x8x8x4xf32>
    %95 = stablehlo.add %87, %94 : tensor<4x8x8x4xf32>
    %cst_29 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %96 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %97 = stablehlo.divide %93, %96 : tensor<4xf32>
    %98 = stablehlo.broadcast_in_dim %97, dims = [3] : (tensor<4xf32>) -> tensor<4x8x8x4xf32>
    %99 = stablehlo.add %95, %98 : tensor<4x8x8x4xf32>
    %100 = stablehlo.convolution(%arg7, %99) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<4x8x8x1xf32>, tensor<4x8x8x4xf32>) -> tensor<3x3x1x4xf32>
    %cst_30 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %101 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %102 = stablehlo.multiply %101, %76 : tensor<4xf32>
    %103 = stablehlo.subtract %arg0, %102 : tensor<4xf32>
    %cst_31 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %104 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<3x3x1x4xf32>
    %105 = stablehlo.multiply %104, %100 : tensor<3x3x1x4xf32>
    %106 = stablehlo.subtract %arg1, %105 : tensor<3x3x1x4xf32>
    %cst_32 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %107 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<3x3x4x8xf32>
    %108 = stablehlo.multiply %107, %66 : tensor<3x3x4x8xf32>
    %109 = stablehlo.subtract %arg2, %108 : tensor<3x3x4x8xf32>
    %cst_33 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %110 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %111 = stablehlo.multiply %110, %82 : tensor<4xf32>
    %112 = stablehlo.subtract %arg3, %111 : tensor<4xf32>
    %cst_34 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %113 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<32x10xf32>
    %114 = stablehlo.multiply %113, %58 : tensor<32x10xf32>
    %115 = stablehlo.subtract %arg4, %114 : tensor<32x10xf32>
    return %103, %106, %109, %112, %115, %9, %14, %51 : tensor<4xf32>, tensor<3x3x1x4xf32>, tensor<3x3x4x8xf32>, tensor<4xf32>, tensor<32x10xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>
  }
  func.func private @_var(%arg0: tensor<4x8x8x4xf32>, %arg1: tensor<i32>) -> (tensor<4xf32>, tensor<4x8x8x4xf32>, tensor<f32>, tensor<i1>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [3] : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %cst_0 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x1x1x4xf32>
    %3 = stablehlo.divide %1, %2 : tensor<1x1x1x4xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2, 3] : (tensor<1x1x1x4xf32>) -> tensor<4x8x8x4xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x8x8x4xf32>
    %6 = chlo.square %5 : tensor<4x8x8x4xf32> -> tensor<4x8x8x4xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x8x4xf32>
    %8 = stablehlo.multiply %7, %5 : tensor<4x8x8x4xf32>
    %9 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %cst_2 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %10 = stablehlo.subtract %cst_2, %9 : tensor<f32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%6 init: %cst_3) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %13 = stablehlo.divide %11, %12 : tensor<4xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %14 = stablehlo.compare GT, %10, %cst_4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %cst_5 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %15 = call @_where(%14, %13, %cst_5) : (tensor<i1>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %15, %8, %10, %14 : tensor<4xf32>, tensor<4x8x8x4xf32>, tensor<f32>, tensor<i1>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<4xf32>, %arg2: tensor<f32>) -> tensor<4xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<i1>, tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func private @relu(%arg0: tensor<4x8x8x4xf32>) -> tensor<4x8x8x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x8x4xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x8x8x4xf32>
    return %1 : tensor<4x8x8x4xf32>
  }
  func.func private @relu_0(%arg0: tensor<4x4x4x8xf32>) -> tensor<4x4x4x8xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4x4x8xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x4x4x8xf32>
    return %1 : tensor<4x4x4x8xf32>
  }
  func.func private @log_softmax(%arg0: tensor<4x10xf32>) -> (tensor<4x10xf32>, tensor<4x10xf32>, tensor<4x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [1] : (tensor<4x10xf32>, tensor<f32>) -> tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<4xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x10xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x10xf32>
    %6 = stablehlo.exponential %5 : tensor<4x10xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [1] : (tensor<4x10xf32>, tensor<f32>) -> tensor<4xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %9 = stablehlo.log %8 : tensor<4x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x10xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<4x10xf32>
    return %11, %6, %8 : tensor<4x10xf32>, tensor<4x10xf32>, tensor<4x1xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x10xf32>, %arg1: tensor<4x1xi32>) -> (tensor<4x1xf32>, tensor<4x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi1>
    %c_0 = stablehlo.constant dense<10> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<4x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x1xi1>, tensor<4x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<4x1xi32>) -> tensor<4x1x1xi32>
    %c_1 = stablehlo.constant dense<9> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x1x1xi32>, tensor<4x1x1xi32>) -> tensor<4x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<4x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x1x1xi32>, tensor<4x1x1xi32>) -> tensor<4x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<4x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<4x1x1xi1>, tensor<i1>) -> tensor<4x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<4x10xf32>, tensor<4x1x1xi32>) -> tensor<4x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<4x1xi1>, tensor<4x1xf32>
    return %15, %5 : tensor<4x1xf32>, tensor<4x1x1xi32>
  }
  func.func private @take_along_axis_1(%arg0: tensor<4x1x1xi32>, %arg1: tensor<4x1xf32>) -> tensor<4x10xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x10xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x10xf32>, tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x10xf32>
    return %1 : tensor<4x10xf32>
  }
  func.func private @log_softmax_2(%arg0: tensor<4x10xf32>, %arg1: tensor<4x1xf32>, %arg2: tensor<4x10xf32>) -> tensor<4x10xf32> {
    %0 = stablehlo.negate %arg2 : tensor<4x10xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x10xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.reshape %1 : (tensor<4xf32>) -> tensor<4x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<4x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [1] : (tensor<4x1xf32>, tensor<f32>) -> tensor<4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<4xf32>) -> tensor<4x10xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<4x10xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<4x10xf32>
    return %7 : tensor<4x10xf32>
  }
  func.func private @_var_3(%arg0: tensor<4x8x8x4xf32>, %arg1: tensor<f32>, %arg2: tensor<i1>, %arg3: tensor<4xf32>) -> tensor<4x8x8x4xf32> {
    %0 = call @_where_4(%arg2, %arg3) : (tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.divide %0, %1 : tensor<4xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [3] : (tensor<4xf32>) -> tensor<4x8x8x4xf32>
    %4 = stablehlo.multiply %3, %arg0 : tensor<4x8x8x4xf32>
    %5 = stablehlo.negate %4 : tensor<4x8x8x4xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.reduce(%5 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %7 = stablehlo.reshape %6 : (tensor<4xf32>) -> tensor<1x1x1x4xf32>
    %cst_0 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x1x1x4xf32>
    %9 = stablehlo.divide %7, %8 : tensor<1x1x1x4xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.reduce(%9 init: %cst_1) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [3] : (tensor<4xf32>) -> tensor<4x8x8x4xf32>
    %12 = stablehlo.add %4, %11 : tensor<4x8x8x4xf32>
    return %12 : tensor<4x8x8x4xf32>
  }
  func.func private @_where_4(%arg0: tensor<i1>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<i1>, tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
// -----
module @jit_scan_remat_dropout attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xui32>, %arg1: tensor<3x16x8xf32>, %arg2: tensor<3x8x16xf32>, %arg3: tensor<4x8xf32>, %arg4: tensor<4x8xf32>) -> (tensor<2xui32> {jax.result_info = "result[0]"}, tensor<3x16x8xf32> {jax.result_info = "result[1]"}, tensor<3x8x16xf32> {jax.result_info = "result[2]"}, tensor<f32> {jax.result_info = "result[3]"}) {
    %0 = call @_threefry_split(%arg0) : (tensor<2xui32>) -> tensor<2x2xui32>
    %1 = stablehlo.slice %0 [0:1, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %2 = stablehlo.reshape %1 : (tensor<1x2xui32>) -> tensor<2xui32>
    %3 = stablehlo.slice %0 [1:2, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %4 = stablehlo.reshape %3 : (tensor<1x2xui32>) -> tensor<2xui32>
    %5:2 = call @_bernoulli() : () -> (tensor<1x1xf32>, tensor<1x1xf32>)
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = call @_where(%cst) : (tensor<f32>) -> tensor<4x16xf32>
    %cst_0 = stablehlo.constant dense<7.500000e-01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<3x4x8xf32>
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %8 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui32>) -> tensor<3x2xui32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %9:11 = stablehlo.while(%iterArg = %arg1, %iterArg_13 = %arg2, %iterArg_14 = %5#0, %iterArg_15 = %5#1, %iterArg_16 = %cst_0, %iterArg_17 = %6, %iterArg_18 = %c_2, %iterArg_19 = %arg3, %iterArg_20 = %4, %iterArg_21 = %7, %iterArg_22 = %8) : tensor<3x16x8xf32>, tensor<3x8x16xf32>, tensor<1x1xf32>, tensor<1x1xf32>, tensor<f32>, tensor<4x16xf32>, tensor<i32>, tensor<4x8xf32>, tensor<2xui32>, tensor<3x4x8xf32>, tensor<3x2xui32>
    cond {
      %c_23 = stablehlo.constant dense<3> : tensor<i32>
      %28 = stablehlo.compare LT, %iterArg_18, %c_23, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %28 : tensor<i1>
    } do {
      %28 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_18) : (tensor<3x16x8xf32>, tensor<i32>) -> tensor<16x8xf32>
      %29 = func.call @dynamic_index_in_dim_0(%iterArg_13, %iterArg_18) : (tensor<3x8x16xf32>, tensor<i32>) -> tensor<8x16xf32>
      %30:4 = func.call @closed_call_1(%iterArg_14, %iterArg_15, %iterArg_16, %iterArg_17, %iterArg_19, %iterArg_20, %28, %29) : (tensor<1x1xf32>, tensor<1x1xf32>, tensor<f32>, tensor<4x16xf32>, tensor<4x8xf32>, tensor<2xui32>, tensor<16x8xf32>, tensor<8x16xf32>) -> (tensor<4x8xf32>, tensor<2xui32>, tensor<4x8xf32>, tensor<2xui32>)
      %31 = func.call @dynamic_update_index_in_dim(%iterArg_21, %30#2, %iterArg_18) : (tensor<3x4x8xf32>, tensor<4x8xf32>, tensor<i32>) -> tensor<3x4x8xf32>
      %32 = func.call @dynamic_update_index_in_dim_7(%iterArg_22, %30#3, %iterArg_18) : (tensor<3x2xui32>, tensor<2xui32>, tensor<i32>) -> tensor<3x2xui32>
      %c_23 = stablehlo.constant dense<1> : tensor<i32>
      %33 = stablehlo.add %iterArg_18, %c_23 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_13, %iterArg_14, %iterArg_15, %iterArg_16, %iterArg_17, %33, %30#0, %30#1, %31, %32 : tensor<3x16x8xf32>, tensor<3x8x16xf32>, tensor<1x1xf32>, tensor<1x1xf32>, tensor<f32>, tensor<4x16xf32>, tensor<i32>, tensor<4x8xf32>, tensor<2xui32>, tensor<3x4x8xf32>, tensor<3x2xui32>
    }
    %10 = stablehlo.subtract %9#7, %arg4 : tensor<4x8xf32>
    %11 = stablehlo.multiply %10, %10 : tensor<4x8xf32>
    %cst_3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %13 = stablehlo.multiply %12, %10 : tensor<4x8xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %14 = stablehlo.reduce(%11 init: %cst_4) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_5 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %15 = stablehlo.divide %14, %cst_5 : tensor<f32>
    %cst_6 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_7 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %16 = stablehlo.divide %cst_6, %cst_7 : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %18 = stablehlo.multiply %17, %13 : tensor<4x8xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<3x16x8xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<3x8x16xf32>
    %c_10 = stablehlo.constant dense<0> : tensor<i32>
    %21:8 = stablehlo.while(%iterArg = %9#9, %iterArg_13 = %9#10, %iterArg_14 = %arg1, %iterArg_15 = %arg2, %iterArg_16 = %c_10, %iterArg_17 = %18, %iterArg_18 = %19, %iterArg_19 = %20) : tensor<3x4x8xf32>, tensor<3x2xui32>, tensor<3x16x8xf32>, tensor<3x8x16xf32>, tensor<i32>, tensor<4x8xf32>, tensor<3x16x8xf32>, tensor<3x8x16xf32>
    cond {
      %c_20 = stablehlo.constant dense<3> : tensor<i32>
      %28 = stablehlo.compare LT, %iterArg_16, %c_20, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %28 : tensor<i1>
    } do {
      %c_20 = stablehlo.constant dense<3> : tensor<i32>
      %28 = stablehlo.subtract %c_20, %iterArg_16 : tensor<i32>
      %c_21 = stablehlo.constant dense<1> : tensor<i32>
      %29 = stablehlo.subtract %28, %c_21 : tensor<i32>
      %30 = func.call @dynamic_index_in_dim_8(%iterArg, %29) : (tensor<3x4x8xf32>, tensor<i32>) -> tensor<4x8xf32>
      %31 = func.call @dynamic_index_in_dim_9(%iterArg_13, %29) : (tensor<3x2xui32>, tensor<i32>) -> tensor<2xui32>
      %32 = func.call @dynamic_index_in_dim(%iterArg_14, %29) : (tensor<3x16x8xf32>, tensor<i32>) -> tensor<16x8xf32>
      %33 = func.call @dynamic_index_in_dim_0(%iterArg_15, %29) : (tensor<3x8x16xf32>, tensor<i32>) -> tensor<8x16xf32>
      %34:3 = func.call @closed_call_10(%iterArg_17, %30, %31, %32, %33) : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<2xui32>, tensor<16x8xf32>, tensor<8x16xf32>) -> (tensor<4x8xf32>, tensor<16x8xf32>, tensor<8x16xf32>)
      %35 = func.call @dynamic_update_index_in_dim_15(%iterArg_18, %34#1, %29) : (tensor<3x16x8xf32>, tensor<16x8xf32>, tensor<i32>) -> tensor<3x16x8xf32>
      %36 = func.call @dynamic_update_index_in_dim_16(%iterArg_19, %34#2, %29) : (tensor<3x8x16xf32>, tensor<8x16xf32>, tensor<i32>) -> tensor<3x8x16xf32>
      %c_22 = stablehlo.constant dense<1> : tensor<i32>
      %37 = stablehlo.add %iterArg_16, %c_22 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_13, %iterArg_14, %iterArg_15, %37, %34#0, %35, %36 : tensor<3x4x8xf32>, tensor<3x2xui32>, tensor<3x16x8xf32>, tensor<3x8x16xf32>, tensor<i32>, tensor<4x8xf32>, tensor<3x16x8xf32>, tensor<3x8x16xf32>
    }
    %cst_11 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<3x16x8xf32>
    %23 = stablehlo.multiply %22, %21#6 : tensor<3x16x8xf32>
    %24 = stablehlo.subtract %arg1, %23 : tensor<3x16x8xf32>
    %cst_12 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<3x8x16xf32>
    %26 = stablehlo.multiply %25, %21#7 : tensor<3x8x16xf32>
    %27 = stablehlo.subtract %arg2, %26 : tensor<3x8x16xf32>
    return %2, %24, %27, %15 : tensor<2xui32>, tensor<3x16x8xf32>, tensor<3x8x16xf32>, tensor<f32>
  }
  func.func private @_threefry_split(%arg0: tensor<2xui32>) -> tensor<2x2xui32> {
    %0 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %1 = stablehlo.reshape %0 : (tensor<1xui32>) -> tensor<ui32>
    %2 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %3 = stablehlo.reshape %2 : (tensor<1xui32>) -> tensor<ui32>
    %4 = stablehlo.iota dim = 0 : tensor<2xui64>
    %c = stablehlo.constant dense<1> : tensor<ui64>
    %5 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<2xui64>
    %6 = stablehlo.multiply %5, %4 : tensor<2xui64>
    %c_0 = stablehlo.constant dense<32> : tensor<ui64>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<2xui64>
    %8 = stablehlo.shift_right_logical %6, %7 : tensor<2xui64>
    %9 = stablehlo.convert %6 : (tensor<2xui64>) -> tensor<2xui32>
    %10 = stablehlo.convert %8 : (tensor<2xui64>) -> tensor<2xui32>
    %11:2 = call @threefry2x32(%1, %3, %10, %9) : (tensor<ui32>, tensor<ui32>, tensor<2xui32>, tensor<2xui32>) -> (tensor<2xui32>, tensor<2xui32>)
    %12 = stablehlo.broadcast_in_dim %11#0, dims = [0] : (tensor<2xui32>) -> tensor<2x1xui32>
    %13 = stablehlo.broadcast_in_dim %11#1, dims = [0] : (tensor<2xui32>) -> tensor<2x1xui32>
    %14 = stablehlo.concatenate %12, %13, dim = 1 : (tensor<2x1xui32>, tensor<2x1xui32>) -> tensor<2x2xui32>
    return %14 : tensor<2x2xui32>
  }
  func.func private @threefry2x32(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<2xui32>, %arg3: tensor<2xui32>) -> (tensor<2xui32>, tensor<2xui32>) {
    %c = stablehlo.constant dense<[13, 15, 26, 6]> : tensor<4xui32>
    %c_0 = stablehlo.constant dense<[17, 29, 16, 24]> : tensor<4xui32>
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c_1 = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c_1 : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<2xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<2xui32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %6:9 = stablehlo.while(%iterArg = %c_3, %iterArg_4 = %c_2, %iterArg_5 = %3, %iterArg_6 = %5, %iterArg_7 = %arg1, %iterArg_8 = %1, %iterArg_9 = %arg0, %iterArg_10 = %c, %iterArg_11 = %c_0) : tensor<i32>, tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %c_12 = stablehlo.constant dense<5> : tensor<i32>
      %7 = stablehlo.compare LT, %iterArg, %c_12, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %7 : tensor<i1>
    } do {
      %7:8 = func.call @closed_call(%iterArg_4, %iterArg_5, %iterArg_6, %iterArg_7, %iterArg_8, %iterArg_9, %iterArg_10, %iterArg_11) : (tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>) -> (tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>)
      %c_12 = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.add %iterArg, %c_12 : tensor<i32>
      stablehlo.return %8, %7#0, %7#1, %7#2, %7#3, %7#4, %7#5, %7#6, %7#7 : tensor<i32>, tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
    return %6#2, %6#3 : tensor<2xui32>, tensor<2xui32>
  }
  func.func private @closed_call(%arg0: tensor<i32>, %arg1: tensor<2xui32>, %arg2: tensor<2xui32>, %arg3: tensor<ui32>, %arg4: tensor<ui32>, %arg5: tensor<ui32>, %arg6: tensor<4xui32>, %arg7: tensor<4xui32>) -> (tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.add %arg0, %c : tensor<i32>
    %1 = stablehlo.slice %arg6 [0:1] : (tensor<4xui32>) -> tensor<1xui32>
    %2 = stablehlo.reshape %1 : (tensor<1xui32>) -> tensor<ui32>
    %3 = stablehlo.add %arg1, %arg2 : tensor<2xui32>
    %4 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %5 = stablehlo.shift_left %arg2, %4 : tensor<2xui32>
    %c_0 = stablehlo.constant dense<32> : tensor<ui32>
    %6 = stablehlo.subtract %c_0, %2 : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %8 = stablehlo.shift_right_logical %arg2, %7 : tensor<2xui32>
    %9 = stablehlo.or %5, %8 : tensor<2xui32>
    %10 = stablehlo.xor %3, %9 : tensor<2xui32>
    %11 = stablehlo.slice %arg6 [1:2] : (tensor<4xui32>) -> tensor<1xui32>
    %12 = stablehlo.reshape %11 : (tensor<1xui32>) -> tensor<ui32>
    %13 = stablehlo.add %3, %10 : tensor<2xui32>
    %14 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %15 = stablehlo.shift_left %10, %14 : tensor<2xui32>
    %c_1 = stablehlo.constant dense<32> : tensor<ui32>
    %16 = stablehlo.subtract %c_1, %12 : tensor<ui32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %18 = stablehlo.shift_right_logical %10, %17 : tensor<2xui32>
    %19 = stablehlo.or %15, %18 : tensor<2xui32>
    %20 = stablehlo.xor %13, %19 : tensor<2xui32>
    %21 = stablehlo.slice %arg6 [2:3] : (tensor<4xui32>) -> tensor<1xui32>
    %22 = stablehlo.reshape %21 : (tensor<1xui32>) -> tensor<ui32>
    %23 = stablehlo.add %13, %20 : tensor<2xui32>
    %24 = stablehlo.broadcast_in_dim %22, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %25 = stablehlo.shift_left %20, %24 : tensor<2xui32>
    %c_2 = stablehlo.constant dense<32> : tensor<ui32>
    %26 = stablehlo.subtract %c_2, %22 : tensor<ui32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %28 = stablehlo.shift_right_logical %20, %27 : tensor<2xui32>
    %29 = stablehlo.or %25, %28 : tensor<2xui32>
    %30 = stablehlo.xor %23, %29 : tensor<2xui32>
    %31 = stablehlo.slice %arg6 [3:4] : (tensor<4xui32>) -> tensor<1xui32>
    %32 = stablehlo.reshape %31 : (tensor<1xui32>) -> tensor<ui32>
    %33 = stablehlo.add %23, %30 : tensor<2xui32>
    %34 = stablehlo.broadcast_in_dim %32, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %35 = stablehlo.shift_left %30, %34 : tensor<2xui32>
    %c_3 = stablehlo.constant dense<32> : tensor<ui32>
    %36 = stablehlo.subtract %c_3, %32 : tensor<ui32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %38 = stablehlo.shift_right_logical %30, %37 : tensor<2xui32>
    %39 = stablehlo.or %35, %38 : tensor<2xui32>
    %40 = stablehlo.xor %33, %39 : tensor<2xui32>
    %41 = stablehlo.broadcast_in_dim %arg3, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %42 = stablehlo.add %33, %41 : tensor<2xui32>
    %43 = stablehlo.broadcast_in_dim %arg4, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %44 = stablehlo.add %40, %43 : tensor<2xui32>
    %c_4 = stablehlo.constant dense<1> : tensor<i32>
    %45 = stablehlo.add %arg0, %c_4 : tensor<i32>
    %46 = stablehlo.convert %45 : (tensor<i32>) -> tensor<ui32>
    %47 = stablehlo.broadcast_in_dim %46, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %48 = stablehlo.add %44, %47 : tensor<2xui32>
    return %0, %42, %48, %arg4, %arg5, %arg3, %arg7, %arg6 : tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
  }
  func.func private @_bernoulli() -> (tensor<1x1xf32>, tensor<1x1xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0:2 = call @_uniform(%cst, %cst_0) : (tensor<f32>, tensor<f32>) -> (tensor<1x1xf32>, tensor<1x1xf32>)
    return %0#0, %0#1 : tensor<1x1xf32>, tensor<1x1xf32>
  }
  func.func private @_uniform(%arg0: tensor<f32>, %arg1: tensor<f32>) -> (tensor<1x1xf32>, tensor<1x1xf32>) {
    %0 = stablehlo.convert %arg0 : tensor<f32>
    %1 = stablehlo.convert %arg1 : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1x1xf32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<1x1xf32>
    %4 = stablehlo.subtract %3, %2 : tensor<1x1xf32>
    return %2, %4 : tensor<1x1xf32>, tensor<1x1xf32>
  }
  func.func private @_where(%arg0: tensor<f32>) -> tensor<4x16xf32> {
    %0 = stablehlo.convert %arg0 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    return %1 : tensor<4x16xf32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<3x16x8xf32>, %arg1: tensor<i32>) -> tensor<16x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 16, 8] : (tensor<3x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x16x8xf32>) -> tensor<16x8xf32>
    return %1 : tensor<16x8xf32>
  }
  func.func private @dynamic_index_in_dim_0(%arg0: tensor<3x8x16xf32>, %arg1: tensor<i32>) -> tensor<8x16xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 8, 16] : (tensor<3x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
  func.func private @closed_call_1(%arg0: tensor<1x1xf32>, %arg1: tensor<1x1xf32>, %arg2: tensor<f32>, %arg3: tensor<4x16xf32>, %arg4: tensor<4x8xf32>, %arg5: tensor<2xui32>, %arg6: tensor<16x8xf32>, %arg7: tensor<8x16xf32>) -> (tensor<4x8xf32>, tensor<2xui32>, tensor<4x8xf32>, tensor<2xui32>) {
    %0 = call @_threefry_split(%arg5) : (tensor<2xui32>) -> tensor<2x2xui32>
    %1 = stablehlo.slice %0 [0:1, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %2 = stablehlo.reshape %1 : (tensor<1x2xui32>) -> tensor<2xui32>
    %3 = stablehlo.slice %0 [1:2, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %4 = stablehlo.reshape %3 : (tensor<1x2xui32>) -> tensor<2xui32>
    %5 = stablehlo.dot_general %arg4, %arg7, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %6 = stablehlo.tanh %5 : tensor<4x16xf32>
    %7 = call @_bernoulli_2(%4, %arg0, %arg1, %arg2) : (tensor<2xui32>, tensor<1x1xf32>, tensor<1x1xf32>, tensor<f32>) -> tensor<4x16xi1>
    %cst = stablehlo.constant dense<7.500000e-01> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %9 = stablehlo.divide %6, %8 : tensor<4x16xf32>
    %10 = call @_where_6(%7, %9, %arg3) : (tensor<4x16xi1>, tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
    %11 = stablehlo.dot_general %10, %arg6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
    %12 = stablehlo.add %arg4, %11 : tensor<4x8xf32>
    return %12, %2, %arg4, %arg5 : tensor<4x8xf32>, tensor<2xui32>, tensor<4x8xf32>, tensor<2xui32>
  }
  func.func private @_bernoulli_2(%arg0: tensor<2xui32>, %arg1: tensor<1x1xf32>, %arg2: tensor<1x1xf32>, %arg3: tensor<f32>) -> tensor<4x16xi1> {
    %0 = call @_uniform_3(%arg0, %arg1, %arg2) : (tensor<2xui32>, tensor<1x1xf32>, tensor<1x1xf32>) -> tensor<4x16xf32>
    %1 = stablehlo.broadcast_in_dim %arg3, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %2 = stablehlo.compare LT, %0, %1, FLOAT : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xi1>
    return %2 : tensor<4x16xi1>
  }
  func.func private @_uniform_3(%arg0: tensor<2xui32>, %arg1: tensor<1x1xf32>, %arg2: tensor<1x1xf32>) -> tensor<4x16xf32> {
    %0 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %1 = stablehlo.reshape %0 : (tensor<1xui32>) -> tensor<ui32>
    %2 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %3 = stablehlo.reshape %2 : (tensor<1xui32>) -> tensor<ui32>
    %4 = stablehlo.iota dim = 0 : tensor<4x16xui64>
    %5 = stablehlo.iota dim = 1 : tensor<4x16xui64>
    %c = stablehlo.constant dense<16> : tensor<ui64>
    %6 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<4x16xui64>
    %7 = stablehlo.multiply %6, %4 : tensor<4x16xui64>
    %c_0 = stablehlo.constant dense<1> : tensor<ui64>
    %8 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<4x16xui64>
    %9 = stablehlo.multiply %8, %5 : tensor<4x16xui64>
    %10 = stablehlo.add %7, %9 : tensor<4x16xui64>
    %c_1 = stablehlo.constant dense<32> : tensor<ui64>
    %11 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui64>) -> tensor<4x16xui64>
    %12 = stablehlo.shift_right_logical %10, %11 : tensor<4x16xui64>
    %13 = stablehlo.convert %10 : (tensor<4x16xui64>) -> tensor<4x16xui32>
    %14 = stablehlo.convert %12 : (tensor<4x16xui64>) -> tensor<4x16xui32>
    %15:2 = call @threefry2x32_4(%1, %3, %14, %13) : (tensor<ui32>, tensor<ui32>, tensor<4x16xui32>, tensor<4x16xui32>) -> (tensor<4x16xui32>, tensor<4x16xui32>)
    %16 = stablehlo.xor %15#0, %15#1 : tensor<4x16xui32>
    %c_2 = stablehlo.constant dense<9> : tensor<ui32>
    %17 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %18 = stablehlo.shift_right_logical %16, %17 : tensor<4x16xui32>
    %c_3 = stablehlo.constant dense<1065353216> : tensor<ui32>
    %19 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %20 = stablehlo.or %18, %19 : tensor<4x16xui32>
    %21 = stablehlo.bitcast_convert %20 : (tensor<4x16xui32>) -> tensor<4x16xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %23 = stablehlo.subtract %21, %22 : tensor<4x16xf32>
    %24 = stablehlo.broadcast_in_dim %arg2, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<4x16xf32>
    %25 = stablehlo.multiply %23, %24 : tensor<4x16xf32>
    %26 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<4x16xf32>
    %27 = stablehlo.add %25, %26 : tensor<4x16xf32>
    %28 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<4x16xf32>
    %29 = stablehlo.maximum %28, %27 : tensor<4x16xf32>
    return %29 : tensor<4x16xf32>
  }
  func.func private @threefry2x32_4(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<4x16xui32>, %arg3: tensor<4x16xui32>) -> (tensor<4x16xui32>, tensor<4x16xui32>) {
    %c = stablehlo.constant dense<[13, 15, 26, 6]> : tensor<4xui32>
    %c_0 = stablehlo.constant dense<[17, 29, 16, 24]> : tensor<4xui32>
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c_1 = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c_1 : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<4x16xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<4x16xui32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %6:9 = stablehlo.while(%iterArg = %c_3, %iterArg_4 = %c_2, %iterArg_5 = %3, %iterArg_6 = %5, %iterArg_7 = %arg1, %iterArg_8 = %1, %iterArg_9 = %arg0, %iterArg_10 = %c, %iterArg_11 = %c_0) : tensor<i32>, tensor<i32>, tensor<4x16xui32>, tensor<4x16xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %c_12 = stablehlo.constant dense<5> : tensor<i32>
      %7 = stablehlo.compare LT, %iterArg, %c_12, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %7 : tensor<i1>
    } do {
      %7:8 = func.call @closed_call_5(%iterArg_4, %iterArg_5, %iterArg_6, %iterArg_7, %iterArg_8, %iterArg_9, %iterArg_10, %iterArg_11) : (tensor<i32>, tensor<4x16xui32>, tensor<4x16xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>) -> (tensor<i32>, tensor<4x16xui32>, tensor<4x16xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>)
      %c_12 = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.add %iterArg, %c_12 : tensor<i32>
      stablehlo.return %8, %7#0, %7#1, %7#2, %7#3, %7#4, %7#5, %7#6, %7#7 : tensor<i32>, tensor<i32>, tensor<4x16xui32>, tensor<4x16xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
    return %6#2, %6#3 : tensor<4x16xui32>, tensor<4x16xui32>
  }
  func.func private @closed_call_5(%arg0: tensor<i32>, %arg1: tensor<4x16xui32>, %arg2: tensor<4x16xui32>, %arg3: tensor<ui32>, %arg4: tensor<ui32>, %arg5: tensor<ui32>, %arg6: tensor<4xui32>, %arg7: tensor<4xui32>) -> (tensor<i32>, tensor<4x16xui32>, tensor<4x16xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.add %arg0, %c : tensor<i32>
    %1 = stablehlo.slice %arg6 [0:1] : (tensor<4xui32>) -> tensor<1xui32>
    %2 = stablehlo.reshape %1 : (tensor<1xui32>) -> tensor<ui32>
    %3 = stablehlo.add %arg1, %arg2 : tensor<4x16xui32>
    %4 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %5 = stablehlo.shift_left %arg2, %4 : tensor<4x16xui32>
    %c_0 = stablehlo.constant dense<32> : tensor<ui32>
    %6 = stablehlo.subtract %c_0, %2 : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %8 = stablehlo.shift_right_logical %arg2, %7 : tensor<4x16xui32>
    %9 = stablehlo.or %5, %8 : tensor<4x16xui32>
    %10 = stablehlo.xor %3, %9 : tensor<4x16xui32>
    %11 = stablehlo.slice %arg6 [1:2] : (tensor<4xui32>) -> tensor<1xui32>
    %12 = stablehlo.reshape %11 : (tensor<1xui32>) -> tensor<ui32>
    %13 = stablehlo.add %3, %10 : tensor<4x16xui32>
    %14 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %15 = stablehlo.shift_left %10, %14 : tensor<4x16xui32>
    %c_1 = stablehlo.constant dense<32> : tensor<ui32>
    %16 = stablehlo.subtract %c_1, %12 : tensor<ui32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %18 = stablehlo.shift_right_logical %10, %17 : tensor<4x16xui32>
    %19 = stablehlo.or %15, %18 : tensor<4x16xui32>
    %20 = stablehlo.xor %13, %19 : tensor<4x16xui32>
    %21 = stablehlo.slice %arg6 [2:3] : (tensor<4xui32>) -> tensor<1xui32>
    %22 = stablehlo.reshape %21 : (tensor<1xui32>) -> tensor<ui32>
    %23 = stablehlo.add %13, %20 : tensor<4x16xui32>
    %24 = stablehlo.broadcast_in_dim %22, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %25 = stablehlo.shift_left %20, %24 : tensor<4x16xui32>
    %c_2 = stablehlo.constant dense<32> : tensor<ui32>
    %26 = stablehlo.subtract %c_2, %22 : tensor<ui32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %28 = stablehlo.shift_right_logical %20, %27 : tensor<4x16xui32>
    %29 = stablehlo.or %25, %28 : tensor<4x16xui32>
    %30 = stablehlo.xor %23, %29 : tensor<4x16xui32>
    %31 = stablehlo.slice %arg6 [3:4] : (tensor<4xui32>) -> tensor<1xui32>
    %32 = stablehlo.reshape %31 : (tensor<1xui32>) -> tensor<ui32>
    %33 = stablehlo.add %23, %30 : tensor<4x16xui32>
    %34 = stablehlo.broadcast_in_dim %32, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %35 = stablehlo.shift_left %30, %34 : tensor<4x16xui32>
    %c_3 = stablehlo.constant dense<32> : tensor<ui32>
    %36 = stablehlo.subtract %c_3, %32 : tensor<ui32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %38 = stablehlo.shift_right_logical %30, %37 : tensor<4x16xui32>
    %39 = stablehlo.or %35, %38 : tensor<4x16xui32>
    %40 = stablehlo.xor %33, %39 : tensor<4x16xui32>
    %41 = stablehlo.broadcast_in_dim %arg3, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %42 = stablehlo.add %33, %41 : tensor<4x16xui32>
    %43 = stablehlo.broadcast_in_dim %arg4, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %44 = stablehlo.add %40, %43 : tensor<4x16xui32>
    %c_4 = stablehlo.constant dense<1> : tensor<i32>
    %45 = stablehlo.add %arg0, %c_4 : tensor<i32>
    %46 = stablehlo.convert %45 : (tensor<i32>) -> tensor<ui32>
    %47 = stablehlo.broadcast_in_dim %46, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %48 = stablehlo.add %44, %47 : tensor<4x16xui32>
    return %0, %42, %48, %arg4, %arg5, %arg3, %arg7, %arg6 : tensor<i32>, tensor<4x16xui32>, tensor<4x16xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
  }
  func.func private @_where_6(%arg0: tensor<4x16xi1>, %arg1: tensor<4x16xf32>, %arg2: tensor<4x16xf32>) -> tensor<4x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<4x16xi1>, tensor<4x16xf32>
    return %0 : tensor<4x16xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<3x4x8xf32>, %arg1: tensor<4x8xf32>, %arg2: tensor<i32>) -> tensor<3x4x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0 : (tensor<3x4x8xf32>, tensor<1x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x8xf32>
    return %1 : tensor<3x4x8xf32>
  }
  func.func private @dynamic_update_index_in_dim_7(%arg0: tensor<3x2xui32>, %arg1: tensor<2xui32>, %arg2: tensor<i32>) -> tensor<3x2xui32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<2xui32>) -> tensor<1x2xui32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c : (tensor<3x2xui32>, tensor<1x2xui32>, tensor<i32>, tensor<i32>) -> tensor<3x2xui32>
    return %1 : tensor<3x2xui32>
  }
  func.func private @dynamic_index_in_dim_8(%arg0: tensor<3x4x8xf32>, %arg1: tensor<i32>) -> tensor<4x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 4, 8] : (tensor<3x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
  func.func private @dynamic_index_in_dim_9(%arg0: tensor<3x2xui32>, %arg1: tensor<i32>) -> tensor<2xui32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, sizes = [1, 2] : (tensor<3x2xui32>, tensor<i32>, tensor<i32>) -> tensor<1x2xui32>
    %1 = stablehlo.reshape %0 : (tensor<1x2xui32>) -> tensor<2xui32>
    return %1 : tensor<2xui32>
  }
  func.func private @closed_call_10(%arg0: tensor<4x8xf32>, %arg1: tensor<4x8xf32>, %arg2: tensor<2xui32>, %arg3: tensor<16x8xf32>, %arg4: tensor<8x16xf32>) -> (tensor<4x8xf32>, tensor<16x8xf32>, tensor<8x16xf32>) {
    %0:5 = stablehlo.optimization_barrier %arg1, %arg2, %arg3, %arg4, %arg0 : tensor<4x8xf32>, tensor<2xui32>, tensor<16x8xf32>, tensor<8x16xf32>, tensor<4x8xf32>
    %1 = call @_threefry_split(%0#1) : (tensor<2xui32>) -> tensor<2x2xui32>
    %2 = stablehlo.slice %1 [1:2, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %3 = stablehlo.reshape %2 : (tensor<1x2xui32>) -> tensor<2xui32>
    %4 = stablehlo.dot_general %0#0, %0#3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %5 = stablehlo.tanh %4 : tensor<4x16xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %7 = stablehlo.subtract %6, %5 : tensor<4x16xf32>
    %cst_0 = stablehlo.constant dense<7.500000e-01> : tensor<f32>
    %8 = call @_bernoulli_11(%3, %cst_0) : (tensor<2xui32>, tensor<f32>) -> tensor<4x16xi1>
    %cst_1 = stablehlo.constant dense<7.500000e-01> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %10 = stablehlo.divide %5, %9 : tensor<4x16xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = call @_where_13(%8, %10, %cst_2) : (tensor<4x16xi1>, tensor<4x16xf32>, tensor<f32>) -> tensor<4x16xf32>
    %12 = stablehlo.dot_general %0#4, %11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %13 = stablehlo.transpose %12, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %14 = stablehlo.dot_general %0#4, %0#2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
    %15 = call @_where_14(%8, %14) : (tensor<4x16xi1>, tensor<4x16xf32>) -> tensor<4x16xf32>
    %cst_3 = stablehlo.constant dense<7.500000e-01> : tensor<f32>
    %16 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %17 = stablehlo.divide %15, %16 : tensor<4x16xf32>
    %18 = stablehlo.multiply %17, %7 : tensor<4x16xf32>
    %19 = stablehlo.multiply %18, %5 : tensor<4x16xf32>
    %20 = stablehlo.add %18, %19 : tensor<4x16xf32>
    %21 = stablehlo.dot_general %20, %0#0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16xf32>, tensor<4x8xf32>) -> tensor<16x8xf32>
    %22 = stablehlo.transpose %21, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %23 = stablehlo.dot_general %20, %0#3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
    %24 = stablehlo.add %0#4, %23 : tensor<4x8xf32>
    return %24, %13, %22 : tensor<4x8xf32>, tensor<16x8xf32>, tensor<8x16xf32>
  }
  func.func private @_bernoulli_11(%arg0: tensor<2xui32>, %arg1: tensor<f32>) -> tensor<4x16xi1> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = call @_uniform_12(%arg0, %cst, %cst_0) : (tensor<2xui32>, tensor<f32>, tensor<f32>) -> tensor<4x16xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %2 = stablehlo.compare LT, %0, %1, FLOAT : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xi1>
    return %2 : tensor<4x16xi1>
  }
  func.func private @_uniform_12(%arg0: tensor<2xui32>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<4x16xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.convert %arg2 : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1x1xf32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<1x1xf32>
    %4 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %5 = stablehlo.reshape %4 : (tensor<1xui32>) -> tensor<ui32>
    %6 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %7 = stablehlo.reshape %6 : (tensor<1xui32>) -> tensor<ui32>
    %8 = stablehlo.iota dim = 0 : tensor<4x16xui64>
    %9 = stablehlo.iota dim = 1 : tensor<4x16xui64>
    %c = stablehlo.constant dense<16> : tensor<ui64>
    %10 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<4x16xui64>
    %11 = stablehlo.multiply %10, %8 : tensor<4x16xui64>
    %c_0 = stablehlo.constant dense<1> : tensor<ui64>
    %12 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<4x16xui64>
    %13 = stablehlo.multiply %12, %9 : tensor<4x16xui64>
    %14 = stablehlo.add %11, %13 : tensor<4x16xui64>
    %c_1 = stablehlo.constant dense<32> : tensor<ui64>
    %15 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui64>) -> tensor<4x16xui64>
    %16 = stablehlo.shift_right_logical %14, %15 : tensor<4x16xui64>
    %17 = stablehlo.convert %14 : (tensor<4x16xui64>) -> tensor<4x16xui32>
    %18 = stablehlo.convert %16 : (tensor<4x16xui64>) -> tensor<4x16xui32>
    %19:2 = call @threefry2x32_4(%5, %7, %18, %17) : (tensor<ui32>, tensor<ui32>, tensor<4x16xui32>, tensor<4x16xui32>) -> (tensor<4x16xui32>, tensor<4x16xui32>)
    %20 = stablehlo.xor %19#0, %19#1 : tensor<4x16xui32>
    %c_2 = stablehlo.constant dense<9> : tensor<ui32>
    %21 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %22 = stablehlo.shift_right_logical %20, %21 : tensor<4x16xui32>
    %c_3 = stablehlo.constant dense<1065353216> : tensor<ui32>
    %23 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui32>) -> tensor<4x16xui32>
    %24 = stablehlo.or %22, %23 : tensor<4x16xui32>
    %25 = stablehlo.bitcast_convert %24 : (tensor<4x16xui32>) -> tensor<4x16xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %27 = stablehlo.subtract %25, %26 : tensor<4x16xf32>
    %28 = stablehlo.subtract %3, %2 : tensor<1x1xf32>
    %29 = stablehlo.broadcast_in_dim %28, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<4x16xf32>
    %30 = stablehlo.multiply %27, %29 : tensor<4x16xf32>
    %31 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<4x16xf32>
    %32 = stablehlo.add %30, %31 : tensor<4x16xf32>
    %33 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<4x16xf32>
    %34 = stablehlo.maximum %33, %32 : tensor<4x16xf32>
    return %34 : tensor<4x16xf32>
  }
  func.func private @_where_13(%arg0: tensor<4x16xi1>, %arg1: tensor<4x16xf32>, %arg2: tensor<f32>) -> tensor<4x16xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<4x16xi1>, tensor<4x16xf32>
    return %2 : tensor<4x16xf32>
  }
  func.func private @_where_14(%arg0: tensor<4x16xi1>, %arg1: tensor<4x16xf32>) -> tensor<4x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<4x16xi1>, tensor<4x16xf32>
    return %1 : tensor<4x16xf32>
  }
  func.func private @dynamic_update_index_in_dim_15(%arg0: tensor<3x16x8xf32>, %arg1: tensor<16x8xf32>, %arg2: tensor<i32>) -> tensor<3x16x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<16x8xf32>) -> tensor<1x16x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0 : (tensor<3x16x8xf32>, tensor<1x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x16x8xf32>
    return %1 : tensor<3x16x8xf32>
  }
  func.func private @dynamic_update_index_in_dim_16(%arg0: tensor<3x8x16xf32>, %arg1: tensor<8x16xf32>, %arg2: tensor<i32>) -> tensor<3x8x16xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0 : (tensor<3x8x16xf32>, tensor<1x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8x16xf32>
    return %1 : tensor<3x8x16xf32>
  }
}
// -----
module @jit_mixture_of_experts attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x16x8xf32>, %arg1: tensor<8x4xf32>, %arg2: tensor<4x8x16xf32>, %arg3: tensor<8x8xf32>, %arg4: tensor<8x8xf32>) -> (tensor<4x16x8xf32> {jax.result_info = "result[0]"}, tensor<8x4xf32> {jax.result_info = "result[1]"}, tensor<4x8x16xf32> {jax.result_info = "result[2]"}, tensor<f32> {jax.result_info = "result[3]"}) {
    %0 = stablehlo.dot_general %arg3, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.maximum across dimensions = [1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %3 = stablehlo.maximum %2, %1 : tensor<8xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x4xf32>
    %6 = stablehlo.subtract %0, %5 : tensor<8x4xf32>
    %7 = stablehlo.exponential %6 : tensor<8x4xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x4xf32>
    %11 = stablehlo.divide %7, %10 : tensor<8x4xf32>
    %12 = stablehlo.multiply %9, %9 : tensor<8x1xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %14 = stablehlo.divide %13, %12 : tensor<8x1xf32>
    %values, %indices = chlo.top_k(%11, k = 2) : tensor<8x4xf32> -> (tensor<8x2xf32>, tensor<8x2xi32>)
    %15 = stablehlo.reshape %indices : (tensor<8x2xi32>) -> tensor<8x2x1xi32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %16 = stablehlo.reduce(%values init: %cst_3) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x2xf32>
    %19 = stablehlo.divide %values, %18 : tensor<8x2xf32>
    %20 = stablehlo.multiply %17, %17 : tensor<8x1xf32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %22 = stablehlo.divide %21, %20 : tensor<8x1xf32>
    %23 = stablehlo.reshape %indices : (tensor<8x2xi32>) -> tensor<16xi32>
    %24 = call @_one_hot(%23) : (tensor<16xi32>) -> tensor<16x4xi32>
    %25 = call @cumsum(%24) : (tensor<16x4xi32>) -> tensor<16x4xi32>
    %26 = stablehlo.iota dim = 0 : tensor<16xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %27 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %28 = stablehlo.compare LT, %26, %27, SIGNED : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %c_5 = stablehlo.constant dense<16> : tensor<i32>
    %29 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %30 = stablehlo.add %26, %29 : tensor<16xi32>
    %31 = stablehlo.select %28, %30, %26 : tensor<16xi1>, tensor<16xi32>
    %c_6 = stablehlo.constant dense<0> : tensor<i32>
    %32 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %33 = stablehlo.compare LT, %23, %32, SIGNED : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %c_7 = stablehlo.constant dense<4> : tensor<i32>
    %34 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %35 = stablehlo.add %23, %34 : tensor<16xi32>
    %36 = stablehlo.select %33, %35, %23 : tensor<16xi1>, tensor<16xi32>
    %37 = stablehlo.broadcast_in_dim %31, dims = [0] : (tensor<16xi32>) -> tensor<16x1xi32>
    %38 = stablehlo.broadcast_in_dim %36, dims = [0] : (tensor<16xi32>) -> tensor<16x1xi32>
    %39 = stablehlo.concatenate %37, %38, dim = 1 : (tensor<16x1xi32>, tensor<16x1xi32>) -> tensor<16x2xi32>
    %40 = "stablehlo.gather"(%25, %39) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<16x4xi32>, tensor<16x2xi32>) -> tensor<16xi32>
    %c_8 = stablehlo.constant dense<1> : tensor<i32>
    %41 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %42 = stablehlo.subtract %40, %41 : tensor<16xi32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %43 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x16x8xf32>
    %44 = stablehlo.broadcast_in_dim %arg3, dims = [0, 2] : (tensor<8x8xf32>) -> tensor<8x2x8xf32>
    %45 = stablehlo.reshape %44 : (tensor<8x2x8xf32>) -> tensor<16x8xf32>
    %c_10 = stablehlo.constant dense<0> : tensor<i32>
    %46 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %47 = stablehlo.compare LT, %23, %46, SIGNED : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %c_11 = stablehlo.constant dense<4> : tensor<i32>
    %48 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %49 = stablehlo.add %23, %48 : tensor<16xi32>
    %50 = stablehlo.select %47, %49, %23 : tensor<16xi1>, tensor<16xi32>
    %c_12 = stablehlo.constant dense<0> : tensor<i32>
    %51 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %52 = stablehlo.compare LT, %42, %51, SIGNED : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %c_13 = stablehlo.constant dense<16> : tensor<i32>
    %53 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %54 = stablehlo.add %42, %53 : tensor<16xi32>
    %55 = stablehlo.select %52, %54, %42 : tensor<16xi1>, tensor<16xi32>
    %56 = stablehlo.broadcast_in_dim %50, dims = [0] : (tensor<16xi32>) -> tensor<16x1xi32>
    %57 = stablehlo.broadcast_in_dim %55, dims = [0] : (tensor<16xi32>) -> tensor<16x1xi32>
    %58 = stablehlo.concatenate %56, %57, dim = 1 : (tensor<16x1xi32>, tensor<16x1xi32>) -> tensor<16x2xi32>
    %59 = "stablehlo.scatter"(%43, %58, %45) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
      %147 = stablehlo.add %arg5, %arg6 : tensor<f32>
      stablehlo.return %147 : tensor<f32>
    }) : (tensor<4x16x8xf32>, tensor<16x2xi32>, tensor<16x8xf32>) -> tensor<4x16x8xf32>
    %60 = stablehlo.dot_general %59, %arg2, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x8xf32>, tensor<4x8x16xf32>) -> tensor<4x16x16xf32>
    %61 = call @relu(%60) : (tensor<4x16x16xf32>) -> tensor<4x16x16xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %62 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x16x16xf32>
    %63 = stablehlo.compare GT, %60, %62, FLOAT : (tensor<4x16x16xf32>, tensor<4x16x16xf32>) -> tensor<4x16x16xi1>
    %64 = stablehlo.dot_general %61, %arg0, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x16xf32>, tensor<4x16x8xf32>) -> tensor<4x16x8xf32>
    %c_15 = stablehlo.constant dense<0> : tensor<i32>
    %65 = stablehlo.broadcast_in_dim %c_15, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %66 = stablehlo.compare LT, %23, %65, SIGNED : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %c_16 = stablehlo.constant dense<4> : tensor<i32>
    %67 = stablehlo.broadcast_in_dim %c_16, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %68 = stablehlo.add %23, %67 : tensor<16xi32>
    %69 = stablehlo.select %66, %68, %23 : tensor<16xi1>, tensor<16xi32>
    %c_17 = stablehlo.constant dense<0> : tensor<i32>
    %70 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %71 = stablehlo.compare LT, %42, %70, SIGNED : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %c_18 = stablehlo.constant dense<16> : tensor<i32>
    %72 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %73 = stablehlo.add %42, %72 : tensor<16xi32>
    %74 = stablehlo.select %71, %73, %42 : tensor<16xi1>, tensor<16xi32>
    %75 = stablehlo.broadcast_in_dim %69, dims = [0] : (tensor<16xi32>) -> tensor<16x1xi32>
    %76 = stablehlo.broadcast_in_dim %74, dims = [0] : (tensor<16xi32>) -> tensor<16x1xi32>
    %77 = stablehlo.concatenate %75, %76, dim = 1 : (tensor<16x1xi32>, tensor<16x1xi32>) -> tensor<16x2xi32>
    %78 = "stablehlo.gather"(%64, %77) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 8>}> : (tensor<4x16x8xf32>, tensor<16x2xi32>) -> tensor<16x8xf32>
    %79 = stablehlo.reshape %78 : (tensor<16x8xf32>) -> tensor<8x2x8xf32>
    %80 = stablehlo.broadcast_in_dim %19, dims = [0, 1] : (tensor<8x2xf32>) -> tensor<8x2x1xf32>
    %81 = stablehlo.broadcast_in_dim %80, dims = [0, 1, 2] : (tensor<8x2x1xf32>) -> tensor<8x2x8xf32>
    %82 = stablehlo.multiply %79, %81 : tensor<8x2x8xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %83 = stablehlo.reduce(%82 init: %cst_19) applies stablehlo.add across dimensions = [1] : (tensor<8x2x8xf32>, tensor<f32>) -> tensor<8x8xf32>
    %84 = stablehlo.add %arg3, %83 : tensor<8x8xf32>
    %85 = stablehlo.subtract %84, %arg4 : tensor<8x8xf32>
    %86 = stablehlo.multiply %85, %85 : tensor<8x8xf32>
    %cst_20 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %87 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %88 = stablehlo.multiply %87, %85 : tensor<8x8xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %89 = stablehlo.reduce(%86 init: %cst_21) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_22 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %90 = stablehlo.divide %89, %cst_22 : tensor<f32>
    %cst_23 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_24 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %91 = stablehlo.divide %cst_23, %cst_24 : tensor<f32>
    %92 = stablehlo.broadcast_in_dim %91, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %93 = stablehlo.multiply %92, %88 : tensor<8x8xf32>
    %94 = stablehlo.broadcast_in_dim %93, dims = [0, 2] : (tensor<8x8xf32>) -> tensor<8x2x8xf32>
    %95 = stablehlo.multiply %79, %94 : tensor<8x2x8xf32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %96 = stablehlo.reduce(%95 init: %cst_25) applies stablehlo.add across dimensions = [2] : (tensor<8x2x8xf32>, tensor<f32>) -> tensor<8x2xf32>
    %97 = stablehlo.reshape %96 : (tensor<8x2xf32>) -> tensor<8x2x1xf32>
    %98 = stablehlo.broadcast_in_dim %80, dims = [0, 1, 2] : (tensor<8x2x1xf32>) -> tensor<8x2x8xf32>
    %99 = stablehlo.multiply %94, %98 : tensor<8x2x8xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %100 = stablehlo.reduce(%97 init: %cst_26) applies stablehlo.add across dimensions = [2] : (tensor<8x2x1xf32>, tensor<f32>) -> tensor<8x2xf32>
    %101 = stablehlo.reshape %99 : (tensor<8x2x8xf32>) -> tensor<16x8xf32>
    %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %102 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<4x16x8xf32>
    %103 = "stablehlo.scatter"(%102, %77, %101) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
      %147 = stablehlo.add %arg5, %arg6 : tensor<f32>
      stablehlo.return %147 : tensor<f32>
    }) : (tensor<4x16x8xf32>, tensor<16x2xi32>, tensor<16x8xf32>) -> tensor<4x16x8xf32>
    %104 = stablehlo.dot_general %103, %61, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x8xf32>, tensor<4x16x16xf32>) -> tensor<4x8x16xf32>
    %105 = stablehlo.transpose %104, dims = [0, 2, 1] : (tensor<4x8x16xf32>) -> tensor<4x16x8xf32>
    %106 = stablehlo.dot_general %103, %arg0, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x16x8xf32>, tensor<4x16x8xf32>) -> tensor<4x16x16xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %107 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<4x16x16xf32>
    %108 = stablehlo.select %63, %106, %107 : tensor<4x16x16xi1>, tensor<4x16x16xf32>
    %109 = stablehlo.dot_general %108, %59, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x16x16xf32>, tensor<4x16x8xf32>) -> tensor<4x16x8xf32>
    %110 = stablehlo.transpose %109, dims = [0, 2, 1] : (tensor<4x16x8xf32>) -> tensor<4x8x16xf32>
    %111 = stablehlo.broadcast_in_dim %22, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x2xf32>
    %112 = stablehlo.multiply %100, %111 : tensor<8x2xf32>
    %113 = stablehlo.multiply %112, %values : tensor<8x2xf32>
    %cst_29 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %114 = stablehlo.reduce(%113 init: %cst_29) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %115 = stablehlo.reshape %114 : (tensor<8xf32>) -> tensor<8x1xf32>
    %116 = stablehlo.negate %115 : tensor<8x1xf32>
    %117 = stablehlo.broadcast_in_dim %17, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x2xf32>
    %118 = stablehlo.divide %100, %117 : tensor<8x2xf32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %119 = stablehlo.reduce(%116 init: %cst_30) applies stablehlo.add across dimensions = [1] : (tensor<8x1xf32>, tensor<f32>) -> tensor<8xf32>
    %120 = stablehlo.broadcast_in_dim %119, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %121 = stablehlo.add %118, %120 : tensor<8x2xf32>
    %cst_31 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %122 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %123 = "stablehlo.scatter"(%122, %15, %121) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
      %147 = stablehlo.add %arg5, %arg6 : tensor<f32>
      stablehlo.return %147 : tensor<f32>
    }) : (tensor<8x4xf32>, tensor<8x2x1xi32>, tensor<8x2xf32>) -> tensor<8x4xf32>
    %124 = stablehlo.broadcast_in_dim %14, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x4xf32>
    %125 = stablehlo.multiply %123, %124 : tensor<8x4xf32>
    %126 = stablehlo.multiply %125, %7 : tensor<8x4xf32>
    %cst_32 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %127 = stablehlo.reduce(%126 init: %cst_32) applies stablehlo.add across dimensions = [1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
    %128 = stablehlo.reshape %127 : (tensor<8xf32>) -> tensor<8x1xf32>
    %129 = stablehlo.negate %128 : tensor<8x1xf32>
    %130 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x4xf32>
    %131 = stablehlo.divide %123, %130 : tensor<8x4xf32>
    %cst_33 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %132 = stablehlo.reduce(%129 init: %cst_33) applies stablehlo.add across dimensions = [1] : (tensor<8x1xf32>, tensor<f32>) -> tensor<8xf32>
    %133 = stablehlo.broadcast_in_dim %132, dims = [0] : (tensor<8xf32>) -> tensor<8x4xf32>
    %134 = stablehlo.add %131, %133 : tensor<8x4xf32>
    %135 = stablehlo.multiply %134, %7 : tensor<8x4xf32>
    %136 = stablehlo.dot_general %135, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %137 = stablehlo.transpose %136, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %cst_34 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %138 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<4x16x8xf32>
    %139 = stablehlo.multiply %138, %105 : tensor<4x16x8xf32>
    %cst_35 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %140 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %141 = stablehlo.multiply %140, %137 : tensor<8x4xf32>
    %cst_36 = stablehlo.constant dense<-1.000000e-01> : tensor<f32>
    %142 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<4x8x16xf32>
    %143 = stablehlo.multiply %142, %110 : tensor<4x8x16xf32>
    %144 = stablehlo.add %arg0, %139 : tensor<4x16x8xf32>
    %145 = stablehlo.add %arg1, %141 : tensor<8x4xf32>
    %146 = stablehlo.add %arg2, %143 : tensor<4x8x16xf32>
    return %144, %145, %146, %90 : tensor<4x16x8xf32>, tensor<8x4xf32>, tensor<4x8x16xf32>, tensor<f32>
  }
  func.func private @_one_hot(%arg0: tensor<16xi32>) -> tensor<16x4xi32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<16xi32>) -> tensor<16x1xi32>
    %1 = stablehlo.iota dim = 1 : tensor<1x4xi32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<16x1xi32>) -> tensor<16x4xi32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x4xi32>) -> tensor<16x4xi32>
    %4 = stablehlo.compare EQ, %2, %3, SIGNED : (tensor<16x4xi32>, tensor<16x4xi32>) -> tensor<16x4xi1>
    %5 = stablehlo.convert %4 : (tensor<16x4xi1>) -> tensor<16x4xi32>
    return %5 : tensor<16x4xi32>
  }
  func.func private @cumsum(%arg0: tensor<16x4xi32>) -> tensor<16x4xi32> {
    %0 = call @cumsum_0(%arg0) : (tensor<16x4xi32>) -> tensor<16x4xi32>
    return %0 : tensor<16x4xi32>
  }
  func.func private @cumsum_0(%arg0: tensor<16x4xi32>) -> tensor<16x4xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<i32>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1>, padding = dense<[[15, 0], [0, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 16, 1>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %2 = stablehlo.add %arg1, %arg2 : tensor<i32>
      stablehlo.return %2 : tensor<i32>
    }) : (tensor<16x4xi32>, tensor<i32>) -> tensor<16x4xi32>
    return %1 : tensor<16x4xi32>
  }
  func.func private @relu(%arg0: tensor<4x16x16xf32>) -> tensor<4x16x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x16x16xf32>
    return %1 : tensor<4x16x16xf32>
  }
}
// -----
module @jit_flax_module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<8xf32>, %arg2: tensor<16x8xf32>, %arg3: tensor<16xf32>, %arg4: tensor<8x16xf32>, %arg5: tensor<4xf32>, %arg6: tensor<8x4xf32>, %arg7: tensor<8xf32>, %arg8: tensor<8xf32>, %arg9: tensor<2x4xf32>, %arg10: tensor<8x2x4xf32>, %arg11: tensor<8xf32>, %arg12: tensor<2x4x8xf32>, %arg13: tensor<2x4xf32>, %arg14: tensor<8x2x4xf32>, %arg15: tensor<2x4xf32>, %arg16: tensor<8x2x4xf32>, %arg17: tensor<8xf32>, %arg18: tensor<16x8xf32>, %arg19: tensor<16xf32>, %arg20: tensor<8x16xf32>, %arg21: tensor<4xf32>, %arg22: tensor<8x4xf32>, %arg23: tensor<8xf32>, %arg24: tensor<8xf32>, %arg25: tensor<2x4xf32>, %arg26: tensor<8x2x4xf32>, %arg27: tensor<8xf32>, %arg28: tensor<2x4x8xf32>, %arg29: tensor<2x4xf32>, %arg30: tensor<8x2x4xf32>, %arg31: tensor<2x4xf32>, %arg32: tensor<8x2x4xf32>, %arg33: tensor<8xf32>, %arg34: tensor<16x8xf32>, %arg35: tensor<16xf32>, %arg36: tensor<8x16xf32>, %arg37: tensor<4xf32>, %arg38: tensor<8x4xf32>, %arg39: tensor<8xf32>, %arg40: tensor<8xf32>, %arg41: tensor<2x4xf32>, %arg42: tensor<8x2x4xf32>, %arg43: tensor<8xf32>, %arg44: tensor<2x4x8xf32>, %arg45: tensor<2x4xf32>, %arg46: tensor<8x2x4xf32>, %arg47: tensor<2x4xf32>, %arg48: tensor<8x2x4xf32>, %arg49: tensor<4x6x8xf32>, %arg50: tensor<4xi32>) -> (tensor<i32> {jax.result_info = "result[0]"}, tensor<8xf32> {jax.result_info = "result[1]"}, tensor<16x8xf32> {jax.result_info = "result[2]"}, tensor<16xf32> {jax.result_info = "result[3]"}, tensor<8x16xf32> {jax.result_info = "result[4]"}, tensor<4xf32> {jax.result_info = "result[5]"}, tensor<8x4xf32> {jax.result_info = "result[6]"}, tensor<8xf32> {jax.result_info = "result[7]"}, tensor<8xf32> {jax.result_info = "result[8]"}, tensor<2x4xf32> {jax.result_info = "result[9]"}, tensor<8x2x4xf32> {jax.result_info = "result[10]"}, tensor<8xf32> {jax.result_info = "result[11]"}, tensor<2x4x8xf32> {jax.result_info = "result[12]"}, tensor<2x4xf32> {jax.result_info = "result[13]"}, tensor<8x2x4xf32> {jax.result_info = "result[14]"}, tensor<2x4xf32> {jax.result_info = "result[15]"}, tensor<8x2x4xf32> {jax.result_info = "result[16]"}, tensor<8xf32> {jax.result_info = "result[17]"}, tensor<16x8xf32> {jax.result_info = "result[18]"}, tensor<16xf32> {jax.result_info = "result[19]"}, tensor<8x16xf32> {jax.result_info = "result[20]"}, tensor<4xf32> {jax.result_info = "result[21]"}, tensor<8x4xf32> {jax.result_info = "result[22]"}, tensor<8xf32> {jax.result_info = "result[23]"}, tensor<8xf32> {jax.result_info = "result[24]"}, tensor<2x4xf32> {jax.result_info = "result[25]"}, tensor<8x2x4xf32> {jax.result_info = "result[26]"}, tensor<8xf32> {jax.result_info = "result[27]"}, tensor<2x4x8xf32> {jax.result_info = "result[28]"}, tensor<2x4xf32> {jax.result_info = "result[29]"}, tensor<8x2x4xf32> {jax.result_info = "result[30]"}, tensor<2x4xf32> {jax.result_info = "result[31]"}, tensor<8x2x4xf32> {jax.result_info = "result[32]"}, tensor<8xf32> {jax.result_info = "result[33]"}, tensor<16x8xf32> {jax.result_info = "result[34]"}, tensor<16xf32> {jax.result_info = "result[35]"}, tensor<8x16xf32> {jax.result_info = "result[36]"}, tensor<4xf32> {jax.result_info = "result[37]"}, tensor<8x4xf32> {jax.result_info = "result[38]"}, tensor<8xf32> {jax.result_info = "result[39]"}, tensor<8xf32> {jax.result_info = "result[40]"}, tensor<2x4xf32> {jax.result_info = "result[41]"}, tensor<8x2x4xf32> {jax.result_info = "result[42]"}, tensor<8xf32> {jax.result_info = "result[43]"}, tensor<2x4x8xf32> {jax.result_info = "result[44]"}, tensor<2x4xf32> {jax.result_info = "result[45]"}, tensor<8x2x4xf32> {jax.result_info = "result[46]"}, tensor<2x4xf32> {jax.result_info = "result[47]"}, tensor<8x2x4xf32> {jax.result_info = "result[48]"}, tensor<f32> {jax.result_info = "result[49]"}) {
    %0 = chlo.square %arg49 : tensor<4x6x8xf32> -> tensor<4x6x8xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%arg49 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<4x6xf32>
    %cst_0 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.divide %1, %2 : tensor<4x6xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%0 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<4x6xf32>
    %cst_2 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %6 = stablehlo.divide %4, %5 : tensor<4x6xf32>
    %7 = chlo.square %3 : tensor<4x6xf32> -> tensor<4x6xf32>
    %8 = stablehlo.subtract %6, %7 : tensor<4x6xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %10 = stablehlo.maximum %9, %8 : tensor<4x6xf32>
    %11 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<4x6xf32>) -> tensor<4x6x1xf32>
    %12 = stablehlo.broadcast_in_dim %10, dims = [0, 1] : (tensor<4x6xf32>) -> tensor<4x6x1xf32>
    %13 = stablehlo.broadcast_in_dim %11, dims = [0, 1, 2] : (tensor<4x6x1xf32>) -> tensor<4x6x8xf32>
    %14 = stablehlo.subtract %arg49, %13 : tensor<4x6x8xf32>
    %cst_4 = stablehlo.constant dense<9.99999997E-7> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x6x1xf32>
    %16 = stablehlo.add %12, %15 : tensor<4x6x1xf32>
    %17 = stablehlo.rsqrt %16 : tensor<4x6x1xf32>
    %18 = stablehlo.reshape %arg40 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %19 = stablehlo.broadcast_in_dim %17, dims = [0, 1, 2] : (tensor<4x6x1xf32>) -> tensor<4x6x8xf32>
    %20 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2] : (tensor<1x1x8xf32>) -> tensor<4x6x8xf32>
    %21 = stablehlo.multiply %19, %20 : tensor<4x6x8xf32>
    %22 = stablehlo.multiply %14, %21 : tensor<4x6x8xf32>
    %23 = stablehlo.reshape %arg39 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %24 = stablehlo.broadcast_in_dim %23, dims = [0, 1, 2] : (tensor<1x1x8xf32>) -> tensor<4x6x8xf32>
    %25 = stablehlo.add %22, %24 : tensor<4x6x8xf32>
    %26 = stablehlo.dot_general %25, %arg46, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<8x2x4xf32>) -> tensor<4x6x2x4xf32>
    %27 = stablehlo.reshape %arg45 : (tensor<2x4xf32>) -> tensor<1x1x2x4xf32>
    %28 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2, 3] : (tensor<1x1x2x4xf32>) -> tensor<4x6x2x4xf32>
    %29 = stablehlo.add %26, %28 : tensor<4x6x2x4xf32>
    %30 = stablehlo.dot_general %25, %arg42, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<8x2x4xf32>) -> tensor<4x6x2x4xf32>
    %31 = stablehlo.reshape %arg41 : (tensor<2x4xf32>) -> tensor<1x1x2x4xf32>
    %32 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2, 3] : (tensor<1x1x2x4xf32>) -> tensor<4x6x2x4xf32>
    %33 = stablehlo.add %30, %32 : tensor<4x6x2x4xf32>
    %34 = stablehlo.dot_general %25, %arg48, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<8x2x4xf32>) -> tensor<4x6x2x4xf32>
    %35 = stablehlo.reshape %arg47 : (tensor<2x4xf32>) -> tensor<1x1x2x4xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2, 3] : (tensor<1x1x2x4xf32>) -> tensor<4x6x2x4xf32>
    %37 = stablehlo.add %34, %36 : tensor<4x6x2x4xf32>
    %cst_5 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %38 = stablehlo.sqrt %cst_5 : tensor<f32>
    %39 = stablehlo.convert %38 : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %39, dims = [] : (tensor<f32>) -> tensor<4x6x2x4xf32>
    %41 = stablehlo.divide %29, %40 : tensor<4x6x2x4xf32>
    %42 = stablehlo.dot_general %41, %33, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<4x6x2x4xf32>) -> tensor<4x2x6x6xf32>
    %cst_6 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %43 = stablehlo.reduce(%42 init: %cst_6) applies stablehlo.maximum across dimensions = [3] : (tensor<4x2x6x6xf32>, tensor<f32>) -> tensor<4x2x6xf32>
    %cst_7 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x2x6xf32>
    %45 = stablehlo.maximum %44, %43 : tensor<4x2x6xf32>
    %46 = stablehlo.broadcast_in_dim %45, dims = [0, 1, 2] : (tensor<4x2x6xf32>) -> tensor<4x2x6x1xf32>
    %47 = stablehlo.broadcast_in_dim %46, dims = [0, 1, 2, 3] : (tensor<4x2x6x1xf32>) -> tensor<4x2x6x6xf32>
    %48 = stablehlo.subtract %42, %47 : tensor<4x2x6x6xf32>
    %49 = stablehlo.exponential %48 : tensor<4x2x6x6xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %50 = stablehlo.reduce(%49 init: %cst_8) applies stablehlo.add across dimensions = [3] : (tensor<4x2x6x6xf32>, tensor<f32>) -> tensor<4x2x6xf32>
    %51 = stablehlo.broadcast_in_dim %50, dims = [0, 1, 2] : (tensor<4x2x6xf32>) -> tensor<4x2x6x1xf32>
    %52 = stablehlo.broadcast_in_dim %51, dims = [0, 1, 2, 3] : (tensor<4x2x6x1xf32>) -> tensor<4x2x6x6xf32>
    %53 = stablehlo.divide %49, %52 : tensor<4x2x6x6xf32>
    %54 = stablehlo.multiply %51, %51 : tensor<4x2x6x1xf32>
    %cst_9 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %55 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x2x6x1xf32>
    %56 = stablehlo.divide %55, %54 : tensor<4x2x6x1xf32>
    %57 = stablehlo.dot_general %37, %53, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<4x2x6x6xf32>) -> tensor<4x2x4x6xf32>
    %58 = stablehlo.transpose %57, dims = [0, 3, 1, 2] : (tensor<4x2x4x6xf32>) -> tensor<4x6x2x4xf32>
    %59 = stablehlo.dot_general %58, %arg44, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<2x4x8xf32>) -> tensor<4x6x8xf32>
    %60 = stablehlo.reshape %arg43 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %61 = stablehlo.broadcast_in_dim %60, dims = [0, 1, 2] : (tensor<1x1x8xf32>) -> tensor<4x6x8xf32>
    %62 = stablehlo.add %59, %61 : tensor<4x6x8xf32>
    %63 = stablehlo.add %arg49, %62 : tensor<4x6x8xf32>
    %64 = stablehlo.dot_general %63, %arg36, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<8x16xf32>) -> tensor<4x6x16xf32>
    %65 = stablehlo.reshape %arg35 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %66 = stablehlo.broadcast_in_dim %65, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x6x16xf32>
    %67 = stablehlo.add %64, %66 : tensor<4x6x16xf32>
    %68 = stablehlo.multiply %67, %67 : tensor<4x6x16xf32>
    %69 = stablehlo.multiply %68, %67 : tensor<4x6x16xf32>
    %70 = stablehlo.multiply %67, %67 : tensor<4x6x16xf32>
    %cst_10 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %71 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %72 = stablehlo.multiply %71, %70 : tensor<4x6x16xf32>
    %cst_11 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %73 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %74 = stablehlo.multiply %73, %69 : tensor<4x6x16xf32>
    %75 = stablehlo.add %67, %74 : tensor<4x6x16xf32>
    %cst_12 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %76 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %77 = stablehlo.multiply %76, %75 : tensor<4x6x16xf32>
    %78 = stablehlo.tanh %77 : tensor<4x6x16xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %79 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %80 = stablehlo.subtract %79, %78 : tensor<4x6x16xf32>
    %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %82 = stablehlo.add %81, %78 : tensor<4x6x16xf32>
    %cst_15 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %83 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %84 = stablehlo.multiply %83, %82 : tensor<4x6x16xf32>
    %85 = stablehlo.multiply %67, %84 : tensor<4x6x16xf32>
    %86 = stablehlo.dot_general %85, %arg34, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6x16xf32>, tensor<16x8xf32>) -> tensor<4x6x8xf32>
    %87 = stablehlo.reshape %arg33 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %88 = stablehlo.broadcast_in_dim %87, dims = [0, 1, 2] : (tensor<1x1x8xf32>) -> tensor<4x6x8xf32>
    %89 = stablehlo.add %86, %88 : tensor<4x6x8xf32>
    %90 = stablehlo.add %63, %89 : tensor<4x6x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %91 = stablehlo.reduce(%90 init: %cst_16) applies stablehlo.add across dimensions = [1] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    %cst_17 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %92 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %93 = stablehlo.divide %91, %92 : tensor<4x8xf32>
    %94 = stablehlo.dot_general %93, %arg38, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %95 = stablehlo.reshape %arg37 : (tensor<4xf32>) -> tensor<1x4xf32>
    %96 = stablehlo.broadcast_in_dim %95, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %97 = stablehlo.add %94, %96 : tensor<4x4xf32>
    %98 = stablehlo.broadcast_in_dim %arg50, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
    %99:2 = call @take_along_axis(%97, %98) : (tensor<4x4xf32>, tensor<4x1xi32>) -> (tensor<4x1xf32>, tensor<4x1x1xi32>)
    %c = stablehlo.constant dense<0> : tensor<i32>
    %100:2 = call @_take(%99#0, %c) : (tensor<4x1xf32>, tensor<i32>) -> (tensor<4xf32>, tensor<1xi32>)
    %cst_18 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %101 = stablehlo.reduce(%97 init: %cst_18) applies stablehlo.maximum across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %cst_19 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %102 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %103 = stablehlo.maximum %102, %101 : tensor<4xf32>
    %104 = stablehlo.is_finite %103 : (tensor<4xf32>) -> tensor<4xi1>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %105 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %106 = stablehlo.select %104, %103, %105 : tensor<4xi1>, tensor<4xf32>
    %107 = stablehlo.broadcast_in_dim %106, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %108 = stablehlo.broadcast_in_dim %107, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
    %109 = stablehlo.subtract %97, %108 : tensor<4x4xf32>
    %110 = stablehlo.exponential %109 : tensor<4x4xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %111 = stablehlo.reduce(%110 init: %cst_21) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %112 = stablehlo.abs %111 : tensor<4xf32>
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %113 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %114 = stablehlo.compare GE, %111, %113, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %115 = stablehlo.log %112 : tensor<4xf32>
    %116 = stablehlo.add %115, %106 : tensor<4xf32>
    %117 = stablehlo.subtract %116, %100#0 : tensor<4xf32>
    %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %118 = stablehlo.reduce(%117 init: %cst_23) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %cst_24 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %119 = stablehlo.divide %118, %cst_24 : tensor<f32>
    %cst_25 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_26 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %120 = stablehlo.divide %cst_25, %cst_26 : tensor<f32>
    %121 = stablehlo.broadcast_in_dim %120, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %122 = stablehlo.negate %121 : tensor<4xf32>
    %123 = stablehlo.divide %121, %112 : tensor<4xf32>
    %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %124 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %125 = stablehlo.select %114, %124, %123 : tensor<4xi1>, tensor<4xf32>
    %126 = stablehlo.select %114, %123, %124 : tensor<4xi1>, tensor<4xf32>
    %127 = stablehlo.negate %125 : tensor<4xf32>
    %128 = stablehlo.add %126, %127 : tensor<4xf32>
    %129 = stablehlo.broadcast_in_dim %128, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
    %130 = stablehlo.multiply %129, %110 : tensor<4x4xf32>
    %131 = call @_take_0(%100#1, %122) : (tensor<1xi32>, tensor<4xf32>) -> tensor<4x1xf32>
    %132 = call @take_along_axis_1(%99#1, %131) : (tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x4xf32>
    %133 = stablehlo.add %130, %132 : tensor<4x4xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %134 = stablehlo.reduce(%133 init: %cst_28) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %135 = stablehlo.reshape %134 : (tensor<4xf32>) -> tensor<1x4xf32>
    %136 = stablehlo.reshape %135 : (tensor<1x4xf32>) -> tensor<4xf32>
    %137 = stablehlo.dot_general %133, %93, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %138 = stablehlo.transpose %137, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %139 = stablehlo.dot_general %133, %arg38, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %cst_29 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %140 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %141 = stablehlo.divide %139, %140 : tensor<4x8xf32>
    %142 = stablehlo.broadcast_in_dim %141, dims = [0, 2] : (tensor<4x8xf32>) -> tensor<4x6x8xf32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %143 = stablehlo.reduce(%142 init: %cst_30) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<8xf32>
    %144 = stablehlo.reshape %143 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %145 = stablehlo.reshape %144 : (tensor<1x1x8xf32>) -> tensor<8xf32>
    %146 = stablehlo.dot_general %142, %85, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<4x6x16xf32>) -> tensor<8x16xf32>
    %147 = stablehlo.transpose %146, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %148 = stablehlo.dot_general %142, %arg34, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
    %149 = stablehlo.multiply %67, %148 : tensor<4x6x16xf32>
    %150 = stablehlo.multiply %148, %84 : tensor<4x6x16xf32>
    %cst_31 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %151 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %152 = stablehlo.multiply %151, %149 : tensor<4x6x16xf32>
    %153 = stablehlo.multiply %152, %80 : tensor<4x6x16xf32>
    %154 = stablehlo.multiply %153, %78 : tensor<4x6x16xf32>
    %155 = stablehlo.add %153, %154 : tensor<4x6x16xf32>
    %cst_32 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %156 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %157 = stablehlo.multiply %156, %155 : tensor<4x6x16xf32>
    %158 = stablehlo.add %150, %157 : tensor<4x6x16xf32>
    %cst_33 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %159 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<4x6x16xf32>
    %160 = stablehlo.multiply %159, %157 : tensor<4x6x16xf32>
    %161 = stablehlo.multiply %160, %72 : tensor<4x6x16xf32>
    %162 = stablehlo.add %158, %161 : tensor<4x6x16xf32>
    %cst_34 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %163 = stablehlo.reduce(%162 init: %cst_34) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x16xf32>, tensor<f32>) -> tensor<16xf32>
    %164 = stablehlo.reshape %163 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %165 = stablehlo.reshape %164 : (tensor<1x1x16xf32>) -> tensor<16xf32>
    %166 = stablehlo.dot_general %162, %63, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x16xf32>, tensor<4x6x8xf32>) -> tensor<16x8xf32>
    %167 = stablehlo.transpose %166, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %168 = stablehlo.dot_general %162, %arg36, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
    %169 = stablehlo.add %142, %168 : tensor<4x6x8xf32>
    %cst_35 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %170 = stablehlo.reduce(%169 init: %cst_35) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<8xf32>
    %171 = stablehlo.reshape %170 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %172 = stablehlo.reshape %171 : (tensor<1x1x8xf32>) -> tensor<8xf32>
    %173 = stablehlo.dot_general %169, %58, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<4x6x2x4xf32>) -> tensor<8x2x4xf32>
    %174 = stablehlo.transpose %173, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
    %175 = stablehlo.dot_general %169, %arg44, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<2x4x8xf32>) -> tensor<4x6x2x4xf32>
    %176 = stablehlo.transpose %175, dims = [0, 2, 3, 1] : (tensor<4x6x2x4xf32>) -> tensor<4x2x4x6xf32>
    %177 = stablehlo.dot_general %176, %37, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x2x4x6xf32>, tensor<4x6x2x4xf32>) -> tensor<4x2x6x6xf32>
    %178 = stablehlo.dot_general %176, %53, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x2x4x6xf32>, tensor<4x2x6x6xf32>) -> tensor<4x2x4x6xf32>
    %179 = stablehlo.transpose %178, dims = [0, 3, 1, 2] : (tensor<4x2x4x6xf32>) -> tensor<4x6x2x4xf32>
    %180 = stablehlo.broadcast_in_dim %56, dims = [0, 1, 2, 3] : (tensor<4x2x6x1xf32>) -> tensor<4x2x6x6xf32>
    %181 = stablehlo.multiply %177, %180 : tensor<4x2x6x6xf32>
    %182 = stablehlo.multiply %181, %49 : tensor<4x2x6x6xf32>
    %cst_36 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %183 = stablehlo.reduce(%182 init: %cst_36) applies stablehlo.add across dimensions = [3] : (tensor<4x2x6x6xf32>, tensor<f32>) -> tensor<4x2x6xf32>
    %184 = stablehlo.reshape %183 : (tensor<4x2x6xf32>) -> tensor<4x2x6x1xf32>
    %185 = stablehlo.negate %184 : tensor<4x2x6x1xf32>
    %186 = stablehlo.broadcast_in_dim %51, dims = [0, 1, 2, 3] : (tensor<4x2x6x1xf32>) -> tensor<4x2x6x6xf32>
    %187 = stablehlo.divide %177, %186 : tensor<4x2x6x6xf32>
    %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %188 = stablehlo.reduce(%185 init: %cst_37) applies stablehlo.add across dimensions = [3] : (tensor<4x2x6x1xf32>, tensor<f32>) -> tensor<4x2x6xf32>
    %189 = stablehlo.broadcast_in_dim %188, dims = [0, 1, 2] : (tensor<4x2x6xf32>) -> tensor<4x2x6x6xf32>
    %190 = stablehlo.add %187, %189 : tensor<4x2x6x6xf32>
    %191 = stablehlo.multiply %190, %49 : tensor<4x2x6x6xf32>
    %192 = stablehlo.dot_general %191, %41, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x2x6x6xf32>, tensor<4x6x2x4xf32>) -> tensor<4x2x6x4xf32>
    %193 = stablehlo.transpose %192, dims = [0, 2, 1, 3] : (tensor<4x2x6x4xf32>) -> tensor<4x6x2x4xf32>
    %194 = stablehlo.dot_general %191, %33, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x2x6x6xf32>, tensor<4x6x2x4xf32>) -> tensor<4x2x6x4xf32>
    %195 = stablehlo.transpose %194, dims = [0, 2, 1, 3] : (tensor<4x2x6x4xf32>) -> tensor<4x6x2x4xf32>
    %196 = stablehlo.broadcast_in_dim %39, dims = [] : (tensor<f32>) -> tensor<4x6x2x4xf32>
    %197 = stablehlo.divide %195, %196 : tensor<4x6x2x4xf32>
    %cst_38 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %198 = stablehlo.reduce(%179 init: %cst_38) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
    %199 = stablehlo.reshape %198 : (tensor<2x4xf32>) -> tensor<1x1x2x4xf32>
    %200 = stablehlo.reshape %199 : (tensor<1x1x2x4xf32>) -> tensor<2x4xf32>
    %201 = stablehlo.dot_general %179, %25, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<4x6x8xf32>) -> tensor<2x4x8xf32>
    %202 = stablehlo.transpose %201, dims = [2, 0, 1] : (tensor<2x4x8xf32>) -> tensor<8x2x4xf32>
    %203 = stablehlo.dot_general %179, %arg48, contracting_dims = [2, 3] x [1, 2], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<8x2x4xf32>) -> tensor<4x6x8xf32>
    %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %204 = stablehlo.reduce(%193 init: %cst_39) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
    %205 = stablehlo.reshape %204 : (tensor<2x4xf32>) -> tensor<1x1x2x4xf32>
    %206 = stablehlo.reshape %205 : (tensor<1x1x2x4xf32>) -> tensor<2x4xf32>
    %207 = stablehlo.dot_general %193, %25, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<4x6x8xf32>) -> tensor<2x4x8xf32>
    %208 = stablehlo.transpose %207, dims = [2, 0, 1] : (tensor<2x4x8xf32>) -> tensor<8x2x4xf32>
    %209 = stablehlo.dot_general %193, %arg42, contracting_dims = [2, 3] x [1, 2], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<8x2x4xf32>) -> tensor<4x6x8xf32>
    %210 = stablehlo.add %203, %209 : tensor<4x6x8xf32>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %211 = stablehlo.reduce(%197 init: %cst_40) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
    %212 = stablehlo.reshape %211 : (tensor<2x4xf32>) -> tensor<1x1x2x4xf32>
    %213 = stablehlo.reshape %212 : (tensor<1x1x2x4xf32>) -> tensor<2x4xf32>
    %214 = stablehlo.dot_general %197, %25, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<4x6x8xf32>) -> tensor<2x4x8xf32>
    %215 = stablehlo.transpose %214, dims = [2, 0, 1] : (tensor<2x4x8xf32>) -> tensor<8x2x4xf32>
    %216 = stablehlo.dot_general %197, %arg46, contracting_dims = [2, 3] x [1, 2], precision = [DEFAULT, DEFAULT] : (tensor<4x6x2x4xf32>, tensor<8x2x4xf32>) -> tensor<4x6x8xf32>
    %217 = stablehlo.add %210, %216 : tensor<4x6x8xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %218 = stablehlo.reduce(%217 init: %cst_41) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<8xf32>
    %219 = stablehlo.reshape %218 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %220 = stablehlo.reshape %219 : (tensor<1x1x8xf32>) -> tensor<8xf32>
    %221 = stablehlo.multiply %14, %217 : tensor<4x6x8xf32>
    %222 = stablehlo.broadcast_in_dim %17, dims = [0, 1, 2] : (tensor<4x6x1xf32>) -> tensor<4x6x8xf32>
    %223 = stablehlo.multiply %222, %221 : tensor<4x6x8xf32>
    %cst_42 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %224 = stablehlo.reduce(%223 init: %cst_42) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<8xf32>
    %225 = stablehlo.reshape %224 : (tensor<8xf32>) -> tensor<1x1x8xf32>
    %226 = stablehlo.reshape %225 : (tensor<1x1x8xf32>) -> tensor<8xf32>
    %cst_43 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %227 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %228 = stablehlo.multiply %227, %145 : tensor<8xf32>
    %cst_44 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %229 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %230 = stablehlo.multiply %229, %arg1 : tensor<8xf32>
    %231 = stablehlo.add %228, %230 : tensor<8xf32>
    %cst_45 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %232 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %233 = stablehlo.multiply %232, %147 : tensor<16x8xf32>
    %cst_46 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %234 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %235 = stablehlo.multiply %234, %arg2 : tensor<16x8xf32>
    %236 = stablehlo.add %233, %235 : tensor<16x8xf32>
    %cst_47 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %237 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %238 = stablehlo.multiply %237, %165 : tensor<16xf32>
    %cst_48 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %239 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %240 = stablehlo.multiply %239, %arg3 : tensor<16xf32>
    %241 = stablehlo.add %238, %240 : tensor<16xf32>
    %cst_49 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %242 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %243 = stablehlo.multiply %242, %167 : tensor<8x16xf32>
    %cst_50 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %244 = stablehlo.broadcast_in_dim %cst_50, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %245 = stablehlo.multiply %244, %arg4 : tensor<8x16xf32>
    %246 = stablehlo.add %243, %245 : tensor<8x16xf32>
    %cst_51 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %247 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %248 = stablehlo.multiply %247, %136 : tensor<4xf32>
    %cst_52 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %249 = stablehlo.broadcast_in_dim %cst_52, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %250 = stablehlo.multiply %249, %arg5 : tensor<4xf32>
    %251 = stablehlo.add %248, %250 : tensor<4xf32>
    %cst_53 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %252 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %253 = stablehlo.multiply %252, %138 : tensor<8x4xf32>
    %cst_54 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %254 = stablehlo.broadcast_in_dim %cst_54, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %255 = stablehlo.multiply %254, %arg6 : tensor<8x4xf32>
    %256 = stablehlo.add %253, %255 : tensor<8x4xf32>
    %cst_55 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %257 = stablehlo.broadcast_in_dim %cst_55, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %258 = stablehlo.multiply %257, %220 : tensor<8xf32>
    %cst_56 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %259 = stablehlo.broadcast_in_dim %cst_56, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %260 = stablehlo.multiply %259, %arg7 : tensor<8xf32>
    %261 = stablehlo.add %258, %260 : tensor<8xf32>
    %cst_57 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %262 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %263 = stablehlo.multiply %262, %226 : tensor<8xf32>
    %cst_58 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %264 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %265 = stablehlo.multiply %264, %arg8 : tensor<8xf32>
    %266 = stablehlo.add %263, %265 : tensor<8xf32>
    %cst_59 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %267 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %268 = stablehlo.multiply %267, %206 : tensor<2x4xf32>
    %cst_60 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %269 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %270 = stablehlo.multiply %269, %arg9 : tensor<2x4xf32>
    %271 = stablehlo.add %268, %270 : tensor<2x4xf32>
    %cst_61 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %272 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %273 = stablehlo.multiply %272, %208 : tensor<8x2x4xf32>
    %cst_62 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %274 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %275 = stablehlo.multiply %274, %arg10 : tensor<8x2x4xf32>
    %276 = stablehlo.add %273, %275 : tensor<8x2x4xf32>
    %cst_63 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %277 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %278 = stablehlo.multiply %277, %172 : tensor<8xf32>
    %cst_64 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %279 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %280 = stablehlo.multiply %279, %arg11 : tensor<8xf32>
    %281 = stablehlo.add %278, %280 : tensor<8xf32>
    %cst_65 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %282 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %283 = stablehlo.multiply %282, %174 : tensor<2x4x8xf32>
    %cst_66 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %284 = stablehlo.broadcast_in_dim %cst_66, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %285 = stablehlo.multiply %284, %arg12 : tensor<2x4x8xf32>
    %286 = stablehlo.add %283, %285 : tensor<2x4x8xf32>
    %cst_67 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %287 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %288 = stablehlo.multiply %287, %213 : tensor<2x4xf32>
    %cst_68 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %289 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %290 = stablehlo.multiply %289, %arg13 : tensor<2x4xf32>
    %291 = stablehlo.add %288, %290 : tensor<2x4xf32>
    %cst_69 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %292 = stablehlo.broadcast_in_dim %cst_69, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %293 = stablehlo.multiply %292, %215 : tensor<8x2x4xf32>
    %cst_70 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %294 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %295 = stablehlo.multiply %294, %arg14 : tensor<8x2x4xf32>
    %296 = stablehlo.add %293, %295 : tensor<8x2x4xf32>
    %cst_71 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %297 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %298 = stablehlo.multiply %297, %200 : tensor<2x4xf32>
    %cst_72 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %299 = stablehlo.broadcast_in_dim %cst_72, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %300 = stablehlo.multiply %299, %arg15 : tensor<2x4xf32>
    %301 = stablehlo.add %298, %300 : tensor<2x4xf32>
    %cst_73 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %302 = stablehlo.broadcast_in_dim %cst_73, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %303 = stablehlo.multiply %302, %202 : tensor<8x2x4xf32>
    %cst_74 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %304 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %305 = stablehlo.multiply %304, %arg16 : tensor<8x2x4xf32>
    %306 = stablehlo.add %303, %305 : tensor<8x2x4xf32>
    %307 = stablehlo.multiply %145, %145 : tensor<8xf32>
    %cst_75 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %308 = stablehlo.broadcast_in_dim %cst_75, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %309 = stablehlo.multiply %308, %307 : tensor<8xf32>
    %cst_76 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %310 = stablehlo.broadcast_in_dim %cst_76, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %311 = stablehlo.multiply %310, %arg17 : tensor<8xf32>
    %312 = stablehlo.add %309, %311 : tensor<8xf32>
    %313 = stablehlo.multiply %147, %147 : tensor<16x8xf32>
    %cst_77 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %314 = stablehlo.broadcast_in_dim %cst_77, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %315 = stablehlo.multiply %314, %313 : tensor<16x8xf32>
    %cst_78 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %316 = stablehlo.broadcast_in_dim %cst_78, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %317 = stablehlo.multiply %316, %arg18 : tensor<16x8xf32>
    %318 = stablehlo.add %315, %317 : tensor<16x8xf32>
    %319 = stablehlo.multiply %165, %165 : tensor<16xf32>
    %cst_79 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %320 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %321 = stablehlo.multiply %320, %319 : tensor<16xf32>
    %cst_80 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %322 = stablehlo.broadcast_in_dim %cst_80, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %323 = stablehlo.multiply %322, %arg19 : tensor<16xf32>
    %324 = stablehlo.add %321, %323 : tensor<16xf32>
    %325 = stablehlo.multiply %167, %167 : tensor<8x16xf32>
    %cst_81 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %326 = stablehlo.broadcast_in_dim %cst_81, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %327 = stablehlo.multiply %326, %325 : tensor<8x16xf32>
    %cst_82 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %328 = stablehlo.broadcast_in_dim %cst_82, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %329 = stablehlo.multiply %328, %arg20 : tensor<8x16xf32>
    %330 = stablehlo.add %327, %329 : tensor<8x16xf32>
    %331 = stablehlo.multiply %136, %136 : tensor<4xf32>
    %cst_83 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %332 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %333 = stablehlo.multiply %332, %331 : tensor<4xf32>
    %cst_84 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %334 = stablehlo.broadcast_in_dim %cst_84, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %335 = stablehlo.multiply %334, %arg21 : tensor<4xf32>
    %336 = stablehlo.add %333, %335 : tensor<4xf32>
    %337 = stablehlo.multiply %138, %138 : tensor<8x4xf32>
    %cst_85 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %338 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %339 = stablehlo.multiply %338, %337 : tensor<8x4xf32>
    %cst_86 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %340 = stablehlo.broadcast_in_dim %cst_86, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %341 = stablehlo.multiply %340, %arg22 : tensor<8x4xf32>
    %342 = stablehlo.add %339, %341 : tensor<8x4xf32>
    %343 = stablehlo.multiply %220, %220 : tensor<8xf32>
    %cst_87 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %344 = stablehlo.broadcast_in_dim %cst_87, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %345 = stablehlo.multiply %344, %343 : tensor<8xf32>
    %cst_88 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %346 = stablehlo.broadcast_in_dim %cst_88, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %347 = stablehlo.multiply %346, %arg23 : tensor<8xf32>
    %348 = stablehlo.add %345, %347 : tensor<8xf32>
    %349 = stablehlo.multiply %226, %226 : tensor<8xf32>
    %cst_89 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %350 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %351 = stablehlo.multiply %350, %349 : tensor<8xf32>
    %cst_90 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %352 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %353 = stablehlo.multiply %352, %arg24 : tensor<8xf32>
    %354 = stablehlo.add %351, %353 : tensor<8xf32>
    %355 = stablehlo.multiply %206, %206 : tensor<2x4xf32>
    %cst_91 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %356 = stablehlo.broadcast_in_dim %cst_91, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %357 = stablehlo.multiply %356, %355 : tensor<2x4xf32>
    %cst_92 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %358 = stablehlo.broadcast_in_dim %cst_92, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %359 = stablehlo.multiply %358, %arg25 : tensor<2x4xf32>
    %360 = stablehlo.add %357, %359 : tensor<2x4xf32>
    %361 = stablehlo.multiply %208, %208 : tensor<8x2x4xf32>
    %cst_93 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %362 = stablehlo.broadcast_in_dim %cst_93, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %363 = stablehlo.multiply %362, %361 : tensor<8x2x4xf32>
    %cst_94 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %364 = stablehlo.broadcast_in_dim %cst_94, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %365 = stablehlo.multiply %364, %arg26 : tensor<8x2x4xf32>
    %366 = stablehlo.add %363, %365 : tensor<8x2x4xf32>
    %367 = stablehlo.multiply %172, %172 : tensor<8xf32>
    %cst_95 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %368 = stablehlo.broadcast_in_dim %cst_95, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %369 = stablehlo.multiply %368, %367 : tensor<8xf32>
    %cst_96 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %370 = stablehlo.broadcast_in_dim %cst_96, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %371 = stablehlo.multiply %370, %arg27 : tensor<8xf32>
    %372 = stablehlo.add %369, %371 : tensor<8xf32>
    %373 = stablehlo.multiply %174, %174 : tensor<2x4x8xf32>
    %cst_97 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %374 = stablehlo.broadcast_in_dim %cst_97, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %375 = stablehlo.multiply %374, %373 : tensor<2x4x8xf32>
    %cst_98 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %376 = stablehlo.broadcast_in_dim %cst_98, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %377 = stablehlo.multiply %376, %arg28 : tensor<2x4x8xf32>
    %378 = stablehlo.add %375, %377 : tensor<2x4x8xf32>
    %379 = stablehlo.multiply %213, %213 : tensor<2x4xf32>
    %cst_99 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %380 = stablehlo.broadcast_in_dim %cst_99, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %381 = stablehlo.multiply %380, %379 : tensor<2x4xf32>
    %cst_100 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %382 = stablehlo.broadcast_in_dim %cst_100, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %383 = stablehlo.multiply %382, %arg29 : tensor<2x4xf32>
    %384 = stablehlo.add %381, %383 : tensor<2x4xf32>
    %385 = stablehlo.multiply %215, %215 : tensor<8x2x4xf32>
    %cst_101 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %386 = stablehlo.broadcast_in_dim %cst_101, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %387 = stablehlo.multiply %386, %385 : tensor<8x2x4xf32>
    %cst_102 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %388 = stablehlo.broadcast_in_dim %cst_102, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %389 = stablehlo.multiply %388, %arg30 : tensor<8x2x4xf32>
    %390 = stablehlo.add %387, %389 : tensor<8x2x4xf32>
    %391 = stablehlo.multiply %200, %200 : tensor<2x4xf32>
    %cst_103 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %392 = stablehlo.broadcast_in_dim %cst_103, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %393 = stablehlo.multiply %392, %391 : tensor<2x4xf32>
    %cst_104 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %394 = stablehlo.broadcast_in_dim %cst_104, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %395 = stablehlo.multiply %394, %arg31 : tensor<2x4xf32>
    %396 = stablehlo.add %393, %395 : tensor<2x4xf32>
    %397 = stablehlo.multiply %202, %202 : tensor<8x2x4xf32>
    %cst_105 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %398 = stablehlo.broadcast_in_dim %cst_105, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %399 = stablehlo.multiply %398, %397 : tensor<8x2x4xf32>
    %cst_106 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %400 = stablehlo.broadcast_in_dim %cst_106, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %401 = stablehlo.multiply %400, %arg32 : tensor<8x2x4xf32>
    %402 = stablehlo.add %399, %401 : tensor<8x2x4xf32>
    %c_107 = stablehlo.constant dense<2147483647> : tensor<i32>
    %403 = stablehlo.compare LT, %arg0, %c_107, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_108 = stablehlo.constant dense<1> : tensor<i32>
    %404 = stablehlo.add %arg0, %c_108 : tensor<i32>
    %c_109 = stablehlo.constant dense<2147483647> : tensor<i32>
    %405 = call @_where_2(%403, %404, %c_109) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %cst_110 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %406 = stablehlo.convert %405 : (tensor<i32>) -> tensor<f32>
    %407 = stablehlo.power %cst_110, %406 : tensor<f32>
    %cst_111 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %408 = stablehlo.subtract %cst_111, %407 : tensor<f32>
    %409 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %410 = stablehlo.divide %231, %409 : tensor<8xf32>
    %411 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %412 = stablehlo.divide %236, %411 : tensor<16x8xf32>
    %413 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %414 = stablehlo.divide %241, %413 : tensor<16xf32>
    %415 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %416 = stablehlo.divide %246, %415 : tensor<8x16xf32>
    %417 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %418 = stablehlo.divide %251, %417 : tensor<4xf32>
    %419 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %420 = stablehlo.divide %256, %419 : tensor<8x4xf32>
    %421 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %422 = stablehlo.divide %261, %421 : tensor<8xf32>
    %423 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %424 = stablehlo.divide %266, %423 : tensor<8xf32>
    %425 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %426 = stablehlo.divide %271, %425 : tensor<2x4xf32>
    %427 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %428 = stablehlo.divide %276, %427 : tensor<8x2x4xf32>
    %429 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %430 = stablehlo.divide %281, %429 : tensor<8xf32>
    %431 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %432 = stablehlo.divide %286, %431 : tensor<2x4x8xf32>
    %433 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %434 = stablehlo.divide %291, %433 : tensor<2x4xf32>
    %435 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %436 = stablehlo.divide %296, %435 : tensor<8x2x4xf32>
    %437 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %438 = stablehlo.divide %301, %437 : tensor<2x4xf32>
    %439 = stablehlo.broadcast_in_dim %408, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %440 = stablehlo.divide %306, %439 : tensor<8x2x4xf32>
    %cst_112 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %441 = stablehlo.convert %405 : (tensor<i32>) -> tensor<f32>
    %442 = stablehlo.power %cst_112, %441 : tensor<f32>
    %cst_113 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %443 = stablehlo.subtract %cst_113, %442 : tensor<f32>
    %444 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %445 = stablehlo.divide %312, %444 : tensor<8xf32>
    %446 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %447 = stablehlo.divide %318, %446 : tensor<16x8xf32>
    %448 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %449 = stablehlo.divide %324, %448 : tensor<16xf32>
    %450 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %451 = stablehlo.divide %330, %450 : tensor<8x16xf32>
    %452 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %453 = stablehlo.divide %336, %452 : tensor<4xf32>
    %454 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %455 = stablehlo.divide %342, %454 : tensor<8x4xf32>
    %456 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %457 = stablehlo.divide %348, %456 : tensor<8xf32>
    %458 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %459 = stablehlo.divide %354, %458 : tensor<8xf32>
    %460 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %461 = stablehlo.divide %360, %460 : tensor<2x4xf32>
    %462 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %463 = stablehlo.divide %366, %462 : tensor<8x2x4xf32>
    %464 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %465 = stablehlo.divide %372, %464 : tensor<8xf32>
    %466 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %467 = stablehlo.divide %378, %466 : tensor<2x4x8xf32>
    %468 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %469 = stablehlo.divide %384, %468 : tensor<2x4xf32>
    %470 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %471 = stablehlo.divide %390, %470 : tensor<8x2x4xf32>
    %472 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %473 = stablehlo.divide %396, %472 : tensor<2x4xf32>
    %474 = stablehlo.broadcast_in_dim %443, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %475 = stablehlo.divide %402, %474 : tensor<8x2x4xf32>
    %cst_114 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %476 = stablehlo.broadcast_in_dim %cst_114, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %477 = stablehlo.add %445, %476 : tensor<8xf32>
    %478 = stablehlo.sqrt %477 : tensor<8xf32>
    %cst_115 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %479 = stablehlo.broadcast_in_dim %cst_115, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %480 = stablehlo.add %478, %479 : tensor<8xf32>
    %481 = stablehlo.divide %410, %480 : tensor<8xf32>
    %cst_116 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %482 = stablehlo.broadcast_in_dim %cst_116, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %483 = stablehlo.add %447, %482 : tensor<16x8xf32>
    %484 = stablehlo.sqrt %483 : tensor<16x8xf32>
    %cst_117 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %485 = stablehlo.broadcast_in_dim %cst_117, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %486 = stablehlo.add %484, %485 : tensor<16x8xf32>
    %487 = stablehlo.divide %412, %486 : tensor<16x8xf32>
    %cst_118 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %488 = stablehlo.broadcast_in_dim %cst_118, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %489 = stablehlo.add %449, %488 : tensor<16xf32>
    %490 = stablehlo.sqrt %489 : tensor<16xf32>
    %cst_119 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %491 = stablehlo.broadcast_in_dim %cst_119, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %492 = stablehlo.add %490, %491 : tensor<16xf32>
    %493 = stablehlo.divide %414, %492 : tensor<16xf32>
    %cst_120 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %494 = stablehlo.broadcast_in_dim %cst_120, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %495 = stablehlo.add %451, %494 : tensor<8x16xf32>
    %496 = stablehlo.sqrt %495 : tensor<8x16xf32>
    %cst_121 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %497 = stablehlo.broadcast_in_dim %cst_121, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %498 = stablehlo.add %496, %497 : tensor<8x16xf32>
    %499 = stablehlo.divide %416, %498 : tensor<8x16xf32>
    %cst_122 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %500 = stablehlo.broadcast_in_dim %cst_122, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %501 = stablehlo.add %453, %500 : tensor<4xf32>
    %502 = stablehlo.sqrt %501 : tensor<4xf32>
    %cst_123 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %503 = stablehlo.broadcast_in_dim %cst_123, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %504 = stablehlo.add %502, %503 : tensor<4xf32>
    %505 = stablehlo.divide %418, %504 : tensor<4xf32>
    %cst_124 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %506 = stablehlo.broadcast_in_dim %cst_124, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %507 = stablehlo.add %455, %506 : tensor<8x4xf32>
    %508 = stablehlo.sqrt %507 : tensor<8x4xf32>
    %cst_125 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %509 = stablehlo.broadcast_in_dim %cst_125, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %510 = stablehlo.add %508, %509 : tensor<8x4xf32>
    %511 = stablehlo.divide %420, %510 : tensor<8x4xf32>
    %cst_126 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %512 = stablehlo.broadcast_in_dim %cst_126, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %513 = stablehlo.add %457, %512 : tensor<8xf32>
    %514 = stablehlo.sqrt %513 : tensor<8xf32>
    %cst_127 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %515 = stablehlo.broadcast_in_dim %cst_127, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %516 = stablehlo.add %514, %515 : tensor<8xf32>
    %517 = stablehlo.divide %422, %516 : tensor<8xf32>
    %cst_128 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %518 = stablehlo.broadcast_in_dim %cst_128, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %519 = stablehlo.add %459, %518 : tensor<8xf32>
    %520 = stablehlo.sqrt %519 : tensor<8xf32>
    %cst_129 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %521 = stablehlo.broadcast_in_dim %cst_129, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %522 = stablehlo.add %520, %521 : tensor<8xf32>
    %523 = stablehlo.divide %424, %522 : tensor<8xf32>
    %cst_130 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %524 = stablehlo.broadcast_in_dim %cst_130, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %525 = stablehlo.add %461, %524 : tensor<2x4xf32>
    %526 = stablehlo.sqrt %525 : tensor<2x4xf32>
    %cst_131 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %527 = stablehlo.broadcast_in_dim %cst_131, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %528 = stablehlo.add %526, %527 : tensor<2x4xf32>
    %529 = stablehlo.divide %426, %528 : tensor<2x4xf32>
    %cst_132 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %530 = stablehlo.broadcast_in_dim %cst_132, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %531 = stablehlo.add %463, %530 : tensor<8x2x4xf32>
    %532 = stablehlo.sqrt %531 : tensor<8x2x4xf32>
    %cst_133 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %533 = stablehlo.broadcast_in_dim %cst_133, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %534 = stablehlo.add %532, %533 : tensor<8x2x4xf32>
    %535 = stablehlo.divide %428, %534 : tensor<8x2x4xf32>
    %cst_134 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %536 = stablehlo.broadcast_in_dim %cst_134, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %537 = stablehlo.add %465, %536 : tensor<8xf32>
    %538 = stablehlo.sqrt %537 : tensor<8xf32>
    %cst_135 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %539 = stablehlo.broadcast_in_dim %cst_135, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %540 = stablehlo.add %538, %539 : tensor<8xf32>
    %541 = stablehlo.divide %430, %540 : tensor<8xf32>
    %cst_136 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %542 = stablehlo.broadcast_in_dim %cst_136, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %543 = stablehlo.add %467, %542 : tensor<2x4x8xf32>
    %544 = stablehlo.sqrt %543 : tensor<2x4x8xf32>
    %cst_137 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %545 = stablehlo.broadcast_in_dim %cst_137, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %546 = stablehlo.add %544, %545 : tensor<2x4x8xf32>
    %547 = stablehlo.divide %432, %546 : tensor<2x4x8xf32>
    %cst_138 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %548 = stablehlo.broadcast_in_dim %cst_138, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %549 = stablehlo.add %469, %548 : tensor<2x4xf32>
    %550 = stablehlo.sqrt %549 : tensor<2x4xf32>
    %cst_139 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %551 = stablehlo.broadcast_in_dim %cst_139, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %552 = stablehlo.add %550, %551 : tensor<2x4xf32>
    %553 = stablehlo.divide %434, %552 : tensor<2x4xf32>
    %cst_140 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %554 = stablehlo.broadcast_in_dim %cst_140, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %555 = stablehlo.add %471, %554 : tensor<8x2x4xf32>
    %556 = stablehlo.sqrt %555 : tensor<8x2x4xf32>
    %cst_141 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %557 = stablehlo.broadcast_in_dim %cst_141, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %558 = stablehlo.add %556, %557 : tensor<8x2x4xf32>
    %559 = stablehlo.divide %436, %558 : tensor<8x2x4xf32>
    %cst_142 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %560 = stablehlo.broadcast_in_dim %cst_142, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %561 = stablehlo.add %473, %560 : tensor<2x4xf32>
    %562 = stablehlo.sqrt %561 : tensor<2x4xf32>
    %cst_143 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %563 = stablehlo.broadcast_in_dim %cst_143, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %564 = stablehlo.add %562, %563 : tensor<2x4xf32>
    %565 = stablehlo.divide %438, %564 : tensor<2x4xf32>
    %cst_144 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %566 = stablehlo.broadcast_in_dim %cst_144, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %567 = stablehlo.add %475, %566 : tensor<8x2x4xf32>
    %568 = stablehlo.sqrt %567 : tensor<8x2x4xf32>
    %cst_145 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %569 = stablehlo.broadcast_in_dim %cst_145, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %570 = stablehlo.add %568, %569 : tensor<8x2x4xf32>
    %571 = stablehlo.divide %440, %570 : tensor<8x2x4xf32>
    %cst_146 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %572 = stablehlo.broadcast_in_dim %cst_146, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %573 = stablehlo.multiply %572, %481 : tensor<8xf32>
    %cst_147 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %574 = stablehlo.broadcast_in_dim %cst_147, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %575 = stablehlo.multiply %574, %487 : tensor<16x8xf32>
    %cst_148 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %576 = stablehlo.broadcast_in_dim %cst_148, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %577 = stablehlo.multiply %576, %493 : tensor<16xf32>
    %cst_149 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %578 = stablehlo.broadcast_in_dim %cst_149, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %579 = stablehlo.multiply %578, %499 : tensor<8x16xf32>
    %cst_150 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %580 = stablehlo.broadcast_in_dim %cst_150, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %581 = stablehlo.multiply %580, %505 : tensor<4xf32>
    %cst_151 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %582 = stablehlo.broadcast_in_dim %cst_151, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %583 = stablehlo.multiply %582, %511 : tensor<8x4xf32>
    %cst_152 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %584 = stablehlo.broadcast_in_dim %cst_152, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %585 = stablehlo.multiply %584, %517 : tensor<8xf32>
    %cst_153 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %586 = stablehlo.broadcast_in_dim %cst_153, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %587 = stablehlo.multiply %586, %523 : tensor<8xf32>
    %cst_154 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %588 = stablehlo.broadcast_in_dim %cst_154, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %589 = stablehlo.multiply %588, %529 : tensor<2x4xf32>
    %cst_155 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %590 = stablehlo.broadcast_in_dim %cst_155, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %591 = stablehlo.multiply %590, %535 : tensor<8x2x4xf32>
    %cst_156 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %592 = stablehlo.broadcast_in_dim %cst_156, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %593 = stablehlo.multiply %592, %541 : tensor<8xf32>
    %cst_157 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %594 = stablehlo.broadcast_in_dim %cst_157, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %595 = stablehlo.multiply %594, %547 : tensor<2x4x8xf32>
    %cst_158 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %596 = stablehlo.broadcast_in_dim %cst_158, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %597 = stablehlo.multiply %596, %553 : tensor<2x4xf32>
    %cst_159 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %598 = stablehlo.broadcast_in_dim %cst_159, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %599 = stablehlo.multiply %598, %559 : tensor<8x2x4xf32>
    %cst_160 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %600 = stablehlo.broadcast_in_dim %cst_160, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %601 = stablehlo.multiply %600, %565 : tensor<2x4xf32>
    %cst_161 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %602 = stablehlo.broadcast_in_dim %cst_161, dims = [] : (tensor<f32>) -> tensor<8x2x4xf32>
    %603 = stablehlo.multiply %602, %571 : tensor<8x2x4xf32>
    %604 = stablehlo.add %arg33, %573 : tensor<8xf32>
    %605 = stablehlo.add %arg34, %575 : tensor<16x8xf32>
    %606 = stablehlo.add %arg35, %577 : tensor<16xf32>
    %607 = stablehlo.add %arg36, %579 : tensor<8x16xf32>
    %608 = stablehlo.add %arg37, %581 : tensor<4xf32>
    %609 = stablehlo.add %arg38, %583 : tensor<8x4xf32>
    %610 = stablehlo.add %arg39, %585 : tensor<8xf32>
    %611 = stablehlo.add %arg40, %587 : tensor<8xf32>
    %612 = stablehlo.add %arg41, %589 : tensor<2x4xf32>
    %613 = stablehlo.add %arg42, %591 : tensor<8x2x4xf32>
    %614 = stablehlo.add %arg43, %593 : tensor<8xf32>
    %615 = stablehlo.add %arg44, %595 : tensor<2x4x8xf32>
    %616 = stablehlo.add %arg45, %597 : tensor<2x4xf32>
    %617 = stablehlo.add %arg46, %599 : tensor<8x2x4xf32>
    %618 = stablehlo.add %arg47, %601 : tensor<2x4xf32>
    %619 = stablehlo.add %arg48, %603 : tensor<8x2x4xf32>
    return %405, %231, %236, %241, %246, %251, %256, %261, %266, %271, %276, %281, %286, %291, %296, %301, %306, %312, %318, %324, %330, %336, %342, %348, %354, %360, %366, %372, %378, %384, %390, %396, %402, %604, %605, %606, %607, %608, %609, %610, %611, %612, %613, %614, %615, %616, %617, %618, %619, %119 : tensor<i32>, tensor<8xf32>, tensor<16x8xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8xf32>, tensor<8xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<8xf32>, tensor<2x4x8xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<8xf32>, tensor<16x8xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8xf32>, tensor<8xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<8xf32>, tensor<2x4x8xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<8xf32>, tensor<16x8xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8xf32>, tensor<8xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<8xf32>, tensor<2x4x8xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<2x4xf32>, tensor<8x2x4xf32>, tensor<f32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x4xf32>, %arg1: tensor<4x1xi32>) -> (tensor<4x1xf32>, tensor<4x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi1>
    %c_0 = stablehlo.constant dense<4> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<4x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x1xi1>, tensor<4x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<4x1xi32>) -> tensor<4x1x1xi32>
    %c_1 = stablehlo.constant dense<3> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x1x1xi32>, tensor<4x1x1xi32>) -> tensor<4x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [2] : (tensor<1xi32>) -> tensor<1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<1x1x1xi32>) -> tensor<4x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x1x1xi32>, tensor<4x1x1xi32>) -> tensor<4x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<4x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [2] : (tensor<4x1x1xi1>, tensor<i1>) -> tensor<4x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<4x4xf32>, tensor<4x1x1xi32>) -> tensor<4x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<4x1xi1>, tensor<4x1xf32>
    return %15, %5 : tensor<4x1xf32>, tensor<4x1x1xi32>
  }
  func.func private @_take(%arg0: tensor<4x1xf32>, %arg1: tensor<i32>) -> (tensor<4xf32>, tensor<1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.compare LT, %arg1, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %arg1, %c_0 : tensor<i32>
    %2 = call @_where(%0, %1, %arg1) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %c_1 = stablehlo.constant dense<0> : tensor<1xi32>
    %4 = stablehlo.convert %3 : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %6 = stablehlo.compare GE, %4, %5, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %7 = stablehlo.compare LE, %4, %c_1, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %8 = stablehlo.and %6, %7 : tensor<1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %9 = stablehlo.reduce(%8 init: %c_3) applies stablehlo.and across dimensions = [0] : (tensor<1xi1>, tensor<i1>) -> tensor<i1>
    %10 = "stablehlo.gather"(%arg0, %4) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1]>, indices_are_sorted = false, slice_sizes = array<i64: 4, 1>}> : (tensor<4x1xf32>, tensor<1xi32>) -> tensor<4xf32>
    %11 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<i1>) -> tensor<4xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %13 = stablehlo.select %11, %10, %12 : tensor<4xi1>, tensor<4xf32>
    return %13, %3 : tensor<4xf32>, tensor<1xi32>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
  func.func private @_take_0(%arg0: tensor<1xi32>, %arg1: tensor<4xf32>) -> tensor<4x1xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1]>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x1xf32>, tensor<1xi32>, tensor<4xf32>) -> tensor<4x1xf32>
    return %1 : tensor<4x1xf32>
  }
  func.func private @take_along_axis_1(%arg0: tensor<4x1x1xi32>, %arg1: tensor<4x1xf32>) -> tensor<4x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x4xf32>, tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
  func.func private @_where_2(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
}
// -----
module @jit_haiku_module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8xf32>, %arg1: tensor<8xf32>, %arg2: tensor<16xf32>, %arg3: tensor<8x16xf32>, %arg4: tensor<16xf32>, %arg5: tensor<16x16xf32>, %arg6: tensor<4xf32>, %arg7: tensor<16x4xf32>, %arg8: tensor<8xf32>, %arg9: tensor<8xf32>, %arg10: tensor<16xf32>, %arg11: tensor<8x16xf32>, %arg12: tensor<16xf32>, %arg13: tensor<16x16xf32>, %arg14: tensor<4xf32>, %arg15: tensor<16x4xf32>, %arg16: tensor<8x8xf32>, %arg17: tensor<8x4xf32>) -> (tensor<8xf32> {jax.result_info = "result[0]"}, tensor<8xf32> {jax.result_info = "result[1]"}, tensor<16xf32> {jax.result_info = "result[2]"}, tensor<8x16xf32> {jax.result_info = "result[3]"}, tensor<16xf32> {jax.result_info = "result[4]"}, tensor<16x16xf32> {jax.result_info = "result[5]"}, tensor<4xf32> {jax.result_info = "result[6]"}, tensor<16x4xf32> {jax.result_info = "result[7]"}, tensor<8xf32> {jax.result_info = "result[8]"}, tensor<8xf32> {jax.result_info = "result[9]"}, tensor<16xf32> {jax.result_info = "result[10]"}, tensor<8x16xf32> {jax.result_info = "result[11]"}, tensor<16xf32> {jax.result_info = "result[12]"}, tensor<16x16xf32> {jax.result_info = "result[13]"}, tensor<4xf32> {jax.result_info = "result[14]"}, tensor<16x4xf32> {jax.result_info = "result[15]"}, tensor<f32> {jax.result_info = "result[16]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg16 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %cst_0 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<8x1xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4 = call @_var(%arg16, %c) : (tensor<8x8xf32>, tensor<i32>) -> tensor<8x1xf32>
    %cst_1 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %6 = stablehlo.add %4, %5 : tensor<8x1xf32>
    %7 = stablehlo.rsqrt %6 : tensor<8x1xf32>
    %8 = stablehlo.broadcast_in_dim %arg9, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<8x8xf32>
    %10 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x8xf32>
    %11 = stablehlo.multiply %9, %10 : tensor<8x8xf32>
    %12 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x8xf32>
    %13 = stablehlo.subtract %arg16, %12 : tensor<8x8xf32>
    %14 = stablehlo.multiply %11, %13 : tensor<8x8xf32>
    %15 = stablehlo.broadcast_in_dim %arg8, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<8x8xf32>
    %17 = stablehlo.add %14, %16 : tensor<8x8xf32>
    %18 = stablehlo.dot_general %17, %arg11, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %19 = stablehlo.broadcast_in_dim %arg10, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
    %20 = stablehlo.add %18, %19 : tensor<8x16xf32>
    %21 = call @relu(%20) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %23 = stablehlo.compare GT, %20, %22, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %24 = stablehlo.dot_general %21, %arg13, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %25 = stablehlo.broadcast_in_dim %arg12, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
    %26 = stablehlo.add %24, %25 : tensor<8x16xf32>
    %27 = call @relu(%26) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %29 = stablehlo.compare GT, %26, %28, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %30 = stablehlo.dot_general %27, %arg15, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %31 = stablehlo.broadcast_in_dim %arg14, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
    %32 = stablehlo.add %30, %31 : tensor<8x4xf32>
    %33 = stablehlo.subtract %32, %arg17 : tensor<8x4xf32>
    %34 = stablehlo.multiply %33, %33 : tensor<8x4xf32>
    %cst_4 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %35 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %36 = stablehlo.multiply %35, %33 : tensor<8x4xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %37 = stablehlo.reduce(%34 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    %cst_6 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %38 = stablehlo.divide %37, %cst_6 : tensor<f32>
    %cst_7 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_8 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %39 = stablehlo.divide %cst_7, %cst_8 : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %39, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %41 = stablehlo.multiply %40, %36 : tensor<8x4xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %42 = stablehlo.reduce(%41 init: %cst_9) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %43 = stablehlo.dot_general %41, %27, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %44 = stablehlo.transpose %43, dims = [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>
    %45 = stablehlo.dot_general %41, %arg15, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %46 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %47 = stablehlo.select %29, %45, %46 : tensor<8x16xi1>, tensor<8x16xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %48 = stablehlo.reduce(%47 init: %cst_11) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %49 = stablehlo.dot_general %47, %21, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
    %50 = stablehlo.transpose %49, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %51 = stablehlo.dot_general %47, %arg13, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %52 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %53 = stablehlo.select %23, %51, %52 : tensor<8x16xi1>, tensor<8x16xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %54 = stablehlo.reduce(%53 init: %cst_13) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %55 = stablehlo.dot_general %53, %17, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %56 = stablehlo.transpose %55, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %57 = stablehlo.dot_general %53, %arg11, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %58 = stablehlo.reduce(%57 init: %cst_14) applies stablehlo.add across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %59 = stablehlo.reshape %58 : (tensor<8xf32>) -> tensor<1x8xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %60 = stablehlo.reduce(%59 init: %cst_15) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %61 = stablehlo.multiply %57, %13 : tensor<8x8xf32>
    %62 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x8xf32>
    %63 = stablehlo.multiply %61, %62 : tensor<8x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %64 = stablehlo.reduce(%63 init: %cst_16) applies stablehlo.add across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %65 = stablehlo.reshape %64 : (tensor<8xf32>) -> tensor<1x8xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %66 = stablehlo.reduce(%65 init: %cst_17) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %67 = stablehlo.multiply %60, %60 : tensor<8xf32>
    %cst_18 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %68 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %69 = stablehlo.multiply %68, %67 : tensor<8xf32>
    %cst_19 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %70 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %71 = stablehlo.multiply %70, %arg0 : tensor<8xf32>
    %72 = stablehlo.add %69, %71 : tensor<8xf32>
    %73 = stablehlo.multiply %66, %66 : tensor<8xf32>
    %cst_20 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %74 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %75 = stablehlo.multiply %74, %73 : tensor<8xf32>
    %cst_21 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %76 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %77 = stablehlo.multiply %76, %arg1 : tensor<8xf32>
    %78 = stablehlo.add %75, %77 : tensor<8xf32>
    %79 = stablehlo.multiply %54, %54 : tensor<16xf32>
    %cst_22 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %80 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %81 = stablehlo.multiply %80, %79 : tensor<16xf32>
    %cst_23 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %82 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %83 = stablehlo.multiply %82, %arg2 : tensor<16xf32>
    %84 = stablehlo.add %81, %83 : tensor<16xf32>
    %85 = stablehlo.multiply %56, %56 : tensor<8x16xf32>
    %cst_24 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %86 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %87 = stablehlo.multiply %86, %85 : tensor<8x16xf32>
    %cst_25 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %88 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %89 = stablehlo.multiply %88, %arg3 : tensor<8x16xf32>
    %90 = stablehlo.add %87, %89 : tensor<8x16xf32>
    %91 = stablehlo.multiply %48, %48 : tensor<16xf32>
    %cst_26 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %92 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %93 = stablehlo.multiply %92, %91 : tensor<16xf32>
    %cst_27 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %94 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %95 = stablehlo.multiply %94, %arg4 : tensor<16xf32>
    %96 = stablehlo.add %93, %95 : tensor<16xf32>
    %97 = stablehlo.multiply %50, %50 : tensor<16x16xf32>
    %cst_28 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %98 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %99 = stablehlo.multiply %98, %97 : tensor<16x16xf32>
    %cst_29 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %100 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %101 = stablehlo.multiply %100, %arg5 : tensor<16x16xf32>
    %102 = stablehlo.add %99, %101 : tensor<16x16xf32>
    %103 = stablehlo.multiply %42, %42 : tensor<4xf32>
    %cst_30 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %104 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %105 = stablehlo.multiply %104, %103 : tensor<4xf32>
    %cst_31 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %106 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %107 = stablehlo.multiply %106, %arg6 : tensor<4xf32>
    %108 = stablehlo.add %105, %107 : tensor<4xf32>
    %109 = stablehlo.multiply %44, %44 : tensor<16x4xf32>
    %cst_32 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %110 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %111 = stablehlo.multiply %110, %109 : tensor<16x4xf32>
    %cst_33 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %112 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %113 = stablehlo.multiply %112, %arg7 : tensor<16x4xf32>
    %114 = stablehlo.add %111, %113 : tensor<16x4xf32>
    %cst_34 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %115 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %116 = stablehlo.add %72, %115 : tensor<8xf32>
    %117 = stablehlo.rsqrt %116 : tensor<8xf32>
    %cst_35 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %118 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %119 = stablehlo.add %78, %118 : tensor<8xf32>
    %120 = stablehlo.rsqrt %119 : tensor<8xf32>
    %cst_36 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %121 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %122 = stablehlo.add %84, %121 : tensor<16xf32>
    %123 = stablehlo.rsqrt %122 : tensor<16xf32>
    %cst_37 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %124 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %125 = stablehlo.add %90, %124 : tensor<8x16xf32>
    %126 = stablehlo.rsqrt %125 : tensor<8x16xf32>
    %cst_38 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %127 = stablehlo.broadcast_in_dim %cst_38, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %128 = stablehlo.add %96, %127 : tensor<16xf32>
    %129 = stablehlo.rsqrt %128 : tensor<16xf32>
    %cst_39 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %130 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %131 = stablehlo.add %102, %130 : tensor<16x16xf32>
    %132 = stablehlo.rsqrt %131 : tensor<16x16xf32>
    %cst_40 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %133 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %134 = stablehlo.add %108, %133 : tensor<4xf32>
    %135 = stablehlo.rsqrt %134 : tensor<4xf32>
    %cst_41 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %136 = stablehlo.broadcast_in_dim %cst_41, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %137 = stablehlo.add %114, %136 : tensor<16x4xf32>
    %138 = stablehlo.rsqrt %137 : tensor<16x4xf32>
    %139 = stablehlo.multiply %117, %60 : tensor<8xf32>
    %140 = stablehlo.multiply %120, %66 : tensor<8xf32>
    %141 = stablehlo.multiply %123, %54 : tensor<16xf32>
    %142 = stablehlo.multiply %126, %56 : tensor<8x16xf32>
    %143 = stablehlo.multiply %129, %48 : tensor<16xf32>
    %144 = stablehlo.multiply %132, %50 : tensor<16x16xf32>
    %145 = stablehlo.multiply %135, %42 : tensor<4xf32>
    %146 = stablehlo.multiply %138, %44 : tensor<16x4xf32>
    %cst_42 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %147 = stablehlo.broadcast_in_dim %cst_42, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %148 = stablehlo.multiply %147, %139 : tensor<8xf32>
    %cst_43 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %149 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %150 = stablehlo.multiply %149, %140 : tensor<8xf32>
    %cst_44 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %151 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %152 = stablehlo.multiply %151, %141 : tensor<16xf32>
    %cst_45 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %153 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %154 = stablehlo.multiply %153, %142 : tensor<8x16xf32>
    %cst_46 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %155 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %156 = stablehlo.multiply %155, %143 : tensor<16xf32>
    %cst_47 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %157 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %158 = stablehlo.multiply %157, %144 : tensor<16x16xf32>
    %cst_48 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %159 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %160 = stablehlo.multiply %159, %145 : tensor<4xf32>
    %cst_49 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %161 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %162 = stablehlo.multiply %161, %146 : tensor<16x4xf32>
    %163 = stablehlo.add %arg8, %148 : tensor<8xf32>
    %164 = stablehlo.add %arg9, %150 : tensor<8xf32>
    %165 = stablehlo.add %arg10, %152 : tensor<16xf32>
    %166 = stablehlo.add %arg11, %154 : tensor<8x16xf32>
    %167 = stablehlo.add %arg12, %156 : tensor<16xf32>
    %168 = stablehlo.add %arg13, %158 : tensor<16x16xf32>
    %169 = stablehlo.add %arg14, %160 : tensor<4xf32>
    %170 = stablehlo.add %arg15, %162 : tensor<16x4xf32>
    return %72, %78, %84, %90, %96, %102, %108, %114, %163, %164, %165, %166, %167, %168, %169, %170, %38 : tensor<8xf32>, tensor<8xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<4xf32>, tensor<16x4xf32>, tensor<8xf32>, tensor<8xf32>, tensor<16xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<4xf32>, tensor<16x4xf32>, tensor<f32>
  }
  func.func private @_var(%arg0: tensor<8x8xf32>, %arg1: tensor<i32>) -> tensor<8x1xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %cst_0 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<8x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x8xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<8x8xf32>
    %6 = chlo.square %5 : tensor<8x8xf32> -> tensor<8x8xf32>
    %7 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %cst_1 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %8 = stablehlo.subtract %cst_1, %7 : tensor<f32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.reduce(%6 init: %cst_2) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %11 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %12 = stablehlo.divide %10, %11 : tensor<8x1xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.compare GT, %8, %cst_3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = call @_where(%13, %12, %cst_4) : (tensor<i1>, tensor<8x1xf32>, tensor<f32>) -> tensor<8x1xf32>
    return %14 : tensor<8x1xf32>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<8x1xf32>, %arg2: tensor<f32>) -> tensor<8x1xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<i1>, tensor<8x1xf32>
    return %2 : tensor<8x1xf32>
  }
  func.func private @relu(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
}
