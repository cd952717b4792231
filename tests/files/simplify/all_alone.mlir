// An all-reduce in which every rank is alone vanishes.
// RUN: ..check print-collectives ranks=2
// CHECK: 1 instructions
// CHECK: = negate(
// CHECK: collectives (0)
// ABSENT: start
// EQUAL: exact
module {
  func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
    %y = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0], [1]]> : tensor<2x1xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<3xf32>) -> tensor<3xf32>
    %z = stablehlo.negate %y : tensor<3xf32>
    return %z : tensor<3xf32>
  }
}
