// Between the two passes of a head lies the loss alone, so its weight is gathered once. That of the layer is gathered again:
// the head was read in between.
// RUN: ..check ranks=2
// CHECK: wait #1 all_gather  // lm_head (forward)
// CHECK: loss (input_grad)
// NEXT: start #2 all_gather
// CHECK: lm_head (input_grad)
// NEXT: wait #2 all_gather  // layers.0 (input_grad)
// COUNT: start # 3
// EQUAL: exact
module {
  func.func @main(%x: tensor<4x4xf64>, %w: tensor<2x4xf64> {partita.name = "layers.0.weight", partita.role = "param"}, %head: tensor<2x4xf64> {partita.name = "lm_head.weight", partita.role = "param"}) -> (tensor<4x4xf64>) {
    %w_all = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf64>) -> tensor<4x4xf64> loc("forward/layers.0")
    %h = stablehlo.dot_general %x, %w_all, contracting_dims = [1] x [1] : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64> loc("forward/layers.0")
    %head_all = "stablehlo.all_gather"(%head) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf64>) -> tensor<4x4xf64> loc("forward/lm_head")
    %logits = stablehlo.dot_general %h, %head_all, contracting_dims = [1] x [1] : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64> loc("forward/lm_head")
    %loss = stablehlo.tanh %logits : tensor<4x4xf64> loc("forward/loss")
    %seed = stablehlo.multiply %loss, %logits : tensor<4x4xf64> loc("input_grad/loss")
    %head_again = "stablehlo.all_gather"(%head) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf64>) -> tensor<4x4xf64> loc("input_grad/lm_head")
    %dh = stablehlo.dot_general %seed, %head_again, contracting_dims = [1] x [0] : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64> loc("input_grad/lm_head")
    %w_again = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf64>) -> tensor<4x4xf64> loc("input_grad/layers.0")
    %dx = stablehlo.dot_general %dh, %w_again, contracting_dims = [1] x [0] : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64> loc("input_grad/layers.0")
    return %dx : tensor<4x4xf64>
  }
}
