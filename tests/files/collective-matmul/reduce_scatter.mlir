// Two groups of two ranks scatter the rows of a sum of products: each rank computes the rows of the other first and sends
// them on, then its own, to which it adds what it receives.
// RUN: collective_matmul=on collective-matmul ranks=4
// COUNT: stablehlo.collective_permute 1
// COUNT: stablehlo.dot_general 2
// COUNT: stablehlo.dynamic_slice 2
// CHECK: [[2, 0], [0, 2], [3, 1], [1, 3]]
// ABSENT: reduce_scatter
// EQUAL: 1e-12
module {
  func.func @main(%x: tensor<8x5xf64>, %w: tensor<5x3xf64> {partita.role = "param"}) -> (tensor<4x3xf64>) {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x5xf64>, tensor<5x3xf64>) -> tensor<8x3xf64>
    %s = "stablehlo.reduce_scatter"(%y) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%p: tensor<f64>, %q: tensor<f64>):
      %r = stablehlo.add %p, %q : tensor<f64>
      stablehlo.return %r : tensor<f64>
    }) : (tensor<8x3xf64>) -> tensor<4x3xf64>
    return %s : tensor<4x3xf64>
  }
}
