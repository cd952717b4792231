// One op in a region at most: six instructions, all in the place of the input.
// RUN: device=plain fused_ops=1 ..check ranks=1
// CHECK: 6 instructions, 7 buffers, arena 128 bytes
// EQUAL: exact
module {
  func.func @main(%x: tensor<32xf32> {partita.role = "input"}) -> tensor<32xf32> {
    %y = stablehlo.negate %x : tensor<32xf32>
    %y0_c = stablehlo.constant dense<0.5> : tensor<f32>
    %y0_w = stablehlo.broadcast_in_dim %y0_c, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %y0 = stablehlo.multiply %y, %y0_w : tensor<32xf32>
    %y1_c = stablehlo.constant dense<0.5> : tensor<f32>
    %y1_w = stablehlo.broadcast_in_dim %y1_c, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %y1 = stablehlo.multiply %y0, %y1_w : tensor<32xf32>
    %y2_c = stablehlo.constant dense<0.5> : tensor<f32>
    %y2_w = stablehlo.broadcast_in_dim %y2_c, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %y2 = stablehlo.multiply %y1, %y2_w : tensor<32xf32>
    %y3_c = stablehlo.constant dense<0.5> : tensor<f32>
    %y3_w = stablehlo.broadcast_in_dim %y3_c, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %y3 = stablehlo.multiply %y2, %y3_w : tensor<32xf32>
    %y4_c = stablehlo.constant dense<0.5> : tensor<f32>
    %y4_w = stablehlo.broadcast_in_dim %y4_c, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %y4 = stablehlo.multiply %y3, %y4_w : tensor<32xf32>
    return %y4 : tensor<32xf32>
  }
}
