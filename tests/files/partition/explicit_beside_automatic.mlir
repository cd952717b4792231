// A user's own sum over `dp`, in a body written for one shard, stands between matmuls that are sharded over `tp`
// automatically: the body sees the columns whole, the matmul behind it is over `tp` again.
// RUN: print-layouts partition print-collectives
// CHECK: y: [{dp}, {tp}]
// CHECK: collectives (3)
// CHECK: all_gather tensor<4x6xf64> (forward)
// CHECK: all_reduce tensor<6xf64> (forward)
// CHECK: all_reduce tensor<1x5xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  func.func @main(%x: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, %w: tensor<6x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}, %down: tensor<6x5xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}) -> tensor<1x5xf64> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] {partita.name = "y"} : (tensor<8x4xf64>, tensor<6x4xf64>) -> tensor<8x6xf64>
    %sums = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"dp"}, {"tp"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"dp"} (%shard: tensor<4x6xf64>) {
      %zero = stablehlo.constant dense<0.0> : tensor<f64>
      %own = stablehlo.reduce(%shard init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x6xf64>, tensor<f64>) -> tensor<6xf64>
      %all = "stablehlo.all_reduce"(%own) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%a: tensor<f64>, %b: tensor<f64>):
        %sum = stablehlo.add %a, %b : tensor<f64>
        stablehlo.return %sum : tensor<f64>
      }) : (tensor<6xf64>) -> tensor<6xf64>
      sdy.return %all : tensor<6xf64>
    } : (tensor<8x6xf64>) -> tensor<6xf64>
    %row = stablehlo.reshape %sums : (tensor<6xf64>) -> tensor<1x6xf64>
    %back = stablehlo.transpose %down, dims = [1, 0] : (tensor<6x5xf64>) -> tensor<5x6xf64>
    %z = stablehlo.dot_general %row, %back, contracting_dims = [1] x [1] : (tensor<1x6xf64>, tensor<5x6xf64>) -> tensor<1x5xf64>
    return %z : tensor<1x5xf64>
  }
}
