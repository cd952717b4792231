// The number of microbatches is above 0.
// RUN: microbatch=0
// ERROR: E017
module {
  func.func @main(%x: tensor<3x2xf64> {partita.role = "input"}) -> tensor<3x2xf64> {
    %y = stablehlo.negate %x : tensor<3x2xf64>
    return %y : tensor<3x2xf64>
  }
}
