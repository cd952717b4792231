// Windows that begin with another number than the pad has keep it, and so do those over a pad that removes elements.
// RUN: padding
// CHECK: stablehlo.pad %arg0, %0, low = [1, 0]
// CHECK: stablehlo.pad %arg0, %1, low = [-1, 0]
// EQUAL: exact
module {
  func.func @main(%x: tensor<6x4xf64>) -> (tensor<5x4xf64>, tensor<3x4xf64>) {
    %one = stablehlo.constant dense<1.000000e+00> : tensor<f64>
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %more = stablehlo.pad %x, %one, low = [1, 0], high = [0, 0], interior = [0, 0] : (tensor<6x4xf64>, tensor<f64>) -> tensor<7x4xf64>
    %y = "stablehlo.reduce_window"(%more, %zero) <{window_dimensions = array<i64: 3, 1>}> ({
    ^bb0(%a: tensor<f64>, %b: tensor<f64>):
      %c = stablehlo.add %a, %b : tensor<f64>
      stablehlo.return %c : tensor<f64>
    }) : (tensor<7x4xf64>, tensor<f64>) -> tensor<5x4xf64>
    %fewer = stablehlo.pad %x, %zero, low = [-1, 0], high = [0, 0], interior = [0, 0] : (tensor<6x4xf64>, tensor<f64>) -> tensor<5x4xf64>
    %z = "stablehlo.reduce_window"(%fewer, %zero) <{window_dimensions = array<i64: 3, 1>}> ({
    ^bb0(%a: tensor<f64>, %b: tensor<f64>):
      %c = stablehlo.add %a, %b : tensor<f64>
      stablehlo.return %c : tensor<f64>
    }) : (tensor<5x4xf64>, tensor<f64>) -> tensor<3x4xf64>
    return %y, %z : tensor<5x4xf64>, tensor<3x4xf64>
  }
}
