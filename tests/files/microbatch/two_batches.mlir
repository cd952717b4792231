// Inputs of 4 and of 6 samples do not have one batch.
// RUN: microbatch=2
// ERROR: E226
module {
  func.func @main(%x: tensor<4xf64> {partita.role = "input"}, %y: tensor<6xf64> {partita.role = "input"}) -> (tensor<4xf64>, tensor<6xf64>) {
    return %x, %y : tensor<4xf64>, tensor<6xf64>
  }
}
