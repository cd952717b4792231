//! Round trips, recorded programs, messages, and malformed texts. The ops are in `op_tests`.

use super::op_tests::{OPS, op_module, round_trip};
use super::*;
use crate::composite::Attributes;
use crate::graph::{Annotation, Location, Phase, Role, ValueId};
use crate::op::Op;
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
    assert_eq!(refused, Vec::<String>::new());
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
    let printed =
        print_with(&parse(&text).unwrap(), &PrintOptions { locations: false, ..Default::default() });
    assert_eq!(lines(&text), lines(&printed));
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
    let bare = print_with(&graph, &PrintOptions { locations: false, ..Default::default() });
    assert!(!bare.contains("loc("));
    let read = parse(&bare).unwrap();
    assert_eq!(read.values, canonical(&graph).values);
    assert!(read.nodes.iter().all(|n| n.path.is_empty() && n.location.is_none()));
}

#[test]
fn composites_come_back_with_their_decompositions() {
    let mut builder = GraphBuilder::new("main");
    let x = builder.input("x", TensorType::new(DType::F32, [2, 4]), Role::Input);
    let registry = Registry::default();
    let mut outputs = Vec::new();
    let template = registry.template("partita.softmax").expect("a template");
    let attributes: Attributes = [("dim".to_string(), crate::Attribute::Int(1))].into_iter().collect();
    let composite = Composite::new(template, attributes, &[builder.ty(x).clone()]).unwrap();
    let again = composite.clone();
    let y = builder.push1(composite, &[x]).unwrap();
    outputs.push(builder.push1(again, &[y]).unwrap());
    let mut own = GraphBuilder::new("double");
    let a = own.input("a", TensorType::scalar(DType::F32), Role::Activation);
    let b = own.add(a, a).unwrap();
    let definition = crate::CompositeDefinition {
        name: "user.double".into(),
        decomposition: own.finish(vec![b]),
        origin: crate::composite::Origin::Outlined,
    };
    let attributes: Attributes = [
        ("int", crate::Attribute::Int(-3)),
        ("float", crate::Attribute::Float(0.1)),
        ("infinite", crate::Attribute::Float(f64::NEG_INFINITY)),
        ("flag", crate::Attribute::Bool(true)),
        ("text", crate::Attribute::Text("a \"b\"\n".into())),
        ("ints", crate::Attribute::Ints(vec![1, -2])),
        ("none", crate::Attribute::Ints(Vec::new())),
        ("type", crate::Attribute::DType(DType::U16)),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_string(), v))
    .collect();
    let scalar = builder.scalar(DType::F32, 1.0);
    outputs.push(builder.push1(Composite { attributes, definition: definition.into() }, &[scalar]).unwrap());
    let graph = builder.finish(outputs);
    let text = round_trip(&graph);
    // Two applications, one function.
    assert_eq!(text.matches("func.func private").count(), 2, "{text}");
    assert!(text.contains("stablehlo.composite \"user.double\" %"), "{text}");
    // Without the template, the composite is an ordinary subgraph.
    let bare = parse_with(&text, "x", &Registry::empty()).unwrap();
    let Op::Composite(first) = &bare.nodes[0].op else { panic!("a composite") };
    assert_eq!(first.definition.origin, crate::composite::Origin::Outlined);
}

#[test]
fn a_gradient_composite_knows_what_it_is_the_gradient_of() {
    let ty = TensorType::new(DType::F32, [2, 4]);
    let registry = Registry::default();
    let template = registry.template("partita.softmax").expect("a template");
    let attributes: Attributes = [("dim".to_string(), crate::Attribute::Int(1))].into_iter().collect();
    let base = Composite::new(template, attributes.clone(), std::slice::from_ref(&ty)).unwrap().definition;
    let first = std::sync::Arc::new(base.vjp(&attributes, &[0], &[0]).unwrap());
    let mut builder = GraphBuilder::new("main");
    let x = builder.input("x", ty.clone(), Role::Input);
    let y = builder.push1(Composite { attributes, definition: first }, &[x, x]).unwrap();
    round_trip(&builder.finish(vec![y]));
}

