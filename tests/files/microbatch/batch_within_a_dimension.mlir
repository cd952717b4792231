// A reshape after which the batch is the minor part of a dimension cannot be cut.
// RUN: microbatch=2
// ERROR: E220
module {
  func.func @main(%x: tensor<4x3xf64> {partita.role = "input"}) -> tensor<12xf64> {
    %y = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x3xf64>) -> tensor<3x4xf64>
    %z = stablehlo.reshape %y : (tensor<3x4xf64>) -> tensor<12xf64>
    return %z : tensor<12xf64>
  }
}
