// A column-parallel matmul, a composite and a row-parallel one: the hidden activation is sharded by rows and features, and one
// all-reduce over `tp` of the rank's own rows completes the result.
// RUN: print-layouts partition print-collectives
// CHECK: hidden: [{dp}, {tp}]
// CHECK: active: [{dp}, {tp}]
// CHECK: y: [{dp}, {}]
// CHECK: collectives (1)
// CHECK: all_reduce tensor<4x4xf64> (forward)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  func.func @main(%x: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, %up: tensor<16x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}, %down: tensor<4x16xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> tensor<8x4xf64> {
    %hidden = stablehlo.dot_general %x, %up, contracting_dims = [1] x [1] {partita.name = "hidden"} : (tensor<8x4xf64>, tensor<16x4xf64>) -> tensor<8x16xf64>
    %active = stablehlo.composite "test.activation" %hidden {composite_attributes = {}, decomposition = @activation, partita.name = "active"} : (tensor<8x16xf64>) -> tensor<8x16xf64>
    %y = stablehlo.dot_general %active, %down, contracting_dims = [1] x [1] {partita.name = "y"} : (tensor<8x16xf64>, tensor<4x16xf64>) -> tensor<8x4xf64>
    return %y : tensor<8x4xf64>
  }
  func.func private @activation(%x: tensor<8x16xf64>) -> tensor<8x16xf64> {
    %0 = stablehlo.tanh %x : tensor<8x16xf64>
    return %0 : tensor<8x16xf64>
  }
}
