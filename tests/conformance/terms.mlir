// An input that every rank along an axis holds another term of: `sdy.all_reduce` of it is the sum of the terms.

//--- part1.mlir

sdy.mesh @grid = <["a"=2, "b"=2]>

func.func @twice_the_sum(%t: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@grid, [{"a"}, {}]>})
  -> (tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@grid, [{"a"}, {}]>}) {
  %0 = sdy.all_reduce {"b"} %t out_sharding=<@grid, [{"a"}, {}]> : tensor<4x3xf32>
  %1 = stablehlo.add %0, %0 : tensor<4x3xf32>
  return %1 : tensor<4x3xf32>
}

//--- part2.mlir

func.func @main() {
  %p0 = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %p1 = stablehlo.constant dense<10.0> : tensor<2x3xf32>
  %p2 = stablehlo.constant dense<100.0> : tensor<2x3xf32>
  %p3 = stablehlo.constant dense<[[0.5, 0.0, 0.0], [0.0, 0.0, -0.5]]> : tensor<2x3xf32>
  %r:4 = "interpreter.run_parallel"(%p0, %p1, %p2, %p3) {
    programs = [[@twice_the_sum, @twice_the_sum, @twice_the_sum, @twice_the_sum]]
  } : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
    -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
  %first = stablehlo.constant dense<[[22.0, 24.0, 26.0], [28.0, 30.0, 32.0]]> : tensor<2x3xf32>
  %second = stablehlo.constant dense<[[201.0, 200.0, 200.0], [200.0, 200.0, 199.0]]> : tensor<2x3xf32>
  "check.expect_eq"(%r#0, %first) : (tensor<2x3xf32>, tensor<2x3xf32>) -> ()
  "check.expect_eq"(%r#1, %first) : (tensor<2x3xf32>, tensor<2x3xf32>) -> ()
  "check.expect_eq"(%r#2, %second) : (tensor<2x3xf32>, tensor<2x3xf32>) -> ()
  "check.expect_eq"(%r#3, %second) : (tensor<2x3xf32>, tensor<2x3xf32>) -> ()
  return
}
