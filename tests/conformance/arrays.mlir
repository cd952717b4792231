// Images, spectra, matrices, orders, and ops whose sizes are operands.

func.func @edges() {
  %image = stablehlo.constant dense<[[[1.0], [2.0], [4.0], [8.0]]]> : tensor<1x4x1xf32>
  %kernel = stablehlo.constant dense<[[[-1.0, 0.0]], [[0.0, 2.0]], [[1.0, 0.0]]]> : tensor<3x1x2xf32>
  %y = stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [1], pad = [[1, 1]], lhs_dilate = [1], rhs_dilate = [1], reverse = [0]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<1x4x1xf32>, tensor<3x1x2xf32>) -> tensor<1x4x2xf32>
  check.expect_eq_const %y, dense<[[[2.0, 2.0], [3.0, 4.0], [6.0, 8.0], [-4.0, 16.0]]]> : tensor<1x4x2xf32>
  func.return
}

func.func @pooling_back() {
  %x = stablehlo.constant dense<[3, 1, 4, 1, 5, 9]> : tensor<6xi32>
  %g = stablehlo.constant dense<[10, 20, 30]> : tensor<3xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %y = "stablehlo.select_and_scatter"(%x, %g, %zero) ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %0 = stablehlo.compare GE, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %0 : tensor<i1>
  }, {
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %0 = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %0 : tensor<i32>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<6xi32>, tensor<3xi32>, tensor<i32>) -> tensor<6xi32>
  check.expect_eq_const %y, dense<[10, 0, 20, 0, 0, 30]> : tensor<6xi32>
  func.return
}

func.func @spectrum() {
  %x = stablehlo.constant dense<[1.0, 0.0, -1.0, 0.0]> : tensor<4xf32>
  %half = stablehlo.fft %x, type = RFFT, length = [4] : (tensor<4xf32>) -> tensor<3xcomplex<f32>>
  check.expect_almost_eq_const %half, dense<[(0.0, 0.0), (2.0, 0.0), (0.0, 0.0)]> : tensor<3xcomplex<f32>>
  %back = stablehlo.fft %half, type = IRFFT, length = [4] : (tensor<3xcomplex<f32>>) -> tensor<4xf32>
  check.expect_almost_eq %back, %x : tensor<4xf32>
  func.return
}

func.func @equations() {
  %a = stablehlo.constant dense<[[4.0, 2.0], [2.0, 10.0]]> : tensor<2x2xf64>
  %l = "stablehlo.cholesky"(%a) {lower = true} : (tensor<2x2xf64>) -> tensor<2x2xf64>
  check.expect_eq_const %l, dense<[[2.0, 0.0], [1.0, 3.0]]> : tensor<2x2xf64>
  %b = stablehlo.constant dense<[[2.0], [7.0]]> : tensor<2x1xf64>
  %x = "stablehlo.triangular_solve"(%l, %b) {left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<2x2xf64>, tensor<2x1xf64>) -> tensor<2x1xf64>
  check.expect_eq_const %x, dense<[[1.0], [2.0]]> : tensor<2x1xf64>
  func.return
}

func.func @largest() {
  %x = stablehlo.constant dense<[[2.0, 7.0, 7.0], [-1.0, -3.0, -2.0]]> : tensor<2x3xf32>
  %values, %places = chlo.top_k(%x, k = 2) : tensor<2x3xf32> -> (tensor<2x2xf32>, tensor<2x2xi32>)
  check.expect_eq_const %values, dense<[[7.0, 7.0], [-1.0, -2.0]]> : tensor<2x2xf32>
  check.expect_eq_const %places, dense<[[1, 2], [0, 2]]> : tensor<2x2xi32>
  func.return
}

func.func @running_sums() {
  %x = stablehlo.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
  %init = stablehlo.constant dense<0> : tensor<2xi32>
  %y:2 = chlo.scan(%x) inits(%init) dimension=1 {
  ^bb0(%a: tensor<2xi32>, %b: tensor<2xi32>):
    %s = stablehlo.add %a, %b : tensor<2xi32>
    stablehlo.return %s, %s : tensor<2xi32>, tensor<2xi32>
  } : (tensor<2x3xi32>, tensor<2xi32>) -> (tensor<2x3xi32>, tensor<2xi32>)
  check.expect_eq_const %y#0, dense<[[1, 3, 6], [4, 9, 15]]> : tensor<2x3xi32>
  check.expect_eq_const %y#1, dense<[6, 15]> : tensor<2xi32>
  func.return
}

func.func @known_sizes() {
  %x = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %edge = stablehlo.constant dense<9> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<1xi64>
  %none = stablehlo.subtract %one, %one : tensor<1xi64>
  %padded = stablehlo.dynamic_pad %x, %edge, %one, %none, %one : (tensor<2xi32>, tensor<i32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<4xi32>
  check.expect_eq_const %padded, dense<[9, 1, 9, 2]> : tensor<4xi32>
  %count = stablehlo.get_dimension_size %padded, dim = 0 : (tensor<4xi32>) -> tensor<i32>
  check.expect_eq_const %count, dense<4> : tensor<i32>
  %mapped = "stablehlo.map"(%x, %x) ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %two = stablehlo.constant dense<2> : tensor<i32>
      %0 = stablehlo.multiply %a, %two : tensor<i32>
      %1 = stablehlo.add %0, %b : tensor<i32>
      stablehlo.return %1 : tensor<i32>
  }) {dimensions = array<i64: 0>} : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  check.expect_eq_const %mapped, dense<[3, 6]> : tensor<2xi32>
  func.return
}
