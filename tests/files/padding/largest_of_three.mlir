// The gradient of a maximum pool as JAX writes it: what pads the images, and what slices the pads off again, becomes padding of
// the windows. So both are sharded alike, and ranks receive the rows that windows see: of the images and of the gradient.
// RUN: padding
// CHECK: "stablehlo.select_and_scatter"(%arg0, %arg1, %0)
// CHECK: padding = dense<[[0, 0], [0, 1], [0, 1], [0, 0]]>
// ABSENT: stablehlo.pad
// ABSENT: stablehlo.slice
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x8x6x3xf64>, %dy: tensor<2x4x3x3xf64>) -> tensor<2x8x6x3xf64> {
    %lowest = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %padded = stablehlo.pad %x, %lowest, low = [0, 0, 0, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0] : (tensor<2x8x6x3xf64>, tensor<f64>) -> tensor<2x9x7x3xf64>
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %all = "stablehlo.select_and_scatter"(%padded, %dy, %zero) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%a: tensor<f64>, %b: tensor<f64>):
      %c = stablehlo.compare GE, %a, %b, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }, {
    ^bb0(%a: tensor<f64>, %b: tensor<f64>):
      %c = stablehlo.add %a, %b : tensor<f64>
      stablehlo.return %c : tensor<f64>
    }) : (tensor<2x9x7x3xf64>, tensor<2x4x3x3xf64>, tensor<f64>) -> tensor<2x9x7x3xf64>
    %dx = stablehlo.slice %all [0:2, 0:8, 0:6, 0:3] : (tensor<2x9x7x3xf64>) -> tensor<2x8x6x3xf64>
    return %dx : tensor<2x8x6x3xf64>
  }
}
