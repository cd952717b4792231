// Parameters keep f32 and are converted at the matmul that reads them; biases are converted before they are repeated. The
// exponential and the sum of the softmax in between compute in f32, and so does the loss behind the last matmul.
// RUN: precision-bf16
// CHECK: stablehlo.convert
// NEXT: stablehlo.convert
// NEXT: stablehlo.dot_general
// CHECK: (tensor<4x3xbf16>, tensor<3x5xbf16>) -> tensor<4x5xbf16>
// CHECK: stablehlo.convert
// CHECK: (tensor<5xf32>) -> tensor<5xbf16>
// NEXT: stablehlo.broadcast_in_dim
// NEXT: stablehlo.add
// CHECK: (tensor<4x5xbf16>) -> tensor<4x5xf32>
// NEXT: stablehlo.exponential
// CHECK: tensor<4x5xf32>
// CHECK: -> tensor<4xf32>
// CHECK: stablehlo.divide
// CHECK: (tensor<4x5xbf16>, tensor<5x2xbf16>) -> tensor<4x2xbf16>
// CHECK: (tensor<4x2xbf16>) -> tensor<4x2xf32>
// NEXT: stablehlo.multiply
// CHECK: -> tensor<f32>
// EQUAL: 3e-2
module {
  func.func @main(%x: tensor<4x3xf32> {partita.role = "input"}, %w: tensor<3x5xf32> {partita.role = "param"}, %b: tensor<5xf32> {partita.role = "param"}, %v: tensor<5x2xf32> {partita.role = "param"}) -> (tensor<f32>) {
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x3xf32>, tensor<3x5xf32>) -> tensor<4x5xf32>
    %bb = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<5xf32>) -> tensor<4x5xf32>
    %hb = stablehlo.add %h, %bb : tensor<4x5xf32>
    %e = stablehlo.exponential %hb : tensor<4x5xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x5xf32>, tensor<f32>) -> tensor<4xf32>
    %wide = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<4xf32>) -> tensor<4x5xf32>
    %p = stablehlo.divide %e, %wide : tensor<4x5xf32>
    %y = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<4x5xf32>, tensor<5x2xf32>) -> tensor<4x2xf32>
    %yy = stablehlo.multiply %y, %y : tensor<4x2xf32>
    %loss = stablehlo.reduce(%yy init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x2xf32>, tensor<f32>) -> tensor<f32>
    return %loss : tensor<f32>
  }
}
