// A tied table gets a gradient from the head and one from the rows that were looked up: the rows are added to the
// matmul in its place.
// RUN: device=plain ..check ranks=1
// CHECK: 2 instructions
// CHECK: %4@256:f32[3,4] = dot_general(
// NEXT: %5@256:f32[3,4] = scatter(%4@256
// EQUAL: exact
module {
  func.func @main(%x: tensor<3x4xf32> {partita.role = "input"}, %w: tensor<4x4xf32> {partita.role = "input"}, %rows: tensor<2x1xi32> {partita.role = "input"}, %updates: tensor<2x4xf32> {partita.role = "input"}) -> tensor<3x4xf32> {
    %head = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %scattered = "stablehlo.scatter"(%zeros, %rows, %updates) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<3x4xf32>, tensor<2x1xi32>, tensor<2x4xf32>) -> tensor<3x4xf32>
    %sum = stablehlo.add %head, %scattered : tensor<3x4xf32>
    return %sum : tensor<3x4xf32>
  }
}
