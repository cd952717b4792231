// Three ranks gather the rows of two matmuls: two permutes bring the shards, and each is multiplied as it arrives. A third
// matmul adds up over the gathered rows; it reads them put together from the same shards. The bits are those of the gather.
// RUN: collective_matmul=on collective-matmul ranks=3
// COUNT: stablehlo.collective_permute 2
// COUNT: stablehlo.dot_general 7
// COUNT: stablehlo.dynamic_update_slice 9
// ABSENT: all_gather
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x5xf32>, %w: tensor<5x4xf32> {partita.role = "param"}, %v: tensor<3x5xf32> {partita.role = "param"}, %g: tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<3x6xf32>, tensor<5x4xf32>) {
    %a = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2]]> : tensor<1x3xi64>, use_global_device_ids}> : (tensor<2x5xf32>) -> tensor<6x5xf32>
    %y = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<6x5xf32>, tensor<5x4xf32>) -> tensor<6x4xf32>
    %z = stablehlo.dot_general %v, %a, contracting_dims = [1] x [1] : (tensor<3x5xf32>, tensor<6x5xf32>) -> tensor<3x6xf32>
    %d = stablehlo.dot_general %a, %g, contracting_dims = [0] x [0] : (tensor<6x5xf32>, tensor<6x4xf32>) -> tensor<5x4xf32>
    return %y, %z, %d : tensor<6x4xf32>, tensor<3x6xf32>, tensor<5x4xf32>
  }
}
