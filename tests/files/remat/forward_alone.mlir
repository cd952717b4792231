// Without a backward pass nothing is computed again, and the group vanishes.
// RUN: remat
// COUNT: remat_of 0
// COUNT: %5 2
// COUNT: %7 0
// ABSENT: ~
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x2xf64> {partita.role = "input"}, %w: tensor<3x2xf64> {partita.role = "param"}) -> tensor<f64> {
    %p1 = stablehlo.multiply %x, %w : tensor<3x2xf64> loc("forward~0/first")
    %t1 = stablehlo.tanh %p1 : tensor<3x2xf64> loc("forward~0/first")
    %e = stablehlo.exponential %t1 : tensor<3x2xf64> loc("forward~0/first")
    %p2 = stablehlo.multiply %e, %w : tensor<3x2xf64> loc("forward~0/second")
    %t2 = stablehlo.tanh %p2 : tensor<3x2xf64> loc("forward~0/second")
    %zero = stablehlo.constant dense<0.0> : tensor<f64> loc("forward~0/")
    %loss = stablehlo.reduce(%t2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<3x2xf64>, tensor<f64>) -> tensor<f64> loc("forward~0/")
    return %loss : tensor<f64>
  }
}