#[test]
fn a_reduction_from_another_start_keeps_its_meaning() {
    let text = "func.func @main(%x: tensor<2x3xf32>, %s: tensor<f32>) -> (tensor<2xf32>, tensor<f32>, tensor<2xf32>) {
        %c = stablehlo.constant dense<5.0> : tensor<f32>
        %zero = stablehlo.constant dense<-0.0> : tensor<f32>
        %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
        %1 = stablehlo.reduce(%x init: %s) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
        %2 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
        return %0, %1, %2 : tensor<2xf32>, tensor<f32>, tensor<2xf32>
    }";
    let graph = parse(text).unwrap();
    for node in graph.nodes.iter().filter(|n| matches!(n.op, Op::Reduce(_))) {
        let (start, _) = graph.value(node.operands[1]).definition.expect("a constant");
        let Op::Constant(start) = &graph.node(start).op else { panic!("a constant") };
        assert!([0.0, f64::NEG_INFINITY].contains(&start.value.to_f64()[0]));
    }
    let x = Literal::new([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let results = crate::evaluate(&graph, &[x, Literal::scalar(DType::F32, 9.0)]).unwrap();
    let values: Vec<Vec<f64>> = results.iter().map(Literal::to_f64).collect();
    assert_eq!(values, [vec![11.0, 20.0], vec![9.0], vec![6.0, 15.0]]);
}

#[test]
fn calls_are_inlined_with_their_origin_and_regions_bring_in_what_they_use() {
    let text = r#"
#loc1 = loc("model.py":7:4 to :9)
module @m attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<f32> {jax.buffer_donor = true} loc("x"), %arg1: tensor<f32>) -> (tensor<f32> {jax.result_info = ""}) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0:2 = call @twice(%arg0) : (tensor<f32>) -> (tensor<f32>, tensor<f32>) loc(#loc2)
    %1 = stablehlo.while(%i = %c) : tensor<i32>
     cond {
      %9 = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    } do {
      %9 = func.call @twice(%arg1) : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
      stablehlo.return %i : tensor<i32>
    } loc("jit(f)/transpose(jvp(loops))/while")
    return %0#1 : tensor<f32>
  } loc(#loc)
  func.func private @twice(%a: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
    %0 = stablehlo.add %a, %a : tensor<f32> loc("jit(f)/jit(main)/layers_0/mlp/add"(#loc1))
    %1 = stablehlo.multiply %a, %0 : tensor<f32>
    return %0, %1 : tensor<f32>, tensor<f32>
  }
}
#loc = loc(unknown)
#loc2 = loc(callsite("g/call"("caller.py":3:1) at #loc1))
"#;
    let bad = parse(text).unwrap_err();
    assert!(bad.message.contains("a wrong number of results"), "{bad}");
    let graph = parse(&text.replace("%9 = func.call", "%9:2 = func.call")).unwrap();
    let add = &graph.nodes[1];
    assert_eq!(
        (add.path.as_str(), add.location.clone().unwrap().to_string()),
        ("layers_0.mlp", "model.py:7".into())
    );
    assert_eq!((graph.value(graph.inputs[0]).name.as_str(), graph.nodes[3].path.as_str()), ("x", "loops"));
    let multiply = &graph.nodes[2];
    assert_eq!(
        (multiply.path.as_str(), multiply.location.clone().unwrap().to_string()),
        ("g", "caller.py:3".into())
    );
    // The loop carries the captured float; the captured constant is copied into the condition.
    let Op::While(looping) = &graph.nodes[3].op else { panic!("a loop") };
    assert_eq!(graph.nodes[3].operands.len(), 2);
    assert_eq!((looping.condition.inputs.len(), looping.body.outputs.len()), (2, 2));
    assert!(matches!(looping.condition.nodes[0].op, Op::Constant(_)));
    round_trip(&graph);
}

/// The error for a text, as a whole message.
#[track_caller]
fn message(text: &str) -> String {
    parse_named(text, "f.mlir").expect_err("the text is wrong").to_string()
}

/// A function of two f32 vectors around one line.
fn line(op: &str) -> String {
    format!(
        "func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {{\n  {op}\n  return %0 : tensor<4xf32>\n}}"
    )
}

#[test]
fn wrong_texts_are_explained_where_they_are_wrong() {
    let cases: &[(String, &str)] = &[
        (
            line("%0 = stablehlo.ad %a, %b : tensor<4xf32>"),
            "error[E141]: unknown operation `stablehlo.ad`\n        at: f.mlir:2:8\n      note: %0 = stablehlo.ad %a, %b : tensor<4xf32>\n                 ^\n      help: did you mean `stablehlo.add` or `stablehlo.and` or `stablehlo.pad`?",
        ),
        (
            line("%0 = stablehlo.add %a, %c : tensor<4xf32>"),
            "error[E143]: `%c` is not defined here\n        at: f.mlir:2:26\n      note: %0 = stablehlo.add %a, %c : tensor<4xf32>\n                                   ^\n      help: did you mean `%a` or `%b`?",
        ),
        (
            line("%0 = stablehlo.add %a %b : tensor<4xf32>"),
            "error[E140]: unexpected text\n        at: f.mlir:2:25\n  expected: `:`\n     found: `%b`\n      note: %0 = stablehlo.add %a %b : tensor<4xf32>\n                                  ^",
        ),
        (
            line("%0 = stablehlo.add %a, %b : tensor<5xf32>"),
            "error[E146]: the operands of `stablehlo.add` do not have the types after `:`\n        at: f.mlir:2:8\n  expected: tensor<4xf32>, tensor<4xf32>\n     found: tensor<5xf32>, tensor<5xf32>\n      note: %0 = stablehlo.add %a, %b : tensor<5xf32>\n                 ^",
        ),
        (
            line("%0 = stablehlo.add %a, %b : tensor<4x!quant.uniform<i8:f32, 0.5>>"),
            "error[E142]: quantized element types are not supported\n        at: f.mlir:2:31\n     found: `tensor<4x!quant.uniform<i8:f32, 0.5>>`\n      note: %0 = stablehlo.add %a, %b : tensor<4x!quant.uniform<i8:f32, 0.5>>\n                                        ^",
        ),
        (
            line("%0 = stablehlo.add %a, %b : tensor<?xf32>"),
            "error[E142]: shapes must be static\n        at: f.mlir:2:31\n     found: `tensor<?xf32>`\n      note: %0 = stablehlo.add %a, %b : tensor<?xf32>\n                                        ^\n      help: lower the program with concrete shapes",
        ),
        (
            line("%0 = stablehlo.add %a, %b : tensor<-4xf32>"),
            "error[E142]: an extent is negative\n        at: f.mlir:2:31\n  expected: extents of at least 0\n     found: `tensor<-4xf32>`\n      note: %0 = stablehlo.add %a, %b : tensor<-4xf32>\n                                        ^",
        ),
        (
            line("%0 = stablehlo.custom_call @lapack_getrf(%a) : (tensor<4xf32>) -> tensor<4xf32>"),
            "error[E144]: custom call `@lapack_getrf` is not supported\n        at: f.mlir:2:8\n      note: %0 = stablehlo.custom_call @lapack_getrf(%a) : (tensor<4xf32>) -> tensor<4xf32>\n                 ^\n      help: a CPU's LAPACK is called by name; lower for a platform without it: `jax.jit(f).trace(..).lower(lowering_platforms=(\"tpu\",))`",
        ),
        (
            line("%0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<4xf32>"),
            "error[E145]: the literal's brackets do not match its type\n        at: f.mlir:2:27\n  expected: [4]\n     found: [2]\n      note: %0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<4xf32>\n                                    ^",
        ),
        (
            line("%0 = stablehlo.constant dense<300> : tensor<4xui8>"),
            "error[E145]: this element does not fit the literal's type\n        at: f.mlir:2:33\n  expected: a value of ui8\n     found: `300`\n      note: %0 = stablehlo.constant dense<300> : tensor<4xui8>\n                                          ^",
        ),
        (
            line("%0 = \"stablehlo.transpose\"(%a) : (tensor<4xf32>) -> tensor<4xf32>"),
            "error[E147]: `stablehlo.transpose` lacks the attribute `permutation`\n        at: f.mlir:2:8\n  expected: integers such as `array<i64: 0, 1>`\n      note: %0 = \"stablehlo.transpose\"(%a) : (tensor<4xf32>) -> tensor<4xf32>\n                 ^",
        ),
        (
            line("%0 = stablehlo.transpose %a, dims = [1] : (tensor<4xf32>) -> tensor<4xf32>"),
            "error[E105]: `permutation` of `stablehlo.transpose` must be different dimensions\n        at: f.mlir:2:8",
        ),
        (
            format!(
                "sdy.mesh @mesh = <[\"data\"=2]>\n{}",
                line("%0 = sdy.sharding_constraint %a <@mesh, [{\"date\"}]> : tensor<4xf32>")
            ),
            "error[E148]: mesh `@mesh` has no axis `date`\n        at: f.mlir:3:45\n  expected: one of `data`\n      note: %0 = sdy.sharding_constraint %a <@mesh, [{\"date\"}]> : tensor<4xf32>\n                                                      ^\n      help: did you mean `data`?",
        ),
        (
            format!(
                "sdy.mesh @mesh = <[\"data\"=2]>\n{}",
                line("%0 = sdy.sharding_constraint %a <@mesh, [{}, {}]> : tensor<4xf32>")
            ),
            "error[E148]: a sharding must have an entry for each dimension\n        at: f.mlir:3:8\n  expected: 1 dimensions for tensor<4xf32>\n     found: 2",
        ),
        (
            "module {\n  func.func @f() {\n    return\n".into(),
            "error[E140]: `{` is never closed\n        at: f.mlir:2:18\n      note: func.func @f() {\n                           ^",
        ),
        (
            "func.func @f() { return }\nfunc.func @g() { return }".into(),
            "error[E143]: there is no entry function\n        at: f.mlir\n  expected: a function `@main`, or a single public function\n     found: `@f`, `@g`",
        ),
        (
            "func.func @main() {\n  call @main() : () -> ()\n  return\n}".into(),
            "error[E149]: function `@main` calls itself\n        at: f.mlir:2:8\n      note: call @main() : () -> ()\n                 ^",
        ),
        (
            format!("// {}\n{}", "é".repeat(200), line("%0 = stablehlo.constant \"x")),
            "error[E140]: this string does not end on its line\n        at: f.mlir:3:27\n      note: %0 = stablehlo.constant \"x\n                                    ^",
        ),
    ];
    for (text, expected) in cases {
        let found = message(text);
        assert!(found.starts_with(expected), "--- expected\n{expected}\n--- found\n{found}");
    }
}

#[test]
fn the_caret_stays_in_view_on_lines_of_thousands_of_characters() {
    let many: Vec<String> = (0..400).map(|i| format!("%arg{i}: tensor<4xf32>")).collect();
    let text = format!("func.func @main({}, %x: tensor<4xf3>) {{ return }}", many.join(", "));
    let found = message(&text);
    let note: Vec<&str> = found.lines().skip_while(|l| !l.contains("note")).take(2).collect();
    assert!(note[0].chars().count() < 130 && note[1].ends_with('^'), "{found}");
    assert_eq!(note[0].chars().skip(note[1].chars().count() - 1).take(6).collect::<String>(), "tensor");
}

#[test]
fn texts_that_would_unfold_without_bound_are_refused() {
    // Each function calls the next twice: 2^40 nodes.
    let mut text = String::from("module {\n");
    for i in 0..40 {
        let name = if i == 0 { "public @main".to_string() } else { format!("private @f{i}") };
        let call = |n: usize| format!("%{n} = call @f{}(%a) : (tensor<f32>) -> tensor<f32>\n", i + 1);
        let body = if i == 39 {
            "%0 = stablehlo.add %a, %a : tensor<f32>\n%1 = stablehlo.add %0, %a : tensor<f32>\n".to_string()
        } else {
            call(0) + &call(1)
        };
        text.push_str(&format!(
            "func.func {name}(%a: tensor<f32>) -> tensor<f32> {{\n{body}return %1 : tensor<f32>\n}}\n"
        ));
    }
    text.push('}');
    assert_eq!(parse(&text).unwrap_err().code, "E149");
    let deep = "{a = ".repeat(100_000) + &"}".repeat(100_000);
    assert_eq!(
        parse(&line(&format!("%0 = stablehlo.add %a, %b {deep} : tensor<4xf32>"))).unwrap_err().code,
        "E149"
    );
    let nested = |levels: usize| {
        let open = "%0 = \"stablehlo.case\"(%i) ({\n".repeat(levels);
        let close = "stablehlo.return %0 : tensor<f32>\n}) : (tensor<i32>) -> tensor<f32>\n".repeat(levels);
        let body = format!("{open}%0 = stablehlo.tanh %x : tensor<f32>\n{close}");
        format!(
            "func.func @main(%i: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {{\n{body}return %0 : tensor<f32>\n}}"
        )
    };
    round_trip(&parse(&nested(40)).unwrap());
    assert_eq!(parse(&nested(5_000)).unwrap_err().code, "E149");
    let huge = line("%0 = stablehlo.constant dense<0.0> : tensor<100000x100000xf32>");
    assert_eq!(parse(&huge).unwrap_err().code, "E149");
    let huge = line("%0 = stablehlo.add %a, %b : tensor<99999999999x99999999999x99999999999xf32>");
    assert_eq!(parse(&huge).unwrap_err().code, "E142");
}

/// A random straight-line program.
fn random_graph(choices: &[(u8, u8, u8)]) -> Graph {
    let mut builder = GraphBuilder::new("main");
    let ty = TensorType::new(DType::F32, [2, 3]);
    let mut values: Vec<ValueId> = (0..3)
        .map(|i| {
            builder.input(&format!("in.{i}"), ty.clone(), if i == 0 { Role::Param } else { Role::Input })
        })
        .collect();
    let phases = [Phase::Forward, Phase::InputGrad, Phase::WeightGrad, Phase::Update];
    for &(kind, a, b) in choices {
        let a_id = values[a as usize % values.len()];
        let b_id = values[b as usize % values.len()];
        builder.path = if b % 3 == 0 { String::new() } else { format!("layers.{}.x", b % 5) };
        builder.phase = phases[(a % 4) as usize];
        builder.microbatch = (a % 5 == 0).then_some(b as usize);
        builder.remat = (a % 7 == 0).then_some(a as usize);
        builder.location = (b % 4 == 1).then(|| Location { file: "m.py".into(), line: a as u32 });
        let result = match kind % 9 {
            0 => builder.add(a_id, b_id).unwrap(),
            1 => builder.unary(UnaryKind::Erf, a_id).unwrap(),
            2 => {
                let flipped = builder.transpose(a_id, &[1, 0]).unwrap();
                builder.transpose(flipped, &[1, 0]).unwrap()
            }
            3 => {
                let reduced = builder.reduce(Combiner::ALL[(b % 4) as usize], a_id, &[1]).unwrap();
                builder.broadcast_in_dim(reduced, &[2, 3], &[0]).unwrap()
            }
            4 => {
                let less = builder.compare(Direction::Le, a_id, b_id).unwrap();
                builder.select(less, a_id, b_id).unwrap()
            }
            5 => {
                let data: Vec<f32> =
                    (0..6).map(|i| f32::from_bits((a as u32) << 20 | (b as u32) << 9 | i)).collect();
                builder.constant(Literal { ty: ty.clone(), data: Storage::F32(data) })
            }
            6 => {
                let piece = builder.slice_dim(a_id, 1, 0, 1).unwrap();
                let rest = builder.slice_dim(b_id, 1, 1, 3).unwrap();
                builder.concatenate(&[piece, rest], 1).unwrap()
            }
            7 => {
                let joined = builder.concatenate(&[a_id, b_id], 0).unwrap();
                builder.annotate(joined, layout(&[&[], &[]], &[a % 2 == 0, b % 2 == 0]));
                builder.slice_dim(joined, 0, 1, 3).unwrap()
            }
            _ => {
                let half = builder.convert(a_id, DType::BF16).unwrap();
                builder.graph_mut().value_mut(half).name = format!("half.{b}");
                builder.graph_mut().value_mut(half).role =
                    if a % 2 == 0 { Role::GradOf(b_id) } else { Role::RematOf(b_id) };
                builder.convert(half, DType::F32).unwrap()
            }
        };
        values.push(result);
    }
    builder.graph_mut().meshes = vec![mesh()];
    let last = *values.last().expect("inputs at least");
    builder.finish_named(vec![("out".into(), last), ("first".into(), values[1])])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_survive_printing_and_reading(choices in prop::collection::vec(any::<(u8, u8, u8)>(), 0..25)) {
        let graph = random_graph(&choices);
        let text = print(&graph);
        let read = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(print(&read), text);
        // NaN constants are equal in bits, which the texts show, but not to themselves.
        let has_nan = graph.nodes.iter().any(|n| matches!(&n.op, Op::Constant(c) if c.value.to_f64().iter().any(|v| v.is_nan())));
        prop_assert!(has_nan || read == canonical(&graph));
    }

    #[test]
    fn damaged_texts_are_refused_or_read_but_never_panic(
        which in 0usize..100,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..7, any::<prop::sample::Index>()), 1..4),
    ) {
        let texts = damage_base();
        let mut text = texts[which % texts.len()].clone();
        for (at, kind, from) in edits {
            text = damage(&text, at.index(text.len().max(1)), kind, from.index(text.len().max(1)));
        }
        if let Ok(graph) = parse(&text) {
            let printed = print(&graph);
            let again = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
            prop_assert_eq!(print(&again), printed);
        }
    }
}

