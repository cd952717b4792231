// Behind propagation the graph is on its mesh, where no pass over the graph of one device may change it.
// RUN: propagate remat mesh=dp=2
// ERROR: run it before `propagate`
module {
  func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
    %y = stablehlo.negate %x : tensor<4xf64>
    return %y : tensor<4xf64>
  }
}
