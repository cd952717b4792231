// Whether the shares are computed before the rows are replaced is up to who runs the region: the new rows are copied
// over the old ones afterwards.
// RUN: device=plain ..check ranks=1
// CHECK: 2 instructions
// CHECK: = copy(
// CHECK: replaces
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "param", tf.aliasing_output = 0 : i32}) -> (tensor<3x3xf32> {jax.result_info = "x"}, tensor<3x3xf32> {jax.result_info = "share"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sums = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
    %wide = stablehlo.broadcast_in_dim %sums, dims = [0] : (tensor<3xf32>) -> tensor<3x3xf32>
    %new = stablehlo.subtract %x, %wide : tensor<3x3xf32>
    %share = stablehlo.divide %x, %wide : tensor<3x3xf32>
    return %new, %share : tensor<3x3xf32>, tensor<3x3xf32>
  }
}
