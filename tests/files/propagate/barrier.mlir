// Layouts pass a propagation barrier in the allowed directions only: `%x` is laid out over rows, and so is what reads it
// behind a barrier that lets layouts pass forwards; `%b` is laid out over columns, and its operand is too if they may pass
// backwards. A value behind a barrier that lets nothing pass is whole.
// RUN: print-layouts partition
// CHECK: shut: [{}, {}]
// CHECK: forwards: [{x}, {}]
// CHECK: open: [{}, {x}]
// CHECK: closed: [{}, {}]
// EQUAL: exact
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4x8xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<4x8xf64>) -> (tensor<4x8xf64>, tensor<4x8xf64>, tensor<4x8xf64>, tensor<4x8xf64>) {
    %0 = sdy.propagation_barrier %x allowed_direction=NONE : tensor<4x8xf64>
    %shut = stablehlo.tanh %0 {partita.name = "shut"} : tensor<4x8xf64>
    %1 = sdy.propagation_barrier %x allowed_direction=FORWARD : tensor<4x8xf64>
    %forwards = stablehlo.tanh %1 {partita.name = "forwards"} : tensor<4x8xf64>
    %open = stablehlo.sine %y {partita.name = "open"} : tensor<4x8xf64>
    %2 = sdy.propagation_barrier %open allowed_direction=BACKWARD : tensor<4x8xf64>
    %a = stablehlo.tanh %2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<4x8xf64>
    %z = stablehlo.constant dense<2.0> : tensor<4x8xf64>
    %closed = stablehlo.cosine %z {partita.name = "closed"} : tensor<4x8xf64>
    %3 = sdy.propagation_barrier %closed allowed_direction=FORWARD : tensor<4x8xf64>
    %b = stablehlo.tanh %3 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<4x8xf64>
    return %shut, %forwards, %a, %b : tensor<4x8xf64>, tensor<4x8xf64>, tensor<4x8xf64>, tensor<4x8xf64>
  }
}
