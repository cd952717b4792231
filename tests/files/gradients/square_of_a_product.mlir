// The derivative of the loss starts from one, and what it needs of the forward pass is read, not computed again: the loss
// is the sum of the squares of x w, whose derivative by w is x times twice the product. Its name follows the parameter's.
// RUN: gradients prune
// CHECK: -> (tensor<f64> {jax.result_info = "loss"}, tensor<3x2xf64> {jax.result_info = "grad.w"})
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.multiply
// CHECK: stablehlo.reduce
// CHECK: stablehlo.add %6, %7 {partita.role = "grad_of %0"}
// CHECK: stablehlo.dot_general
// COUNT: stablehlo.dot_general 2
module {
  func.func @main(%x: tensor<4x3xf64> {partita.name = "x", partita.role = "input"}, %w: tensor<3x2xf64> {partita.name = "w", partita.role = "param"}) -> (tensor<f64> {partita.name = "loss"}) {
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x3xf64>, tensor<3x2xf64>) -> tensor<4x2xf64>
    %s = stablehlo.multiply %h, %h : tensor<4x2xf64>
    %zero = stablehlo.constant dense<0.0> : tensor<f64>
    %loss = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x2xf64>, tensor<f64>) -> tensor<f64>
    return %loss : tensor<f64>
  }
}
