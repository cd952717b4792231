// Windows of three, two apart, with one element of padding: a rank needs the row before its own, and none after. What lies
// beyond the first row is less than any element.
// RUN: print-layouts partition print-collectives
// CHECK: y: [{sp}, {}]
// CHECK: collectives (1)
// CHECK: collective_permute tensor<1x3xf64> (forward)
// CHECK: forward: 1 collective_permute, 1 tensors, 24 bytes
// EQUAL: exact
module {
  sdy.mesh @mesh = <["sp"=2]>
  func.func @main(%x: tensor<8x3xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"sp"}, {}]>}) -> tensor<4x3xf64> {
    %least = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
    %y = "stablehlo.reduce_window"(%x, %least) <{padding = dense<[[1, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 2, 1>}> ({
    ^bb0(%a: tensor<f64>, %b: tensor<f64>):
      %m = stablehlo.maximum %a, %b : tensor<f64>
      stablehlo.return %m : tensor<f64>
    }) {partita.name = "y"} : (tensor<8x3xf64>, tensor<f64>) -> tensor<4x3xf64>
    return %y : tensor<4x3xf64>
  }
}
