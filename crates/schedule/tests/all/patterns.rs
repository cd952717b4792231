//! Patterns: matches and non-matches, on models and on random graphs against brute force.

use partita_base::{DType, Result};
use partita_ir::composites::SOFTMAX;
use partita_ir::ops::{Direction, DotGeneral, UnaryKind};
use partita_ir::outline::outline_over;
use partita_ir::{Graph, GraphBuilder, Operation, Phase, Role, TensorType, ValueId, text};
use partita_nn::{BertConfig, Context, GptConfig, Linear, ModelConfig, MultiheadAttention, ReLU, Sequential};
use partita_schedule::{Match, Pattern};

const SHAPE: [usize; 2] = [4, 6];

/// A graph over f32 inputs of one shape.
fn graph(
    inputs: &[&str],
    build: impl FnOnce(&mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>>,
) -> Graph {
    let mut b = GraphBuilder::new("model");
    let ty = TensorType::new(DType::F32, SHAPE);
    let values: Vec<ValueId> = inputs.iter().map(|name| b.input(name, ty.clone(), Role::Input)).collect();
    let outputs = build(&mut b, &values).unwrap();
    b.finish(outputs)
}

fn find(pattern: &str, graph: &Graph) -> Vec<Match> {
    find_all(&Pattern::parse(pattern).unwrap(), graph)
}

fn find_all(pattern: &Pattern, graph: &Graph) -> Vec<Match> {
    pattern.find(graph, &|_| true)
}

/// The ops of a match without skipped nodes.
fn ops<'a>(graph: &'a Graph, found: &Match) -> Vec<&'a str> {
    let names = found.nodes.iter().map(|&id| graph.node(id).op.name());
    names.filter(|name| !["stablehlo.constant", "stablehlo.broadcast_in_dim"].contains(name)).collect()
}

/// Inputs of a match by the names of values.
fn bound<'a>(graph: &'a Graph, found: &'a Match) -> Vec<(&'a str, &'a str)> {
    found.inputs.iter().map(|(name, &v)| (name.as_str(), graph.value(v).name.as_str())).collect()
}

#[test]
fn relu_plus_its_input_is_two_ops() {
    let graph = graph(&["x"], |b, v| {
        let zero = b.full_like(v[0], 0.0)?;
        let relu = b.maximum(v[0], zero)?;
        Ok(vec![b.add(relu, v[0])?])
    });
    for pattern in ["relu(x) + x", "x + relu(x)", "maximum(0, x) + x"] {
        let found = find(pattern, &graph);
        assert_eq!(found.len(), 1, "{pattern}");
        assert_eq!(ops(&graph, &found[0]), ["stablehlo.maximum", "stablehlo.add"]);
        assert_eq!(found[0].nodes.len(), 4, "with the constant and its broadcast");
        assert_eq!(bound(&graph, &found[0]), [("x", "x")]);
        assert_eq!(found[0].outputs, graph.outputs);
    }
    assert!(find("relu(x) + y + x", &graph).is_empty());
    assert!(find("maximum(x, 1) + x", &graph).is_empty(), "another number");
    assert!(find("minimum(x, 0) + x", &graph).is_empty(), "another op");
}

#[test]
fn functional_relu_is_the_module() {
    let mut cx = Context::new("net", DType::F32, true);
    let x = cx.input("x", DType::F32, &SHAPE);
    let y = cx.call("act", &ReLU, x).unwrap();
    let graph = cx.finish(vec![("y".into(), y)]).unwrap().forward;
    for pattern in ["relu(x)", "module(\"act\", x)"] {
        let found = find(pattern, &graph);
        assert_eq!(found.len(), 1, "{pattern}");
        assert_eq!(ops(&graph, &found[0]), ["stablehlo.compare", "stablehlo.select"]);
        assert_eq!(found[0].outputs, [y]);
    }
}

