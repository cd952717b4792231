//! Modules against plain loops.

mod common;

use common::*;
use partita_base::DType;
use partita_ir::{Literal, Role};
use partita_nn::{
    Context, Init, LayerNorm, Linear, Model, Module, MultiheadAttention, RMSNorm, ReLU, Sequential,
    gradient_graph,
};

#[test]
fn a_linear_layer_multiplies_by_the_transposed_weight() {
    let mut cx = Context::new("linear", DType::F64, true);
    let x = cx.input("x", DType::F64, &[2, 3]);
    let y = cx.call("fc", &Linear::new(3, 2), x).unwrap();
    let Model { forward: graph, params, .. } = cx.finish(vec![("y".into(), y)]);
    assert_eq!(params.keys().collect::<Vec<_>>(), ["fc.weight", "fc.bias"]);
    let mut values = Values::new();
    values.insert("x".into(), f64s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    values.insert("fc.weight".into(), f64s(&[2, 3], &[1.0, 0.0, -1.0, 2.0, 1.0, 0.5]));
    values.insert("fc.bias".into(), f64s(&[2], &[10.0, 20.0]));
    assert_eq!(run(&graph, &values)["y"].to_f64(), [8.0, 25.5, 8.0, 36.0]);
    let node = graph.nodes.last().unwrap();
    assert_eq!(node.path, "fc");
    assert!(node.location.as_ref().unwrap().file.ends_with("tests/modules.rs"), "{:?}", node.location);
}

#[test]
fn relu_has_no_gradient_at_zero() {
    let mut cx = Context::new("relu", DType::F64, true);
    let x = cx.param("x", &[3], Init::Zeros).unwrap();
    let y = ReLU.forward(&mut cx, x).unwrap();
    let loss = cx.builder.reduce_sum(y, &[0]).unwrap();
    let graph = cx.finish(vec![("loss".into(), loss)]).forward;
    let mut values = Values::new();
    values.insert("x".into(), f64s(&[3], &[-1.0, 0.0, 2.0]));
    let outputs = run(&gradient_graph(&graph).unwrap(), &values);
    assert_eq!(single(&outputs, "loss"), 2.0);
    assert_eq!(outputs["grad.x"].to_f64(), [0.0, 0.0, 1.0]);
}

#[test]
fn modules_of_one_name_share_a_parameter_and_other_shapes_are_refused() {
    let mut cx = Context::new("shared", DType::F32, true);
    let x = cx.input("x", DType::F32, &[4, 3]);
    let net = Sequential::new().push(Linear::new(3, 3)).push(ReLU).push_named("norm", LayerNorm::new(3));
    let y = cx.call("net", &net, x).unwrap();
    cx.call("net", &net, y).unwrap();
    let error = cx.call("net.0", &Linear::new(3, 4), y).unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E051", Some("net.0.weight")));
    let error = cx.tie("head.weight", "net.0.wieght").unwrap_err();
    assert_eq!(error.code, "E053");
    assert!(error.help.as_ref().unwrap().contains("net.0.weight"), "{error}");
    let Model { forward: graph, params, .. } = cx.finish(vec![("y".into(), y)]);
    let names = ["net.0.weight", "net.0.bias", "net.norm.weight", "net.norm.bias"];
    assert_eq!(params.keys().collect::<Vec<_>>(), names);
    assert_eq!(graph.params().len(), 4);
}

#[test]
fn an_error_names_the_module_and_the_line() {
    let mut cx = Context::new("wrong", DType::F32, true);
    let x = cx.input("x", DType::F32, &[4, 3]);
    let error = cx.call("fc", &Linear::new(5, 2), x).unwrap_err();
    let at = error.at.as_ref().unwrap();
    assert!(at.contains("fc") && at.contains("tests/modules.rs:"), "{error}");
}

fn naive_norm(row: &[f64], epsilon: f64, centre: bool) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = if centre { row.iter().sum::<f64>() / n } else { 0.0 };
    let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    row.iter().map(|x| (x - mean) / (square + epsilon).sqrt()).collect()
}

