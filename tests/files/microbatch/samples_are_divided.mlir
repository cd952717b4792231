// A reshape that puts parts of two samples into one row cannot be cut.
// RUN: microbatch=2
// ERROR: E220
module {
  func.func @main(%x: tensor<4x3xf64> {partita.role = "input"}) -> tensor<6x2xf64> {
    %z = stablehlo.reshape %x : (tensor<4x3xf64>) -> tensor<6x2xf64>
    return %z : tensor<6x2xf64>
  }
}