#[test]
fn a_product_with_relu_and_one() {
    let square = |b: &mut GraphBuilder, x, w| {
        let y = b.linear(x, w)?;
        let zero = b.full_like(y, 0.0)?;
        let relu = b.maximum(zero, y)?;
        b.offset(relu, 1.0)
    };
    let model = graph(&["x", "w"], |b, v| Ok(vec![square(b, v[0], v[1])?]));
    let code =
        Pattern::from_model(&[("a", &[2, 8]), ("b", &[3, 8])], |b, v| Ok(vec![square(b, v[0], v[1])?]));
    let written = ["relu(dot_general(a, b)) + 1", "relu(linear(a, b)) + 1", "1.0 + relu(linear(a, b))"];
    for pattern in written.map(Pattern::parse).into_iter().chain([code]) {
        let pattern = pattern.unwrap();
        let found = find_all(&pattern, &model);
        assert_eq!(found.len(), 1, "{}", pattern.text());
        assert_eq!(ops(&model, &found[0]).len(), 3);
        assert_eq!(bound(&model, &found[0]), [("a", "x"), ("b", "w")]);
    }
}

#[test]
fn a_shared_value_is_one_value() {
    let model = graph(&["x", "y", "z", "w"], |b, v| {
        let sum = b.add(v[0], v[1])?;
        let good = b.subtract(v[1], v[2])?;
        let bad = b.subtract(v[3], v[2])?;
        Ok(vec![b.multiply(sum, bad)?, b.multiply(sum, good)?])
    });
    let found = find("(x + y) * (y - z)", &model);
    assert_eq!(found.len(), 1, "the same ops over other values are not the pattern");
    assert_eq!(ops(&model, &found[0]).len(), 3);
    assert_eq!(bound(&model, &found[0]), [("x", "x"), ("y", "y"), ("z", "z")]);
    assert_eq!(found[0].outputs, [model.outputs[1]]);
    // With the operands of the addition swapped in the pattern, x and y are swapped.
    let found = find("(y + x) * (y - z)", &model);
    assert_eq!(bound(&model, &found[0]), [("y", "y"), ("x", "x"), ("z", "z")]);
    // A subtraction does not commute.
    assert!(find("(x + y) * (z - y)", &model).is_empty());
}

#[test]
fn a_diamond_is_found_among_distractors() {
    let model = graph(&["x", "y"], |b, v| {
        let alone = b.scale(v[1], 3.0)?;
        let a = b.add(v[0], v[1])?;
        let triple = b.scale(a, 3.0)?;
        let other = b.scale(alone, 2.0)?;
        let double = b.scale(a, 2.0)?;
        let apart = b.add(other, triple)?;
        let diamond = b.add(double, triple)?;
        Ok(vec![apart, diamond])
    });
    let found = find("a = x + y; b = a * 2; c = a * 3; b + c", &model);
    assert_eq!(found.len(), 1);
    assert_eq!(ops(&model, &found[0]).len(), 4);
    assert_eq!(found[0].outputs, [model.outputs[1]]);
    // A pattern whose operands share `a` does not match operands that share nothing.
    assert_eq!(find("a * 2 + b * 3", &model).len(), 1, "one of the two, they share c");
    assert!(find("a * 2 + a * 4", &model).is_empty());
}

#[test]
fn the_order_of_the_program_does_not_matter() {
    let model = |swapped: bool| {
        graph(&["x", "y"], |b, v| {
            let (first, second) = match swapped {
                false => (b.negate(v[0])?, b.exponential(v[1])?),
                true => {
                    let second = b.exponential(v[1])?;
                    (b.negate(v[0])?, second)
                }
            };
            Ok(vec![b.divide(first, second)?])
        })
    };
    for swapped in [false, true] {
        let model = model(swapped);
        assert_eq!(find("-x / exponential(y)", &model).len(), 1);
        assert_eq!(find("d = exponential(y); n = -x; n / d", &model).len(), 1);
        assert!(find("exponential(y) / -x", &model).is_empty());
    }
}

