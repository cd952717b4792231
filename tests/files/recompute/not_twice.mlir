// What the forward pass makes is read by the backward pass alone, and that again by the update alone: what is made of a
// repeated op is not repeated itself.
// RUN: device=plain ..check ranks=1
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x3xf32> {partita.role = "input"}) -> tensor<3x3xf32> {
    %product = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
    %halved_c = stablehlo.constant dense<0.5> : tensor<f32>
    %halved_w = stablehlo.broadcast_in_dim %halved_c, dims = [] : (tensor<f32>) -> tensor<3x3xf32>
    %halved = stablehlo.multiply %product, %halved_w : tensor<3x3xf32>
    %raised_c = stablehlo.constant dense<1.0> : tensor<f32> loc("input_grad/backward")
    %raised_w = stablehlo.broadcast_in_dim %raised_c, dims = [] : (tensor<f32>) -> tensor<3x3xf32> loc("input_grad/backward")
    %raised = stablehlo.add %halved, %raised_w : tensor<3x3xf32> loc("input_grad/backward")
    %y = stablehlo.multiply %raised, %x : tensor<3x3xf32> loc("update/optimizer")
    return %y : tensor<3x3xf32>
  }
}
