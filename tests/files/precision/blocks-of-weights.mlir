// Both operands of a matmul by a weight are rounded to 8 bits in blocks along the contraction, one that several matmuls read
// once. A matmul of two activations is left alone.
// RUN: mxfp8
// COUNT: stablehlo.composite 3
// CHECK: partita.quantise
// CHECK: blocks = array<i64: 1, 32>
// CHECK: stablehlo.dot_general
// EQUAL: 6e-2
module {
  func.func @main(%x: tensor<4x64xf32>, %w: tensor<8x64xf32> {partita.role = "param"}, %v: tensor<64x8xf32> {partita.role = "param"}) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>) {
    %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<8x64xf32>) -> tensor<4x8xf32>
    %b = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<4x64xf32>, tensor<64x8xf32>) -> tensor<4x8xf32>
    %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    return %a, %b, %c : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>
  }
}
