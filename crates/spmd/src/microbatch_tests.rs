//! Tests of microbatching: a split batch gives the numbers of the full batch.

use super::*;
use partita_base::DType;
use partita_ir::GraphBuilder;
use partita_ir::composites::{ATTENTION, CROSS_ENTROPY, DROPOUT, EMBEDDING};
use partita_ir::graph_edit::prune;
use partita_ir::ops::{Direction, DotGeneral};
use partita_ir::{Attribute, Literal, Op, Phase, autodiff, evaluate};
use partita_nn::models::{BertConfig, GptConfig, LlamaConfig, MlpConfig, ModelConfig};
use partita_nn::step::gradient_graph;
use std::collections::BTreeMap;

/// Numbers in (-1, 1) that depend on the seed and the position alone.
fn numbers(ty: &TensorType, seed: u64) -> Literal {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f64> = (0..ty.element_count())
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        })
        .collect();
    Literal::from_f64(ty, values.into_iter())
}

/// Inputs for a model: tokens, labels with more ignored positions towards the end of the batch,
/// parameters.
fn feed(graph: &Graph) -> Vec<Literal> {
    let one = |(position, &v): (usize, &ValueId)| {
        let value = graph.value(v);
        let ty = &value.ty;
        let raw = numbers(ty, position as u64 + 1);
        match value.name.as_str() {
            "seed" => Literal::splat_int(ty, 7),
            "step" => Literal::splat_int(ty, 3),
            "labels" => {
                let row = ty.element_count() / ty.shape[0];
                let ids = raw.to_f64().into_iter().enumerate().map(|(i, x)| {
                    let (sample, place) = (i / row, i % row);
                    if sample > 0 && place < sample * row / ty.shape[0] + 1 {
                        -100.0
                    } else {
                        ((x + 1.0) * 3.9).floor()
                    }
                });
                Literal::from_f64(ty, ids)
            }
            _ if ty.dtype.is_integer() => {
                Literal::from_f64(ty, raw.to_f64().into_iter().map(|x| ((x + 1.0) * 3.9).floor()))
            }
            _ => raw,
        }
    };
    graph.inputs.iter().enumerate().map(one).collect()
}

/// The inputs of the microbatched graph: parts by name, all others unchanged.
fn cut(before: &Graph, after: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let mut starts: BTreeMap<String, usize> = BTreeMap::new();
    let one = |&v: &ValueId| {
        let (name, ty) = (&after.value(v).name, after.ty(v));
        let base = name.split(".micro").next().expect("split has a first part");
        let position = before.inputs.iter().position(|&b| before.value(b).name == *base).expect("an input");
        if base == name {
            return inputs[position].clone();
        }
        let start = starts.entry(base.to_string()).or_default();
        let mut offset = vec![0; ty.rank()];
        offset[0] = *start;
        *start += ty.shape[0];
        inputs[position].window(&offset, &ty.shape)
    };
    after.inputs.iter().map(one).collect()
}

fn assert_same_numbers(before: &Graph, count: usize) -> Graph {
    let inputs = feed(before);
    let after = microbatch(before, count).unwrap();
    let expected = evaluate(before, &inputs).unwrap();
    let found = evaluate(&after, &cut(before, &after, &inputs)).unwrap();
    assert_eq!(before.output_names, after.output_names);
    for ((name, e), f) in before.output_names.iter().zip(&expected).zip(&found) {
        assert_eq!(e.ty, f.ty, "{name}");
        for (x, y) in e.to_f64().iter().zip(f.to_f64()) {
            assert!(
                (x - y).abs() <= 1e-10 * (1.0 + x.abs()),
                "{name} with {count} microbatches: {x} and {y}"
            );
        }
    }
    after
}

