// On a device without a kernel for it, a composite is inlined, and fuses with what stands behind it.
// RUN: device=plain ..fuse ranks=1
// CHECK: fused
// NEXT: negate
// NEXT: add
// NEXT: negate
// ABSENT: single
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
