// A chain of elementwise ops is one region, and nothing runs apart.
// RUN: print-fusion ..fuse ranks=1
// COUNT: fused 1
// CHECK: fusion: 2 ops in 1 regions, 1 of several
// ABSENT: runs apart
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %z = stablehlo.add %y, %x : tensor<3x3xf32>
    return %z : tensor<3x3xf32>
  }
}
