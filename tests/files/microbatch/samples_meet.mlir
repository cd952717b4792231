// Similarities between all samples of a batch, as in contrastive training, cannot be computed part by part: the error
// names the op and its module.
// RUN: microbatch=2
// ERROR: E220
// ERROR: similarity
// ERROR: stablehlo.dot_general
// ERROR: combines different samples
module {
  func.func @main(%x: tensor<4x3xf64> {partita.role = "input"}) -> tensor<4x4xf64> {
    %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<4x3xf64>, tensor<4x3xf64>) -> tensor<4x4xf64> loc("forward/similarity")
    return %y : tensor<4x4xf64>
  }
}
