// Structural lines belong to a plan, which a text does not have.
// RUN: restructure
// ERROR: E017
module {
  func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
    %y = stablehlo.negate %x : tensor<4xf64>
    return %y : tensor<4xf64>
  }
}
