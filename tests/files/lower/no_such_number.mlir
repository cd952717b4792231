// A choice of lowering that is not a number.
// RUN: bucket_cap_bytes=many ..check ranks=1
// ERROR: E017
// ERROR: a number
module {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %y = stablehlo.negate %x : tensor<2xf32>
    return %y : tensor<2xf32>
  }
}
