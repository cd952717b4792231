// A transpose that changes nothing, a reshape to the same shape and a node that nobody reads are dropped.
// RUN: simplify ranks=1
// COUNT: stablehlo.add 1
// ABSENT: stablehlo.transpose
// ABSENT: stablehlo.reshape
// ABSENT: stablehlo.multiply
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.transpose %x, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.multiply %x, %y : tensor<2x3xf32>
    %2 = stablehlo.reshape %y : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %3 = stablehlo.add %0, %2 : tensor<2x3xf32>
    return %3 : tensor<2x3xf32>
  }
}