#[test]
fn several_outputs_and_repeated_matches() {
    let model = graph(&["x", "y"], |b, v| {
        let first = b.add(v[0], v[1])?;
        let tanh = b.unary(UnaryKind::Tanh, first)?;
        let second = b.add(tanh, v[1])?;
        let other = b.unary(UnaryKind::Tanh, second)?;
        Ok(vec![tanh, other])
    });
    let found = find("h = a + b; tanh(h), h", &model);
    assert_eq!(found.len(), 2);
    for (found, tanh) in found.iter().zip(&model.outputs) {
        assert_eq!(found.outputs[0], *tanh);
        assert_eq!(ops(&model, found).len(), 2);
    }
    assert!(found[0].nodes < found[1].nodes, "in graph order");
    // Unconnected but for an input.
    let found = find("a + b, c + b", &model);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].inputs["b"], model.inputs[1]);
    // Matches do not overlap.
    let chain = graph(&["x"], |b, v| {
        let mut x = v[0];
        for _ in 0..5 {
            x = b.negate(x)?;
        }
        Ok(vec![x])
    });
    let found = find("-(-x)", &chain);
    let nodes: Vec<Vec<usize>> =
        found.iter().map(|m| m.nodes.iter().map(|id| id.index()).collect()).collect();
    assert_eq!(nodes, [[0, 1], [2, 3]]);
}

#[test]
fn an_input_is_never_computed_inside() {
    let model = graph(&["x", "y"], |b, v| {
        let h = b.add(v[0], v[1])?;
        Ok(vec![b.multiply(h, h)?])
    });
    assert!(find("(x + y) * z", &model).is_empty());
    assert_eq!(find("h = x + y; h * h", &model).len(), 1);
}

#[test]
fn inputs_are_bound_before_a_broadcast() {
    let mut b = GraphBuilder::new("bias");
    let x = b.input("x", TensorType::new(DType::F32, [2, 3, 3]), Role::Input);
    let bias = b.input("bias", TensorType::new(DType::F32, [3]), Role::Param);
    let rows = b.broadcast_in_dim(bias, &[2, 3, 3], &[1]).unwrap();
    let by_rows = b.add(x, rows).unwrap();
    let columns = b.broadcast_trailing(bias, &[2, 3, 3]).unwrap();
    let by_columns = b.add(x, columns).unwrap();
    let both = b.multiply(by_rows, columns).unwrap();
    let graph = b.finish(vec![by_columns, both]);

    let found = find("x + b", &graph);
    assert_eq!(found.len(), 2);
    assert_eq!(bound(&graph, &found[0]), [("x", "x"), ("b", "bias")]);
    assert_eq!(found[0].nodes.len(), 2, "the broadcast belongs to it");
    // A bias along rows and the same bias along columns are two tensors.
    assert!(find("(x + b) * b", &graph).is_empty());
    assert_eq!(find("(x + b) * c", &graph).len(), 1);

    let trailing = Pattern::from_model(&[("x", &[7, 2]), ("b", &[2])], |b, v| {
        let shape = b.shape(v[0]);
        let bias = b.broadcast_trailing(v[1], &shape)?;
        Ok(vec![b.add(v[0], bias)?])
    });
    let found = find_all(&trailing.unwrap(), &graph);
    assert_eq!(found.len(), 1, "model code says which dimension");
    assert_eq!(bound(&graph, &found[0]), [("x", "x"), ("b", "bias")]);
    assert_eq!(found[0].outputs, [by_columns]);
    // Without a broadcast in the code, the input matches the broadcast itself.
    let plain = Pattern::from_model(&[("x", &[7, 2]), ("b", &[7, 2])], |b, v| Ok(vec![b.add(v[0], v[1])?]));
    let found = find_all(&plain.unwrap(), &graph);
    assert_eq!((found.len(), found[0].inputs["b"], found[0].nodes.len()), (2, rows, 1));
}

#[test]
fn numbers_are_compared_as_the_graph_rounds_them() {
    let mut b = GraphBuilder::new("bf16");
    let x = b.input("x", TensorType::new(DType::BF16, SHAPE), Role::Input);
    let scaled = b.scale(x, 0.1).unwrap();
    let wide = b.scalar(DType::F32, 0.1);
    let narrow = b.convert(wide, DType::BF16).unwrap();
    let narrow = b.broadcast_scalar(narrow, &SHAPE).unwrap();
    let again = b.multiply(scaled, narrow).unwrap();
    let graph = b.finish(vec![again]);
    let found = find("x * 0.1", &graph);
    assert_eq!(found.iter().map(|m| m.nodes.len()).collect::<Vec<usize>>(), [3, 4]);
    assert_eq!(find("x * 0.1001", &graph).len(), 1, "bf16 does not tell them apart, f32 does");
    assert!(find("x * 0.2", &graph).is_empty());
}

