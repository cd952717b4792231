// With room for nothing, everything is computed again from inputs and parameters, in order.
// RUN: kept_bytes=0 ranks=1 keep
// COUNT: stablehlo.exponential 2
// COUNT: stablehlo.tanh 4
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x2xf64> {partita.role = "input"}, %w: tensor<3x2xf64> {partita.role = "param"}) -> (tensor<f64>, tensor<3x2xf64>) {
    %p1 = stablehlo.multiply %x, %w : tensor<3x2xf64> loc("forward/first")
    %t1 = stablehlo.tanh %p1 : tensor<3x2xf64> loc("forward/first")
    %e = stablehlo.exponential %t1 : tensor<3x2xf64> loc("forward/first")
    %p2 = stablehlo.multiply %e, %w : tensor<3x2xf64> loc("forward/second")
    %t2 = stablehlo.tanh %p2 : tensor<3x2xf64> loc("forward/second")
    %zero = stablehlo.constant dense<0.0> : tensor<f64> loc("forward/")
    %loss = stablehlo.reduce(%t2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<3x2xf64>, tensor<f64>) -> tensor<f64> loc("forward/")
    %one = stablehlo.constant dense<1.0> : tensor<f64> loc("input_grad/")
    %g = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f64>) -> tensor<3x2xf64> loc("input_grad/")
    %t2_t2 = stablehlo.multiply %t2, %t2 : tensor<3x2xf64> loc("input_grad/second")
    %d2 = stablehlo.subtract %g, %t2_t2 : tensor<3x2xf64> loc("input_grad/second")
    %gp2 = stablehlo.multiply %g, %d2 : tensor<3x2xf64> loc("input_grad/second")
    %ge = stablehlo.multiply %gp2, %w : tensor<3x2xf64> loc("input_grad/second")
    %dw2 = stablehlo.multiply %gp2, %e : tensor<3x2xf64> loc("weight_grad/second")
    %gt1 = stablehlo.multiply %ge, %e : tensor<3x2xf64> loc("input_grad/first")
    %t1_t1 = stablehlo.multiply %t1, %t1 : tensor<3x2xf64> loc("input_grad/first")
    %d1 = stablehlo.subtract %g, %t1_t1 : tensor<3x2xf64> loc("input_grad/first")
    %gp1 = stablehlo.multiply %gt1, %d1 : tensor<3x2xf64> loc("input_grad/first")
    %dw1 = stablehlo.multiply %gp1, %x : tensor<3x2xf64> loc("weight_grad/first")
    %dw = stablehlo.add %dw1, %dw2 : tensor<3x2xf64> loc("weight_grad/first")
    return %loss, %dw : tensor<f64>, tensor<3x2xf64>
  }
}
