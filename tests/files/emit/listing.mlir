// A listing shows the place and type of every buffer, what each instruction does, and the module it belongs to.
// RUN: device=plain ..check ranks=2
// EQUAL: exact
module {
  func.func @main(%x: tensor<4xf32> {partita.name = "x", partita.role = "param"}) -> (tensor<4xf32> {jax.result_info = "z"}) {
    %y = stablehlo.negate %x : tensor<4xf32> loc("forward/layers.0.mlp")
    %z = "stablehlo.all_reduce"(%y) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("forward/layers.0.mlp")
    return %z : tensor<4xf32>
  }
}
