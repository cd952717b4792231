// The sum of three matmuls: the second and third add to the first one in its place.
// RUN: ..check ranks=1
// CHECK: 3 instructions
// CHECK: %6@768:f32[4,6] = dot_general(
// NEXT: %7@768:f32[4,6] = dot_general_add(%6@768
// NEXT: %8@768:f32[4,6] = dot_general_add(%7@768
// EQUAL: exact
module {
  func.func @main(%xa: tensor<4x5xf32> {partita.role = "input"}, %ya: tensor<5x6xf32> {partita.role = "input"}, %xb: tensor<4x5xf32> {partita.role = "input"}, %yb: tensor<5x6xf32> {partita.role = "input"}, %xc: tensor<4x5xf32> {partita.role = "input"}, %yc: tensor<5x6xf32> {partita.role = "input"}) -> tensor<4x6xf32> {
    %a = stablehlo.dot_general %xa, %ya, contracting_dims = [1] x [0] : (tensor<4x5xf32>, tensor<5x6xf32>) -> tensor<4x6xf32>
    %b = stablehlo.dot_general %xb, %yb, contracting_dims = [1] x [0] : (tensor<4x5xf32>, tensor<5x6xf32>) -> tensor<4x6xf32>
    %c = stablehlo.dot_general %xc, %yc, contracting_dims = [1] x [0] : (tensor<4x5xf32>, tensor<5x6xf32>) -> tensor<4x6xf32>
    %ab = stablehlo.add %b, %a : tensor<4x6xf32>
    %abc = stablehlo.add %ab, %c : tensor<4x6xf32>
    return %abc : tensor<4x6xf32>
  }
}
