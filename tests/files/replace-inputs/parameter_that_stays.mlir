// A parameter that stays as it is needs no instruction, and 8 bytes.
// RUN: device=plain ..check ranks=1
// CHECK: 0 instructions, 1 buffers, arena 8 bytes
// CHECK: x replaces x
// EQUAL: exact
module {
  func.func @main(%x: tensor<2xf32> {partita.name = "x", partita.role = "param", tf.aliasing_output = 0 : i32}) -> (tensor<2xf32> {jax.result_info = "x"}) {
    return %x : tensor<2xf32>
  }
}
