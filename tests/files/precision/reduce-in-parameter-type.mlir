// Over data-parallel ranks the gradient of the narrow copy of a parameter is converted before it is added: the all_reduce
// adds f32, though bf16 would move half the bytes.
// RUN: partition print-collectives mesh=dp=2
// CHECK: collectives (1)
// CHECK: backward: 1 all_reduce, 1 tensors, 12 bytes
// EQUAL: 1e-2
module {
  sdy.mesh @mesh = <["dp"=2]>
  func.func @main(%x: tensor<8x3xbf16> {partita.role = "input", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) -> (tensor<3xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<bf16> loc("weight_grad/norm")
    %d = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x3xbf16>, tensor<bf16>) -> tensor<3xbf16> loc("weight_grad/norm")
    %d32 = stablehlo.convert %d : (tensor<3xbf16>) -> tensor<3xf32> loc("weight_grad/norm")
    return %d32 : tensor<3xf32>
  }
}
