// Two parameters swap places, two get the same new value, one is transposed, and the old `c` is read after its
// replacement is computed. EQUAL compares two steps, so it would find an old value that was overwritten too early.
// RUN: device=plain ..check ranks=1
// CHECK: replaces a
// NEXT: replaces b
// NEXT: replaces c
// NEXT: replaces d
// NEXT: replaces e
// COUNT: replaces 5
// EQUAL: exact
module {
  func.func @main(%a: tensor<2x2xf32> {partita.name = "a", partita.role = "param", tf.aliasing_output = 0 : i32}, %b: tensor<2x2xf32> {partita.name = "b", partita.role = "param", tf.aliasing_output = 1 : i32}, %c: tensor<2x2xf32> {partita.name = "c", partita.role = "param", tf.aliasing_output = 2 : i32}, %d: tensor<2x2xf32> {partita.name = "d", partita.role = "param", tf.aliasing_output = 3 : i32}, %e: tensor<2x2xf32> {partita.name = "e", partita.role = "param", tf.aliasing_output = 4 : i32}) -> (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) {
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %sum = stablehlo.add %c, %d : tensor<2x2xf32>
    %turned = stablehlo.transpose %e, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %later = stablehlo.reduce(%sum init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
    %wide = stablehlo.broadcast_in_dim %later, dims = [1] : (tensor<2xf32>) -> tensor<2x2xf32>
    %late = stablehlo.multiply %wide, %c : tensor<2x2xf32>
    return %b, %a, %sum, %sum, %turned, %late, %a : tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>
  }
}
