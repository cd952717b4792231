// A sum of columns of few rows is not fused with what it reads.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: reduce in <root> is not fused with multiply in <root>: it is reduced across rows
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
    return %sums : tensor<3xf32>
  }
}
