// A row of 65537 elements is too long to be kept between its sum and the division.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: divide in <root> is not fused with reduce in <root>: together they would have more than 65536 elements in a row
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x65537xf32> {partita.role = "input"}) -> tensor<2x65537xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sums = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x65537xf32>, tensor<f32>) -> tensor<2xf32>
    %wide = stablehlo.broadcast_in_dim %sums, dims = [0] : (tensor<2xf32>) -> tensor<2x65537xf32>
    %y = stablehlo.divide %x, %wide : tensor<2x65537xf32>
    return %y : tensor<2x65537xf32>
  }
}
