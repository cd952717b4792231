// `d` joins the earlier region of `a` and `c`, because it is handed on instead of `c`; the two matmuls follow.
// RUN: ..fuse ranks=1
// CHECK: fused
// NEXT: negate
// NEXT: add
// NEXT: multiply
// COUNT: fused 1
// COUNT: single 2
// COUNT: dot_general 2
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "param"}) -> tensor<3x3xf32> {
    %a = stablehlo.negate %x : tensor<3x3xf32>
    %c = stablehlo.add %a, %x : tensor<3x3xf32>
    %product = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %d = stablehlo.multiply %c, %x : tensor<3x3xf32>
    %e = stablehlo.transpose %d, dims = [1, 0] : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %y = stablehlo.dot_general %e, %product, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    return %y : tensor<3x3xf32>
  }
}
