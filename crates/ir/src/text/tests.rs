//! Round trips, recorded programs, messages, and malformed texts.

mod composites;
mod random;
mod refusals;

use super::*;
use crate::composite::Attributes;
use crate::graph::{Annotation, Location, Phase, Role, ValueId};
use crate::op::{Op, Operation};
use crate::ops::*;
use crate::{GraphBuilder, Literal, Storage, TensorType};
use half::{bf16, f16};
use partita_base::DType;
use partita_mesh::{AxisRef, Combiner, DimSharding, Mesh, Sharding};
use proptest::prelude::*;

const FIXTURES: [&str; 10] = [
    "dropout_threefry",
    "mlp_adam_step",
    "ops_tier1",
    "ops_tier2",
    "ops_tier3",
    "sharded_attention",
    "sharded_manual",
    "sharded_mlp",
    "transformer_adam_step",
    "transformer_step",
];

fn fixture(name: &str) -> String {
    let path = format!("{}/../../tests/jax/{name}.mlir", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("the recorded programs stand in tests/jax")
}

/// Prints, parses and prints again; the texts and the graphs must agree.
#[track_caller]
fn round_trip(graph: &Graph) -> String {
    let printed = print(graph);
    let read = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert_eq!(print(&read), printed);
    assert_eq!(read, canonical(graph), "{printed}");
    printed
}

#[test]
fn what_jax_prints_is_read_and_printed_back_to_the_same_graph() {
    let mut refused = Vec::new();
    for name in FIXTURES {
        for text in fixture(name).split("// -----") {
            match parse_named(text, name) {
                Ok(graph) => {
                    let printed = print(&graph);
                    let again = parse(&printed).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(print(&again), printed);
                }
                Err(error) => refused.push(format!("{} {}", error.code, error.message)),
            }
        }
    }
    refused.sort();
    refused.dedup();
    let outside_the_language = [
        "E144 `chlo.asin` is not supported",
        "E144 `chlo.top_k` is not supported",
        "E144 `stablehlo.convolution` is not supported",
        "E144 `stablehlo.count_leading_zeros` is not supported",
        "E144 `stablehlo.reduce_precision` is not supported",
        "E144 `stablehlo.select_and_scatter` is not supported",
    ];
    assert_eq!(refused, outside_the_language);
}

#[test]
fn jax_programs_print_the_ops_they_were_read_from() {
    // Without calls and reductions to rewrite, the body must come back line by line, but for precision.
    let text = fixture("sharded_attention");
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim).filter(|l| l.contains(" = stablehlo."));
        let plain = lines.map(|l| l.replace(", precision = [DEFAULT, DEFAULT]", ""));
        // Values are numbered differently: compare what follows the names.
        plain
            .map(|l| {
                let words = l.split(' ').filter(|w| !w.contains('%'));
                words.collect::<Vec<_>>().join(" ")
            })
            .collect()
    };
    let printed = print_with(&parse(&text).unwrap(), &PrintOptions { locations: false });
    assert_eq!(lines(&text), lines(&printed));
}

/// One op each: the text to the right of `=`, over arguments `%arg0..` of the types on the left.
/// `$` is a line break.
const OPS: &[(&str, &str)] = &[
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
];

