// The choice of a device that does not exist.
// RUN: device=gpu ..check ranks=1
// ERROR: E017
// ERROR: device=plain
module {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %y = stablehlo.negate %x : tensor<2xf32>
    return %y : tensor<2xf32>
  }
}