#[test]
fn projections_with_a_transpose_are_three_matches_of_two() {
    let mut cx = Context::new("net", DType::F32, true);
    let x = cx.input("x", DType::F32, &[2, 5, 6]);
    let mut outputs = Vec::new();
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        let y = cx.call(name, &Linear::new(6, 6), x).unwrap();
        let y = cx.builder.transpose(y, &[0, 2, 1]).unwrap();
        outputs.push((name.to_string(), y));
    }
    let expected: Vec<ValueId> = outputs.iter().map(|(_, v)| *v).collect();
    let graph = cx.finish(outputs).unwrap().forward;
    let found = find("transpose(module(\"[qkv]_proj\", x))", &graph);
    assert_eq!(found.iter().map(|m| m.outputs[0]).collect::<Vec<_>>(), expected[..3]);
    for found in &found {
        let paths = found.nodes.iter().map(|&id| graph.node(id).path.as_str());
        let mut parts: Vec<&str> = paths.collect();
        parts.dedup();
        assert_eq!(parts.len(), 2, "the module and the transpose: {parts:?}");
        assert_eq!(bound(&graph, found), [("x", "x")], "parameters are not arguments");
    }
    assert_eq!(find("module(\".*_proj\", x)", &graph).len(), 4);
    assert!(find("module(\"proj\", x)", &graph).is_empty(), "whole components");
    assert!(find("module(\"[qkv]_proj\", x, y)", &graph).is_empty(), "the module has one input");
}

#[test]
fn attention_projections_of_bert() {
    let config = BertConfig { layers: 6, dim: 8, heads: 2, sequence: 4, vocab: 11, ..BertConfig::default() };
    let graph = ModelConfig::Bert(config).build(2, DType::F32, true).unwrap().forward;
    let pattern = Pattern::parse("transpose(reshape(module(\"attn.[qkv]_proj\", x)))").unwrap();
    let found = find_all(&pattern, &graph);
    assert_eq!(found.len(), 3 * 6);
    for (number, matches) in found.chunks(3).enumerate() {
        let prefix = format!("layers.{number}.");
        assert!(matches.iter().all(|m| m.inputs["x"] == matches[0].inputs["x"]), "one input per layer");
        assert!(matches.iter().flat_map(|m| &m.nodes).all(|&id| graph.node(id).path.starts_with(&prefix)));
    }
    let third = pattern.find(&graph, &|id| graph.node(id).path.starts_with("layers.3."));
    assert_eq!(third, found[9..12]);
    assert_eq!(find("module(\"layers.[12].attn\", x)", &graph).len(), 2);
    assert_eq!(find("module(\"layers.[12]\", x)", &graph).len(), 2);
    assert_eq!(find("attention(q, k, v)", &graph).len(), 6);
}

fn scaled_dot_product(b: &mut GraphBuilder, v: &[ValueId]) -> Result<Vec<ValueId>> {
    let [q, k, v, mask] = v[..] else { unreachable!("four inputs") };
    let product = DotGeneral {
        lhs_batch: vec![0, 1],
        rhs_batch: vec![0, 1],
        lhs_contracting: vec![3],
        rhs_contracting: vec![2],
        result_dtype: None,
    };
    let k = b.transpose(k, &[0, 1, 3, 2])?;
    let scores = b.dot_general(q, k, product.clone())?;
    let eight = b.full_like(scores, 8.0)?;
    let scores = b.divide(scores, eight)?;
    let mask = b.broadcast_trailing(mask, &b.shape(scores))?;
    let scores = b.add(scores, mask)?;
    let weights = b.composite(&SOFTMAX, &[], &[scores])?;
    Ok(vec![b.dot_general(weights, v, product)?])
}