/// The module that [`OPS`] describe.
fn op_module(arguments: &str, op: &str) -> String {
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
    let shown: Vec<&str> = OPS.iter().map(|(_, op)| *op).collect();
    let elementwise = |name: &str| UNARY_AND_BINARY.contains(&name);
    for (name, _) in parsers() {
        let tested = shown.iter().any(|op| op.trim_start_matches('"').starts_with(name));
        // A rank constant is tested in its own file.
        let elsewhere = ["stablehlo.if", "stablehlo.composite", "partita.rank_constant"].contains(&name);
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

#[test]
fn generic_and_pretty_forms_read_alike() {
    for name in UNARY_AND_BINARY {
        let binary = UNARY_AND_BINARY.iter().position(|n| n == name)
            >= UNARY_AND_BINARY.iter().position(|n| *n == "stablehlo.add");
        let logical = [
            "not",
            "popcnt",
            "and",
            "or",
            "xor",
            "shift_left",
            "shift_right_logical",
            "shift_right_arithmetic",
        ];
        let ty = if logical.iter().any(|l| name.ends_with(&format!(".{l}"))) {
            "tensor<2xi32>"
        } else {
            "tensor<2xf32>"
        };
        let (operands, types) =
            if binary { ("%a, %b", format!("{ty}, {ty}")) } else { ("%a", ty.to_string()) };
        let pretty = if name.starts_with("chlo") { format!("{ty} -> {ty}") } else { ty.to_string() };
        let module = |op: String| {
            format!("func.func @main(%a: {ty}, %b: {ty}) -> {ty} {{\n %0 = {op}\n return %0 : {ty}\n}}")
        };
        let a = parse(&module(format!("{name} {operands} : {pretty}"))).unwrap_or_else(|e| panic!("{e}"));
        let b = parse(&module(format!("\"{name}\"({operands}) : ({types}) -> {ty}")))
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(a, b);
        assert_eq!(a.nodes[0].op.name(), *name);
        round_trip(&a);
    }
    let generic = [
        (
            "\"stablehlo.slice\"(%a) <{limit_indices = array<i64: 4>, start_indices = array<i64: 1>, strides = array<i64: 2>}> : (tensor<4xf32>) -> tensor<2xf32>",
            "stablehlo.slice %a [1:4:2] : (tensor<4xf32>) -> tensor<2xf32>",
        ),
        (
            "\"stablehlo.iota\"() {iota_dimension = 0 : i64} : () -> tensor<2xf32>",
            "stablehlo.iota dim = 0 : tensor<2xf32>",
        ),
        (
            "\"stablehlo.constant\"() <{value = dense<[1.0, 2.0]> : tensor<2xf32>}> : () -> tensor<2xf32>",
            "stablehlo.constant dense<\"0x0000803F00000040\"> : tensor<2xf32>",
        ),
        (
            "\"stablehlo.pad\"(%a, %s) <{edge_padding_high = array<i64: -1>, edge_padding_low = array<i64: -1>, interior_padding = array<i64: 0>}> : (tensor<4xf32>, tensor<f32>) -> tensor<2xf32>",
            "stablehlo.pad %a, %s, low = [-1], high = [-1], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<2xf32>",
        ),
        (
            "\"stablehlo.broadcast_in_dim\"(%s) {broadcast_dimensions = dense<> : tensor<0xi64>} : (tensor<f32>) -> tensor<2xf32>",
            "stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<2xf32>",
        ),
    ];
    for (a, b) in generic {
        let module = |op: &str| {
            format!(
                "func.func @f(%a: tensor<4xf32>, %s: tensor<f32>) -> tensor<2xf32> {{\n %0 = {op}\n return %0 : tensor<2xf32>\n}}"
            )
        };
        let read = |op: &str| parse(&module(op)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(read(a), read(b));
    }
}

#[test]
fn constants_come_back_bit_by_bit() {
    let mut builder = GraphBuilder::new("main");
    let floats = [0.1f32, -0.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 2.0, 1e-45, f32::MAX, 1.0 / 3.0];
    let literals = [
        Literal::new([8], floats.to_vec()),
        Literal::new([1000], (0..1000).map(|i| i as f32 * 0.37).collect::<Vec<f32>>()),
        Literal::new([2, 2], vec![0.1f64, 1e300, f64::NEG_INFINITY, 5e-324]),
        Literal::new([3], vec![f16::from_f32(0.1), f16::MAX, f16::MIN_POSITIVE_SUBNORMAL]),
        Literal::new([3], vec![bf16::from_f32(0.1), bf16::MAX, bf16::NAN]),
        Literal::new([2], vec![i64::MIN, i64::MAX]),
        Literal::new([2], vec![u64::MAX, 0]),
        Literal::new([], vec![f32::from_bits(0x7f80_0001)]),
        Literal::new([300], (0..300).map(|i| i % 3 == 0).collect::<Vec<bool>>()),
    ];
    let outputs = literals.iter().map(|l| builder.constant(l.clone())).collect();
    let graph = builder.finish(outputs);
    let read = parse(&print(&graph)).unwrap();
    for (node, literal) in read.nodes.iter().zip(&literals) {
        let Op::Constant(constant) = &node.op else { panic!("constants only") };
        assert_eq!((&constant.value.ty, constant.value.to_bytes()), (&literal.ty, literal.to_bytes()));
    }
}

fn mesh() -> Mesh {
    Mesh::new("mesh", &[("x", 2), ("y", 4)])
}

fn layout(dims: &[&[AxisRef]], open: &[bool]) -> Annotation {
    let dims = dims.iter().map(|axes| DimSharding::over(axes.iter().copied())).collect();
    Annotation {
        mesh: 0,
        sharding: Sharding { dims, partial: Vec::new() },
        open: open.to_vec(),
        replicated: Vec::new(),
        origin: "plan.toml:7".into(),
    }
}

/// A graph with one of each fact that is stored in attributes and locations.
fn annotated_graph() -> Graph {
    let mesh = mesh();
    let mut builder = GraphBuilder::new("train step");
    builder.graph_mut().meshes =
        vec![mesh.clone(), Mesh { device_ids: Some(vec![1, 0]), ..Mesh::new("pair", &[("p", 2)]) }];
    let ty = TensorType::new(DType::F32, [4, 8]);
    let weight = builder.input("layers.0.\"w\"", ty.clone(), Role::Param);
    let moment = builder.input("optimizer.m.w", ty.clone(), Role::StateOf(weight));
    let tokens = builder.input("tokens", ty.clone(), Role::Input);
    let mut annotation =
        layout(&[&[mesh.full_axis(0)], &[AxisRef { axis: 1, pre: 2, size: 2 }]], &[true, false]);
    annotation.replicated = vec![AxisRef { axis: 1, pre: 1, size: 2 }];
    annotation.sharding.dims[0].unit = 4;
    annotation.sharding.dims[1].by_element = 1;
    builder.annotate(weight, annotation.clone());
    builder.path = "layers.0.attn".into();
    builder.phase = Phase::WeightGrad;
    (builder.microbatch, builder.remat) = (Some(3), Some(2));
    builder.location = Some(Location { file: "model \u{e9}.rs".into(), line: 12 });
    let gradient = builder.multiply(weight, tokens).unwrap();
    builder.graph_mut().value_mut(gradient).role = Role::GradOf(weight);
    builder.graph_mut().value_mut(gradient).name = "dw".into();
    let mut partial = layout(&[&[], &[mesh.full_axis(0)]], &[false, true]);
    partial.sharding.partial = vec![
        (AxisRef { axis: 1, pre: 1, size: 2 }, Combiner::Sum),
        (AxisRef { axis: 1, pre: 2, size: 2 }, Combiner::Max),
    ];
    builder.annotate(gradient, partial);
    builder.path = String::new();
    builder.phase = Phase::Update;
    (builder.microbatch, builder.remat) = (None, None);
    let updated = builder.add(weight, gradient).unwrap();
    builder.phase = Phase::Forward;
    let barrier = builder.push_typed(OptimizationBarrier, &[updated, moment], vec![ty.clone(), ty]);
    builder.annotate(barrier[1], Annotation { mesh: 1, ..layout(&[&[], &[]], &[true, true]) });
    builder.location = None;
    let loss = builder.tanh_for_test(barrier[1]);
    let mut graph = builder.finish_named(vec![("params.w".into(), barrier[0]), ("m \"1\"".into(), loss)]);
    graph.output_annotations = vec![Some(annotation), None];
    graph.aliases = vec![(0, 0), (1, 1)];
    graph
}

trait Tanh {
    fn tanh_for_test(&mut self, x: ValueId) -> ValueId;
}

impl Tanh for GraphBuilder {
    fn tanh_for_test(&mut self, x: ValueId) -> ValueId {
        self.unary(UnaryKind::Tanh, x).unwrap()
    }
}

#[test]
fn names_roles_layouts_origins_and_aliases_come_back() {
    let graph = annotated_graph();
    let text = round_trip(&graph);
    assert!(text.contains("loc(\"weight_grad@3~2/layers.0.attn\"(\"model \u{e9}.rs\":12:0))"), "{text}");
    assert!(text.contains("partita.role = \"grad_of %arg0\""), "{text}");
    assert!(text.contains("unreduced={\"y\":(1)2, \"y\":(2)2 max}"), "{text}");
    let bare = print_with(&graph, &PrintOptions { locations: false });
    assert!(!bare.contains("loc("));
    let read = parse(&bare).unwrap();
    assert_eq!(read.values, canonical(&graph).values);
    assert!(read.nodes.iter().all(|n| n.path.is_empty() && n.location.is_none()));
}
