// The same pair as local graphs: the result is a sum over ranks, and nothing else is exchanged.
// RUN: partition
// COUNT: stablehlo.all_reduce 1
// COUNT: stablehlo.all_gather 0
// EQUAL: 1e-12
module {
  sdy.mesh @mesh = <["tp"=2]>
  func.func @main(%x: tensor<8x4xf64>, %up: tensor<16x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}, %down: tensor<4x16xf64>) -> tensor<8x4xf64> {
    %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<16x4xf64>) -> tensor<8x16xf64>
    %1 = stablehlo.dot_general %0, %down, contracting_dims = [1] x [1] : (tensor<8x16xf64>, tensor<4x16xf64>) -> tensor<8x4xf64>
    return %1 : tensor<8x4xf64>
  }
}