#[test]
fn attention_written_in_primitives_is_six_ops() {
    let code = Pattern::from_model(
        &[("q", &[1, 1, 2, 3]), ("k", &[1, 1, 2, 3]), ("v", &[1, 1, 2, 3]), ("mask", &[2, 2])],
        scaled_dot_product,
    )
    .unwrap();
    let written =
        Pattern::parse("scores = dot_general(q, transpose(k)) / 8; dot_general(softmax(scores + mask), v)")
            .unwrap();
    let mut b = GraphBuilder::new("two_heads");
    let heads = TensorType::new(DType::BF16, [3, 2, 5, 4]);
    let mask = b.input("mask", TensorType::new(DType::BF16, [5, 5]), Role::Input);
    let mut outputs = Vec::new();
    for layer in 0..2 {
        // The operands are used in another order than they are named.
        let [k, v, q] =
            ["k", "v", "q"].map(|name| b.input(&format!("{name}{layer}"), heads.clone(), Role::Input));
        outputs.extend(scaled_dot_product(&mut b, &[q, k, v, mask]).unwrap());
    }
    let graph = b.finish(outputs);
    for pattern in [code, written] {
        let found = find_all(&pattern, &graph);
        assert_eq!(found.len(), 2, "{}", pattern.text());
        assert_eq!(ops(&graph, &found[1]).len(), 6);
        let mut inputs = bound(&graph, &found[1]);
        inputs.sort();
        assert_eq!(inputs, [("k", "k1"), ("mask", "mask"), ("q", "q1"), ("v", "v1")]);
    }
}

#[test]
fn linear_and_relu_of_a_head_are_two_matches() {
    let mut cx = Context::new("lenet", DType::F32, true);
    let x = cx.input("x", DType::F32, &[2, 12]);
    let head = Sequential::new()
        .push_named("fc1", Linear::new(12, 10))
        .push_named("relu1", ReLU)
        .push_named("fc2", Linear::new(10, 8))
        .push_named("relu2", ReLU)
        .push_named("fc3", Linear::new(8, 4));
    let y = cx.call("head", &head, x).unwrap();
    let graph = cx.finish(vec![("y".into(), y)]).unwrap().forward;
    let found = find("relu(linear(x, w, b))", &graph);
    let weights: Vec<Vec<(&str, &str)>> = found.iter().map(|m| bound(&graph, m)[1..].to_vec()).collect();
    let of = |module: &str| vec![format!("head.{module}.weight"), format!("head.{module}.bias")];
    let names: Vec<Vec<String>> =
        weights.iter().map(|w| w.iter().map(|(_, name)| name.to_string()).collect()).collect();
    assert_eq!(names, [of("fc1"), of("fc2")]);
    assert_eq!(find("module(\"relu.\", module(\"fc.\", x))", &graph).len(), 2);
    assert_eq!(find("linear(x, w, b)", &graph).len(), 3);
    // A contraction over the first dimension of the weight is no linear layer.
    let other = graph_of_product();
    assert!(find("linear(x, w)", &other).is_empty());
    assert_eq!(find("dot_general(x, w)", &other).len(), 1);
}

fn graph_of_product() -> Graph {
    let mut b = GraphBuilder::new("product");
    let x = b.input("x", TensorType::new(DType::F32, [2, 3]), Role::Input);
    let w = b.input("w", TensorType::new(DType::F32, [3, 4]), Role::Param);
    let dims = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
    let y = b.dot_general(x, w, dims).unwrap();
    b.finish(vec![y])
}

#[test]
fn only_the_forward_pass_is_searched() {
    let mut b = GraphBuilder::new("phases");
    let x = b.input("x", TensorType::new(DType::F32, SHAPE), Role::Input);
    let y = b.negate(x).unwrap();
    b.phase = Phase::Update;
    let z = b.negate(y).unwrap();
    let graph = b.finish(vec![z]);
    assert_eq!(find("-x", &graph).len(), 1);
}

