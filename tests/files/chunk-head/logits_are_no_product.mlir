// Logits that are no product of rows and a weight are not cut.
// RUN: logits_bytes=0 print-fusion ..chunk-head ranks=1
// COUNT: stablehlo.composite "partita.cross_entropy" 1
// CHECK: logits of the step, 0.0 MiB: not chunked: they are not computed by a matmul of rows and a weight
// EQUAL: exact
module {
  func.func @main(%logits: tensor<600x7xf32>, %labels: tensor<600xi32> {partita.role = "input"}) -> tensor<600xf32> {
    %losses = stablehlo.composite "partita.cross_entropy" %logits, %labels {composite_attributes = {ignore_index = 1 : i64}, decomposition = @partita.cross_entropy} : (tensor<600x7xf32>, tensor<600xi32>) -> tensor<600xf32>
    return %losses : tensor<600xf32>
  }
  func.func private @partita.cross_entropy(%logits: tensor<600x7xf32> {partita.name = "arg0"}, %labels: tensor<600xi32> {partita.name = "arg1"}) -> tensor<600xf32> {
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%logits init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<600x7xf32>, tensor<f32>) -> tensor<600xf32>
    %1 = stablehlo.bitcast_convert %0 : (tensor<600xf32>) -> tensor<600xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<600xf32>) -> tensor<600x7xf32>
    %shifted = stablehlo.subtract %logits, %2 : tensor<600x7xf32>
    %3 = stablehlo.exponential %shifted : tensor<600x7xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<600x7xf32>, tensor<f32>) -> tensor<600xf32>
    %log = stablehlo.log %sum : tensor<600xf32>
    %classes = stablehlo.iota dim = 1 : tensor<600x7xi32>
    %4 = stablehlo.broadcast_in_dim %labels, dims = [0] : (tensor<600xi32>) -> tensor<600x7xi32>
    %hit = stablehlo.compare EQ, %classes, %4 : (tensor<600x7xi32>, tensor<600x7xi32>) -> tensor<600x7xi1>
    %zero1 = stablehlo.constant dense<0.0> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %zero1, dims = [] : (tensor<f32>) -> tensor<600x7xf32>
    %6 = stablehlo.select %hit, %shifted, %5 : tensor<600x7xi1>, tensor<600x7xf32>
    %zero2 = stablehlo.constant dense<0.0> : tensor<f32>
    %picked = stablehlo.reduce(%6 init: %zero2) applies stablehlo.add across dimensions = [1] : (tensor<600x7xf32>, tensor<f32>) -> tensor<600xf32>
    %loss = stablehlo.subtract %log, %picked : tensor<600xf32>
    %ignored = stablehlo.constant dense<1> : tensor<i32>
    %7 = stablehlo.broadcast_in_dim %ignored, dims = [] : (tensor<i32>) -> tensor<600xi32>
    %counts = stablehlo.compare NE, %labels, %7 : (tensor<600xi32>, tensor<600xi32>) -> tensor<600xi1>
    %zero3 = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %zero3, dims = [] : (tensor<f32>) -> tensor<600xf32>
    %9 = stablehlo.select %counts, %loss, %8 : tensor<600xi1>, tensor<600xf32>
    return %9 : tensor<600xf32>
  }
}
