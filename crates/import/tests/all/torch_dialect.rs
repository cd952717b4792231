//! Functions of the dialect torch, as torch-mlir prints them, against numbers worked out here.

use partita_import::Limits;
use partita_import::mlir::read_function;
use partita_ir::{Graph, Literal, evaluate};

fn read(text: &str) -> Graph {
    read_function(text, "test.mlir", None, &Limits::default())
        .unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// The results for these arguments, each with its extents.
fn run(text: &str, arguments: &[(&[usize], &[f64])]) -> Vec<Vec<f64>> {
    let graph = read(text);
    let literals: Vec<Literal> = (graph.inputs.iter().zip(arguments))
        .map(|(&input, (shape, values))| {
            assert_eq!(graph.ty(input).shape, *shape);
            Literal::from_f64(graph.ty(input), values.iter().copied())
        })
        .collect();
    let results = evaluate(&graph, &literals).unwrap_or_else(|error| panic!("{text}\n{error}"));
    results.iter().map(Literal::to_f64).collect()
}

fn assert_close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-5, "{got} instead of {want}");
    }
}

/// `x` of `rows` times the transpose of `w`, both row-major.
fn times_transposed(x: &[f64], w: &[f64], inner: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    x.chunks(inner).flat_map(|row| w.chunks(inner).map(move |column| dot(row, column))).collect()
}

fn softmax(rows: &[f64], width: usize) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x.exp() / sum).collect::<Vec<f64>>()
    };
    rows.chunks(width).flat_map(of_row).collect()
}

/// Two layers, the bias of the first in the resources of the file: 0.5, -0.25, 0.0 and 1.0 after four bytes of alignment.
pub const PERCEPTRON: &str = r#"module attributes {torch.debug_module_name = "Perceptron"} {
  func.func @forward(%arg0: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,2],f32> {
    %0 = torch.vtensor.literal(dense<[[1.0, 0.5, -1.0], [0.0, 2.0, 1.0], [-1.5, 0.25, 0.5], [1.0, 1.0, 1.0]]> : tensor<4x3xf32>) : !torch.vtensor<[4,3],f32>
    %1 = torch.vtensor.literal(dense_resource<bias.torch_float32> : tensor<4xf32>) : !torch.vtensor<[4],f32>
    %2 = torch.vtensor.literal(dense<[[1.0, -1.0, 0.5, 2.0], [0.25, 0.5, -2.0, 1.0]]> : tensor<2x4xf32>) : !torch.vtensor<[2,4],f32>
    %int1 = torch.constant.int 1
    %int-1 = torch.constant.int -1
    %none = torch.constant.none
    %3 = torch.aten.linear %arg0, %0, %1 : !torch.vtensor<[2,3],f32>, !torch.vtensor<[4,3],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,4],f32>
    %4 = torch.aten.relu %3 : !torch.vtensor<[2,4],f32> -> !torch.vtensor<[2,4],f32>
    %5 = torch.aten.t %2 : !torch.vtensor<[2,4],f32> -> !torch.vtensor<[4,2],f32>
    %6 = torch.aten.mm %4, %5 : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4,2],f32> -> !torch.vtensor<[2,2],f32>
    %7 = torch.aten.add.Tensor %6, %6, %int1 : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32>, !torch.int -> !torch.vtensor<[2,2],f32>
    %8 = torch.aten.softmax.int %7, %int-1, %none : !torch.vtensor<[2,2],f32>, !torch.int, !torch.none -> !torch.vtensor<[2,2],f32>
    return %8 : !torch.vtensor<[2,2],f32>
  }
}