#[test]
fn attributes_are_free_in_expressions_and_equal_in_code() {
    let model = graph(&["x"], |b, v| {
        let low = b.slice_dim(v[0], 1, 0, 3)?;
        let high = b.slice_dim(v[0], 1, 3, 6)?;
        Ok(vec![b.compare(Direction::Lt, low, high)?])
    });
    let code = |start: usize, direction: Direction| {
        let pattern = Pattern::from_model(&[("x", &[9, 6]), ("y", &[9, 3])], |b, v| {
            let part = b.slice_dim(v[0], 1, start, start + 3)?;
            Ok(vec![b.compare(direction, part, v[1])?])
        });
        find_all(&pattern.unwrap(), &model).len()
    };
    assert_eq!(find("compare(slice(x), y)", &model).len(), 1);
    assert_eq!((code(0, Direction::Lt), code(3, Direction::Lt), code(0, Direction::Gt)), (1, 0, 0));
}

#[test]
fn text_reads_back_to_the_same_pattern() {
    let code = Pattern::from_model(
        &[("q", &[1, 1, 2, 3]), ("k", &[1, 1, 2, 3]), ("v", &[1, 1, 2, 3]), ("mask", &[2, 2])],
        scaled_dot_product,
    )
    .unwrap();
    assert!(code.text().contains("func.func"));
    let expression = Pattern::parse("h = x + bias;\n  gelu(h), h").unwrap();
    assert_eq!(expression.text(), "h = x + bias;\n  gelu(h), h");
    for pattern in [code, expression] {
        let again = Pattern::parse(pattern.text()).unwrap();
        assert_eq!((&again, again.text(), again.inputs()), (&pattern, pattern.text(), pattern.inputs()));
    }
    assert_ne!(Pattern::parse("x + y").unwrap(), Pattern::parse("y + x").unwrap());

    // A pattern that was printed and parsed finds the same.
    let mut cx = Context::new("net", DType::F32, true);
    let x = cx.input("x", DType::F32, &[2, 4, 6]);
    let y = cx.call("attn", &MultiheadAttention::new(6, 2), x).unwrap();
    let graph = cx.finish(vec![("y".into(), y)]).unwrap().forward;
    let attention = Pattern::from_model(&[("x", &[2, 4, 6]), ("w", &[6, 6]), ("b", &[6])], |b, v| {
        let y = b.linear(v[0], v[1])?;
        let bias = b.broadcast_trailing(v[2], &b.shape(y))?;
        let y = b.add(y, bias)?;
        let y = b.reshape(y, &[2, 4, 2, 3])?;
        Ok(vec![b.transpose(y, &[0, 2, 1, 3])?])
    })
    .unwrap();
    let found = find_all(&attention, &graph);
    assert_eq!(found.len(), 3);
    assert_eq!(find_all(&Pattern::parse(attention.text()).unwrap(), &graph), found);
    // The whole graph matches itself.
    let whole = Pattern::parse(&text::print(&graph)).unwrap();
    assert_eq!(find_all(&whole, &graph).len(), 1);
}

#[test]
fn what_cannot_be_read_says_where_and_what_was_expected() {
    for (text, at, expected, help) in [
        ("x + geul(y)", "column 5", "an op", "gelu"),
        ("x +\n  * y", "line 2, column 3", "a name, a number", ""),
        ("(x + y", "column 7", "`)`", ""),
        ("", "column 1", "a name", ""),
        ("x + y)", "column 6", "the end", ""),
        ("a = x + y", "column 10", "`;`", ""),
        ("x + y; x", "column 6", "an operator", ""),
        ("x + 1.2.3", "column 5", "digits", ""),
        ("x ? y", "column 3", "names", ""),
        ("relu(x, y)", "column 1", "relu(x)", ""),
        ("linear(x)", "column 1", "linear(x, w)", ""),
        ("module(x)", "column 8", "in quotes", ""),
        ("module(\"[\", x)", "column 8", "", ""),
        ("module(\"a, x)", "column 8", "`\"`", ""),
        ("h = x + y; h = -h; h", "column 12", "a new name", ""),
        ("x + y; x = -y; x", "column 6", "an operator", ""),
        ("tanh(x y)", "column 8", "`,` or `)`", ""),
        ("module { func.func ", "", "", ""),
    ] {
        let error = Pattern::parse(text).expect_err(text);
        assert_eq!(error.code, "E240", "{text}: {error}");
        let holds = |part: &Option<String>, wanted: &str| part.as_deref().unwrap_or("").contains(wanted);
        assert!(holds(&error.at, at), "{text}: {error}");
        assert!(holds(&error.expected, expected), "{text}: {error}");
        assert!(holds(&error.help, help), "{text}: {error}");
    }
    let deep = format!("{}x{}", "(".repeat(5000), ")".repeat(5000));
    assert_eq!(Pattern::parse(&deep).unwrap_err().code, "E240");
}

