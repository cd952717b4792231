// Without an output named `loss` there is nothing to differentiate.
// RUN: gradients
// ERROR: E055
module {
  func.func @main(%x: tensor<4xf64> {partita.role = "param"}) -> tensor<4xf64> {
    %y = stablehlo.negate %x : tensor<4xf64>
    return %y : tensor<4xf64>
  }
}
