// A row of 65536 elements, the most that a region works on, is divided by its sum in one region.
// RUN: print-fusion ..fuse ranks=1
// CHECK: fusion: 2 ops in 1 regions, 1 with several ops
// ABSENT: is not fused
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x65536xf32> {partita.role = "input"}) -> tensor<2x65536xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sums = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x65536xf32>, tensor<f32>) -> tensor<2xf32>
    %wide = stablehlo.broadcast_in_dim %sums, dims = [0] : (tensor<2xf32>) -> tensor<2x65536xf32>
    %y = stablehlo.divide %x, %wide : tensor<2x65536xf32>
    return %y : tensor<2x65536xf32>
  }
}
