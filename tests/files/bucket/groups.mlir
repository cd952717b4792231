// Five ranks, two groups of an all-reduce and a permutation among three: groups meet apart, and a rank that is in none
// meets itself.
// RUN: ..bucket ranks=5
// CHECK: bucket 0: all_reduce over [[0, 2], [3, 1], [4]]
// CHECK: bucket 1: collective_permute over [[0, 1], [2], [3], [4]]
// COUNT: bucket 2
// EQUAL: exact
module {
  func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
    %y = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [3, 1]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<3xf32>) -> tensor<3xf32>
    %z = "stablehlo.collective_permute"(%y) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0], [2, 2]]> : tensor<3x2xi64>}> : (tensor<3xf32>) -> tensor<3xf32>
    return %y, %z : tensor<3xf32>, tensor<3xf32>
  }
}
