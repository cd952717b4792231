// An op of the forward pass and one of the update are not one region.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: add in optimizer is not fused with multiply in <root>: they belong to different phases or microbatches
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %z = stablehlo.add %y, %x : tensor<3x3xf32> loc("update/optimizer")
    return %z : tensor<3x3xf32>
  }
}
