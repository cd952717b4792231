// `d` could join `a`, which it reads, but would only lie in memory earlier: it runs with the other sums, behind the
// matmul.
// RUN: ..fuse ranks=1
// CHECK: fused
// NEXT: negate
// NEXT: single
// NEXT: dot_general
// NEXT: fused
// NEXT: add
// NEXT: add
// NEXT: add
// COUNT: fused 2
// COUNT: single 1
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "param"}) -> tensor<3x3xf32> {
    %a = stablehlo.negate %x : tensor<3x3xf32>
    %product = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %c = stablehlo.add %a, %product : tensor<3x3xf32>
    %d = stablehlo.add %a, %x : tensor<3x3xf32>
    %e = stablehlo.add %c, %d : tensor<3x3xf32>
    return %e : tensor<3x3xf32>
  }
}
