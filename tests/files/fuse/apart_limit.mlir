// With one op in a region at most, a chain is told apart for that reason.
// RUN: fused_ops=1 print-fusion ..fuse ranks=1
// COUNT: is not fused 1
// CHECK: add in <root> is not fused with multiply in <root>: together they would have more than 1 ops
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %y = stablehlo.multiply %x, %x : tensor<3x3xf32>
    %z = stablehlo.add %y, %x : tensor<3x3xf32>
    return %z : tensor<3x3xf32>
  }
}
