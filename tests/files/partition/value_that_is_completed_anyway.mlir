// A product is a sum over `tp`. Its sum over the rows could pass the terms on and be summed over both axes; but tanh needs
// the product complete, so the sum over the rows reads the complete product too, and is summed over `dp` alone.
// RUN: partition print-collectives
// CHECK: replica_groups = dense<[[0, 1], [2, 3]]>
// CHECK: replica_groups = dense<[[0, 2], [1, 3]]>
// ABSENT: [[0, 1, 2, 3]]
// CHECK: collectives (2)
// EQUAL: 1e-9
module {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  func.func @main(%g: tensor<8x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp"}]>}, %w: tensor<6x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<6xf64>, tensor<8x6xf64>) {
    %hidden = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<8x4xf64>, tensor<6x4xf64>) -> tensor<8x6xf64>
    %zero = stablehlo.constant dense<0.0> : tensor<f64>
    %bias = stablehlo.reduce(%hidden init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf64>, tensor<f64>) -> tensor<6xf64>
    %more = stablehlo.tanh %hidden : tensor<8x6xf64>
    return %bias, %more : tensor<6xf64>, tensor<8x6xf64>
  }
}
