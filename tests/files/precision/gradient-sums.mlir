// The gradient of a parameter ends in the parameter's type: the matmul and the sum of a bias add up to f32 at once instead
// of rounding to bf16 first. A result that something else reads too stays as it is.
// RUN: widen-sums
// CHECK: stablehlo.dot_general
// CHECK: (tensor<4x3xbf16>, tensor<4x5xbf16>) -> tensor<3x5xf32>
// CHECK: stablehlo.transpose
// CHECK: (tensor<3x5xf32>) -> tensor<5x3xf32>
// CHECK: (tensor<4x5xbf16>) -> tensor<4x5xf32>
// CHECK: stablehlo.reduce
// CHECK: -> tensor<5xf32>
// CHECK: (tensor<4x5xbf16>, tensor<4x5xbf16>) -> tensor<4x4xbf16>
// EQUAL: 1e-2
module {
  func.func @main(%x: tensor<4x3xbf16>, %g: tensor<4x5xbf16>) -> (tensor<5x3xf32>, tensor<5xf32>, tensor<4x4xf32>, tensor<4x4xbf16>) {
    %dw = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<4x3xbf16>, tensor<4x5xbf16>) -> tensor<3x5xbf16> loc("weight_grad/layer")
    %dwt = stablehlo.transpose %dw, dims = [1, 0] : (tensor<3x5xbf16>) -> tensor<5x3xbf16> loc("weight_grad/layer")
    %dw32 = stablehlo.convert %dwt : (tensor<5x3xbf16>) -> tensor<5x3xf32> loc("weight_grad/layer")
    %zero = stablehlo.constant dense<0.0> : tensor<bf16> loc("weight_grad/layer")
    %db = stablehlo.reduce(%g init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x5xbf16>, tensor<bf16>) -> tensor<5xbf16> loc("weight_grad/layer")
    %db32 = stablehlo.convert %db : (tensor<5xbf16>) -> tensor<5xf32> loc("weight_grad/layer")
    %gg = stablehlo.dot_general %g, %g, contracting_dims = [1] x [1] : (tensor<4x5xbf16>, tensor<4x5xbf16>) -> tensor<4x4xbf16> loc("input_grad/layer")
    %gg32 = stablehlo.convert %gg : (tensor<4x4xbf16>) -> tensor<4x4xf32> loc("input_grad/layer")
    return %dw32, %db32, %gg32, %gg : tensor<5x3xf32>, tensor<5xf32>, tensor<4x4xf32>, tensor<4x4xbf16>
  }
}
