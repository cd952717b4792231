// A convolution and a matrix product over a mesh whose devices are not in order, against one device.

//--- part1.mlir

sdy.mesh @mesh = <["x"=2, "y"=2], device_ids=[3, 1, 2, 0]>

func.func @parallel_images(
  %x: tensor<4x6x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>},
  %k: tensor<3x2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"y"}]>},
  %w: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
  -> (tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, sdy.sharding = #sdy.sharding_per_value<[#sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>]>} : (tensor<4x6x2xf32>, tensor<3x2x4xf32>) -> tensor<4x6x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x6x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %2 = sdy.reshard %1 <mesh<["x"=2, "y"=2], device_ids=[3, 1, 2, 0]>, [{}, {"x", "y"}]> : tensor<4x4xf32>
  %3 = stablehlo.dot %2, %w : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %4 = sdy.all_reduce {"x", "y"} %3 out_sharding=<@mesh, [{}, {}]> : tensor<4x3xf32>
  return %4 : tensor<4x3xf32>
}

//--- part2.mlir

func.func @main() {
  %n = stablehlo.iota dim = 0 : tensor<48xf32>
  %x = stablehlo.reshape %n : (tensor<48xf32>) -> tensor<4x6x2xf32>
  %m = stablehlo.iota dim = 0 : tensor<24xf32>
  %k = stablehlo.reshape %m : (tensor<24xf32>) -> tensor<3x2x4xf32>
  %v = stablehlo.iota dim = 0 : tensor<4x3xf32>
  %seq = func.call @sequential_images(%x, %k, %v) : (tensor<4x6x2xf32>, tensor<3x2x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %x0 = stablehlo.slice %x [0:2, 0:6, 0:2] : (tensor<4x6x2xf32>) -> tensor<2x6x2xf32>
  %x1 = stablehlo.slice %x [2:4, 0:6, 0:2] : (tensor<4x6x2xf32>) -> tensor<2x6x2xf32>
  %k0 = stablehlo.slice %k [0:3, 0:2, 0:2] : (tensor<3x2x4xf32>) -> tensor<3x2x2xf32>
  %k1 = stablehlo.slice %k [0:3, 0:2, 2:4] : (tensor<3x2x4xf32>) -> tensor<3x2x2xf32>
  // Devices 0 to 3 are the ranks (1, 1), (0, 1), (1, 0), (0, 0) of the mesh.
  %r:4 = "interpreter.run_parallel"(%x1, %k1, %v, %x0, %k1, %v, %x1, %k0, %v, %x0, %k0, %v) {
    programs = [[@parallel_images, @parallel_images, @parallel_images, @parallel_images]]
  } : (tensor<2x6x2xf32>, tensor<3x2x2xf32>, tensor<4x3xf32>, tensor<2x6x2xf32>, tensor<3x2x2xf32>, tensor<4x3xf32>,
       tensor<2x6x2xf32>, tensor<3x2x2xf32>, tensor<4x3xf32>, tensor<2x6x2xf32>, tensor<3x2x2xf32>, tensor<4x3xf32>)
    -> (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>)
  "check.expect_eq"(%r#0, %seq) : (tensor<4x3xf32>, tensor<4x3xf32>) -> ()
  "check.expect_eq"(%r#1, %seq) : (tensor<4x3xf32>, tensor<4x3xf32>) -> ()
  "check.expect_eq"(%r#3, %seq) : (tensor<4x3xf32>, tensor<4x3xf32>) -> ()
  return
}
