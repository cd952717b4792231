// The initial value of a sum is part of its region, and the one flag of a select is read for every element.
// RUN: device=plain ..check ranks=1
// CHECK: 2 instructions
// CHECK: = negate+select(
// CHECK: strides [0, 0])
// CHECK: = reduce(%2@0:f32[2,3])  //
// ABSENT: load
// EQUAL: exact
module {
  func.func @main(%x: tensor<2x3xf32> {partita.role = "input"}, %flag: tensor<i1> {partita.role = "input"}) -> tensor<3xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.negate %x : tensor<2x3xf32>
    %z = stablehlo.select %flag, %x, %y : tensor<i1>, tensor<2x3xf32>
    %sum = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    return %sum : tensor<3xf32>
  }
}