#[test]
fn norms_scale_rows() {
    let mut cx = Context::new("norms", DType::F64, true);
    let x = cx.input("x", DType::F64, &[2, 3]);
    let layer = cx.call("layer", &LayerNorm::new(3), x).unwrap();
    let rms = cx.call("rms", &RMSNorm::new(3).epsilon(0.1), x).unwrap();
    let Model { forward: graph, params, .. } = cx.finish(vec![("layer".into(), layer), ("rms".into(), rms)]);
    let mut values: Values = params.iter().map(|(n, p)| (n.clone(), p.initial(0))).collect();
    let rows = [1.0, 2.0, 4.0, -3.0, 0.5, 0.0];
    values.insert("x".into(), f64s(&[2, 3], &rows));
    let outputs = run(&graph, &values);
    let expected = |epsilon, centre| -> Vec<f64> {
        rows.chunks(3).flat_map(|row| naive_norm(row, epsilon, centre)).collect()
    };
    assert_close(&outputs["layer"].to_f64(), &expected(1e-5, true), 1e-12, "layer norm");
    assert_close(&outputs["rms"].to_f64(), &expected(0.1, false), 1e-12, "rms norm");
}

/// `x[rows][in] * w[out][in] + b[out]`.
fn naive_linear(x: &[Vec<f64>], w: &Literal, b: &Literal) -> Vec<Vec<f64>> {
    let (w, b, inputs) = (w.to_f64(), b.to_f64(), w.ty.shape[1]);
    let row = |x: &Vec<f64>| {
        let dot = |o: usize| (0..inputs).map(|i| x[i] * w[o * inputs + i]).sum::<f64>() + b[o];
        (0..b.len()).map(dot).collect()
    };
    x.iter().map(row).collect()
}

