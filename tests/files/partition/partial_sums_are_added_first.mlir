// Two partial sums are added while partial, and completed by one all-reduce instead of two.
// RUN: partition print-collectives
// CHECK: stablehlo.add
// CHECK: stablehlo.all_reduce
// CHECK: collectives (1)
// CHECK: all_reduce tensor<8x6xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["tp"=2]>
  func.func @main(%x1: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %w1: tensor<6x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %x2: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %w2: tensor<6x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x6xf64> {
    %one = stablehlo.dot_general %x1, %w1, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<6x4xf64>) -> tensor<8x6xf64>
    %two = stablehlo.dot_general %x2, %w2, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<6x4xf64>) -> tensor<8x6xf64>
    %sum = stablehlo.add %one, %two : tensor<8x6xf64>
    return %sum : tensor<8x6xf64>
  }
}
