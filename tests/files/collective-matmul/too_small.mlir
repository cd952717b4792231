// A ring makes a gather of little no faster: each permute takes its latency, and each part of the product its time. So
// `auto` leaves it alone.
// RUN: cluster=a100-8 collective_matmul=auto collective-matmul ranks=3
// COUNT: "stablehlo.all_gather" 1
// ABSENT: collective_permute
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x5xf32>, %w: tensor<5x4xf32> {partita.role = "param"}, %v: tensor<3x5xf32> {partita.role = "param"}) -> (tensor<6x4xf32>, tensor<3x6xf32>) {
    %a = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2]]> : tensor<1x3xi64>, use_global_device_ids}> : (tensor<2x5xf32>) -> tensor<6x5xf32>
    %y = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<6x5xf32>, tensor<5x4xf32>) -> tensor<6x4xf32>
    %z = stablehlo.dot_general %v, %a, contracting_dims = [1] x [1] : (tensor<3x5xf32>, tensor<6x5xf32>) -> tensor<3x6xf32>
    return %y, %z : tensor<6x4xf32>, tensor<3x6xf32>
  }
}