#[test]
fn grouped_rotary_causal_attention_equals_plain_loops() {
    let (batch, sequence, dim, heads, kv_heads, base) = (2, 4, 12, 3usize, 1usize, 100.0f64);
    let depth = dim / heads;
    let module = MultiheadAttention {
        kv_heads,
        causal: true,
        rotary: Some(base),
        ..MultiheadAttention::new(dim, heads)
    };
    let mut cx = Context::new("attention", DType::F64, true);
    let x = cx.input("x", DType::F64, &[batch, sequence, dim]);
    let y = cx.call("attn", &module, x).unwrap();
    let Model { forward: graph, params, .. } = cx.finish(vec![("y".into(), y)]);
    let mut values: Values = params
        .iter()
        .map(|(n, p)| {
            (n.clone(), Literal::from_f64(&p.ty, p.initial(5).to_f64().into_iter().map(|v| 3.0 * v)))
        })
        .collect();
    let data = noise(3, batch * sequence * dim);
    values.insert("x".into(), f64s(&[batch, sequence, dim], &data));
    let found = run(&graph, &values)["y"].to_f64();

    let project = |x: &[Vec<f64>], name: &str| {
        naive_linear(x, &values[&format!("attn.{name}.weight")], &values[&format!("attn.{name}.bias")])
    };
    let rotate = |x: &[f64], position: usize| -> Vec<f64> {
        let half = depth / 2;
        let mut y = vec![0.0; depth];
        for i in 0..half {
            let angle = position as f64 / base.powf(2.0 * i as f64 / depth as f64);
            y[i] = x[i] * angle.cos() - x[i + half] * angle.sin();
            y[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin();
        }
        y
    };
    let mut expected = Vec::new();
    for sample in data.chunks(sequence * dim) {
        let x: Vec<Vec<f64>> = sample.chunks(dim).map(<[f64]>::to_vec).collect();
        let (q, k, v) = (project(&x, "q_proj"), project(&x, "k_proj"), project(&x, "v_proj"));
        let mut mixed = vec![vec![0.0; dim]; sequence];
        for head in 0..heads {
            let group = head / (heads / kv_heads);
            for s in 0..sequence {
                let query = rotate(&q[s][head * depth..(head + 1) * depth], s);
                let scores: Vec<f64> = (0..=s)
                    .map(|t| {
                        let key = rotate(&k[t][group * depth..(group + 1) * depth], t);
                        let dot: f64 = query.iter().zip(&key).map(|(a, b)| a * b).sum();
                        (dot / (depth as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = scores.iter().sum();
                for (t, score) in scores.iter().enumerate() {
                    for d in 0..depth {
                        mixed[s][head * depth + d] += score / total * v[t][group * depth + d];
                    }
                }
            }
        }
        expected.extend(project(&mixed, "o_proj").into_iter().flatten());
    }
    assert_close(&found, &expected, 1e-10, "attention");
}

#[test]
fn a_fused_projection_is_the_three_projections_stacked() {
    let separate = MultiheadAttention { kv_heads: 2, ..MultiheadAttention::new(8, 4) };
    let fused = MultiheadAttention { fused_qkv: true, ..separate.clone() };
    let mut cx = Context::new("both", DType::F64, true);
    let x = cx.input("x", DType::F64, &[1, 3, 8]);
    let a = cx.call("a", &separate, x).unwrap();
    let b = cx.call("b", &fused, x).unwrap();
    let Model { forward: graph, params, .. } = cx.finish(vec![("a".into(), a), ("b".into(), b)]);
    let mut values: Values = params.iter().map(|(n, p)| (n.clone(), p.initial(5))).collect();
    values.insert("x".into(), f64s(&[1, 3, 8], &noise(1, 24)));
    for leaf in ["weight", "bias"] {
        let rows: Vec<f64> =
            ["q", "k", "v"].iter().flat_map(|p| values[&format!("a.{p}_proj.{leaf}")].to_f64()).collect();
        let name = format!("b.qkv_proj.{leaf}");
        assert_eq!(params[&name].ty.shape[0], 16);
        values.insert(name.clone(), Literal::from_f64(&params[&name].ty, rows.into_iter()));
        values.insert(format!("b.o_proj.{leaf}"), values[&format!("a.o_proj.{leaf}")].clone());
    }
    let outputs = run(&graph, &values);
    assert_close(&outputs["b"].to_f64(), &outputs["a"].to_f64(), 1e-13, "fused");
}

#[test]
fn dropout_keeps_the_mean_and_draws_a_new_mask_at_every_step() {
    let mut cx = Context::new("dropout", DType::F64, true);
    let x = cx.input("x", DType::F64, &[50, 40]);
    let first = cx.dropout(x, 0.25).unwrap();
    let second = cx.dropout(x, 0.25).unwrap();
    let graph = cx.finish(vec![("first".into(), first), ("second".into(), second)]).forward;
    let names: Vec<&str> = graph.inputs.iter().map(|&v| graph.value(v).name.as_str()).collect();
    assert_eq!(names, ["x", "seed", "step"]);
    let at = |seed: u64, step: i64| {
        let mut values = Values::new();
        values.insert("x".into(), f64s(&[50, 40], &[1.0; 2000]));
        values.insert("seed".into(), Literal::new([], vec![seed]));
        values.insert("step".into(), Literal::new([], vec![step]));
        run(&graph, &values)
    };
    let start = at(1, 1);
    let mask = start["first"].to_f64();
    assert!(mask.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-12));
    // The mean of 2000 elements has a standard deviation of 0.0129.
    let mean = mask.iter().sum::<f64>() / 2000.0;
    assert!((mean - 1.0).abs() < 0.06, "{mean}");
    assert_eq!(at(1, 1)["first"].to_f64(), mask, "same seed and step");
    let differs = |other: &[f64]| {
        let share = other.iter().zip(&mask).filter(|(a, b)| a != b).count() as f64 / 2000.0;
        // Independent masks differ in 2 * 0.25 * 0.75 of the places.
        assert!((share - 0.375).abs() < 0.06, "{share}");
    };
    differs(&start["second"].to_f64());
    differs(&at(1, 2)["first"].to_f64());
    differs(&at(2, 1)["first"].to_f64());
}

#[test]
fn dropout_is_the_identity_outside_training() {
    let mut cx = Context::new("eval", DType::F32, false);
    let x = cx.input("x", DType::F32, &[3]);
    assert_eq!(cx.dropout(x, 0.5).unwrap(), x);
    assert_eq!(cx.dropout(x, 1.0).unwrap_err().code, "E052");
    let graph = cx.finish(vec![]).forward;
    assert!(graph.inputs.iter().all(|&v| graph.value(v).role == Role::Input && graph.value(v).name == "x"));
}
