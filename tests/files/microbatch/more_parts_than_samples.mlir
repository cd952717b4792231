// Three samples do not make four microbatches.
// RUN: microbatch=4
// ERROR: E225
module {
  func.func @main(%x: tensor<3x2xf64> {partita.role = "input"}) -> tensor<3x2xf64> {
    %y = stablehlo.negate %x : tensor<3x2xf64>
    return %y : tensor<3x2xf64>
  }
}
