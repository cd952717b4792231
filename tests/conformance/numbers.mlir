// Element types that only the interpreter computes with.

func.func @complex_numbers() {
  %a = stablehlo.constant dense<[(1.0, 2.0), (0.0, -1.0)]> : tensor<2xcomplex<f32>>
  %b = stablehlo.constant dense<[(3.0, -1.0), (0.0, 1.0)]> : tensor<2xcomplex<f32>>
  %product = stablehlo.multiply %a, %b : tensor<2xcomplex<f32>>
  check.expect_eq_const %product, dense<[(5.0, 5.0), (1.0, 0.0)]> : tensor<2xcomplex<f32>>
  %quotient = stablehlo.divide %product, %b : tensor<2xcomplex<f32>>
  check.expect_almost_eq %quotient, %a : tensor<2xcomplex<f32>>
  %size = stablehlo.abs %b : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  check.expect_almost_eq_const %size, dense<[3.16227766, 1.0]> : tensor<2xf32>
  %re = stablehlo.real %a : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  %im = stablehlo.imag %a : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  %joined = stablehlo.complex %re, %im : tensor<2xcomplex<f32>>
  check.expect_eq %joined, %a : tensor<2xcomplex<f32>>
  func.return
}

func.func @euler() {
  %x = stablehlo.constant dense<(0.0, 3.14159265358979)> : tensor<complex<f64>>
  %y = stablehlo.exponential %x : tensor<complex<f64>>
  check.expect_almost_eq_const %y, dense<(-1.0, 0.0)> : tensor<complex<f64>>
  %z = stablehlo.log %y : tensor<complex<f64>>
  stablehlo.custom_call @check.expect_close(%z, %z) {has_side_effect = true} : (tensor<complex<f64>>, tensor<complex<f64>>) -> ()
  func.return
}

func.func @bytes_of_floats() {
  %x = stablehlo.constant dense<[0.3, 1.0, 460.0, 1000.0]> : tensor<4xf32>
  %small = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf8E4M3FN>
  %back = stablehlo.convert %small : (tensor<4xf8E4M3FN>) -> tensor<4xf32>
  check.expect_eq_const %back, dense<[0.3125, 1.0, 448.0, 0x7FC00000]> : tensor<4xf32>
  %wide = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf8E5M2>
  check.expect_eq_const %wide, dense<[0.3125, 1.0, 448.0, 1024.0]> : tensor<4xf8E5M2>
  func.return
}

func.func @integers_of_four_bits() {
  %a = stablehlo.constant dense<[7, -8, 3]> : tensor<3xi4>
  %b = stablehlo.constant dense<[1, -1, 5]> : tensor<3xi4>
  %sum = stablehlo.add %a, %b : tensor<3xi4>
  check.expect_eq_const %sum, dense<[-8, 7, -8]> : tensor<3xi4>
  %shifted = stablehlo.shift_right_logical %a, %b : tensor<3xi4>
  check.expect_eq_const %shifted, dense<[3, 0, 0]> : tensor<3xi4>
  %bits = stablehlo.bitcast_convert %a : (tensor<3xi4>) -> tensor<3xui4>
  check.expect_eq_const %bits, dense<[7, 8, 3]> : tensor<3xui4>
  func.return
}

// -----

func.func @rounding() {
  %x = stablehlo.constant dense<[1.1, 65520.0, 0.00001]> : tensor<3xf32>
  %y = stablehlo.reduce_precision %x, format = e5m2 : tensor<3xf32>
  check.expect_eq_const %y, dense<[1.0, 0x7F800000, 0.0]> : tensor<3xf32>
  func.return
}
