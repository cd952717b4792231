// The gradient of an average pool as JAX writes it: edges and gaps of the pad become those of the windows.
// RUN: padding
// CHECK: base_dilations = array<i64: 1, 2, 2, 1>, padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]>
// ABSENT: stablehlo.pad
// EQUAL: exact
module {
  func.func @main(%dy: tensor<2x4x3x2xf64>) -> tensor<2x8x6x2xf64> {
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %padded = stablehlo.pad %dy, %zero, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 1, 1, 0] : (tensor<2x4x3x2xf64>, tensor<f64>) -> tensor<2x9x7x2xf64>
    %initial = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f64>) -> tensor<f64>
    %dx = "stablehlo.reduce_window"(%padded, %initial) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 1, 1, 1>}> ({
    ^bb0(%a: tensor<f64>, %b: tensor<f64>):
      %c = stablehlo.add %a, %b : tensor<f64>
      stablehlo.return %c : tensor<f64>
    }) : (tensor<2x9x7x2xf64>, tensor<f64>) -> tensor<2x8x6x2xf64>
    return %dx : tensor<2x8x6x2xf64>
  }
}
