// A fused projection that is read in slices, out of order and one of them twice, becomes three projections, whose
// weights and biases are pieces of the old ones in their order.
// RUN: split-fused
// CHECK: tensor<4x3xf64> {partita.name = "qkv_proj.weight#0"
// CHECK: tensor<2x3xf64> {partita.name = "qkv_proj.weight#1"
// CHECK: tensor<2x3xf64> {partita.name = "qkv_proj.weight#2"
// CHECK: tensor<4xf64> {partita.name = "qkv_proj.bias#0"
// CHECK: tensor<2xf64> {partita.name = "qkv_proj.bias#1"
// CHECK: tensor<2xf64> {partita.name = "qkv_proj.bias#2"
// CHECK: -> (tensor<2x2xf64>, tensor<2x4xf64>, tensor<2x2xf64>, tensor<2x4xf64>)
// COUNT: stablehlo.dot_general 3
// COUNT: stablehlo.add 3
// COUNT: loc("forward/qkv_proj") 9
// ABSENT: stablehlo.slice
module {
  func.func @main(%x: tensor<2x3xf64> {partita.role = "input"}, %w: tensor<8x3xf64> {partita.name = "qkv_proj.weight", partita.role = "param"}, %bias: tensor<8xf64> {partita.name = "qkv_proj.bias", partita.role = "param"}) -> (tensor<2x2xf64>, tensor<2x4xf64>, tensor<2x2xf64>, tensor<2x4xf64>) {
    %product = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<2x3xf64>, tensor<8x3xf64>) -> tensor<2x8xf64> loc("forward/qkv_proj")
    %wide = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<8xf64>) -> tensor<2x8xf64> loc("forward/qkv_proj")
    %y = stablehlo.add %product, %wide : tensor<2x8xf64> loc("forward/qkv_proj")
    %part0 = stablehlo.slice %y [0:2, 6:8] : (tensor<2x8xf64>) -> tensor<2x2xf64> loc("forward/qkv_proj")
    %part1 = stablehlo.slice %y [0:2, 0:4] : (tensor<2x8xf64>) -> tensor<2x4xf64> loc("forward/qkv_proj")
    %part2 = stablehlo.slice %y [0:2, 4:6] : (tensor<2x8xf64>) -> tensor<2x2xf64> loc("forward/qkv_proj")
    %part3 = stablehlo.slice %y [0:2, 0:4] : (tensor<2x8xf64>) -> tensor<2x4xf64> loc("forward/qkv_proj")
    return %part0, %part1, %part2, %part3 : tensor<2x2xf64>, tensor<2x4xf64>, tensor<2x2xf64>, tensor<2x4xf64>
  }
}
