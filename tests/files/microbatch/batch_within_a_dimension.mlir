// After a reshape the batch is the minor part of a dimension: each microbatch has its own columns, which are joined as such.
// RUN: microbatch=2
// CHECK: %arg0: tensor<2x3xf64>
// CHECK: %arg1: tensor<2x3xf64>
// CHECK: dim = 1 : (tensor<3x2xf64>, tensor<3x2xf64>) -> tensor<3x4xf64>
// CHECK: (tensor<3x4xf64>) -> tensor<12xf64>
module {
  func.func @main(%x: tensor<4x3xf64> {partita.role = "input"}) -> tensor<12xf64> {
    %y = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x3xf64>) -> tensor<3x4xf64>
    %z = stablehlo.reshape %y : (tensor<3x4xf64>) -> tensor<12xf64>
    return %z : tensor<12xf64>
  }
}
