//! Every op in text: read, printed as it was read, and read back.

mod forms;

use super::*;
use crate::graph::Graph;
use crate::op::Operation;
use crate::ops::*;

/// Prints, parses and prints again; the texts and the graphs must agree.
#[track_caller]
pub(super) fn round_trip(graph: &Graph) -> String {
    let printed = print(graph);
    let read = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert_eq!(print(&read), printed);
    assert_eq!(read, canonical(graph), "{printed}");
    printed
}

/// One op each: the text to the right of `=`, over arguments `%arg0..` of the types on the left.
/// `$` is a line break.
pub(super) const OPS: &[(&str, &str)] = &[
    ("tensor<3xf32>", "stablehlo.tanh %arg0 : tensor<3xf32>"),
    ("tensor<3xf32>", "stablehlo.is_finite %arg0 : (tensor<3xf32>) -> tensor<3xi1>"),
    ("tensor<3xbf16>", "chlo.erf_inv %arg0 : tensor<3xbf16> -> tensor<3xbf16>"),
    ("tensor<3xi1>, tensor<3xi1>", "stablehlo.and %arg0, %arg1 : tensor<3xi1>"),
    ("tensor<0x4xui8>, tensor<0x4xui8>", "stablehlo.shift_left %arg0, %arg1 : tensor<0x4xui8>"),
    (
        "tensor<3xf32>, tensor<3xf32>",
        "stablehlo.compare LT, %arg0, %arg1 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xi1>",
    ),
    (
        "tensor<f32>, tensor<f32>",
        "stablehlo.compare GE, %arg0, %arg1, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>",
    ),
    (
        "tensor<i1>, tensor<3xf32>, tensor<3xf32>",
        "stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<3xf32>",
    ),
    ("tensor<f32>, tensor<f32>, tensor<f32>", "stablehlo.clamp %arg0, %arg1, %arg2 : tensor<f32>"),
    (
        "tensor<f32>, tensor<3xf32>, tensor<f32>",
        "stablehlo.clamp %arg0, %arg1, %arg2 : (tensor<f32>, tensor<3xf32>, tensor<f32>) -> tensor<3xf32>",
    ),
    ("tensor<3xi1>", "stablehlo.convert %arg0 : (tensor<3xi1>) -> tensor<3xf16>"),
    ("tensor<3xi32>", "stablehlo.convert %arg0 : tensor<3xi32>"),
    ("tensor<3x2xui16>", "stablehlo.bitcast_convert %arg0 : (tensor<3x2xui16>) -> tensor<3xf32>"),
    ("", "stablehlo.constant dense<[[1, -2], [3, 4]]> : tensor<2x2xi8>"),
    ("", "stablehlo.constant dense<[true, false]> : tensor<2xi1>"),
    ("", "stablehlo.constant dense<> : tensor<2x0xf32>"),
    ("", "stablehlo.constant dense<18446744073709551615> : tensor<3xui64>"),
    ("", "stablehlo.constant dense<[0x7FC00000, 0xFF800000, -0.000000e+00]> : tensor<3xf32>"),
    ("", "stablehlo.iota dim = 1 : tensor<2x3xi64>"),
    ("tensor<3xf32>", "stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>"),
    ("tensor<f32>", "stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<f32>) -> tensor<2xf32>"),
    ("tensor<6xf32>", "stablehlo.reshape %arg0 : (tensor<6xf32>) -> tensor<2x3xf32>"),
    ("tensor<2x3xf32>", "stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>"),
    ("tensor<2x3xf32>", "stablehlo.reverse %arg0, dims = [0, 1] : tensor<2x3xf32>"),
    ("tensor<12x16xf32>", "stablehlo.slice %arg0 [0:12:2, 4:16] : (tensor<12x16xf32>) -> tensor<6x12xf32>"),
    (
        "tensor<2xf32>, tensor<3xf32>",
        "stablehlo.concatenate %arg0, %arg1, dim = 0 : (tensor<2xf32>, tensor<3xf32>) -> tensor<5xf32>",
    ),
    (
        "tensor<4xf32>, tensor<f32>",
        "stablehlo.pad %arg0, %arg1, low = [-1], high = [2], interior = [1] : (tensor<4xf32>, tensor<f32>) -> \
         tensor<8xf32>",
    ),
    (
        "tensor<4xf32>, tensor<i32>",
        "stablehlo.dynamic_slice %arg0, %arg1, sizes = [2] : (tensor<4xf32>, tensor<i32>) -> tensor<2xf32>",
    ),
    (
        "tensor<4xf32>, tensor<2xf32>, tensor<i32>",
        "stablehlo.dynamic_update_slice %arg0, %arg1, %arg2 : (tensor<4xf32>, tensor<2xf32>, tensor<i32>) -> \
         tensor<4xf32>",
    ),
    (
        "tensor<5x2x3xf32>, tensor<5x3x4xf32>",
        "stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : \
         (tensor<5x2x3xf32>, tensor<5x3x4xf32>) -> tensor<5x2x4xf32>",
    ),
    (
        "tensor<2x3xbf16>, tensor<3x4xbf16>",
        "stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<2x3xbf16>, tensor<3x4xbf16>) -> \
         tensor<2x4xf32>",
    ),
    (
        "tensor<2x3xf32>, tensor<f32>, tensor<2x3xi32>, tensor<i32>",
        "stablehlo.reduce(%arg0 init: %arg1), (%arg2 init: %arg3) across dimensions = [1] : (tensor<2x3xf32>, \
         tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)$     reducer(%arg4: tensor<f32>, \
         %arg6: tensor<f32>) (%arg5: tensor<i32>, %arg7: tensor<i32>) {$      %1 = stablehlo.maximum %arg4, %arg6 : \
         tensor<f32>$      stablehlo.return %1, %arg7 : tensor<f32>, tensor<i32>$    }",
    ),
    (
        "tensor<4x5xf32>, tensor<f32>",
        "\"stablehlo.reduce_window\"(%arg0, %arg1) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [4, \
         0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 5>, \
         window_strides = array<i64: 1, 1>}> ({$    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):$      %1 = \
         stablehlo.add %arg2, %arg3 : tensor<f32>$      stablehlo.return %1 : tensor<f32>$    }) : (tensor<4x5xf32>, \
         tensor<f32>) -> tensor<4x5xf32>",
    ),
    (
        "tensor<3x4xf32>, tensor<3x2x1xi32>",
        "\"stablehlo.gather\"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], \
         operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = \
         2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<3x4xf32>, tensor<3x2x1xi32>) -> \
         tensor<3x2xf32>",
    ),
    (
        "tensor<3x4xf32>, tensor<2x1xi32>, tensor<2x4xf32>",
        "\"stablehlo.scatter\"(%arg0, %arg1, %arg2) <{indices_are_sorted = true, scatter_dimension_numbers = \
         #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], \
         index_vector_dim = 1>, unique_indices = true}> ({$    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):$      \
         stablehlo.return %arg4 : tensor<f32>$    }) : (tensor<3x4xf32>, tensor<2x1xi32>, tensor<2x4xf32>) -> \
         tensor<3x4xf32>",
    ),
    (
        "tensor<3x4xf32>, tensor<3x4xi32>",
        "\"stablehlo.sort\"(%arg0, %arg1) <{dimension = 1 : i64, is_stable = true}> ({$    ^bb0(%arg2: tensor<f32>, \
         %arg3: tensor<f32>, %arg4: tensor<i32>, %arg5: tensor<i32>):$      %1 = stablehlo.compare LT, %arg2, %arg3 : \
         (tensor<f32>, tensor<f32>) -> tensor<i1>$      stablehlo.return %1 : tensor<i1>$    }) : (tensor<3x4xf32>, \
         tensor<3x4xi32>) -> (tensor<3x4xf32>, tensor<3x4xi32>)",
    ),
    (
        "tensor<i32>, tensor<3xf32>",
        "stablehlo.while(%arg2 = %arg0, %arg3 = %arg1) : tensor<i32>, tensor<3xf32>$    cond {$      %1 = \
         stablehlo.compare LT, %arg2, %arg2 : (tensor<i32>, tensor<i32>) -> tensor<i1>$      stablehlo.return %1 : \
         tensor<i1>$    } do {$      %2 = stablehlo.add %arg3, %arg3 : tensor<3xf32>$      stablehlo.return %arg2, %2 \
         : tensor<i32>, tensor<3xf32>$    }",
    ),
    (
        "tensor<i32>, tensor<f32>, tensor<f32>",
        "\"stablehlo.case\"(%arg0) ({$      %1 = stablehlo.add %arg1, %arg2 : tensor<f32>$      stablehlo.return %1 : \
         tensor<f32>$    }, {$      stablehlo.return %arg2 : tensor<f32>$    }) : (tensor<i32>) -> tensor<f32>",
    ),
    (
        "tensor<i32>, tensor<f32>, tensor<f32>",
        "\"stablehlo.case\"(%arg0) ({$      stablehlo.return %arg1 : tensor<f32>$    }) {partita.captured = [\"%arg2\", \
         \"%arg1\"]} : (tensor<i32>) -> tensor<f32>",
    ),
    (
        "tensor<3xf32>, tensor<f32>",
        "stablehlo.optimization_barrier %arg0, %arg1 : tensor<3xf32>, tensor<f32>",
    ),
    (
        "tensor<4xf32>",
        "\"stablehlo.all_reduce\"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>, use_global_device_ids}> ({$    ^bb0(%arg1: \
         tensor<f32>, %arg2: tensor<f32>):$      %1 = stablehlo.maximum %arg1, %arg2 : tensor<f32>$      \
         stablehlo.return %1 : tensor<f32>$    }) : (tensor<4xf32>) -> tensor<4xf32>",
    ),
    (
        "tensor<4xf32>",
        "\"stablehlo.all_gather\"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = \
         #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, \
         use_global_device_ids}> {partita.extents = array<i64: 4, 3>} : (tensor<4xf32>) -> tensor<7xf32>",
    ),
    (
        "tensor<4xf32>",
        "\"stablehlo.reduce_scatter\"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> \
         ({$    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):$      %1 = stablehlo.add %arg1, %arg2 : tensor<f32>$      \
         stablehlo.return %1 : tensor<f32>$    }) : (tensor<4xf32>) -> tensor<2xf32>",
    ),
    (
        "tensor<2x12xf32>",
        "\"stablehlo.all_to_all\"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, \
         split_dimension = 1 : i64}> : (tensor<2x12xf32>) -> tensor<8x3xf32>",
    ),
    (
        "tensor<2xf32>",
        "\"stablehlo.collective_permute\"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>",
    ),
    (
        "tensor<2xf32>",
        "\"stablehlo.collective_broadcast\"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>",
    ),
    ("", "stablehlo.partition_id : tensor<ui32>"),
    ("tensor<4x8xf32>", "sdy.propagation_barrier %arg0 allowed_direction=BACKWARD : tensor<4x8xf32>"),
    (
        "tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{\"x\", ?}, {\"y\":(1)2}], replicated={\"y\":(2)2}> \
         {partita.constraint_origin = \"plan.toml:3\", partita.constraint_units = array<i64: 1, 4>} : tensor<4x8xf32>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{\"x\"}, {}]>] out_shardings=[<@mesh, [{\"x\"}, {}], \
         unreduced={\"y\" max}>] manual_axes={\"x\"} (%arg1: tensor<2x8xf32> loc(\"shard\")) {$      %1 = \
         stablehlo.tanh %arg1 : tensor<2x8xf32>$      sdy.return %1 : tensor<2x8xf32>$    } : (tensor<4x8xf32>) -> \
         tensor<4x8xf32>",
    ),
    ("tensor<2xi8>, tensor<2xi8>", "chlo.mulhi %arg0, %arg1 : tensor<2xi8>, tensor<2xi8> -> tensor<2xi8>"),
    (
        "tensor<2xf32>, tensor<2xf32>",
        "chlo.next_after %arg0, %arg1 : tensor<2xf32>, tensor<2xf32> -> tensor<2xf32>",
    ),
    (
        "tensor<2xf32>, tensor<2xf32>",
        "chlo.zeta %arg0, %arg1 : tensor<2xf32>, tensor<2xf32> -> tensor<2xf32>",
    ),
    (
        "tensor<2xf32>, tensor<2xf32>",
        "chlo.polygamma %arg0, %arg1 : tensor<2xf32>, tensor<2xf32> -> tensor<2xf32>",
    ),
    ("tensor<2xf32>", "chlo.is_neg_inf %arg0 : tensor<2xf32> -> tensor<2xi1>"),
    ("tensor<2xf32>", "chlo.is_pos_inf %arg0 : tensor<2xf32> -> tensor<2xi1>"),
    ("tensor<2xf32>", "chlo.is_inf %arg0 : tensor<2xf32> -> tensor<2xi1>"),
    ("tensor<2xf32>", "chlo.conj %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.lgamma %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.digamma %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.bessel_i1e %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.cosh %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.sinh %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.atanh %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.atan %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.asinh %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.asin %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.acosh %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xf32>", "chlo.acos %arg0 : tensor<2xf32> -> tensor<2xf32>"),
    ("tensor<2xcomplex<f32>>", "stablehlo.abs %arg0 : (tensor<2xcomplex<f32>>) -> tensor<2xf32>"),
    ("tensor<2xcomplex<f32>>", "stablehlo.real %arg0 : (tensor<2xcomplex<f32>>) -> tensor<2xf32>"),
    ("tensor<2xcomplex<f64>>", "stablehlo.imag %arg0 : (tensor<2xcomplex<f64>>) -> tensor<2xf64>"),
    ("tensor<2xf32>, tensor<2xf32>", "stablehlo.complex %arg0, %arg1 : tensor<2xcomplex<f32>>"),
    ("tensor<2xui8>", "stablehlo.count_leading_zeros %arg0 : tensor<2xui8>"),
    ("tensor<2xf32>", "stablehlo.reduce_precision %arg0, format = e5m10 : tensor<2xf32>"),
    (
        "tensor<1x2x3x4xf32>, tensor<1x1x3x4xf32>",
        "\"partita.ring_attention\"(%arg0, %arg1, %arg1) <{causal = true, scale = 5.000000e-01 : f64}> : \
         (tensor<1x2x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>) -> (tensor<1x2x3x4xf32>, tensor<1x2x3xf32>)",
    ),
    (
        "tensor<1x2x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x2x3xf32>",
        "\"partita.ring_attention_gradient\"(%arg0, %arg1, %arg1, %arg2, %arg2, %arg0) <{causal = false, \
         scale = 5.000000e-01 : f64, window = 2 : i64, zigzag = true}> : (tensor<1x2x3x4xf32>, tensor<1x1x3x4xf32>, tensor<1x1x3x4xf32>, \
         tensor<1x2x3xf32>, tensor<1x2x3xf32>, tensor<1x2x3x4xf32>) -> (tensor<1x2x3x4xf32>, tensor<1x1x3x4xf32>, \
         tensor<1x1x3x4xf32>)",
    ),
    (
        "tensor<1x2x3xf32>, tensor<1x2x2xf32>, tensor<1x2x2x4xf32>, tensor<4x5x3xf32>, tensor<4x3x5xf32>",
        "\"partita.experts\"(%arg0, %arg1, %arg2, %arg3, %arg4) <{experts = 4 : i64}> : (tensor<1x2x3xf32>, tensor<1x2x2xf32>, \
         tensor<1x2x2x4xf32>, tensor<4x5x3xf32>, tensor<4x3x5xf32>) -> tensor<1x2x3xf32>",
    ),
    (
        "tensor<1x2x3xf32>, tensor<1x2x2xf32>, tensor<1x2x2x4xf32>, tensor<4x5x3xf32>, tensor<4x3x5xf32>",
        "\"partita.experts_gradient\"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg0) <{experts = 8 : i64}> : (tensor<1x2x3xf32>, tensor<1x2x2xf32>, \
         tensor<1x2x2x4xf32>, tensor<4x5x3xf32>, tensor<4x3x5xf32>, tensor<1x2x3xf32>) -> (tensor<1x2x3xf32>, \
         tensor<1x2x2xf32>, tensor<4x5x3xf32>, tensor<4x3x5xf32>)",
    ),
    ("tensor<3x5xf32>", "chlo.top_k(%arg0, k = 2) : tensor<3x5xf32> -> (tensor<3x2xf32>, tensor<3x2xi32>)"),
    (
        "tensor<2x5x5x4xf32>, tensor<3x3x2x6xf32>",
        "stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = \
         [1, 2], pad = [[1, 1], [0, -1]], lhs_dilate = [1, 2], rhs_dilate = [2, 1], reverse = [0, 1]} {batch_group_count = \
         1 : i64, feature_group_count = 2 : i64} : (tensor<2x5x5x4xf32>, tensor<3x3x2x6xf32>) -> tensor<2x3x3x6xf32>",
    ),
    (
        "tensor<4x3x5xbf16>, tensor<6x3x2xbf16>",
        "stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, f, 0]x[o, i, 0]->[0, b, f], window = {} \
         {batch_group_count = 2 : i64, feature_group_count = 1 : i64} : (tensor<4x3x5xbf16>, tensor<6x3x2xbf16>) -> \
         tensor<4x2x6xf32>",
    ),
    (
        "tensor<4x2xf32>, tensor<2x2xf32>, tensor<f32>",
        "\"stablehlo.select_and_scatter\"(%arg0, %arg1, %arg2) <{padding = dense<[[0, 1], [0, 0]]> : tensor<2x2xi64>, \
         window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 2, 1>}> ({$    ^bb0(%arg3: tensor<f32>, %arg4: \
         tensor<f32>):$      %1 = stablehlo.compare GE, %arg3, %arg4 : (tensor<f32>, tensor<f32>) -> tensor<i1>$      \
         stablehlo.return %1 : tensor<i1>$    }, {$    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):$      %2 = \
         stablehlo.add %arg5, %arg6 : tensor<f32>$      stablehlo.return %2 : tensor<f32>$    }) : (tensor<4x2xf32>, \
         tensor<2x2xf32>, tensor<f32>) -> tensor<4x2xf32>",
    ),
    (
        "tensor<3x4xf32>",
        "stablehlo.fft %arg0, type = RFFT, length = [4] : (tensor<3x4xf32>) -> tensor<3x3xcomplex<f32>>",
    ),
    ("tensor<2x3x3xf32>", "stablehlo.cholesky %arg0, lower = true : tensor<2x3x3xf32>"),
    (
        "tensor<3x3xf64>, tensor<4x3xf64>",
        "\"stablehlo.triangular_solve\"(%arg0, %arg1) <{left_side = false, lower = true, transpose_a = \
         #stablehlo<transpose ADJOINT>, unit_diagonal = false}> : (tensor<3x3xf64>, tensor<4x3xf64>) -> tensor<4x3xf64>",
    ),
    (
        "tensor<2xui64>",
        "stablehlo.rng_bit_generator %arg0, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, \
         tensor<2x3xui64>)",
    ),
];