#[test]
fn what_is_no_pattern_says_why() {
    for (text, why) in [
        ("x", "returns its input `x`"),
        ("tanh(x), 2", "returns 2"),
        ("h = x + y; g = -h; tanh(h)", "computes `g`"),
    ] {
        let error = Pattern::parse(text).unwrap_err();
        assert_eq!(error.code, "E241");
        assert!(error.message.contains(why), "{error}");
    }
    let unused = Pattern::from_model(&[("x", &[2]), ("y", &[2])], |b, v| Ok(vec![b.negate(v[0])?]));
    assert_eq!(unused.as_ref().unwrap_err().code, "E241");
    assert!(unused.unwrap_err().message.contains("`y`"));
    let nothing = Pattern::from_model(&[], |_, _| Ok(Vec::new()));
    assert_eq!(nothing.unwrap_err().code, "E241");
    let twice = Pattern::from_model(&[("x", &[2]), ("x", &[2])], |b, v| Ok(vec![b.add(v[0], v[1])?]));
    assert_eq!(twice.unwrap_err().code, "E241");
}

#[test]
fn long_patterns_are_found() {
    let chain = |count: usize| graph(&["x"], |b, v| Ok(vec![(0..count).try_fold(v[0], |x, _| b.negate(x))?]));
    let pattern = Pattern::parse(&text::print(&chain(200))).unwrap();
    assert_eq!(find_all(&pattern, &chain(399)).len(), 1);
}

#[test]
fn a_module_that_nobody_reads_has_no_output() {
    let mut cx = Context::new("net", DType::F32, true);
    let x = cx.input("x", DType::F32, &SHAPE);
    cx.call("dead", &ReLU, x).unwrap();
    let y = cx.call("live", &ReLU, x).unwrap();
    let graph = cx.finish(vec![("y".into(), y)]).unwrap().forward;
    let found = find("module(\"dead|live\", x)", &graph);
    assert_eq!(found.iter().map(|m| m.outputs[0]).collect::<Vec<_>>(), [y]);
}

/// The tutorial's fusion: a bias and GELU, in every layer.
#[test]
fn bias_and_gelu_become_one_composite_each() {
    let config = GptConfig { layers: 3, dim: 8, heads: 2, sequence: 4, vocab: 11, ..GptConfig::default() };
    let mut graph = ModelConfig::Gpt(config).build(2, DType::F32, true).unwrap().forward;
    let pattern = Pattern::parse("gelu(x + bias)").unwrap();
    let mut count = 0;
    while let Some(found) = find_all(&pattern, &graph).first() {
        let operands: Vec<ValueId> = found.inputs.values().copied().collect();
        let (fused, place) = outline_over(&graph, &found.nodes, "bias_gelu", &operands).unwrap();
        let node = fused.node(place);
        assert_eq!(node.path, format!("layers.{count}.mlp"));
        let [product, bias] = node.operands[..] else { panic!("two operands: {:?}", node.operands) };
        assert_eq!(fused.value(bias).name, format!("layers.{count}.mlp.up_proj.bias"));
        let definition = fused.value(product).definition.unwrap().0;
        assert_eq!(fused.node(definition).op.name(), "stablehlo.dot_general");
        graph = fused;
        count += 1;
    }
    assert_eq!(count, 3);
    assert_eq!(graph.nodes.iter().filter(|node| node.op.name() == "bias_gelu").count(), 3);
}
