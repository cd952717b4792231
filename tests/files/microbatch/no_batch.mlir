// A scalar has no batch.
// RUN: microbatch=2
// ERROR: E226
module {
  func.func @main(%x: tensor<f64> {partita.role = "input"}) -> tensor<f64> {
    return %x : tensor<f64>
  }
}
