// The values of a sharding group have one layout. `%b` meets none by itself; `%c` is in a second group that shares `%b` with
// the first, so all three are laid out as `%a`.
// RUN: print-layouts partition print-collectives
// CHECK: a: [{x}, {}]
// CHECK: b: [{x}, {}]
// CHECK: c: [{x}, {}]
// CHECK: collectives (0)
// EQUAL: exact
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4x8xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<4x8xf64>, %z: tensor<4x8xf64>) -> (tensor<4x8xf64>, tensor<4x8xf64>, tensor<4x8xf64>) {
    %a = stablehlo.tanh %x {partita.name = "a"} : tensor<4x8xf64>
    %b = stablehlo.sine %y {partita.name = "b"} : tensor<4x8xf64>
    %c = stablehlo.cosine %z {partita.name = "c"} : tensor<4x8xf64>
    sdy.sharding_group %a group_id=3 : tensor<4x8xf64>
    sdy.sharding_group %b group_id=3 : tensor<4x8xf64>
    sdy.sharding_group %b group_id=1 : tensor<4x8xf64>
    sdy.sharding_group %c group_id = 1 : tensor<4x8xf64>
    return %a, %b, %c : tensor<4x8xf64>, tensor<4x8xf64>, tensor<4x8xf64>
  }
}
