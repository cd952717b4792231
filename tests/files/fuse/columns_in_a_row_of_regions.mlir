// A sum of columns is read by a later region only, which may have a sum of columns of its own: six ops in two regions.
// RUN: device=plain print-fusion ..check ranks=1
// CHECK: 2 instructions
// CHECK: fusion: 6 ops in 2 regions, 2 with several ops
// EQUAL: exact
module {
  func.func @main(%x: tensor<256x3xf32> {partita.role = "input"}) -> (tensor<256x3xf32>, tensor<3xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.multiply %x, %x : tensor<256x3xf32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x3xf32>, tensor<f32>) -> tensor<3xf32>
    %wide = stablehlo.broadcast_in_dim %sums, dims = [1] : (tensor<3xf32>) -> tensor<256x3xf32>
    %z = stablehlo.exponential %y : tensor<256x3xf32>
    %w = stablehlo.subtract %z, %wide : tensor<256x3xf32>
    %v = stablehlo.add %w, %y : tensor<256x3xf32>
    %again = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<256x3xf32>, tensor<f32>) -> tensor<3xf32>
    return %v, %again : tensor<256x3xf32>, tensor<3xf32>
  }
}
