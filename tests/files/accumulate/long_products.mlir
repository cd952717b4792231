// A product of 1000 terms is not one sum but several, and adding those would round otherwise: matmuls and sum stay
// apart.
// RUN: ..check ranks=1
// ABSENT: dot_general_add
// COUNT: = dot_general( 3
// COUNT: = 2*add( 1
// EQUAL: exact
module {
  func.func @main(%xa: tensor<4x1000xf32> {partita.role = "input"}, %ya: tensor<1000x6xf32> {partita.role = "input"}, %xb: tensor<4x1000xf32> {partita.role = "input"}, %yb: tensor<1000x6xf32> {partita.role = "input"}, %xc: tensor<4x1000xf32> {partita.role = "input"}, %yc: tensor<1000x6xf32> {partita.role = "input"}) -> tensor<4x6xf32> {
    %a = stablehlo.dot_general %xa, %ya, contracting_dims = [1] x [0] : (tensor<4x1000xf32>, tensor<1000x6xf32>) -> tensor<4x6xf32>
    %b = stablehlo.dot_general %xb, %yb, contracting_dims = [1] x [0] : (tensor<4x1000xf32>, tensor<1000x6xf32>) -> tensor<4x6xf32>
    %c = stablehlo.dot_general %xc, %yc, contracting_dims = [1] x [0] : (tensor<4x1000xf32>, tensor<1000x6xf32>) -> tensor<4x6xf32>
    %ab = stablehlo.add %b, %a : tensor<4x6xf32>
    %abc = stablehlo.add %ab, %c : tensor<4x6xf32>
    return %abc : tensor<4x6xf32>
  }
}
