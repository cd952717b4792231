// What is read transposed is not there, row by row, when its reader runs.
// RUN: print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: add in <root> is not fused with multiply in <root>: it is read transposed, sliced or broadcast
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %turned = stablehlo.transpose %y, dims = [1, 0] : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %z = stablehlo.add %turned, %x : tensor<3x3xf32>
    return %z : tensor<3x3xf32>
  }
}
