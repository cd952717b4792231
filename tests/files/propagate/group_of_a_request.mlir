// A layout that is requested of one value of a sharding group is requested of all: two that contradict each other are
// refused, though they are requested of different values.
// RUN: propagate
// ERROR: two requested layouts of
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4x8xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<4x8xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<4x8xf64> {
    sdy.sharding_group %x group_id=0 : tensor<4x8xf64>
    sdy.sharding_group %y group_id=0 : tensor<4x8xf64>
    %0 = stablehlo.add %x, %y : tensor<4x8xf64>
    return %0 : tensor<4x8xf64>
  }
}
