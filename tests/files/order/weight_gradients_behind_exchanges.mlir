// A weight gradient waits for rows of an activation that are gathered for it alone. It runs behind the start of the next
// exchange that the input gradients wait for: the product before that hides the gather, and it hides the exchange.
// RUN: ..check ranks=2
// CHECK: start #0 all_gather
// CHECK: layers.1 (input_grad)
// CHECK: start #1 all_reduce
// NEXT: wait #0 all_gather
// CHECK: layers.1 (weight_grad)
// CHECK: wait #1 all_reduce
// CHECK: layers.0 (input_grad)
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x4xf32>, %dy: tensor<4x4xf32>, %w0: tensor<4x4xf32> {partita.role = "param"}, %w1: tensor<4x4xf32> {partita.role = "param"}) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %h = stablehlo.tanh %x : tensor<2x4xf32> loc("forward/layers.1")
    %c = stablehlo.tanh %dy : tensor<4x4xf32> loc("input_grad/layers.1")
    %rows = "stablehlo.all_gather"(%h) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<4x4xf32> loc("weight_grad/layers.1")
    %grad = stablehlo.dot_general %rows, %c, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("weight_grad/layers.1")
    %dx = stablehlo.dot_general %c, %w1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("input_grad/layers.1")
    %sum = "stablehlo.all_reduce"(%dx) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32> loc("input_grad/layers.1")
    %last = stablehlo.dot_general %sum, %w0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("input_grad/layers.0")
    return %grad, %last : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