{-#
  dialect_resources: {
    builtin: {
      bias.torch_float32: "0x040000000000003F000080BE000000000000803F"
    }
  }
#-}
"#;

#[test]
fn a_perceptron_computes_what_its_formula_says() {
    let x = [0.1, -0.2, 0.3, 1.0, 0.5, -1.0];
    let [up, down] = [
        [1.0, 0.5, -1.0, 0.0, 2.0, 1.0, -1.5, 0.25, 0.5, 1.0, 1.0, 1.0].as_slice(),
        [1.0, -1.0, 0.5, 2.0, 0.25, 0.5, -2.0, 1.0].as_slice(),
    ];
    let bias = [0.5, -0.25, 0.0, 1.0];
    let hidden: Vec<f64> =
        times_transposed(&x, up, 3).iter().zip(bias.iter().cycle()).map(|(h, b)| (h + b).max(0.0)).collect();
    let twice: Vec<f64> = times_transposed(&hidden, down, 4).iter().map(|x| 2.0 * x).collect();
    assert_close(&run(PERCEPTRON, &[(&[2, 3], &x)])[0], &softmax(&twice, 2));
    let graph = read(PERCEPTRON);
    assert_eq!(
        (graph.name.as_str(), graph.output_names.as_slice()),
        ("forward", &["result0".to_string()][..])
    );
    assert!(
        graph
            .nodes
            .iter()
            .any(|node| node.location.as_ref().is_some_and(|l| l.file == "test.mlir" && l.line == 9))
    );
}

/// Attention of two heads of width 2 over three positions, between layer norm and GELU.
pub const ATTENTION: &str = r#"func.func @main(%arg0: !torch.vtensor<[1,3,4],f32>, %arg1: !torch.vtensor<[4],f32>) -> (!torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,2,3,3],f32>) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int-2 = torch.constant.int -2
  %int-1 = torch.constant.int -1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %float2 = torch.constant.float 2.000000e+00
  %eps = torch.constant.float 1.000000e-05
  %str = torch.constant.str "tanh"
  %0 = torch.prim.ListConstruct %int4 : (!torch.int) -> !torch.list<int>
  %result0, %result1, %result2 = torch.aten.native_layer_norm %arg0, %0, %arg1, %none, %eps : !torch.vtensor<[1,3,4],f32>, !torch.list<int>, !torch.vtensor<[4],f32>, !torch.none, !torch.float -> !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,3,1],f32>, !torch.vtensor<[1,3,1],f32>
  %1 = torch.prim.ListConstruct %int1, %int3, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %2 = torch.aten.view %result0, %1 : !torch.vtensor<[1,3,4],f32>, !torch.list<int> -> !torch.vtensor<[1,3,2,2],f32>
  %3 = torch.aten.transpose.int %2, %int1, %int2 : !torch.vtensor<[1,3,2,2],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,2,3,2],f32>
  %4 = torch.aten.transpose.int %3, %int-2, %int-1 : !torch.vtensor<[1,2,3,2],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,2,2,3],f32>
  %5 = torch.aten.matmul %3, %4 : !torch.vtensor<[1,2,3,2],f32>, !torch.vtensor<[1,2,2,3],f32> -> !torch.vtensor<[1,2,3,3],f32>
  %6 = torch.aten.div.Scalar %5, %float2 : !torch.vtensor<[1,2,3,3],f32>, !torch.float -> !torch.vtensor<[1,2,3,3],f32>
  %7 = torch.aten._softmax %6, %int-1, %false : !torch.vtensor<[1,2,3,3],f32>, !torch.int, !torch.bool -> !torch.vtensor<[1,2,3,3],f32>
  %8 = torch.aten.matmul %7, %3 : !torch.vtensor<[1,2,3,3],f32>, !torch.vtensor<[1,2,3,2],f32> -> !torch.vtensor<[1,2,3,2],f32>
  %9 = torch.aten.transpose.int %8, %int1, %int2 : !torch.vtensor<[1,2,3,2],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,3,2,2],f32>
  %10 = torch.prim.ListConstruct %int1, %int3, %int-1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %11 = torch.aten.reshape %9, %10 : !torch.vtensor<[1,3,2,2],f32>, !torch.list<int> -> !torch.vtensor<[1,3,4],f32>
  %12 = torch.aten.gelu %11, %str : !torch.vtensor<[1,3,4],f32>, !torch.str -> !torch.vtensor<[1,3,4],f32>
  return %12, %7 : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,2,3,3],f32>
}"#;

#[test]
fn attention_computes_what_its_formula_says() {
    let x = [0.5, -1.0, 2.0, 0.25, 1.5, 0.75, -0.5, 0.0, -2.0, 1.0, 0.3, 0.6];
    let gain = [1.0, 0.5, 2.0, -1.0];
    let normal: Vec<f64> = (x.chunks(4))
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / 4.0;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4.0;
            (0..4).map(move |i| (row[i] - mean) / (variance + 1e-5).sqrt() * gain[i])
        })
        .collect();
    let (mut weights, mut mixed) = (Vec::new(), vec![0.0; 12]);
    for head in 0..2 {
        let part: Vec<f64> = normal.chunks(4).flat_map(|row| row[2 * head..2 * head + 2].to_vec()).collect();
        let scores: Vec<f64> = times_transposed(&part, &part, 2).iter().map(|s| s / 2.0).collect();
        let own = softmax(&scores, 3);
        for (at, position) in (0..3).flat_map(|at| (0..3).map(move |position| (at, position))) {
            for feature in 0..2 {
                mixed[4 * at + 2 * head + feature] += own[3 * at + position] * part[2 * position + feature];
            }
        }
        weights.extend(own);
    }
    let gelu =
        |x: &f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    let expected: Vec<f64> = mixed.iter().map(gelu).collect();
    let results = run(ATTENTION, &[(&[1, 3, 4], &x), (&[4], &gain)]);
    assert_close(&results[1], &weights);
    assert_close(&results[0], &expected);
}

#[test]
fn what_is_not_read_is_refused_with_its_position() {
    let refused = |text: String, code: &str, at: &str| {
        let error = read_function(&text, "test.mlir", None, &Limits::default()).map(|_| ()).unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), (code, Some(at)), "{error}");
    };
    let body = |line: &str| {
        let header = "func.func @f(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {";
        format!("{header}\n  {line}\n  return %r : !torch.vtensor<[2],f32>\n}}")
    };
    let unary = |op: &str, result: &str| {
        body(&format!("%r = torch.aten.{op} %a : !torch.vtensor<[2],f32> -> {result}"))
    };
    refused(unary("special_i0", "!torch.vtensor<[2],f32>"), "E141", "test.mlir:2:8");
    refused(unary("relu", "!torch.vtensor<[3],f32>"), "E357", "<root> at test.mlir:2");
    refused(unary("relu", "!torch.vtensor<[?],f32>"), "E142", "test.mlir:2:56");
    refused(unary("relu", "!torch.tensor"), "E142", "test.mlir:2:56");
    refused(
        body("%r = torch.operator \"mine\"(%a) : (!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>"),
        "E144",
        "test.mlir:2:8",
    );
    refused(
        body(
            "%r = torch.aten.mm %a, %b : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>",
        ),
        "E143",
        "test.mlir:2:26",
    );
    refused(body("%r = torch.constant.int 1.5"), "E145", "test.mlir:2:27");
    refused(
        body("%r = torch.vtensor.literal(dense_resource<w> : tensor<2xf32>) : !torch.vtensor<[2],f32>"),
        "E145",
        "test.mlir:2:30",
    );
}
