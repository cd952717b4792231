// All-reduces of 16, 16, 16, 24 and 4 bytes of gradients fill buckets up to a cap of 40 bytes: two, two and one.
// RUN: bucket_cap_bytes=40 ..bucket ranks=2
// COUNT: bucket 3
// CHECK: bucket 0: all_reduce over [[0, 1]]
// NEXT: (tensor<4xf32>)
// NEXT: (tensor<4xf32>)
// NEXT: bucket 1: all_reduce
// NEXT: (tensor<4xf32>)
// NEXT: (tensor<6xf32>)
// NEXT: bucket 2: all_reduce
// NEXT: (tensor<1xf32>)
// EQUAL: exact
module {
  func.func @main(%g0: tensor<4xf32> {partita.role = "param"}, %g1: tensor<4xf32> {partita.role = "param"}, %g2: tensor<4xf32> {partita.role = "param"}, %g3: tensor<6xf32> {partita.role = "param"}, %g4: tensor<1xf32> {partita.role = "param"}) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<6xf32>, tensor<1xf32>) {
    %twice0 = stablehlo.add %g0, %g0 : tensor<4xf32> loc("weight_grad/layers.0")
    %sum0 = "stablehlo.all_reduce"(%twice0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("weight_grad/layers.0")
    %twice1 = stablehlo.add %g1, %g1 : tensor<4xf32> loc("weight_grad/layers.1")
    %sum1 = "stablehlo.all_reduce"(%twice1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("weight_grad/layers.1")
    %twice2 = stablehlo.add %g2, %g2 : tensor<4xf32> loc("weight_grad/layers.2")
    %sum2 = "stablehlo.all_reduce"(%twice2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("weight_grad/layers.2")
    %twice3 = stablehlo.add %g3, %g3 : tensor<6xf32> loc("weight_grad/layers.3")
    %sum3 = "stablehlo.all_reduce"(%twice3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<6xf32>) -> tensor<6xf32> loc("weight_grad/layers.3")
    %twice4 = stablehlo.add %g4, %g4 : tensor<1xf32> loc("weight_grad/layers.4")
    %sum4 = "stablehlo.all_reduce"(%twice4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<1xf32>) -> tensor<1xf32> loc("weight_grad/layers.4")
    return %sum0, %sum1, %sum2, %sum3, %sum4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<6xf32>, tensor<1xf32>
  }
}
