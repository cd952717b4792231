//! Modules compared with plain loops.

use crate::common::*;
use partita_base::{DType, Result};
use partita_ir::{Literal, Role, ValueId};
use partita_nn::{
    Context, Dropout, Embedding, Init, LayerNorm, Linear, Mlp, Model, Module, MultiheadAttention, RMSNorm,
    ReLU, Sequential, gradient_graph, gradient_graph_wrt, losses,
};

#[test]
fn a_linear_layer_multiplies_by_the_transposed_weight() {
    let mut cx = Context::new("linear", DType::F64, true);
    let x = cx.input("x", DType::F64, &[2, 3]);
    let y = cx.call("fc", &Linear::new(3, 2), x).unwrap();
    let Model { forward: graph, params, .. } = cx.finish(vec![("y".into(), y)]).unwrap();
    assert_eq!(params.keys().collect::<Vec<_>>(), ["fc.weight", "fc.bias"]);
    let mut values = Values::new();
    values.insert("x".into(), f64s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    values.insert("fc.weight".into(), f64s(&[2, 3], &[1.0, 0.0, -1.0, 2.0, 1.0, 0.5]));
    values.insert("fc.bias".into(), f64s(&[2], &[10.0, 20.0]));
    assert_eq!(run(&graph, &values)["y"].to_f64(), [8.0, 25.5, 8.0, 36.0]);
    let node = graph.nodes.last().unwrap();
    assert_eq!(node.path, "fc");
    assert!(node.location.as_ref().unwrap().file.ends_with("tests/all/modules.rs"), "{:?}", node.location);
}

#[test]
fn relu_has_no_gradient_at_zero() {
    let mut cx = Context::new("relu", DType::F64, true);
    let x = cx.param("x", &[3], Init::Zeros).unwrap();
    let y = ReLU.forward(&mut cx, x).unwrap();
    let loss = cx.builder.reduce_sum(y, &[0]).unwrap();
    let graph = cx.finish(vec![("loss".into(), loss)]).unwrap().forward;
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
    let Model { forward: graph, params, .. } = cx.finish(vec![("y".into(), y)]).unwrap();
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
    assert!(at.contains("fc") && at.contains("tests/all/modules.rs:"), "{error}");
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
    let Model { forward: graph, params, .. } =
        cx.finish(vec![("layer".into(), layer), ("rms".into(), rms)]).unwrap();
    let mut values: Values = params.iter().map(|(n, p)| (n.clone(), p.initial(0).unwrap())).collect();
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
    let Model { forward: graph, params, .. } = cx.finish(vec![("y".into(), y)]).unwrap();
    let mut values: Values = params
        .iter()
        .map(|(n, p)| {
            (n.clone(), Literal::from_f64(&p.ty, p.initial(5).unwrap().to_f64().into_iter().map(|v| 3.0 * v)))
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
    let Model { forward: graph, params, .. } = cx.finish(vec![("a".into(), a), ("b".into(), b)]).unwrap();
    let mut values: Values = params.iter().map(|(n, p)| (n.clone(), p.initial(5).unwrap())).collect();
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
    let graph = cx.finish(vec![("first".into(), first), ("second".into(), second)]).unwrap().forward;
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
        // Independent masks differ in 2 * 0.25 * 0.75 of the elements.
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
    let graph = cx.finish(vec![]).unwrap().forward;
    assert!(graph.inputs.iter().all(|&v| graph.value(v).role == Role::Input && graph.value(v).name == "x"));
}

/// The mean squared error of `y` to an input `target`, as output `loss`, and `y` itself.
fn finished(mut cx: Context, y: ValueId) -> Model {
    let (dtype, shape) = (cx.builder.ty(y).dtype, cx.shape(y));
    let target = cx.input("target", dtype, &shape);
    let loss = losses::mse(&mut cx, y, target).unwrap();
    cx.finish(vec![("loss".into(), loss), ("y".into(), y)]).unwrap()
}

/// Gradients of all parameters, and of the input `x`, against central differences of the loss.
fn check_gradients(model: &Model, values: &Values) {
    let graph = gradient_graph_wrt(&model.forward, &["x"]).unwrap();
    let gradients = run(&graph, values);
    let step = 1e-5;
    for name in model.params.keys().map(String::as_str).chain(["x"]) {
        let found = gradients[&format!("grad.{name}")].to_f64();
        assert!(found.iter().any(|g| g.abs() > 1e-3), "{name} has a gradient");
        for (element, found) in found.iter().enumerate() {
            let at = |delta: f64| {
                let mut moved = values.clone();
                moved.insert(name.to_string(), nudged(&values[name], element, delta));
                single(&run(&model.forward, &moved), "loss")
            };
            let expected = (at(step) - at(-step)) / (2.0 * step);
            assert!((found - expected).abs() < 1e-8, "{name}[{element}]: {found}, expected {expected}");
        }
    }
}

#[test]
fn a_layer_norm_over_two_dimensions_normalises_them_together() {
    let mut cx = Context::new("norm", DType::F64, true);
    let x = cx.input("x", DType::F64, &[3, 2, 4]);
    let y = cx.call("norm", &LayerNorm::over(&[2, 4]).epsilon(1e-3), x).unwrap();
    let model = finished(cx, y);
    assert_eq!(model.params["norm.weight"].ty.shape, [2, 4]);
    assert_eq!(model.params["norm.bias"].ty.shape, [2, 4]);
    let mut values = parameters(&model, 0.3);
    values.insert("x".into(), f64s(&[3, 2, 4], &noise(1, 24)));
    values.insert("target".into(), f64s(&[3, 2, 4], &noise(2, 24)));
    let (weight, bias) = (values["norm.weight"].to_f64(), values["norm.bias"].to_f64());
    let row = |row: &[f64]| -> Vec<f64> {
        let normal = naive_norm(row, 1e-3, true);
        normal.iter().zip(weight.iter().zip(&bias)).map(|(n, (w, b))| n * w + b).collect()
    };
    let expected: Vec<f64> = values["x"].to_f64().chunks(8).flat_map(row).collect();
    assert_close(&run(&model.forward, &values)["y"].to_f64(), &expected, 1e-12, "layer norm");
    check_gradients(&model, &values);
}

#[test]
fn softmax_mean_and_broadcast_work_along_any_dimension() {
    let mut cx = Context::new("functions", DType::F64, true);
    let x = cx.input("x", DType::F64, &[2, 3, 4]);
    let soft = cx.softmax(x, 1).unwrap();
    let last = cx.softmax(x, -1).unwrap();
    let mean = cx.mean(soft, &[-1, 0]).unwrap();
    assert_eq!(cx.shape(mean), [3]);
    let column = cx.builder.reshape(mean, &[3, 1]).unwrap();
    let scale = cx.param("scale", &[3, 1], Init::Ones).unwrap();
    let column = cx.builder.multiply(column, scale).unwrap();
    let wide = cx.broadcast(column, &[2, 3, 4]).unwrap();
    let y = cx.builder.multiply(wide, soft).unwrap();
    let y = cx.builder.multiply(y, last).unwrap();
    let model = finished(cx, y);
    let mut values = parameters(&model, 0.3);
    values.insert("x".into(), f64s(&[2, 3, 4], &noise(5, 24)));
    values.insert("target".into(), f64s(&[2, 3, 4], &noise(6, 24)));
    let scale = values["scale"].to_f64();
    let x = values["x"].to_f64();
    let at = |a: usize, b: usize, c: usize| x[(a * 3 + b) * 4 + c].exp();
    let soft = |a, b, c| at(a, b, c) / (0..3).map(|b| at(a, b, c)).sum::<f64>();
    let last = |a, b, c| at(a, b, c) / (0..4).map(|c| at(a, b, c)).sum::<f64>();
    let mean = |b| (0..8).map(|i| soft(i / 4, b, i % 4)).sum::<f64>() / 8.0;
    let expected: Vec<f64> = (0..24)
        .map(|i| (i / 12, i / 4 % 3, i % 4))
        .map(|(a, b, c)| mean(b) * scale[b] * soft(a, b, c) * last(a, b, c))
        .collect();
    assert_close(&run(&model.forward, &values)["y"].to_f64(), &expected, 1e-12, "functions");
    check_gradients(&model, &values);
}

/// The error of a rejected call.
fn refused<T: std::fmt::Debug>(result: Result<T>, code: &str, part: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.code, code, "{error}");
    assert!(error.to_string().contains(part), "no {part:?} in\n{error}");
}

#[test]
fn functions_refuse_what_they_are_not_defined_for() {
    let mut cx = Context::new("functions", DType::F32, true);
    let x = cx.input("x", DType::F32, &[2, 3]);
    let ids = cx.input("ids", DType::I64, &[2]);
    let scalar = cx.builder.scalar(DType::F32, 1.0);
    refused(cx.softmax(x, 2), "E163", "dimension 2 of `softmax`");
    refused(cx.softmax(x, -3), "E163", "from -2 to 1");
    refused(cx.softmax(scalar, 0), "E163", "this is a scalar");
    refused(cx.softmax(ids, 0), "E050", "tensor<2xi64>");
    refused(cx.mean(x, &[0, -2]), "E163", "a repeated dimension");
    refused(cx.mean(x, &[isize::MIN]), "E163", "no such dimension");
    refused(cx.mean(ids, &[0]), "E050", "`mean`");
    refused(cx.broadcast(x, &[3]), "E163", "[3]");
    refused(cx.broadcast(x, &[2, 2, 4]), "E163", "[2, 2, 4]");
    let empty = cx.input("empty", DType::F32, &[0, 3]);
    refused(cx.mean(empty, &[0]), "E163", "the mean of no elements");
    assert_eq!(cx.mean(x, &[]).map(|y| cx.shape(y)).unwrap(), [2, 3]);
}

#[test]
fn sizes_and_rates_that_make_no_sense_are_refused() {
    let mut cx = Context::new("sizes", DType::F32, true);
    let x = cx.input("x", DType::F32, &[4, 6]);
    let ids = cx.input("ids", DType::I64, &[4]);
    let huge = usize::MAX / 2;
    let modules: [(&str, Box<dyn Module>, ValueId, &str); 16] = [
        ("E050", Box::new(Linear::new(6, 0)), x, "[0, 6]"),
        ("E050", Box::new(Linear::new(0, 6)), x, "`m1.weight`"),
        ("E050", Box::new(Linear::new(huge, 6)), x, "no more than memory"),
        ("E050", Box::new(Embedding::new(0, 6)), ids, "[0, 6]"),
        ("E050", Box::new(Embedding::new(6, 0)), ids, "[6, 0]"),
        ("E050", Box::new(Embedding::new(6, 6)), x, "not integers"),
        ("E050", Box::new(LayerNorm::new(0)), x, "normalised"),
        ("E050", Box::new(LayerNorm::over(&[])), x, "at least one extent"),
        ("E050", Box::new(LayerNorm::over(&[6, 4])), x, "[4, 6]"),
        ("E050", Box::new(LayerNorm::new(6).epsilon(f64::NAN)), x, "epsilon"),
        ("E050", Box::new(RMSNorm::new(6).epsilon(-1.0)), x, "-1"),
        ("E050", Box::new(Mlp::new(6, 0)), x, "[0, 6]"),
        ("E050", Box::new(MultiheadAttention::new(6, 4)), x, "a divisor of 6"),
        ("E050", Box::new(MultiheadAttention::new(6, 0)), x, "a divisor of 6"),
        ("E052", Box::new(Dropout { rate: -0.1 }), x, "-0.1"),
        ("E052", Box::new(Dropout { rate: f64::NAN }), x, "NaN"),
    ];
    for (number, (code, module, x, part)) in modules.iter().enumerate() {
        refused(cx.call(&format!("m{number}"), module.as_ref(), *x), code, part);
    }
    let labels = cx.input("labels", DType::F32, &[4]);
    refused(losses::cross_entropy(&mut cx, x, labels), "E050", "integers below 6, of shape [4]");
    let labels = cx.input("more", DType::I64, &[5]);
    refused(losses::cross_entropy(&mut cx, x, labels), "E050", "tensor<5xi64>");
    refused(losses::cross_entropy(&mut cx, ids, labels), "E050", "not defined for this element type");
    refused(losses::mse(&mut cx, ids, ids), "E050", "not defined for this element type");
    // The rejected calls changed nothing.
    let y = cx.call("fc", &Linear::new(6, 2), x).unwrap();
    let model = cx.finish(vec![("y".into(), y)]).unwrap();
    assert_eq!(model.params.keys().collect::<Vec<_>>(), ["fc.weight", "fc.bias"]);
}

#[test]
fn names_that_nothing_could_be_found_by_are_refused() {
    // If a call cannot return an error, the next one does.
    let mut twice = names();
    let x = twice.input("x", DType::F32, &[2, 3]);
    twice.input("x", DType::F32, &[2, 3]);
    refused(twice.call("fc", &Linear::new(3, 2), x), "E161", "`x` is the name of two inputs");
    refused(twice.finish(vec![("x".into(), x)]), "E161", "two inputs");
    let mut unnamed = names();
    let x = unnamed.input("", DType::F32, &[2]);
    refused(unnamed.finish(vec![("x".into(), x)]), "E161", "without a name");
    let mut parameter = names();
    parameter.input("fc.weight", DType::F32, &[2]);
    let x = parameter.input("x", DType::F32, &[2, 3]);
    refused(parameter.call("fc", &Linear::new(3, 2), x), "E161", "`fc.weight`");
    for name in ["layers.*", "**", "", "a..b", "a b", "a#0", "a\"", "a\n"] {
        let mut cx = names();
        let x = cx.input("x", DType::F32, &[2, 3]);
        refused(cx.call(name, &Linear::new(3, 2), x), "E162", &format!("{name:?}"));
        let mut cx = names();
        let x = cx.input("x", DType::F32, &[2, 3]);
        let error = cx.scope(name, |cx| cx.builder.negate(x)).unwrap_err();
        assert_eq!(error.code, "E162");
        let mut cx = names();
        assert_eq!(cx.param(name, &[2], Init::Zeros).unwrap_err().code, "E162");
        assert_eq!(cx.tie(name, "x").unwrap_err().code, "E162");
    }
    let mut cx = names();
    let x = cx.input("x", DType::F32, &[2]);
    refused(cx.finish(vec![("y".into(), x), ("y".into(), x)]), "E161", "two outputs");
}

fn names() -> Context {
    Context::new("names", DType::F32, true)
}

#[test]
fn a_value_of_another_context_is_refused() {
    let mut first = Context::new("model", DType::F32, true);
    let mut second = Context::new("model", DType::F32, true);
    let x = first.input("x", DType::F32, &[2, 3]);
    let own = second.input("x", DType::F32, &[2, 3]);
    assert_eq!(x, own, "nothing else tells them apart");
    let attention = MultiheadAttention::new(3, 1);
    refused(second.call("fc", &Linear::new(3, 2), x), "E160", "fc at ");
    refused(second.call("attn", &attention, x), "E160", "another context");
    refused(attention.forward_masked(&mut second, own, Some(x)), "E160", "another context");
    refused(second.dropout(x, 0.1), "E160", "another context");
    refused(second.softmax(x, 0), "E160", "another context");
    refused(second.mean(x, &[0]), "E160", "another context");
    refused(second.broadcast(x, &[2, 3]), "E160", "another context");
    refused(losses::mse(&mut second, own, x), "E160", "another context");
    refused(losses::cross_entropy(&mut second, own, x), "E160", "another context");
    let y = second.call("fc", &Linear::new(3, 2), own).unwrap();
    refused(second.finish(vec![("y".into(), y), ("x".into(), x)]), "E160", "another context");
    assert_eq!(first.shape(y), Vec::<usize>::new(), "there is no such value");
    refused(first.finish(vec![("x".into(), x)]), "E160", "one of the 1 values of `model`");
}