/// A tiny language model with the difficult cases: an embedding, dropout, a flattened batch, a mean
/// over the labels that are not ignored.
fn tiny(batch: usize) -> Graph {
    let (s, d, v) = (3, 4, 7);
    let mut b = GraphBuilder::new("tiny");
    let tokens = b.input("tokens", TensorType::new(DType::I32, [batch, s]), Role::Input);
    let labels = b.input("labels", TensorType::new(DType::I32, [batch, s]), Role::Input);
    let seed = b.input("seed", TensorType::scalar(DType::U64), Role::Input);
    let table = b.input("embed.weight", TensorType::new(DType::F64, [v, d]), Role::Param);
    let place = b.input("place.weight", TensorType::new(DType::F64, [s, d]), Role::Param);
    let head = b.input("head.weight", TensorType::new(DType::F64, [v, d]), Role::Param);
    let x = b.composite(&EMBEDDING, &[], &[table, tokens]).unwrap();
    let place = b.broadcast_trailing(place, &[batch, s, d]).unwrap();
    let x = b.add(x, place).unwrap();
    let rate = [("rate", Attribute::Float(0.4)), ("stream", Attribute::Int(5))];
    let x = b.composite(&DROPOUT, &rate, &[x, seed]).unwrap();
    let flat = b.reshape(x, &[batch * s, d]).unwrap();
    let logits = b.linear(flat, head).unwrap();
    let logits = b.reshape(logits, &[batch, s, v]).unwrap();
    let ignore = [("ignore_index", Attribute::Int(-100))];
    let rows = b.composite(&CROSS_ENTROPY, &ignore, &[logits, labels]).unwrap();
    let sum = b.reduce_sum(rows, &[0, 1]).unwrap();
    let ignored = b.full_like(labels, -100.0).unwrap();
    let kept = b.compare(Direction::Ne, labels, ignored).unwrap();
    let kept = b.convert(kept, DType::I32).unwrap();
    let kept = b.reduce_sum(kept, &[0, 1]).unwrap();
    let kept = b.convert(kept, DType::F64).unwrap();
    let loss = b.divide(sum, kept).unwrap();
    let largest = b.reduce_max(logits, &[0, 1, 2]).unwrap();
    let one = b.scalar(DType::F64, 1.0);
    let params = [table, place_param(&b), head];
    let gradients = autodiff::backward(&mut b, &[(loss, one)], &params).unwrap();
    let mut outputs = vec![("loss".to_string(), loss), ("logits".to_string(), logits)];
    outputs.push(("largest".to_string(), largest));
    for (name, gradient) in ["embed", "place", "head"].iter().zip(gradients) {
        outputs.push((format!("grad.{name}.weight"), gradient.unwrap()));
    }
    prune(b.finish_named(outputs))
}

fn place_param(b: &GraphBuilder) -> ValueId {
    b.graph().input_named("place.weight").unwrap()
}

#[test]
fn any_number_of_microbatches_gives_the_numbers_of_one() {
    let graph = tiny(7);
    for count in [1, 2, 3, 4, 7] {
        assert_same_numbers(&graph, count);
    }
}

#[test]
fn models_of_the_zoo_keep_loss_and_gradients() {
    let gpt = GptConfig {
        vocab: 9,
        dim: 8,
        heads: 2,
        layers: 1,
        sequence: 4,
        dropout: 0.3,
        ..GptConfig::default()
    };
    let gpt = GptConfig { fused_qkv: true, ..gpt };
    let llama = LlamaConfig { vocab: 9, dim: 8, heads: 4, layers: 1, sequence: 4, ..LlamaConfig::default() };
    let bert =
        BertConfig { vocab: 9, dim: 8, heads: 2, layers: 1, sequence: 4, types: 8, ..BertConfig::default() };
    let bert = BertConfig { padding_mask: true, ..bert };
    for config in [
        ModelConfig::Gpt(gpt),
        ModelConfig::Llama(llama),
        ModelConfig::Bert(bert),
        ModelConfig::Mlp(MlpConfig::default()),
    ] {
        let graph = gradient_graph(&config.build(5, DType::F64, true).unwrap().forward).unwrap();
        assert_same_numbers(&graph, 2);
        assert_same_numbers(&graph, 5);
    }
}

#[test]
fn ops_that_need_the_rows_of_all_microbatches_are_found() {
    let path = |forward: &Graph| {
        let step = microbatch(&gradient_graph(forward).unwrap(), 2).unwrap();
        coupled_op(&step).map(|id| step.node(id).path.clone())
    };
    for name in ["mlp", "gpt", "llama", "bert", "vit", "unet", "t5", "mixtral"] {
        let forward = ModelConfig::from_name(name).unwrap().build(4, DType::F32, true).unwrap().forward;
        assert_eq!(path(&forward), None, "{name}");
    }
    let forward = ModelConfig::from_name("wide-resnet").unwrap().build(4, DType::F32, true).unwrap().forward;
    assert_eq!(path(&forward).as_deref(), Some("stem.norm"));
    // Each row against all others.
    let mut b = GraphBuilder::new("contrast");
    let x = b.input("x", TensorType::new(DType::F32, [4, 3]), Role::Input);
    let w = b.input("w", TensorType::new(DType::F32, [3, 3]), Role::Param);
    let y = b.linear(x, w).unwrap();
    let all = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotGeneral::default() };
    let scores = b.dot_general(y, y, all).unwrap();
    let loss = b.reduce_sum(scores, &[0, 1]).unwrap();
    let contrast = b.finish_named(vec![("loss".to_string(), loss)]);
    match microbatch(&gradient_graph(&contrast).unwrap(), 2) {
        Ok(step) => assert!(coupled_op(&step).is_some()),
        Err(error) => assert_eq!(error.code, "E220"),
    }
}

