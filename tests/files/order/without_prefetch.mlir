// Without prefetch, each gather starts right before it is waited for.
// RUN: partition prefetch=false ..check
// CHECK: start #0 all_gather
// NEXT: wait #0 all_gather
// CHECK: start #1 all_gather
// NEXT: wait #1 all_gather
// CHECK: start #2 all_gather
// NEXT: wait #2 all_gather
// CHECK: start #3 all_gather
// NEXT: wait #3 all_gather
// COUNT: all_gather 16
// EQUAL: 1e-12
module {
  sdy.mesh @mesh = <["dp"=2]>
  func.func @main(%x: tensor<4x5xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, partita.role = "input"}, %up0: tensor<5x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, partita.name = "up0", partita.role = "param", tf.aliasing_output = 0 : i32}, %gate0: tensor<5x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, partita.name = "gate0", partita.role = "param", tf.aliasing_output = 1 : i32}, %up1: tensor<5x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, partita.name = "up1", partita.role = "param", tf.aliasing_output = 2 : i32}, %gate1: tensor<5x4xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, partita.name = "gate1", partita.role = "param", tf.aliasing_output = 3 : i32}) -> (tensor<5x4xf64> {jax.result_info = "up0", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, tensor<5x4xf64> {jax.result_info = "gate0", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, tensor<5x4xf64> {jax.result_info = "up1", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, tensor<5x4xf64> {jax.result_info = "gate1", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, tensor<4x4xf64> {jax.result_info = "cotangent"}) {
    %up0_whole = sdy.sharding_constraint %up0 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("forward/layers.0.mlp")
    %u0 = stablehlo.dot_general %x, %up0_whole, contracting_dims = [1] x [0] : (tensor<4x5xf64>, tensor<5x4xf64>) -> tensor<4x4xf64> loc("forward/layers.0.mlp")
    %gate0_whole = sdy.sharding_constraint %gate0 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("forward/layers.0.mlp")
    %g0 = stablehlo.dot_general %x, %gate0_whole, contracting_dims = [1] x [0] : (tensor<4x5xf64>, tensor<5x4xf64>) -> tensor<4x4xf64> loc("forward/layers.0.mlp")
    %ug0 = stablehlo.multiply %u0, %g0 : tensor<4x4xf64> loc("forward/layers.0.mlp")
    %y0_c = stablehlo.constant dense<0.125> : tensor<f64> loc("forward/layers.0.mlp")
    %y0_w = stablehlo.broadcast_in_dim %y0_c, dims = [] : (tensor<f64>) -> tensor<4x4xf64> loc("forward/layers.0.mlp")
    %y0 = stablehlo.multiply %ug0, %y0_w : tensor<4x4xf64> loc("forward/layers.0.mlp")
    %first0 = stablehlo.slice %y0 [0:4, 0:1] : (tensor<4x4xf64>) -> tensor<4x1xf64> loc("forward/layers.0.mlp")
    %h0 = stablehlo.concatenate %y0, %first0, dim = 1 : (tensor<4x4xf64>, tensor<4x1xf64>) -> tensor<4x5xf64> loc("forward/layers.0.mlp")
    %up1_whole = sdy.sharding_constraint %up1 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("forward/layers.1.mlp")
    %u1 = stablehlo.dot_general %h0, %up1_whole, contracting_dims = [1] x [0] : (tensor<4x5xf64>, tensor<5x4xf64>) -> tensor<4x4xf64> loc("forward/layers.1.mlp")
    %gate1_whole = sdy.sharding_constraint %gate1 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("forward/layers.1.mlp")
    %g1 = stablehlo.dot_general %h0, %gate1_whole, contracting_dims = [1] x [0] : (tensor<4x5xf64>, tensor<5x4xf64>) -> tensor<4x4xf64> loc("forward/layers.1.mlp")
    %ug1 = stablehlo.multiply %u1, %g1 : tensor<4x4xf64> loc("forward/layers.1.mlp")
    %y1_c = stablehlo.constant dense<0.125> : tensor<f64> loc("forward/layers.1.mlp")
    %y1_w = stablehlo.broadcast_in_dim %y1_c, dims = [] : (tensor<f64>) -> tensor<4x4xf64> loc("forward/layers.1.mlp")
    %y1 = stablehlo.multiply %ug1, %y1_w : tensor<4x4xf64> loc("forward/layers.1.mlp")
    %first1 = stablehlo.slice %y1 [0:4, 0:1] : (tensor<4x4xf64>) -> tensor<4x1xf64> loc("forward/layers.1.mlp")
    %h1 = stablehlo.concatenate %y1, %first1, dim = 1 : (tensor<4x4xf64>, tensor<4x1xf64>) -> tensor<4x5xf64> loc("forward/layers.1.mlp")
    %cotangent = stablehlo.slice %h1 [0:4, 0:4] : (tensor<4x5xf64>) -> tensor<4x4xf64> loc("input_grad/")
    %up1_x = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x5xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.1.mlp")
    %up1_grad = stablehlo.dot_general %up1_x, %cotangent, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}, {}]>]>} : (tensor<5x4xf64>, tensor<4x4xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.1.mlp")
    %up1_again = sdy.sharding_constraint %up1 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("input_grad/layers.1.mlp")
    %up1_turned = stablehlo.transpose %up1_again, dims = [1, 0] : (tensor<5x4xf64>) -> tensor<4x5xf64> loc("input_grad/layers.1.mlp")
    %up1_back = stablehlo.dot_general %cotangent, %up1_turned, contracting_dims = [1] x [0] : (tensor<4x4xf64>, tensor<4x5xf64>) -> tensor<4x5xf64> loc("input_grad/layers.1.mlp")
    %up1_cut = stablehlo.slice %up1_back [0:4, 0:4] : (tensor<4x5xf64>) -> tensor<4x4xf64> loc("input_grad/layers.1.mlp")
    %up1_cotangent_c = stablehlo.constant dense<0.0625> : tensor<f64> loc("input_grad/layers.1.mlp")
    %up1_cotangent_w = stablehlo.broadcast_in_dim %up1_cotangent_c, dims = [] : (tensor<f64>) -> tensor<4x4xf64> loc("input_grad/layers.1.mlp")
    %up1_cotangent = stablehlo.multiply %up1_cut, %up1_cotangent_w : tensor<4x4xf64> loc("input_grad/layers.1.mlp")
    %gate1_x = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x5xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.1.mlp")
    %gate1_grad = stablehlo.dot_general %gate1_x, %up1_cotangent, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}, {}]>]>} : (tensor<5x4xf64>, tensor<4x4xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.1.mlp")
    %gate1_again = sdy.sharding_constraint %gate1 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("input_grad/layers.1.mlp")
    %gate1_turned = stablehlo.transpose %gate1_again, dims = [1, 0] : (tensor<5x4xf64>) -> tensor<4x5xf64> loc("input_grad/layers.1.mlp")
    %gate1_back = stablehlo.dot_general %up1_cotangent, %gate1_turned, contracting_dims = [1] x [0] : (tensor<4x4xf64>, tensor<4x5xf64>) -> tensor<4x5xf64> loc("input_grad/layers.1.mlp")
    %gate1_cut = stablehlo.slice %gate1_back [0:4, 0:4] : (tensor<4x5xf64>) -> tensor<4x4xf64> loc("input_grad/layers.1.mlp")
    %gate1_cotangent_c = stablehlo.constant dense<0.0625> : tensor<f64> loc("input_grad/layers.1.mlp")
    %gate1_cotangent_w = stablehlo.broadcast_in_dim %gate1_cotangent_c, dims = [] : (tensor<f64>) -> tensor<4x4xf64> loc("input_grad/layers.1.mlp")
    %gate1_cotangent = stablehlo.multiply %gate1_cut, %gate1_cotangent_w : tensor<4x4xf64> loc("input_grad/layers.1.mlp")
    %up0_x = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x5xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.0.mlp")
    %up0_grad = stablehlo.dot_general %up0_x, %gate1_cotangent, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}, {}]>]>} : (tensor<5x4xf64>, tensor<4x4xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.0.mlp")
    %up0_again = sdy.sharding_constraint %up0 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("input_grad/layers.0.mlp")
    %up0_turned = stablehlo.transpose %up0_again, dims = [1, 0] : (tensor<5x4xf64>) -> tensor<4x5xf64> loc("input_grad/layers.0.mlp")
    %up0_back = stablehlo.dot_general %gate1_cotangent, %up0_turned, contracting_dims = [1] x [0] : (tensor<4x4xf64>, tensor<4x5xf64>) -> tensor<4x5xf64> loc("input_grad/layers.0.mlp")
    %up0_cut = stablehlo.slice %up0_back [0:4, 0:4] : (tensor<4x5xf64>) -> tensor<4x4xf64> loc("input_grad/layers.0.mlp")
    %up0_cotangent_c = stablehlo.constant dense<0.0625> : tensor<f64> loc("input_grad/layers.0.mlp")
    %up0_cotangent_w = stablehlo.broadcast_in_dim %up0_cotangent_c, dims = [] : (tensor<f64>) -> tensor<4x4xf64> loc("input_grad/layers.0.mlp")
    %up0_cotangent = stablehlo.multiply %up0_cut, %up0_cotangent_w : tensor<4x4xf64> loc("input_grad/layers.0.mlp")
    %gate0_x = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x5xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.0.mlp")
    %gate0_grad = stablehlo.dot_general %gate0_x, %up0_cotangent, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}, {}]>]>} : (tensor<5x4xf64>, tensor<4x4xf64>) -> tensor<5x4xf64> loc("weight_grad/layers.0.mlp")
    %gate0_again = sdy.sharding_constraint %gate0 <@mesh, [{}, {}]> : tensor<5x4xf64> loc("input_grad/layers.0.mlp")
    %gate0_turned = stablehlo.transpose %gate0_again, dims = [1, 0] : (tensor<5x4xf64>) -> tensor<4x5xf64> loc("input_grad/layers.0.mlp")
    %gate0_back = stablehlo.dot_general %up0_cotangent, %gate0_turned, contracting_dims = [1] x [0] : (tensor<4x4xf64>, tensor<4x5xf64>) -> tensor<4x5xf64> loc("input_grad/layers.0.mlp")
    %gate0_cut = stablehlo.slice %gate0_back [0:4, 0:4] : (tensor<4x5xf64>) -> tensor<4x4xf64> loc("input_grad/layers.0.mlp")
    %gate0_cotangent_c = stablehlo.constant dense<0.0625> : tensor<f64> loc("input_grad/layers.0.mlp")
    %gate0_cotangent_w = stablehlo.broadcast_in_dim %gate0_cotangent_c, dims = [] : (tensor<f64>) -> tensor<4x4xf64> loc("input_grad/layers.0.mlp")
    %gate0_cotangent = stablehlo.multiply %gate0_cut, %gate0_cotangent_w : tensor<4x4xf64> loc("input_grad/layers.0.mlp")
    %up0_step_c = stablehlo.constant dense<9.765625E-4> : tensor<f64> loc("update/layers.0.up")
    %up0_step_w = stablehlo.broadcast_in_dim %up0_step_c, dims = [] : (tensor<f64>) -> tensor<5x4xf64> loc("update/layers.0.up")
    %up0_step = stablehlo.multiply %up0_grad, %up0_step_w : tensor<5x4xf64> loc("update/layers.0.up")
    %up0_new = stablehlo.subtract %up0, %up0_step : tensor<5x4xf64> loc("update/layers.0.up")
    %gate0_step_c = stablehlo.constant dense<9.765625E-4> : tensor<f64> loc("update/layers.0.gate")
    %gate0_step_w = stablehlo.broadcast_in_dim %gate0_step_c, dims = [] : (tensor<f64>) -> tensor<5x4xf64> loc("update/layers.0.gate")
    %gate0_step = stablehlo.multiply %gate0_grad, %gate0_step_w : tensor<5x4xf64> loc("update/layers.0.gate")
    %gate0_new = stablehlo.subtract %gate0, %gate0_step : tensor<5x4xf64> loc("update/layers.0.gate")
    %up1_step_c = stablehlo.constant dense<9.765625E-4> : tensor<f64> loc("update/layers.1.up")
    %up1_step_w = stablehlo.broadcast_in_dim %up1_step_c, dims = [] : (tensor<f64>) -> tensor<5x4xf64> loc("update/layers.1.up")
    %up1_step = stablehlo.multiply %up1_grad, %up1_step_w : tensor<5x4xf64> loc("update/layers.1.up")
    %up1_new = stablehlo.subtract %up1, %up1_step : tensor<5x4xf64> loc("update/layers.1.up")
    %gate1_step_c = stablehlo.constant dense<9.765625E-4> : tensor<f64> loc("update/layers.1.gate")
    %gate1_step_w = stablehlo.broadcast_in_dim %gate1_step_c, dims = [] : (tensor<f64>) -> tensor<5x4xf64> loc("update/layers.1.gate")
    %gate1_step = stablehlo.multiply %gate1_grad, %gate1_step_w : tensor<5x4xf64> loc("update/layers.1.gate")
    %gate1_new = stablehlo.subtract %gate1, %gate1_step : tensor<5x4xf64> loc("update/layers.1.gate")
    return %up0_new, %gate0_new, %up1_new, %gate1_new, %gate0_cotangent : tensor<5x4xf64>, tensor<5x4xf64>, tensor<5x4xf64>, tensor<5x4xf64>, tensor<4x4xf64>
  }
}
