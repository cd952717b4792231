// A chain of elementwise ops is one region, and everything is fused.
// RUN: print-fusion ..fuse ranks=1
// COUNT: fused 1
// CHECK: fusion: 2 ops in 1 regions, 1 with several ops
// ABSENT: is not fused
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %z = stablehlo.add %y, %x : tensor<3x3xf32>
    return %z : tensor<3x3xf32>
  }
}