/// Ops that are read as others: the text to the right of `=`, and how it is printed.
const READ_AS_ANOTHER: &[(&str, &str, &str)] = &[
    (
        "tensor<4x8xf32>",
        "sdy.reshard %arg0 <@mesh, [{\"x\"}, {}]> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{\"x\"}, {}]>",
    ),
    (
        "tensor<4x8xf32>",
        "\"sdy.reshard\"(%arg0) <{sharding = #sdy.sharding<@mesh, [{\"x\"}, {}]>}> : (tensor<4x8xf32>) -> \
         tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{\"x\"}, {}]>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.all_gather [{\"y\"}, {}] %arg0 out_sharding=<@mesh, [{}, {\"x\"}]> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{}, {\"x\"}]>",
    ),
    (
        "tensor<4x8xf32>",
        "\"sdy.all_slice\"(%arg0) <{out_sharding = #sdy.sharding<@mesh, [{\"x\"}, {}]>, slicing_axes = \
         #sdy<list_of_axis_ref_lists[{\"x\"}, {}]>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{\"x\"}, {}]>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.all_slice [{\"x\"}, {}] %arg0 out_sharding=<@mesh, [{\"x\"}, {}]> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{\"x\"}, {}]>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.all_reduce max {\"y\"} %arg0 out_sharding=<@mesh, [{}, {\"x\"}]> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{}, {\"x\"}]>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.reduce_scatter [{\"x\"}, {}] %arg0 out_sharding=<@mesh, [{\"x\"}, {}]> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{\"x\"}, {}]>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.all_to_all [{\"x\"}: 0->1] %arg0 out_sharding=<@mesh, [{}, {\"x\"}]> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{}, {\"x\"}]>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.collective_permute %arg0 out_sharding=<@mesh, [{\"y\"}, {}]> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{\"y\"}, {}]>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.replicated_to_unreduced {\"y\"} %arg0 out_sharding=<@mesh, [{}, {}], unreduced={\"y\"}> : tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{}, {}], unreduced={\"y\"}>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.sharded_to_unreduced [{\"y\"}, {}] %arg0 out_sharding=<@mesh, [{}, {}], unreduced={\"y\"}> : \
         tensor<4x8xf32>",
        "sdy.sharding_constraint %arg0 <@mesh, [{}, {}], unreduced={\"y\"}>",
    ),
    (
        "tensor<4x8xf32>",
        "sdy.named_computation<\"block\">(%arg0) in_shardings=[<@mesh, [{\"x\"}, {}]>] out_shardings=[<@mesh, [{}, \
         {\"y\"}]>] (%a: tensor<4x8xf32>) {$      %b = stablehlo.tanh %a : tensor<4x8xf32>$      sdy.return %b : \
         tensor<4x8xf32>$    } : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        "%2 = sdy.sharding_constraint %1 <@mesh, [{}, {\"y\"}]>",
    ),
    (
        "tensor<2xf32>",
        "stablehlo.broadcast %arg0, sizes = [3] : (tensor<2xf32>) -> tensor<3x2xf32>",
        "stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<2xf32>) -> tensor<3x2xf32>",
    ),
    (
        "tensor<2x3xf32>, tensor<3x4xf32>",
        "stablehlo.dot %arg0, %arg1, precision = [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<3x4xf32>) -> \
         tensor<2x4xf32>",
        "stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]",
    ),
    (
        "tensor<2x3xf32>",
        "stablehlo.get_dimension_size %arg0, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>",
        "stablehlo.constant dense<3> : tensor<i32>",
    ),
    (
        "tensor<2xi64>",
        "stablehlo.dynamic_iota %arg0, dim = 1 : (tensor<2xi64>) -> tensor<3x4xi64>",
        "stablehlo.iota dim = 1 : tensor<3x4xi64>",
    ),
    (
        "tensor<6xf32>, tensor<2xi64>",
        "stablehlo.dynamic_reshape %arg0, %arg1 : (tensor<6xf32>, tensor<2xi64>) -> tensor<2x3xf32>",
        "stablehlo.reshape %arg0 : (tensor<6xf32>) -> tensor<2x3xf32>",
    ),
    (
        "tensor<3xf32>, tensor<2xi64>",
        "stablehlo.dynamic_broadcast_in_dim %arg0, %arg1, dims = [1] : (tensor<3xf32>, tensor<2xi64>) -> \
         tensor<2x3xf32>",
        "stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>",
    ),
    ("", "stablehlo.replica_id : tensor<ui32>", "stablehlo.constant dense<0> : tensor<ui32>"),
    (
        "tensor<3xf32>, tensor<3xf32>",
        "\"stablehlo.map\"(%arg0, %arg1) <{dimensions = array<i64: 0>}> ({$    ^bb0(%a: tensor<f32>, %b: \
         tensor<f32>):$      %c = stablehlo.constant dense<2.0> : tensor<f32>$      %d = stablehlo.multiply %a, %c : \
         tensor<f32>$      %e = stablehlo.add %d, %b : tensor<f32>$      stablehlo.return %e : tensor<f32>$    }) : \
         (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>",
        "stablehlo.broadcast_in_dim",
    ),
    (
        "tensor<2x3xi32>, tensor<2xi32>",
        "chlo.scan(%arg0) inits(%arg1) dimension=1 attributes {is_reverse = true} {$    ^bb0(%a: tensor<2xi32>, %b: \
         tensor<2xi32>):$      %c = stablehlo.add %a, %b : tensor<2xi32>$      stablehlo.return %c, %c : tensor<2xi32>, \
         tensor<2xi32>$    } : (tensor<2x3xi32>, tensor<2xi32>) -> (tensor<2x3xi32>, tensor<2xi32>)",
        "stablehlo.concatenate",
    ),
    (
        "tensor<4xi64>",
        "\"stablehlo.collective_reduce\"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({$    ^bb0(%a: tensor<i64>, %b: tensor<i64>):$      %c = \
         stablehlo.add %a, %b : tensor<i64>$      stablehlo.return %c : tensor<i64>$    }) : (tensor<4xi64>) -> \
         tensor<4xi64>",
        "\"stablehlo.all_reduce\"(%arg0)",
    ),
    ("", "sdy.constant dense<1> : tensor<2xi32>", "stablehlo.constant dense<1> : tensor<2xi32>"),
    (
        "tensor<2xf32>",
        "chlo.tan %arg0 : tensor<2xf32> -> tensor<2xf32>",
        "stablehlo.tan %arg0 : tensor<2xf32>",
    ),
    (
        "tensor<3x3xf64>, tensor<3x1xf64>",
        "\"stablehlo.triangular_solve\"(%arg0, %arg1) {left_side = true, lower, transpose_a = #stablehlo<transpose \
         NO_TRANSPOSE>} : (tensor<3x3xf64>, tensor<3x1xf64>) -> tensor<3x1xf64>",
        "<{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}>",
    ),
    (
        "tensor<1x3x4xf32>, tensor<2x4x5xf32>",
        "\"stablehlo.convolution\"(%arg0, %arg1) <{batch_group_count = 1 : i64, dimension_numbers = \
         #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, feature_group_count = 1 : i64, padding = dense<1> : \
         tensor<1x2xi64>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>], \
         window_reversal = array<i1: true>}> : (tensor<1x3x4xf32>, tensor<2x4x5xf32>) -> tensor<1x4x5xf32>",
        "dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]], reverse = [1]}",
    ),
    (
        "tensor<1x3x4xf32>, tensor<2x4x5xf32>",
        "\"stablehlo.convolution\"(%arg0, %arg1) {batch_group_count = 1 : i64, dimension_numbers = \
         #stablehlo.conv<raw input_batch_dimension = 0, input_feature_dimension = 2, input_spatial_dimensions = [1], \
         kernel_input_feature_dimension = 1, kernel_output_feature_dimension = 2, kernel_spatial_dimensions = [0], \
         output_batch_dimension = 0, output_feature_dimension = 2, output_spatial_dimensions = [1]>, feature_group_count \
         = 1 : i64} : (tensor<1x3x4xf32>, tensor<2x4x5xf32>) -> tensor<1x2x5xf32>",
        "dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}",
    ),
];

#[test]
fn ops_that_are_read_as_others_print_as_those() {
    for (arguments, op, printed) in READ_AS_ANOTHER {
        let text = op_module(arguments, op);
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let back = round_trip(&graph);
        assert!(back.contains(printed), "{op}\n{back}");
    }
}

/// The module that [`OPS`] describe.
pub(super) fn op_module(arguments: &str, op: &str) -> String {
    let types: Vec<&str> = arguments.split(", ").filter(|t| !t.is_empty()).collect();
    let list: Vec<String> = types.iter().enumerate().map(|(i, ty)| format!("%arg{i}: {ty}")).collect();
    let op = op.replace('$', "\n");
    // The results follow the last arrow or colon of the op's last line.
    let last = op.rsplit('\n').next().expect("some line");
    let header = op.lines().next().expect("some line");
    let line = if last.trim().starts_with('}') && !last.contains(':') { header } else { last };
    let results = line.rsplit(" -> ").next().filter(|_| line.contains(" -> ")).map_or_else(
        || line.rsplit(" : ").next().expect("a type").to_string(),
        |r| r.trim_start_matches('(').trim_end_matches(')').to_string(),
    );
    let mut results: Vec<String> = results.split(", ").map(str::to_string).collect();
    if op.starts_with("stablehlo.select") {
        results.remove(0);
    }
    let names: Vec<String> = match results.len() {
        1 => vec!["%0".to_string()],
        many => (0..many).map(|i| format!("%0#{i}")).collect(),
    };
    let count = if results.len() == 1 { String::new() } else { format!(":{}", results.len()) };
    let mesh = if op.contains("@mesh") { "  sdy.mesh @mesh = <[\"x\"=2, \"y\"=4]>\n" } else { "" };
    format!(
        "module {{\n{mesh}  func.func public @main({}) -> ({}) {{\n    %0{count} = {op}\n    return {} : {}\n  }}\n}}\n",
        list.join(", "),
        results.join(", "),
        names.join(", "),
        results.join(", ")
    )
}

#[test]
fn every_op_prints_as_it_is_read() {
    for (arguments, op) in OPS {
        let text = op_module(arguments, op);
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(print(&graph), text);
    }
}

#[test]
fn every_name_the_parser_knows_is_printed_by_some_op_or_read_as_another() {
    let others = READ_AS_ANOTHER.iter().map(|(_, op, _)| *op);
    let shown: Vec<&str> = OPS.iter().map(|(_, op)| *op).chain(others).collect();
    let elementwise = |name: &str| UNARY_AND_BINARY.contains(&name);
    for (name, _) in parsers() {
        let tested = shown.iter().any(|op| op.trim_start_matches('"').starts_with(name));
        // A rank constant is tested in its own file, sharding groups by the tests of the reader.
        let elsewhere =
            ["stablehlo.if", "stablehlo.composite", "partita.rank_constant", "sdy.sharding_group"];
        let elsewhere = elsewhere.contains(&name);
        // Ops with operands that must be known are tested in `known_operands_become_attributes`.
        let known = ["pad", "gather", "conv"].iter().any(|op| name == format!("stablehlo.dynamic_{op}"));
        let elsewhere = elsewhere || known || name == "stablehlo.real_dynamic_slice";
        assert!(tested || elsewhere || elementwise(name), "no round trip of {name}");
        assert!(!UNSUPPORTED.contains(&name));
    }
}

/// Elementwise names, tested by `generic_and_pretty_forms_read_alike`.
const UNARY_AND_BINARY: &[&str] = &[
    "stablehlo.negate",
    "stablehlo.abs",
    "stablehlo.sign",
    "stablehlo.exponential",
    "stablehlo.exponential_minus_one",
    "stablehlo.log",
    "stablehlo.log_plus_one",
    "stablehlo.sqrt",
    "stablehlo.rsqrt",
    "stablehlo.cbrt",
    "stablehlo.tanh",
    "stablehlo.logistic",
    "stablehlo.sine",
    "stablehlo.cosine",
    "stablehlo.tan",
    "stablehlo.floor",
    "stablehlo.ceil",
    "stablehlo.round_nearest_afz",
    "stablehlo.round_nearest_even",
    "stablehlo.not",
    "stablehlo.popcnt",
    "chlo.erf",
    "chlo.erfc",
    "chlo.erf_inv",
    "chlo.square",
    "stablehlo.add",
    "stablehlo.subtract",
    "stablehlo.multiply",
    "stablehlo.divide",
    "stablehlo.maximum",
    "stablehlo.minimum",
    "stablehlo.remainder",
    "stablehlo.power",
    "stablehlo.atan2",
    "stablehlo.and",
    "stablehlo.or",
    "stablehlo.xor",
    "stablehlo.shift_left",
    "stablehlo.shift_right_logical",
    "stablehlo.shift_right_arithmetic",
];
