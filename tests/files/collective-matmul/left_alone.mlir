// What has no ring: a gathered dimension that the matmul adds up, a sum that something else reads too, and one
// of few bits, which each rank would round.
// RUN: collective_matmul=on collective-matmul ranks=2
// COUNT: "stablehlo.all_gather" 1
// COUNT: "stablehlo.reduce_scatter" 2
// ABSENT: collective_permute
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x4xf32>, %w: tensor<4x3xf32>, %b: tensor<4x4xbf16>) -> (tensor<4x3xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<2x4xbf16>) {
    %a = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %a, %w, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %g = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %s = "stablehlo.reduce_scatter"(%g) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %r = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %r : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<2x4xf32>
    %c = stablehlo.dot_general %b, %b, contracting_dims = [1] x [1] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
    %t = "stablehlo.reduce_scatter"(%c) <{channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%p: tensor<bf16>, %q: tensor<bf16>):
      %r = stablehlo.add %p, %q : tensor<bf16>
      stablehlo.return %r : tensor<bf16>
    }) : (tensor<4x4xbf16>) -> tensor<2x4xbf16>
    return %y, %g, %s, %t : tensor<4x3xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<2x4xbf16>
  }
}
