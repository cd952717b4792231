// The new shards of a layer are gathered as soon as they are there, while the next layer is updated.
// RUN: ..check ranks=2
// CHECK: layers.0 (update)
// NEXT: start #0 all_gather
// CHECK: layers.1 (update)
// NEXT: start #1 all_gather
// CHECK: layers.2 (update)
// NEXT: start #2 all_gather
// CHECK: wait #0 all_gather
// COUNT: start # 3
// EQUAL: exact
module {
  func.func @main(%w0: tensor<4xf32> {partita.role = "param", tf.aliasing_output = 0 : i32}, %w1: tensor<4xf32> {partita.role = "param", tf.aliasing_output = 1 : i32}, %w2: tensor<4xf32> {partita.role = "param", tf.aliasing_output = 2 : i32}, %g0: tensor<2xf32>, %g1: tensor<2xf32>, %g2: tensor<2xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %own0 = stablehlo.slice %w0 [0:2] : (tensor<4xf32>) -> tensor<2xf32> loc("update/layers.0")
    %new0 = stablehlo.subtract %own0, %g0 : tensor<2xf32> loc("update/layers.0")
    %all0 = "stablehlo.all_gather"(%new0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<4xf32> loc("update/layers.0")
    %own1 = stablehlo.slice %w1 [0:2] : (tensor<4xf32>) -> tensor<2xf32> loc("update/layers.1")
    %new1 = stablehlo.subtract %own1, %g1 : tensor<2xf32> loc("update/layers.1")
    %all1 = "stablehlo.all_gather"(%new1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<4xf32> loc("update/layers.1")
    %own2 = stablehlo.slice %w2 [0:2] : (tensor<4xf32>) -> tensor<2xf32> loc("update/layers.2")
    %new2 = stablehlo.subtract %own2, %g2 : tensor<2xf32> loc("update/layers.2")
    %all2 = "stablehlo.all_gather"(%new2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<4xf32> loc("update/layers.2")
    return %all0, %all1, %all2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
