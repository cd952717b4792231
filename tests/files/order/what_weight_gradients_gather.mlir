// Both the gradient of a layer's output and its input are gathered. The input is read by the weight gradient alone: it travels
// apart and behind the other, which the input gradient waits for, and that product hides it.
// RUN: ..check ranks=2
// CHECK: start #1 all_gather over [0, 1]
// NEXT: start #0 all_gather over [0, 1]
// NEXT: wait #1 all_gather  // layers.1 (input_grad)
// NEXT: layers.1 (input_grad)
// NEXT: wait #0 all_gather  // layers.1 (weight_grad)
// NEXT: layers.1 (weight_grad)
// COUNT: start # 2
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x4xf32>, %dy: tensor<2x4xf32>, %w: tensor<4x4xf32> {partita.role = "param"}) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %h = stablehlo.tanh %x : tensor<2x4xf32> loc("forward/layers.1")
    %c = stablehlo.tanh %dy : tensor<2x4xf32> loc("input_grad/layers.2")
    %rows = "stablehlo.all_gather"(%h) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<4x4xf32> loc("weight_grad/layers.1")
    %all = "stablehlo.all_gather"(%c) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<4x4xf32> loc("input_grad/layers.1")
    %dx = stablehlo.dot_general %all, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("input_grad/layers.1")
    %grad = stablehlo.dot_general %rows, %all, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("weight_grad/layers.1")
    return %grad, %dx : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
