// Values on one device alone see the number of that device as the number of the rank, wherever they are read; a value that
// they read from another device is that device's.

//--- part1.mlir

sdy.mesh @mesh = <["x"=3]>
sdy.mesh @last = <[], device_ids=[2]>
sdy.mesh @middle = <[], device_ids=[1]>

func.func @numbers(%x: tensor<6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> (tensor<6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %rank = stablehlo.partition_id : tensor<ui32>
  %number = stablehlo.convert %rank : (tensor<ui32>) -> tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %tens = stablehlo.multiply %number, %ten : tensor<i32>
  %all = stablehlo.broadcast_in_dim %tens, dims = [] : (tensor<i32>) -> tensor<6xi32>
  %0 = stablehlo.add %x, %all {sdy.sharding = #sdy.sharding_per_value<[#sdy.sharding<@last, []>]>} : tensor<6xi32>
  %1 = stablehlo.multiply %0, %all {sdy.sharding = #sdy.sharding_per_value<[#sdy.sharding<@middle, []>]>} : tensor<6xi32>
  return %1 : tensor<6xi32>
}

//--- part2.mlir

func.func @main() {
  %a = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %b = stablehlo.constant dense<[3, 4]> : tensor<2xi32>
  %c = stablehlo.constant dense<[5, 6]> : tensor<2xi32>
  %r:3 = "interpreter.run_parallel"(%a, %b, %c) {
    programs = [[@numbers, @numbers, @numbers]]
  } : (tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> (tensor<2xi32>, tensor<2xi32>, tensor<2xi32>)
  check.expect_eq_const %r#0, dense<[210, 220]> : tensor<2xi32>
  check.expect_eq_const %r#1, dense<[230, 240]> : tensor<2xi32>
  check.expect_eq_const %r#2, dense<[250, 260]> : tensor<2xi32>
  return
}
