// Two equal constants, cut into a row for each rank, and also an output: the constant is loaded once, and each rank
// reads its own row of it.
// RUN: partition ..check
// COUNT: load 1
// EQUAL: exact
module {
  sdy.mesh @mesh = <["dp"=2]>
  func.func @main(%x: tensor<2x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, partita.role = "input"}) -> (tensor<2x4xf32>, tensor<2x2xf32>) {
    %table = stablehlo.constant dense<[[1.0, 2.0], [1.0, 3.0]]> : tensor<2x2xf32>
    %same = stablehlo.constant dense<[[1.0, 2.0], [1.0, 3.0]]> : tensor<2x2xf32>
    %y = stablehlo.add %x, %table : tensor<2x2xf32>
    %z = stablehlo.concatenate %y, %same, dim = 1 : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x4xf32>
    return %z, %table : tensor<2x4xf32>, tensor<2x2xf32>
  }
}
