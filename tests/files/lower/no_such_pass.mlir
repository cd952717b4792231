// RUN: partition simplfy mesh=dp=2
// ERROR: did you mean `simplify`
module {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
}
