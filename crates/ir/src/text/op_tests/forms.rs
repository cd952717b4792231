//! Generic and pretty forms of the same op read alike.

use super::*;

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
fn known_operands_become_attributes() {
    let module = |op: &str, argument: &str, result: &str| {
        format!(
            "func.func @main(%x: {argument}, %i: tensor<2x1xi32>, %d: tensor<2xi64>) -> {result} {{\n\
             %zero = stablehlo.constant dense<0.0> : tensor<f32>\n\
             %one = stablehlo.constant dense<1> : tensor<2xi64>\n\
             %two = stablehlo.add %one, %one : tensor<2xi64>\n\
             %three = stablehlo.add %two, %one : tensor<2xi64>\n\
             %pads = stablehlo.constant dense<1> : tensor<1x2xi64>\n\
             %k = stablehlo.constant dense<1.0> : tensor<3x1x1xf32>\n\
             %0 = {op}\nreturn %0 : {result}\n}}"
        )
    };
    for (op, argument, result, printed) in [
        (
            "stablehlo.dynamic_pad %x, %zero, %one, %two, %one : (tensor<2x3xf32>, tensor<f32>, tensor<2xi64>, \
             tensor<2xi64>, tensor<2xi64>) -> tensor<6x8xf32>",
            "tensor<2x3xf32>",
            "tensor<6x8xf32>",
            "low = [1, 1], high = [2, 2], interior = [1, 1]",
        ),
        (
            "stablehlo.real_dynamic_slice %x, %one, %three, %two : (tensor<4x5xf32>, tensor<2xi64>, tensor<2xi64>, \
             tensor<2xi64>) -> tensor<1x1xf32>",
            "tensor<4x5xf32>",
            "tensor<1x1xf32>",
            "stablehlo.slice %arg0 [1:3:2, 1:3:2]",
        ),
        (
            "\"stablehlo.dynamic_gather\"(%x, %i, %one) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], \
             collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}> : (tensor<4x1xf32>, \
             tensor<2x1xi32>, tensor<2xi64>) -> tensor<2x1xf32>",
            "tensor<4x1xf32>",
            "tensor<2x1xf32>",
            "slice_sizes = array<i64: 1, 1>",
        ),
        (
            "\"stablehlo.dynamic_conv\"(%x, %k, %pads) <{batch_group_count = 1 : i64, dimension_numbers = \
             #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, feature_group_count = 1 : i64}> : (tensor<1x4x1xf32>, \
             tensor<3x1x1xf32>, tensor<1x2xi64>) -> tensor<1x4x1xf32>",
            "tensor<1x4x1xf32>",
            "tensor<1x4x1xf32>",
            "window = {pad = [[1, 1]]}",
        ),
    ] {
        let graph = parse(&module(op, argument, result)).unwrap_or_else(|e| panic!("{e}"));
        assert!(round_trip(&graph).contains(printed), "{op}");
        // A size that is an input is not known.
        for name in ["%one", "%two", "%pads"].iter().filter(|name| op.contains(**name)) {
            let unknown = op.replacen(name, "%d", 1);
            let error = parse(&module(&unknown, argument, result)).unwrap_err();
            assert!(["E144", "E146"].contains(&error.code), "{error}");
        }
    }
}
