// A weight stored in shards and read whole four times, twice in the forward and twice in the backward pass, is gathered
// once for each of the two phases.
// RUN: partition print-collectives
// CHECK: collectives (2)
// CHECK: all_gather tensor<4x4xf64> (forward)
// CHECK: all_gather tensor<4x4xf64> (input_grad)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["fsdp"=2]>
  func.func @main(%x: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, partita.role = "input"}, %w: tensor<4x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>, partita.role = "param"}) -> tensor<8x4xf64> {
    %w0 = sdy.sharding_constraint %w <@mesh, [{}, {}]> : tensor<4x4xf64>
    %y0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<4x4xf64>) -> tensor<8x4xf64>
    %w1 = sdy.sharding_constraint %w <@mesh, [{}, {}]> : tensor<4x4xf64>
    %y1 = stablehlo.dot_general %y0, %w1, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<4x4xf64>) -> tensor<8x4xf64>
    %w2 = sdy.sharding_constraint %w <@mesh, [{}, {}]> : tensor<4x4xf64> loc("input_grad/")
    %y2 = stablehlo.dot_general %y1, %w2, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<4x4xf64>) -> tensor<8x4xf64> loc("input_grad/")
    %w3 = sdy.sharding_constraint %w <@mesh, [{}, {}]> : tensor<4x4xf64> loc("input_grad/")
    %y3 = stablehlo.dot_general %y2, %w3, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<4x4xf64>) -> tensor<8x4xf64> loc("input_grad/")
    return %y3 : tensor<8x4xf64>
  }
}
