module @jit_mlp_adam_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x32xf32>, %arg1: tensor<32xf32>, %arg2: tensor<32x32xf32>, %arg3: tensor<32xf32>, %arg4: tensor<32x4xf32>, %arg5: tensor<4xf32>, %arg6: tensor<16x32xf32>, %arg7: tensor<32xf32>, %arg8: tensor<32x32xf32>, %arg9: tensor<32xf32>, %arg10: tensor<32x4xf32>, %arg11: tensor<4xf32>, %arg12: tensor<16x32xf32>, %arg13: tensor<32xf32>, %arg14: tensor<32x32xf32>, %arg15: tensor<32xf32>, %arg16: tensor<32x4xf32>, %arg17: tensor<4xf32>, %arg18: tensor<i32>, %arg19: tensor<24x16xf32>, %arg20: tensor<24x4xf32>) -> (tensor<16x32xf32> {jax.result_info = "result[0]"}, tensor<32xf32> {jax.result_info = "result[1]"}, tensor<32x32xf32> {jax.result_info = "result[2]"}, tensor<32xf32> {jax.result_info = "result[3]"}, tensor<32x4xf32> {jax.result_info = "result[4]"}, tensor<4xf32> {jax.result_info = "result[5]"}, tensor<16x32xf32> {jax.result_info = "result[6]"}, tensor<32xf32> {jax.result_info = "result[7]"}, tensor<32x32xf32> {jax.result_info = "result[8]"}, tensor<32xf32> {jax.result_info = "result[9]"}, tensor<32x4xf32> {jax.result_info = "result[10]"}, tensor<4xf32> {jax.result_info = "result[11]"}, tensor<16x32xf32> {jax.result_info = "result[12]"}, tensor<32xf32> {jax.result_info = "result[13]"}, tensor<32x32xf32> {jax.result_info = "result[14]"}, tensor<32xf32> {jax.result_info = "result[15]"}, tensor<32x4xf32> {jax.result_info = "result[16]"}, tensor<4xf32> {jax.result_info = "result[17]"}, tensor<i32> {jax.result_info = "result[18]"}, tensor<f32> {jax.result_info = "result[19]"}) {
    %0 = stablehlo.dot_general %arg19, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<24x16xf32>, tensor<16x32xf32>) -> tensor<24x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x32xf32>) -> tensor<24x32xf32>
    %3 = stablehlo.add %0, %2 : tensor<24x32xf32>
    %4 = call @relu(%3) : (tensor<24x32xf32>) -> tensor<24x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<24x32xf32>
    %6 = stablehlo.compare GT, %3, %5, FLOAT : (tensor<24x32xf32>, tensor<24x32xf32>) -> tensor<24x32xi1>
    %7 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<24x32xf32>, tensor<32x32xf32>) -> tensor<24x32xf32>
    %8 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x32xf32>) -> tensor<24x32xf32>
    %10 = stablehlo.add %7, %9 : tensor<24x32xf32>
    %11 = call @relu(%10) : (tensor<24x32xf32>) -> tensor<24x32xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<24x32xf32>
    %13 = stablehlo.compare GT, %10, %12, FLOAT : (tensor<24x32xf32>, tensor<24x32xf32>) -> tensor<24x32xi1>
    %14 = stablehlo.dot_general %11, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<24x32xf32>, tensor<32x4xf32>) -> tensor<24x4xf32>
    %15 = stablehlo.broadcast_in_dim %arg5, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<24x4xf32>
    %17 = stablehlo.add %14, %16 : tensor<24x4xf32>
    %18 = stablehlo.subtract %17, %arg20 : tensor<24x4xf32>
    %19 = stablehlo.multiply %18, %18 : tensor<24x4xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<24x4xf32>
    %21 = stablehlo.multiply %20, %18 : tensor<24x4xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.reduce(%19 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<24x4xf32>, tensor<f32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<9.600000e+01> : tensor<f32>
    %23 = stablehlo.divide %22, %cst_3 : tensor<f32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_5 = stablehlo.constant dense<9.600000e+01> : tensor<f32>
    %24 = stablehlo.divide %cst_4, %cst_5 : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [] : (tensor<f32>) -> tensor<24x4xf32>
    %26 = stablehlo.multiply %25, %21 : tensor<24x4xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %27 = stablehlo.reduce(%26 init: %cst_6) applies stablehlo.add across dimensions = [0] : (tensor<24x4xf32>, tensor<f32>) -> tensor<4xf32>
    %28 = stablehlo.reshape %27 : (tensor<4xf32>) -> tensor<1x4xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %29 = stablehlo.reduce(%28 init: %cst_7) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %30 = stablehlo.dot_general %26, %11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<24x4xf32>, tensor<24x32xf32>) -> tensor<4x32xf32>
    %31 = stablehlo.transpose %30, dims = [1, 0] : (tensor<4x32xf32>) -> tensor<32x4xf32>
    %32 = stablehlo.dot_general %26, %arg4, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<24x4xf32>, tensor<32x4xf32>) -> tensor<24x32xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<24x32xf32>
    %34 = stablehlo.select %13, %32, %33 : tensor<24x32xi1>, tensor<24x32xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %35 = stablehlo.reduce(%34 init: %cst_9) applies stablehlo.add across dimensions = [0] : (tensor<24x32xf32>, tensor<f32>) -> tensor<32xf32>
    %36 = stablehlo.reshape %35 : (tensor<32xf32>) -> tensor<1x32xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %37 = stablehlo.reduce(%36 init: %cst_10) applies stablehlo.add across dimensions = [0] : (tensor<1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %38 = stablehlo.dot_general %34, %4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<24x32xf32>, tensor<24x32xf32>) -> tensor<32x32xf32>
    %39 = stablehlo.transpose %38, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %40 = stablehlo.dot_general %34, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<24x32xf32>, tensor<32x32xf32>) -> tensor<24x32xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<24x32xf32>
    %42 = stablehlo.select %6, %40, %41 : tensor<24x32xi1>, tensor<24x32xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %43 = stablehlo.reduce(%42 init: %cst_12) applies stablehlo.add across dimensions = [0] : (tensor<24x32xf32>, tensor<f32>) -> tensor<32xf32>
    %44 = stablehlo.reshape %43 : (tensor<32xf32>) -> tensor<1x32xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %45 = stablehlo.reduce(%44 init: %cst_13) applies stablehlo.add across dimensions = [0] : (tensor<1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %46 = stablehlo.dot_general %42, %arg19, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<24x32xf32>, tensor<24x16xf32>) -> tensor<32x16xf32>
    %47 = stablehlo.transpose %46, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %48 = stablehlo.add %arg18, %c : tensor<i32>
    %cst_14 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %49 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %50 = stablehlo.multiply %49, %arg7 : tensor<32xf32>
    %cst_15 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %51 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %52 = stablehlo.multiply %51, %45 : tensor<32xf32>
    %53 = stablehlo.add %50, %52 : tensor<32xf32>
    %cst_16 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %54 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %55 = stablehlo.multiply %54, %arg6 : tensor<16x32xf32>
    %cst_17 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %56 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %57 = stablehlo.multiply %56, %47 : tensor<16x32xf32>
    %58 = stablehlo.add %55, %57 : tensor<16x32xf32>
    %cst_18 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %59 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %60 = stablehlo.multiply %59, %arg9 : tensor<32xf32>
    %cst_19 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %61 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %62 = stablehlo.multiply %61, %37 : tensor<32xf32>
    %63 = stablehlo.add %60, %62 : tensor<32xf32>
    %cst_20 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %64 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %65 = stablehlo.multiply %64, %arg8 : tensor<32x32xf32>
    %cst_21 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %66 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %67 = stablehlo.multiply %66, %39 : tensor<32x32xf32>
    %68 = stablehlo.add %65, %67 : tensor<32x32xf32>
    %cst_22 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %69 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %70 = stablehlo.multiply %69, %arg11 : tensor<4xf32>
    %cst_23 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %71 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %72 = stablehlo.multiply %71, %29 : tensor<4xf32>
    %73 = stablehlo.add %70, %72 : tensor<4xf32>
    %cst_24 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %74 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<32x4xf32>
    %75 = stablehlo.multiply %74, %arg10 : tensor<32x4xf32>
    %cst_25 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %76 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<32x4xf32>
    %77 = stablehlo.multiply %76, %31 : tensor<32x4xf32>
    %78 = stablehlo.add %75, %77 : tensor<32x4xf32>
    %cst_26 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %79 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %80 = stablehlo.multiply %79, %arg13 : tensor<32xf32>
    %cst_27 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %82 = stablehlo.multiply %81, %45 : tensor<32xf32>
    %83 = stablehlo.multiply %82, %45 : tensor<32xf32>
    %84 = stablehlo.add %80, %83 : tensor<32xf32>
    %cst_28 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %85 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %86 = stablehlo.multiply %85, %arg12 : tensor<16x32xf32>
    %cst_29 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %87 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %88 = stablehlo.multiply %87, %47 : tensor<16x32xf32>
    %89 = stablehlo.multiply %88, %47 : tensor<16x32xf32>
    %90 = stablehlo.add %86, %89 : tensor<16x32xf32>
    %cst_30 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %91 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %92 = stablehlo.multiply %91, %arg15 : tensor<32xf32>
    %cst_31 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %93 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %94 = stablehlo.multiply %93, %37 : tensor<32xf32>
    %95 = stablehlo.multiply %94, %37 : tensor<32xf32>
    %96 = stablehlo.add %92, %95 : tensor<32xf32>
    %cst_32 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %97 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %98 = stablehlo.multiply %97, %arg14 : tensor<32x32xf32>
    %cst_33 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %99 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %100 = stablehlo.multiply %99, %39 : tensor<32x32xf32>
    %101 = stablehlo.multiply %100, %39 : tensor<32x32xf32>
    %102 = stablehlo.add %98, %101 : tensor<32x32xf32>
    %cst_34 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %103 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %104 = stablehlo.multiply %103, %arg17 : tensor<4xf32>
    %cst_35 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %105 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %106 = stablehlo.multiply %105, %29 : tensor<4xf32>
    %107 = stablehlo.multiply %106, %29 : tensor<4xf32>
    %108 = stablehlo.add %104, %107 : tensor<4xf32>
    %cst_36 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %109 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<32x4xf32>
    %110 = stablehlo.multiply %109, %arg16 : tensor<32x4xf32>
    %cst_37 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %111 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<32x4xf32>
    %112 = stablehlo.multiply %111, %31 : tensor<32x4xf32>
    %113 = stablehlo.multiply %112, %31 : tensor<32x4xf32>
    %114 = stablehlo.add %110, %113 : tensor<32x4xf32>
    %115 = stablehlo.convert %48 : (tensor<i32>) -> tensor<f32>
    %cst_38 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %116 = stablehlo.power %cst_38, %115 : tensor<f32>
    %cst_39 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %117 = stablehlo.subtract %cst_39, %116 : tensor<f32>
    %118 = stablehlo.sqrt %117 : tensor<f32>
    %cst_40 = stablehlo.constant dense<0.00999999977> : tensor<f32>
    %119 = stablehlo.multiply %cst_40, %118 : tensor<f32>
    %cst_41 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %120 = stablehlo.power %cst_41, %115 : tensor<f32>
    %cst_42 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %121 = stablehlo.subtract %cst_42, %120 : tensor<f32>
    %122 = stablehlo.divide %119, %121 : tensor<f32>
    %123 = stablehlo.broadcast_in_dim %122, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %124 = stablehlo.multiply %123, %53 : tensor<32xf32>
    %125 = stablehlo.sqrt %84 : tensor<32xf32>
    %cst_43 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %126 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %127 = stablehlo.add %125, %126 : tensor<32xf32>
    %128 = stablehlo.divide %124, %127 : tensor<32xf32>
    %129 = stablehlo.subtract %arg1, %128 : tensor<32xf32>
    %130 = stablehlo.broadcast_in_dim %122, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %131 = stablehlo.multiply %130, %58 : tensor<16x32xf32>
    %132 = stablehlo.sqrt %90 : tensor<16x32xf32>
    %cst_44 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %133 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %134 = stablehlo.add %132, %133 : tensor<16x32xf32>
    %135 = stablehlo.divide %131, %134 : tensor<16x32xf32>
    %136 = stablehlo.subtract %arg0, %135 : tensor<16x32xf32>
    %137 = stablehlo.broadcast_in_dim %122, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %138 = stablehlo.multiply %137, %63 : tensor<32xf32>
    %139 = stablehlo.sqrt %96 : tensor<32xf32>
    %cst_45 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %140 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %141 = stablehlo.add %139, %140 : tensor<32xf32>
    %142 = stablehlo.divide %138, %141 : tensor<32xf32>
    %143 = stablehlo.subtract %arg3, %142 : tensor<32xf32>
    %144 = stablehlo.broadcast_in_dim %122, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %145 = stablehlo.multiply %144, %68 : tensor<32x32xf32>
    %146 = stablehlo.sqrt %102 : tensor<32x32xf32>
    %cst_46 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %147 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %148 = stablehlo.add %146, %147 : tensor<32x32xf32>
    %149 = stablehlo.divide %145, %148 : tensor<32x32xf32>
    %150 = stablehlo.subtract %arg2, %149 : tensor<32x32xf32>
    %151 = stablehlo.broadcast_in_dim %122, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %152 = stablehlo.multiply %151, %73 : tensor<4xf32>
    %153 = stablehlo.sqrt %108 : tensor<4xf32>
    %cst_47 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %154 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %155 = stablehlo.add %153, %154 : tensor<4xf32>
    %156 = stablehlo.divide %152, %155 : tensor<4xf32>
    %157 = stablehlo.subtract %arg5, %156 : tensor<4xf32>
    %158 = stablehlo.broadcast_in_dim %122, dims = [] : (tensor<f32>) -> tensor<32x4xf32>
    %159 = stablehlo.multiply %158, %78 : tensor<32x4xf32>
    %160 = stablehlo.sqrt %114 : tensor<32x4xf32>
    %cst_48 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %161 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<32x4xf32>
    %162 = stablehlo.add %160, %161 : tensor<32x4xf32>
    %163 = stablehlo.divide %159, %162 : tensor<32x4xf32>
    %164 = stablehlo.subtract %arg4, %163 : tensor<32x4xf32>
    return %136, %129, %150, %143, %164, %157, %58, %53, %68, %63, %78, %73, %90, %84, %102, %96, %114, %108, %48, %23 : tensor<16x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x4xf32>, tensor<4xf32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x4xf32>, tensor<4xf32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x4xf32>, tensor<4xf32>, tensor<i32>, tensor<f32>
  }
  func.func private @relu(%arg0: tensor<24x32xf32>) -> tensor<24x32xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<24x32xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<24x32xf32>
    return %1 : tensor<24x32xf32>
  }
}
