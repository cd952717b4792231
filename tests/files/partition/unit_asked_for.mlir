// A unit of 4 on an annotation: 12 elements over two ranks are 8 and 4, not 6 and 6, in the input and where the layout
// spreads.
// RUN: partition
// CHECK: ranks [0]
// CHECK: %arg0: tensor<8xf64>) -> (tensor<8xf64>)
// CHECK: ranks [1]
// CHECK: %arg0: tensor<4xf64>) -> (tensor<4xf64>)
// EQUAL: exact
module {
  sdy.mesh @mesh = <["tp"=2]>
  func.func @main(%x: tensor<12xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}]>, partita.units = array<i64: 4>}) -> tensor<12xf64> {
    %y = stablehlo.negate %x : tensor<12xf64>
    return %y : tensor<12xf64>
  }
}
