// An input that is also read transposed of 64 bytes keeps its place: the result has another one.
// RUN: device=plain ..check ranks=1
// CHECK: 1 instructions, 2 buffers, arena 128 bytes
// EQUAL: exact
module {
  func.func @main(%x: tensor<4x4xf32> {partita.role = "input"}) -> tensor<4x4xf32> {
    %turned = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.subtract %x, %turned : tensor<4x4xf32>
    return %y : tensor<4x4xf32>
  }
}