/// Small modules to damage: every op, annotations, and the sharded recordings.
fn damage_base() -> Vec<String> {
    let mut texts: Vec<String> = OPS.iter().map(|(arguments, op)| op_module(arguments, op)).collect();
    texts.push(print(&annotated_graph()));
    texts.extend(fixture("sharded_manual").split("// -----").map(str::to_string));
    texts
}

/// Deletes or doubles a character, replaces it by another or by a token of the text, truncates, or changes a digit.
fn damage(text: &str, at: usize, kind: usize, from: usize) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    if characters.is_empty() {
        return String::new();
    }
    let (at, from) = (at % characters.len(), from % characters.len());
    match kind {
        0 => {
            characters.remove(at);
        }
        1 => characters.insert(at, characters[from]),
        2 => characters[at] = characters[from],
        3 => characters.truncate(at),
        4 => {
            let piece: Vec<char> = characters[from..(from + 12).min(characters.len())].to_vec();
            characters.splice(at..at, piece);
        }
        5 => {
            let end = (at + 9).min(characters.len());
            characters.drain(at..end);
        }
        _ => {
            let digit = (at..characters.len()).find(|&i| characters[i].is_ascii_digit());
            if let Some(digit) = digit {
                characters[digit] = char::from(b'0' + (from % 10) as u8);
                if from % 3 == 0 {
                    characters.splice(digit..digit, "99999999".chars());
                }
            }
        }
    }
    characters.into_iter().collect()
}
