// On the CPU, a composite of elementwise ops that somebody made on purpose is a kernel of its own, and does not fuse
// with what stands behind it.
// RUN: ..fuse ranks=1
// CHECK: single
// NEXT: twice in <root>
// NEXT: fused
// NEXT: negate
// COUNT: tensor 2
// EQUAL: exact
module {
  func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
    %y = stablehlo.composite "test.twice" %x {composite_attributes = {}, decomposition = @body} : (tensor<3xf32>) -> tensor<3xf32>
    %z = stablehlo.negate %y : tensor<3xf32>
    return %z : tensor<3xf32>
  }
  func.func private @body(%x: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.negate %x : tensor<3xf32>
    %1 = stablehlo.add %0, %0 : tensor<3xf32>
    return %1 : tensor<3xf32>
  }
}
