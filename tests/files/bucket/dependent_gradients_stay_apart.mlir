// Each all-reduce needs the one before, so none can travel with another.
// RUN: ..check print-collectives ranks=2
// CHECK: backward: 3 all_reduce, 3 tensors, 48 bytes
// EQUAL: exact
module {
  func.func @main(%g0: tensor<4xf32> {partita.role = "param"}, %g1: tensor<4xf32> {partita.role = "param"}, %g2: tensor<4xf32> {partita.role = "param"}) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %twice0 = stablehlo.add %g0, %g0 : tensor<4xf32> loc("weight_grad/layers.0")
    %sum0 = "stablehlo.all_reduce"(%twice0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("weight_grad/layers.0")
    %twice1 = stablehlo.add %g1, %sum0 : tensor<4xf32> loc("weight_grad/layers.1")
    %sum1 = "stablehlo.all_reduce"(%twice1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("weight_grad/layers.1")
    %twice2 = stablehlo.add %g2, %sum1 : tensor<4xf32> loc("weight_grad/layers.2")
    %sum2 = "stablehlo.all_reduce"(%twice2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("weight_grad/layers.2")
    return %sum0, %sum1, %sum2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
