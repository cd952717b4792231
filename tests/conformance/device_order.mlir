// An input and a result on meshes that list the devices in other orders than the mesh of the first operand: their shards
// are those of the devices that these meshes name.

//--- part1.mlir

sdy.mesh @mesh = <["x"=3]>
sdy.mesh @turned = <["x"=3], device_ids=[1, 2, 0]>
sdy.mesh @swapped = <["x"=3], device_ids=[0, 2, 1]>

func.func @added(
    %x: tensor<3x2xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %y: tensor<3x2xi32> {sdy.sharding = #sdy.sharding<@turned, [{"x"}, {}]>})
    -> (tensor<3x2xi32> {sdy.sharding = #sdy.sharding<@swapped, [{"x"}, {}]>},
        tensor<3x2xi32> {sdy.sharding = #sdy.sharding<@turned, [{}, {}]>}) {
  %0 = stablehlo.add %x, %y : tensor<3x2xi32>
  %1 = sdy.reshard %0 <@turned, [{"x"}, {}]> : tensor<3x2xi32>
  %2 = stablehlo.negate %1 : tensor<3x2xi32>
  return %2, %0 : tensor<3x2xi32>, tensor<3x2xi32>
}

//--- part2.mlir

func.func @main() {
  %x0 = stablehlo.constant dense<[[1, 2]]> : tensor<1x2xi32>
  %x1 = stablehlo.constant dense<[[3, 4]]> : tensor<1x2xi32>
  %x2 = stablehlo.constant dense<[[5, 6]]> : tensor<1x2xi32>
  // Device 1 has the first row, device 2 the second one, device 0 the last one.
  %y0 = stablehlo.constant dense<[[500, 600]]> : tensor<1x2xi32>
  %y1 = stablehlo.constant dense<[[100, 200]]> : tensor<1x2xi32>
  %y2 = stablehlo.constant dense<[[300, 400]]> : tensor<1x2xi32>
  %r:6 = "interpreter.run_parallel"(%x0, %y0, %x1, %y1, %x2, %y2) {
    programs = [[@added, @added, @added]]
  } : (tensor<1x2xi32>, tensor<1x2xi32>, tensor<1x2xi32>, tensor<1x2xi32>, tensor<1x2xi32>, tensor<1x2xi32>)
    -> (tensor<1x2xi32>, tensor<3x2xi32>, tensor<1x2xi32>, tensor<3x2xi32>, tensor<1x2xi32>, tensor<3x2xi32>)
  check.expect_eq_const %r#0, dense<[[-101, -202]]> : tensor<1x2xi32>
  check.expect_eq_const %r#2, dense<[[-505, -606]]> : tensor<1x2xi32>
  check.expect_eq_const %r#4, dense<[[-303, -404]]> : tensor<1x2xi32>
  check.expect_eq_const %r#1, dense<[[101, 202], [303, 404], [505, 606]]> : tensor<3x2xi32>
  check.expect_eq_const %r#5, dense<[[101, 202], [303, 404], [505, 606]]> : tensor<3x2xi32>
  return
}
