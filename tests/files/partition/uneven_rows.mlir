// Five rows over two ranks are three and two: two classes of ranks, and a gather that carries both extents.
// RUN: partition mesh=dp=2
// COUNT: // ranks [ 2
// COUNT: partita.extents = array<i64: 3, 2> 2
// EQUAL: exact
module {
  sdy.mesh @mesh = <["dp"=2]>
  func.func @main(%x: tensor<5x3xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) -> (tensor<5x3xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %0 = stablehlo.exponential %x : tensor<5x3xf64>
    return %0 : tensor<5x3xf64>
  }
}
