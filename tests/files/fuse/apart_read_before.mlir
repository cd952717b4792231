// A matmul needs the square before the sum can run, so the square and the sum are two regions.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: add in <root> is not fused with multiply in <root>: dot_general reads it in between
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %product = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %z = stablehlo.add %y, %product : tensor<3x3xf32>
    return %z : tensor<3x3xf32>
  }
}
