// Ops of different shapes are not one region.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: add in <root> is not fused with multiply in <root>: they compute different shapes
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<1x3xf32> {
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %row = stablehlo.slice %y [0:1, 0:3] : (tensor<3x3xf32>) -> tensor<1x3xf32>
    %z = stablehlo.add %row, %row : tensor<1x3xf32>
    return %z : tensor<1x3xf32>
  }
}
