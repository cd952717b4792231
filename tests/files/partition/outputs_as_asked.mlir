// One value returned three times, each time in the layout that the output asks for: as it lies, by columns, and whole.
// RUN: partition print-collectives
// CHECK: -> (tensor<4x6xf64>, tensor<8x3xf64>, tensor<8x6xf64>)
// CHECK: collectives (2)
// CHECK: all_to_all tensor<8x3xf64> (forward)
// CHECK: all_gather tensor<8x6xf64> (forward)
// EQUAL: exact
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<8x6xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x6xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x6xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8x6xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    return %x, %x, %x : tensor<8x6xf64>, tensor<8x6xf64>, tensor<8x6xf64>
  }
}