#[test]
fn inputs_are_cut_in_place_and_sizes_are_balanced() {
    let after = microbatch(&tiny(7), 3).unwrap();
    let inputs: Vec<(String, Vec<usize>)> = after
        .inputs
        .iter()
        .take(7)
        .map(|&v| (after.value(v).name.clone(), after.ty(v).shape.clone()))
        .collect();
    let expected = [
        ("tokens.micro0", vec![3, 3]),
        ("tokens.micro1", vec![2, 3]),
        ("tokens.micro2", vec![2, 3]),
        ("labels.micro0", vec![3, 3]),
        ("labels.micro1", vec![2, 3]),
        ("labels.micro2", vec![2, 3]),
        ("seed", vec![]),
    ];
    let expected: Vec<(String, Vec<usize>)> = expected.into_iter().map(|(n, s)| (n.to_string(), s)).collect();
    assert_eq!(inputs, expected);
}

#[test]
fn each_microbatch_goes_backward_before_the_next_goes_forward() {
    let after = microbatch(&tiny(6), 3).unwrap();
    // The label count of the whole batch comes first; from the first embedding on, each microbatch
    // is contiguous.
    let first = after.nodes.iter().position(|n| matches!(n.op, Op::Gather(_))).unwrap_or_else(|| {
        after.nodes.iter().position(|n| n.op.name() == "partita.embedding").expect("an embedding")
    });
    let numbers: Vec<usize> = after.nodes[first..].iter().filter_map(|n| n.microbatch).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    for index in 0..3 {
        let of = |phase: Phase| {
            after.nodes[first..].iter().any(|n| n.microbatch == Some(index) && n.phase == phase)
        };
        assert!(of(Phase::Forward) && of(Phase::WeightGrad));
    }
}

#[test]
fn accumulated_gradients_are_gradients_of_the_parameter() {
    let after = microbatch(&tiny(4), 2).unwrap();
    let head = after.input_named("head.weight").unwrap();
    let of_head: Vec<Option<usize>> = after
        .value_ids()
        .filter(|&v| after.value(v).role == Role::GradOf(head))
        .map(|v| after.node(after.value(v).definition.unwrap().0).microbatch)
        .collect();
    assert_eq!(of_head, [Some(0), Some(1), Some(1)], "two contributions and their sum");
    let total = after.output_named("grad.head.weight").unwrap();
    assert_eq!(after.value(total).role, Role::GradOf(head));
}

#[test]
fn a_sum_is_transposed_once_and_converted_for_each_microbatch() {
    // The gradient of a kernel as JAX computes it; and one that is added up in a wider type than its terms.
    let gradients = |dtype: DType| {
        let mut b = GraphBuilder::new("gradients");
        let x = b.input("x", TensorType::new(dtype, [6, 3]), Role::Input);
        let y = b.input("y", TensorType::new(dtype, [6, 2]), Role::Input);
        let rows = DotGeneral { lhs_contracting: vec![0], rhs_contracting: vec![0], ..DotGeneral::default() };
        let sum = b.dot_general(y, x, rows).unwrap();
        let turned = b.transpose(sum, &[1, 0]).unwrap();
        let columns = b.reduce_sum(x, &[0]).unwrap();
        let wide = b.convert(columns, DType::F64).unwrap();
        b.finish_named(vec![("turned".to_string(), turned), ("wide".to_string(), wide)])
    };
    assert_same_numbers(&gradients(DType::F64), 3);
    let after = microbatch(&gradients(DType::BF16), 3).unwrap();
    let of = |name: &str| -> Vec<Option<usize>> {
        after.nodes.iter().filter(|node| node.op.short_name() == name).map(|node| node.microbatch).collect()
    };
    assert_eq!(of("transpose"), [None]);
    assert_eq!(of("convert"), [Some(0), Some(1), Some(2)]);
}

#[test]
fn attention_over_the_samples_is_refused() {
    // Even after inlining, an op needs all samples.
    let mut b = GraphBuilder::new("attention");
    let x = b.input("x", TensorType::new(DType::F64, [4, 3]), Role::Input);
    let q = b.reshape(x, &[1, 1, 4, 3]).unwrap();
    let attributes = [("causal", Attribute::Bool(false)), ("scale", Attribute::Float(1.0))];
    let y = b.composite(&ATTENTION, &attributes, &[q, q, q]).unwrap();
    assert_eq!(microbatch(&b.finish(vec![y]), 2).unwrap_err().code, "E220");
}

