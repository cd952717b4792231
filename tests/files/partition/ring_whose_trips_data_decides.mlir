// A loop around an exchange is written out, which its number of trips must be known for: here the data decide.
// RUN: partition
// ERROR: E134
module {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%mine: tensor<2xf32>) {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %first = stablehlo.slice %mine [0:1] : (tensor<2xf32>) -> tensor<1xf32>
      %scalar = stablehlo.reshape %first : (tensor<1xf32>) -> tensor<f32>
      %trips = stablehlo.convert %scalar : (tensor<f32>) -> tensor<i32>
      %l:2 = stablehlo.while(%i = %zero, %ring = %mine) : tensor<i32>, tensor<2xf32>
      cond {
        %more = stablehlo.compare LT, %i, %trips, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %moved = "stablehlo.collective_permute"(%ring) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
        %next = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %next, %moved : tensor<i32>, tensor<2xf32>
      }
      sdy.return %l#1 : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
