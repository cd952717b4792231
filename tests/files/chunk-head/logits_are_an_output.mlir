// Logits that are given back must be there as a whole.
// RUN: logits_bytes=0 print-fusion ..chunk-head ranks=1
// COUNT: stablehlo.composite "partita.cross_entropy" 1
// CHECK: -> tensor<2x200xf32>
// CHECK: logits of the step, 0.0 MiB: not chunked: another op reads them or their gradient
// EQUAL: 1e-5
module {
  func.func @main(%hidden: tensor<2x200x3xf32>, %weight: tensor<7x3xf32> {partita.role = "param"}, %labels: tensor<2x200xi32> {partita.role = "input"}) -> (tensor<f32>, tensor<2x200x7xf32>, tensor<2x200x3xf32>, tensor<7x3xf32>) {
    %logits = stablehlo.dot_general %hidden, %weight, contracting_dims = [2] x [1] : (tensor<2x200x3xf32>, tensor<7x3xf32>) -> tensor<2x200x7xf32>
    %losses = stablehlo.composite "partita.cross_entropy" %logits, %labels {composite_attributes = {ignore_index = 1 : i64}, decomposition = @partita.cross_entropy} : (tensor<2x200x7xf32>, tensor<2x200xi32>) -> tensor<2x200xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%losses init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x200xf32>, tensor<f32>) -> tensor<f32>
    %ignored = stablehlo.constant dense<1> : tensor<i32>
    %wide = stablehlo.broadcast_in_dim %ignored, dims = [] : (tensor<i32>) -> tensor<2x200xi32>
    %ne = stablehlo.compare NE, %labels, %wide : (tensor<2x200xi32>, tensor<2x200xi32>) -> tensor<2x200xi1>
    %ones = stablehlo.convert %ne : (tensor<2x200xi1>) -> tensor<2x200xf32>
    %count = stablehlo.reduce(%ones init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x200xf32>, tensor<f32>) -> tensor<f32>
    %loss = stablehlo.divide %sum, %count : tensor<f32>
    %one = stablehlo.constant dense<1.0> : tensor<f32> loc("input_grad/")
    %scale = stablehlo.divide %one, %count : tensor<f32> loc("input_grad/")
    %dlosses = stablehlo.broadcast_in_dim %scale, dims = [] : (tensor<f32>) -> tensor<2x200xf32> loc("input_grad/")
    %dlogits = stablehlo.composite "partita.cross_entropy.vjp" %logits, %labels, %dlosses {composite_attributes = {ignore_index = 1 : i64, wanted = array<i64: 0>, seeded = array<i64: 0>}, decomposition = @partita.cross_entropy.vjp, partita.role = "grad_of %logits", partita.vjp = {base = @partita.cross_entropy, name = "partita.cross_entropy", seeded = array<i64: 0>, wanted = array<i64: 0>}} : (tensor<2x200x7xf32>, tensor<2x200xi32>, tensor<2x200xf32>) -> tensor<2x200x7xf32> loc("input_grad/")
    %dhidden = stablehlo.dot_general %dlogits, %weight, contracting_dims = [2] x [0] : (tensor<2x200x7xf32>, tensor<7x3xf32>) -> tensor<2x200x3xf32> loc("input_grad/")
    %dweight = stablehlo.dot_general %dlogits, %hidden, contracting_dims = [0, 1] x [0, 1] : (tensor<2x200x7xf32>, tensor<2x200x3xf32>) -> tensor<7x3xf32> loc("weight_grad/")
    return %loss, %logits, %dhidden, %dweight : tensor<f32>, tensor<2x200x7xf32>, tensor<2x200x3xf32>, tensor<7x3xf32>
  }
  func.func private @partita.cross_entropy(%logits: tensor<2x200x7xf32> {partita.name = "arg0"}, %labels: tensor<2x200xi32> {partita.name = "arg1"}) -> tensor<2x200xf32> {
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%logits init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<2x200x7xf32>, tensor<f32>) -> tensor<2x200xf32>
    %1 = stablehlo.bitcast_convert %0 : (tensor<2x200xf32>) -> tensor<2x200xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<2x200xf32>) -> tensor<2x200x7xf32>
    %shifted = stablehlo.subtract %logits, %2 : tensor<2x200x7xf32>
    %3 = stablehlo.exponential %shifted : tensor<2x200x7xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x200x7xf32>, tensor<f32>) -> tensor<2x200xf32>
    %log = stablehlo.log %sum : tensor<2x200xf32>
    %classes = stablehlo.iota dim = 2 : tensor<2x200x7xi32>
    %4 = stablehlo.broadcast_in_dim %labels, dims = [0, 1] : (tensor<2x200xi32>) -> tensor<2x200x7xi32>
    %hit = stablehlo.compare EQ, %classes, %4 : (tensor<2x200x7xi32>, tensor<2x200x7xi32>) -> tensor<2x200x7xi1>
    %zero1 = stablehlo.constant dense<0.0> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %zero1, dims = [] : (tensor<f32>) -> tensor<2x200x7xf32>
    %6 = stablehlo.select %hit, %shifted, %5 : tensor<2x200x7xi1>, tensor<2x200x7xf32>
    %zero2 = stablehlo.constant dense<0.0> : tensor<f32>
    %picked = stablehlo.reduce(%6 init: %zero2) applies stablehlo.add across dimensions = [2] : (tensor<2x200x7xf32>, tensor<f32>) -> tensor<2x200xf32>
    %loss = stablehlo.subtract %log, %picked : tensor<2x200xf32>
    %ignored = stablehlo.constant dense<1> : tensor<i32>
    %7 = stablehlo.broadcast_in_dim %ignored, dims = [] : (tensor<i32>) -> tensor<2x200xi32>
    %counts = stablehlo.compare NE, %labels, %7 : (tensor<2x200xi32>, tensor<2x200xi32>) -> tensor<2x200xi1>
    %zero3 = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %zero3, dims = [] : (tensor<f32>) -> tensor<2x200xf32>
    %9 = stablehlo.select %counts, %loss, %8 : tensor<2x200xi1>, tensor<2x200xf32>
    return %9 : tensor<2x200xf32>
  }
  func.func private @partita.cross_entropy.vjp(%logits: tensor<2x200x7xf32> {partita.name = "arg0"}, %labels: tensor<2x200xi32> {partita.name = "arg1"}, %cotangent: tensor<2x200xf32> {partita.name = "cotangent_0"}) -> tensor<2x200x7xf32> {
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%logits init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<2x200x7xf32>, tensor<f32>) -> tensor<2x200xf32>
    %1 = stablehlo.bitcast_convert %0 : (tensor<2x200xf32>) -> tensor<2x200xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<2x200xf32>) -> tensor<2x200x7xf32>
    %shifted = stablehlo.subtract %logits, %2 : tensor<2x200x7xf32>
    %e = stablehlo.exponential %shifted : tensor<2x200x7xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x200x7xf32>, tensor<f32>) -> tensor<2x200xf32>
    %classes = stablehlo.iota dim = 2 : tensor<2x200x7xi32>
    %3 = stablehlo.broadcast_in_dim %labels, dims = [0, 1] : (tensor<2x200xi32>) -> tensor<2x200x7xi32>
    %hit = stablehlo.compare EQ, %classes, %3 : (tensor<2x200x7xi32>, tensor<2x200x7xi32>) -> tensor<2x200x7xi1>
    %ignored = stablehlo.constant dense<1> : tensor<i32>
    %4 = stablehlo.broadcast_in_dim %ignored, dims = [] : (tensor<i32>) -> tensor<2x200xi32>
    %counts = stablehlo.compare NE, %labels, %4 : (tensor<2x200xi32>, tensor<2x200xi32>) -> tensor<2x200xi1>
    %zero1 = stablehlo.constant dense<0.0> : tensor<f32> loc("input_grad/")
    %5 = stablehlo.broadcast_in_dim %zero1, dims = [] : (tensor<f32>) -> tensor<2x200xf32> loc("input_grad/")
    %6 = stablehlo.select %counts, %cotangent, %5 : tensor<2x200xi1>, tensor<2x200xf32> loc("input_grad/")
    %7 = stablehlo.negate %6 : tensor<2x200xf32> loc("input_grad/")
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<2x200xf32>) -> tensor<2x200x7xf32> loc("input_grad/")
    %zero2 = stablehlo.constant dense<0.0> : tensor<f32> loc("input_grad/")
    %9 = stablehlo.broadcast_in_dim %zero2, dims = [] : (tensor<f32>) -> tensor<2x200x7xf32> loc("input_grad/")
    %10 = stablehlo.select %hit, %8, %9 : tensor<2x200x7xi1>, tensor<2x200x7xf32> loc("input_grad/")
    %11 = stablehlo.divide %6, %sum {partita.role = "grad_of %sum"} : tensor<2x200xf32> loc("input_grad/")
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1] {partita.role = "grad_of %e"} : (tensor<2x200xf32>) -> tensor<2x200x7xf32> loc("input_grad/")
    %13 = stablehlo.multiply %12, %e : tensor<2x200x7xf32> loc("input_grad/")
    %14 = stablehlo.add %10, %13 {partita.role = "grad_of %logits"} : tensor<2x200x7xf32> loc("input_grad/")
    return %14 : tensor<2x200x7xf32>
  }
}
