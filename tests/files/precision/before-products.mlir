// What no matmul precedes keeps its type: a table is looked up and scaled in f32, and converted where it enters the first
// matmul, once for all its readers. Behind that, an op computes in bf16 with the constants and values that it reads.
// RUN: precision-bf16
// CHECK: stablehlo.multiply
// CHECK: tensor<4x3xf32>
// CHECK: stablehlo.dot_general
// CHECK: (tensor<4x3xbf16>, tensor<3x3xbf16>) -> tensor<4x3xbf16>
// CHECK: stablehlo.constant dense<5.000000e-01> : tensor<bf16>
// CHECK: stablehlo.multiply
// CHECK: tensor<4x3xbf16>
// CHECK: stablehlo.add
// CHECK: tensor<4x3xbf16>
// CHECK: stablehlo.dot_general
// COUNT: stablehlo.convert 3
// EQUAL: 3e-2
module {
  func.func @main(%table: tensor<4x3xf32> {partita.role = "param"}, %w: tensor<3x3xf32> {partita.role = "param"}) -> (tensor<4x3xf32>) {
    %half = stablehlo.constant dense<0.5> : tensor<f32>
    %halves = stablehlo.broadcast_in_dim %half, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %x = stablehlo.multiply %table, %halves : tensor<4x3xf32>
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>
    %s = stablehlo.multiply %h, %halves : tensor<4x3xf32>
    %r = stablehlo.add %s, %x : tensor<4x3xf32>
    %y = stablehlo.dot_general %r, %w, contracting_dims = [1] x [0] : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>
    return %y : tensor<4x3xf32>
  }
}