#[test]
fn no_microbatches_are_refused() {
    assert_eq!(microbatch(&tiny(3), 0).unwrap_err().code, "E225");
}

/// Tokens that PyTorch flattens with the positions before the samples, as `nn.MultiheadAttention` does, and a mask of
/// positions that is of the same order; with a loss, a weight gradient and an output in that order.
fn flattened(batch: usize, masked: bool) -> Graph {
    let (t, d) = (5, 3);
    let mut b = GraphBuilder::new("flattened");
    let x = b.input("x", TensorType::new(DType::F64, [batch, t, d]), Role::Input);
    let mask = masked.then(|| b.input("mask", TensorType::new(DType::F64, [t, t]), Role::Input));
    let bias = b.input("bias", TensorType::new(DType::F64, [t * batch, 1]), Role::Param);
    let w = b.input("w", TensorType::new(DType::F64, [d, d]), Role::Param);
    let turned = b.transpose(x, &[1, 0, 2]).unwrap();
    let flat = b.reshape(turned, &[t * batch, d]).unwrap();
    let dot = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
    let projected = b.push1(dot, &[flat, w]).unwrap();
    // A whole value along the flattened dimension.
    let bias = b.broadcast_in_dim(bias, &[t * batch, d], &[0, 1]).unwrap();
    let projected = b.add(projected, bias).unwrap();
    let back = b.reshape(projected, &[t, batch, d]).unwrap();
    let back = b.transpose(back, &[1, 0, 2]).unwrap();
    let mixed = match mask {
        None => back,
        Some(mask) => {
            let mask = b.broadcast_trailing(mask, &[batch, t, t]).unwrap();
            let dot = DotGeneral {
                lhs_batch: vec![0],
                rhs_batch: vec![0],
                lhs_contracting: vec![2],
                rhs_contracting: vec![1],
                ..DotGeneral::default()
            };
            b.push1(dot, &[mask, back]).unwrap()
        }
    };
    let square = b.multiply(mixed, mixed).unwrap();
    let loss = b.reduce_sum(square, &[0, 1, 2]).unwrap();
    let mut graph = b.finish(vec![loss, projected]);
    graph.output_names = vec!["loss".into(), "projected".into()];
    graph
}

#[test]
fn tokens_that_are_flattened_with_the_batch_behind_the_positions_are_followed() {
    for (batch, count) in [(4, 2), (7, 3), (6, 6)] {
        assert_same_numbers(&flattened(batch, false), count);
        let after = microbatch_of(&flattened(batch, true), count, Some(batch)).unwrap();
        assert!(after.input_named("mask").is_some() && after.input_named("x.micro1").is_some());
    }
}

#[test]
fn an_input_without_rows_is_shared_by_all_microbatches() {
    let names = |graph: &Graph| -> Vec<String> {
        graph.inputs.iter().map(|&input| graph.value(input).name.clone()).collect()
    };
    // One row for all samples.
    let mut b = GraphBuilder::new("shared");
    let x = b.input("x", TensorType::new(DType::F64, [4, 3]), Role::Input);
    let place = b.input("place", TensorType::new(DType::F64, [1, 3]), Role::Input);
    let place = b.broadcast_in_dim(place, &[4, 3], &[0, 1]).unwrap();
    let y = b.add(x, place).unwrap();
    let after = assert_same_numbers(&b.finish(vec![y]), 2);
    assert_eq!(names(&after), ["x.micro0", "x.micro1", "place"]);
    // A square mask of as many positions as there are samples: both cannot be the batch.
    let square = |rows: usize| {
        let mut b = GraphBuilder::new("square");
        let x = b.input("x", TensorType::new(DType::F64, [4, rows, rows]), Role::Input);
        let mask = b.input("mask", TensorType::new(DType::F64, [rows, rows]), Role::Input);
        let mask = b.broadcast_trailing(mask, &[4, rows, rows]).unwrap();
        let y = b.add(x, mask).unwrap();
        b.finish(vec![y])
    };
    let after = assert_same_numbers(&square(4), 2);
    assert_eq!(names(&after), ["x.micro0", "x.micro1", "mask"]);
    // Where either could be it, the caller says.
    let error = microbatch(&square(6), 2).unwrap_err();
    assert_eq!((error.code, error.found.as_deref()), ("E226", Some("4 or 6 rows")));
    assert_eq!(names(&microbatch_of(&square(6), 2, Some(4)).unwrap()), ["x.micro0", "x.micro1", "mask"]);
    assert_eq!(names(&microbatch_of(&square(6), 2, Some(6)).unwrap()), ["x", "mask.micro0", "mask.micro1"]);
}
