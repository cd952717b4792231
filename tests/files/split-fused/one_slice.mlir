// A slice of everything leaves the projection as it is.
// RUN: split-fused
// COUNT: # 0
// COUNT: stablehlo.dot_general 1
// COUNT: stablehlo.slice 1
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x3xf64> {partita.role = "input"}, %w: tensor<8x3xf64> {partita.name = "qkv_proj.weight", partita.role = "param"}, %bias: tensor<8xf64> {partita.name = "qkv_proj.bias", partita.role = "param"}) -> tensor<2x8xf64> {
    %product = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<2x3xf64>, tensor<8x3xf64>) -> tensor<2x8xf64> loc("forward/qkv_proj")
    %wide = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<8xf64>) -> tensor<2x8xf64> loc("forward/qkv_proj")
    %y = stablehlo.add %product, %wide : tensor<2x8xf64> loc("forward/qkv_proj")
    %part0 = stablehlo.slice %y [0:2, 0:8] : (tensor<2x8xf64>) -> tensor<2x8xf64> loc("forward/qkv_proj")
    return %part0 : tensor<2x8xf64>
  }
}
