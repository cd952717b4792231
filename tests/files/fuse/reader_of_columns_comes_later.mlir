// Rows less their mean over all rows: the sum of columns joins the squares, whose region has two outputs; the mean and
// the subtraction run later, each on its own.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 3 instructions, 5 buffers
// CHECK: , %2@
// CHECK: = multiply+reduce(
// CHECK: = multiply(
// CHECK: = subtract(
// EQUAL: exact
module {
  func.func @main(%x: tensor<256x3xf32> {partita.role = "input"}) -> tensor<256x3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.multiply %x, %x : tensor<256x3xf32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x3xf32>, tensor<f32>) -> tensor<3xf32>
    %mean_c = stablehlo.constant dense<0.00390625> : tensor<f32>
    %mean_w = stablehlo.broadcast_in_dim %mean_c, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %mean = stablehlo.multiply %sums, %mean_w : tensor<3xf32>
    %wide = stablehlo.broadcast_in_dim %mean, dims = [1] : (tensor<3xf32>) -> tensor<256x3xf32>
    %centred = stablehlo.subtract %y, %wide : tensor<256x3xf32>
    return %centred : tensor<256x3xf32>
  }
}
