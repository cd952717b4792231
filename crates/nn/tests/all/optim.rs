//! Optimizers compared with their published formulas on plain numbers, and the structure of a step.

use crate::common::*;
use partita_base::DType;
use partita_ir::{Graph, Literal, Phase, Role, TensorType};
use partita_nn::{
    Context, Group, Init, MlpConfig, ModelConfig, Optimizer, StepOptions, append_update, gradient_graph,
    train_step,
};

/// `loss = sum(w * x) + sum(b * y)`: the gradients are the inputs x and y, so tests choose them.
fn chosen_gradients(dtype: DType) -> Graph {
    let mut cx = Context::new("chosen", dtype, true);
    let x = cx.input("x", dtype, &[2, 2]);
    let y = cx.input("y", dtype, &[2]);
    let w = cx.scope("layer", |cx| cx.param("weight", &[2, 2], Init::Ones)).unwrap();
    let b = cx.scope("layer", |cx| cx.param("bias", &[2], Init::Ones)).unwrap();
    let wx = cx.builder.multiply(w, x).unwrap();
    let by = cx.builder.multiply(b, y).unwrap();
    let wx = cx.builder.reduce_sum(wx, &[0, 1]).unwrap();
    let by = cx.builder.reduce_sum(by, &[0]).unwrap();
    let loss = cx.builder.add(wx, by).unwrap();
    cx.finish(vec![("loss".into(), loss)]).unwrap().forward
}

const RATES: [f64; 4] = [0.1, 0.1, 0.05, 0.02];
const W: [f64; 4] = [0.5, -1.5, 2.0, 0.25];
const B: [f64; 2] = [1.0, -0.75];

fn gradients_of(step: usize) -> (Vec<f64>, Vec<f64>) {
    (noise(step as u64 + 1, 4), noise(step as u64 + 50, 2))
}

/// Runs four steps of the graph and of `formula` (parameter, gradient, state, rate, step from 1, decay applies).
fn compare(options: StepOptions, formula: impl Fn(&mut f64, f64, &mut [f64; 2], f64, i32, bool)) {
    let step = train_step(&chosen_gradients(DType::F64), &options).unwrap();
    let mut values = Values::new();
    values.insert("layer.weight".into(), f64s(&[2, 2], &W));
    values.insert("layer.bias".into(), f64s(&[2], &B));
    for &input in &step.inputs {
        if matches!(step.value(input).role, Role::StateOf(_)) {
            values.insert(step.value(input).name.clone(), zeros(step.ty(input)));
        }
    }
    let (mut w, mut b) = (W.to_vec(), B.to_vec());
    let mut elements: Vec<[f64; 3]> = W.iter().chain(&B).map(|&value| [value, 0.0, 0.0]).collect();
    let (mut w_states, mut b_states) = ([[0.0; 2]; 4], [[0.0; 2]; 2]);
    for (index, rate) in RATES.into_iter().enumerate() {
        let (gw, gb) = gradients_of(index);
        values.insert("x".into(), f64s(&[2, 2], &gw));
        values.insert("y".into(), f64s(&[2], &gb));
        values.insert("learning_rate".into(), scalar(DType::F64, rate));
        values.insert("step".into(), scalar(DType::I64, (index + 1) as f64));
        let outputs = run(&step, &values);
        for i in 0..4 {
            formula(&mut w[i], gw[i], &mut w_states[i], rate, index as i32 + 1, true);
        }
        for i in 0..2 {
            formula(&mut b[i], gb[i], &mut b_states[i], rate, index as i32 + 1, options.decay_1d);
        }
        assert_close(&outputs["layer.weight"].to_f64(), &w, 1e-12, "weight");
        assert_close(&outputs["layer.bias"].to_f64(), &b, 1e-12, "bias");
        for (i, element) in elements.iter_mut().enumerate() {
            let (g, decays) = if i < 4 { (gw[i], true) } else { (gb[i - 4], options.decay_1d) };
            *element = options.optimizer.element(*element, g, rate, index as i32 + 1, decays).unwrap();
        }
        let after: Vec<f64> = elements.iter().map(|element| element[0]).collect();
        assert_close(&after, &[&w[..], &b[..]].concat(), 1e-12, "one element at a time");
        values.extend(outputs);
    }
}

#[test]
fn sgd_follows_its_formula_with_and_without_momentum() {
    for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
        let weight_decay = 0.1;
        let options = StepOptions::new(Optimizer::Sgd { momentum, weight_decay, nesterov });
        compare(options, |p, g, state, rate, step, decay| {
            let g = if decay { g + weight_decay * *p } else { g };
            // PyTorch initialises the buffer with the first gradient.
            state[0] = if step == 1 { g } else { momentum * state[0] + g };
            let d = if nesterov { g + momentum * state[0] } else { state[0] };
            *p -= rate * if momentum == 0.0 { g } else { d };
        });
    }
}

#[test]
fn adam_follows_its_formula() {
    for (weight_decay, decay_1d) in [(0.0, false), (0.2, false), (0.2, true)] {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        let optimizer = Optimizer::Adam { beta1, beta2, epsilon, weight_decay };
        let options = StepOptions { decay_1d, ..StepOptions::new(optimizer) };
        compare(options, |p, g, state, rate, step, decay| {
            let g = if decay { g + weight_decay * *p } else { g };
            state[0] = beta1 * state[0] + (1.0 - beta1) * g;
            state[1] = beta2 * state[1] + (1.0 - beta2) * g * g;
            let mean = state[0] / (1.0 - beta1.powi(step));
            let square = state[1] / (1.0 - beta2.powi(step));
            *p -= rate * mean / (square.sqrt() + epsilon);
        });
    }
}

#[test]
fn adamw_shrinks_the_parameter_instead() {
    for decay_1d in [false, true] {
        let (beta1, beta2, epsilon, weight_decay) = (0.8, 0.95, 1e-6, 0.3);
        let optimizer = Optimizer::AdamW { beta1, beta2, epsilon, weight_decay };
        let options = StepOptions { decay_1d, ..StepOptions::new(optimizer) };
        compare(options, |p, g, state, rate, step, decay| {
            if decay {
                *p *= 1.0 - rate * weight_decay;
            }
            state[0] = beta1 * state[0] + (1.0 - beta1) * g;
            state[1] = beta2 * state[1] + (1.0 - beta2) * g * g;
            let mean = state[0] / (1.0 - beta1.powi(step));
            let square = state[1] / (1.0 - beta2.powi(step));
            *p -= rate * mean / (square.sqrt() + epsilon);
        });
    }
}

#[test]
fn lion_moves_by_the_sign() {
    let (beta1, beta2, weight_decay) = (0.9, 0.99, 0.1);
    let options = StepOptions::new(Optimizer::Lion { beta1, beta2, weight_decay });
    compare(options, |p, g, state, rate, _, decay| {
        let c = beta1 * state[0] + (1.0 - beta1) * g;
        let pull = if decay { weight_decay * *p } else { 0.0 };
        *p -= rate * (c.signum() + pull);
        state[0] = beta2 * state[0] + (1.0 - beta2) * g;
    });
}

/// One step of gradient descent at rate 1 with these gradients.
fn one_step(options: &StepOptions, gw: &[f64], gb: &[f64]) -> Values {
    let step = train_step(&chosen_gradients(DType::F64), options).unwrap();
    let mut values = Values::new();
    values.insert("layer.weight".into(), f64s(&[2, 2], &W));
    values.insert("layer.bias".into(), f64s(&[2], &B));
    values.insert("x".into(), f64s(&[2, 2], gw));
    values.insert("y".into(), f64s(&[2], gb));
    values.insert("learning_rate".into(), scalar(DType::F64, 1.0));
    values.insert("step".into(), scalar(DType::I64, 1.0));
    run(&step, &values)
}

#[test]
fn clipping_scales_all_gradients_to_the_limit_and_reports_the_norm_before() {
    let clipped = StepOptions { clip_grad_norm: Some(1.0), ..StepOptions::new(Optimizer::sgd()) };
    let outputs = one_step(&clipped, &[3.0, 0.0, 0.0, 0.0], &[0.0, -4.0]);
    assert_eq!(single(&outputs, "grad_norm"), 5.0);
    let factor = 1.0 / (5.0 + 1e-6);
    assert_close(
        &outputs["layer.weight"].to_f64(),
        &[W[0] - 3.0 * factor, W[1], W[2], W[3]],
        1e-12,
        "weight",
    );
    assert_close(&outputs["layer.bias"].to_f64(), &[B[0], B[1] + 4.0 * factor], 1e-12, "bias");
    let small = one_step(&clipped, &[0.3, 0.0, 0.0, 0.0], &[0.0, -0.4]);
    assert_close(
        &small["layer.bias"].to_f64(),
        &[B[0], B[1] + 0.4],
        1e-12,
        "below the limit nothing changes",
    );
}

#[test]
fn groups_have_constants_and_rates_of_their_own() {
    let plain = |weight_decay| Optimizer::Sgd { momentum: 0.0, weight_decay, nesterov: false };
    let bias = Group {
        parameters: ["layer.bias".to_string()].into(),
        optimizer: Optimizer::Sgd { momentum: 0.5, weight_decay: 0.25, nesterov: false },
    };
    let options = StepOptions { groups: vec![bias], ..StepOptions::new(plain(0.5)) };
    let step = train_step(&chosen_gradients(DType::F64), &options).unwrap();
    let mut values = Values::new();
    values.insert("layer.weight".into(), f64s(&[2, 2], &W));
    values.insert("layer.bias".into(), f64s(&[2], &B));
    values.insert("optimizer.momentum_buffer.layer.bias".into(), f64s(&[2], &[2.0, 4.0]));
    values.insert("x".into(), f64s(&[2, 2], &[1.0; 4]));
    values.insert("y".into(), f64s(&[2], &[3.0, -3.0]));
    values.insert("learning_rate".into(), scalar(DType::F64, 0.1));
    values.insert("learning_rate.1".into(), scalar(DType::F64, 0.01));
    values.insert("step".into(), scalar(DType::I64, 1.0));
    let outputs = run(&step, &values);
    let weights = W.map(|w| w - 0.1 * (1.0 + 0.5 * w));
    assert_close(&outputs["layer.weight"].to_f64(), &weights, 1e-12, "weight");
    let moments = [0.5 * 2.0 + 3.0 + 0.25 * B[0], 0.5 * 4.0 - 3.0 + 0.25 * B[1]];
    let biases = [B[0] - 0.01 * moments[0], B[1] - 0.01 * moments[1]];
    assert_close(&outputs["layer.bias"].to_f64(), &biases, 1e-12, "bias");
    assert_close(&outputs["optimizer.momentum_buffer.layer.bias"].to_f64(), &moments, 1e-12, "momentum");
    assert!(step.input_named("optimizer.momentum_buffer.layer.weight").is_none());
    // A part of a split parameter belongs to the group of the whole.
    assert_eq!(options.rule_of("layer.bias#1", 1).group, 1);
    assert_eq!(options.rule_of("layer.weight#0", 2).group, 0);
}

#[test]
fn without_clipping_no_update_waits_for_the_norm() {
    let depends_on_norm = |options: &StepOptions| {
        let step = train_step(&chosen_gradients(DType::F64), options).unwrap();
        let mut tainted = vec![false; step.values.len()];
        tainted[step.output_named("grad_norm").unwrap().index()] = true;
        for node in &step.nodes {
            if node.operands.iter().any(|v| tainted[v.index()]) {
                node.results.iter().for_each(|v| tainted[v.index()] = true);
            }
        }
        tainted[step.output_named("layer.weight").unwrap().index()]
    };
    let free = StepOptions::new(Optimizer::adamw());
    assert!(!depends_on_norm(&free));
    let silent =
        train_step(&chosen_gradients(DType::F64), &StepOptions { grad_norm: false, ..free.clone() }).unwrap();
    assert!(silent.output_named("grad_norm").is_none());
    // Clipping needs the norm.
    let clipped = StepOptions { grad_norm: false, clip_grad_norm: Some(1.0), ..free.clone() };
    assert!(depends_on_norm(&clipped));
    assert!(depends_on_norm(&StepOptions { clip_grad_norm: Some(1.0), ..free }));
}

#[test]
fn a_step_lists_outputs_in_order_and_aliases_what_it_replaces() {
    let options = StepOptions { output_gradients: true, ..StepOptions::new(Optimizer::adam()) };
    let step = train_step(&chosen_gradients(DType::F64), &options).unwrap();
    let expected = [
        "loss",
        "grad_norm",
        "layer.weight",
        "layer.bias",
        "optimizer.exp_avg.layer.weight",
        "optimizer.exp_avg_sq.layer.weight",
        "optimizer.exp_avg.layer.bias",
        "optimizer.exp_avg_sq.layer.bias",
        "grad.layer.weight",
        "grad.layer.bias",
    ];
    assert_eq!(step.output_names, expected);
    assert_eq!(step.aliases.len(), 6);
    for &(input, output) in &step.aliases {
        let (old, new) = (step.inputs[input], step.outputs[output]);
        assert_eq!(step.value(old).name, step.output_names[output]);
        assert_eq!(step.ty(old), step.ty(new));
    }
    let state = step.input_named("optimizer.exp_avg.layer.bias").unwrap();
    assert_eq!(step.value(state).role, Role::StateOf(step.input_named("layer.bias").unwrap()));
    for name in ["layer.weight", "optimizer.exp_avg.layer.weight", "grad_norm"] {
        let (node, _) = step.value(step.output_named(name).unwrap()).definition.unwrap();
        assert_eq!(step.node(node).phase, Phase::Update, "{name}");
    }
    let gradient = step.output_named("grad.layer.weight").unwrap();
    assert_eq!(step.value(gradient).name, "grad.layer.weight");
    assert_eq!(step.value(gradient).role, Role::GradOf(step.input_named("layer.weight").unwrap()));
}

#[test]
fn narrow_parameters_keep_wide_states() {
    let step = train_step(&chosen_gradients(DType::BF16), &StepOptions::new(Optimizer::adamw())).unwrap();
    let dtype = |name: &str| step.ty(step.input_named(name).unwrap()).dtype;
    assert_eq!(dtype("layer.weight"), DType::BF16);
    assert_eq!(dtype("optimizer.exp_avg.layer.weight"), DType::F32);
    assert_eq!(dtype("learning_rate"), DType::F32);
    assert_eq!(step.ty(step.output_named("grad_norm").unwrap()).dtype, DType::F32);
}

#[test]
fn one_weight_and_two_points_give_the_gradient_worked_out_by_hand() {
    // w = 1, points (2, 4) and (3, 5): mean of 2 (w x - y) x is (-8 - 12) / 2.
    let config = ModelConfig::Mlp(MlpConfig { dims: vec![1, 1], bias: false, ..MlpConfig::default() });
    let model = config.build(2, DType::F64, true).unwrap();
    let options = StepOptions { output_gradients: true, ..StepOptions::new(Optimizer::sgd()) };
    let step = train_step(&model.forward, &options).unwrap();
    let mut values = Values::new();
    values.insert("layers.0.weight".into(), f64s(&[1, 1], &[1.0]));
    values.insert("inputs".into(), f64s(&[2, 1], &[2.0, 3.0]));
    values.insert("targets".into(), f64s(&[2, 1], &[4.0, 5.0]));
    values.insert("learning_rate".into(), scalar(DType::F64, 0.1));
    values.insert("step".into(), scalar(DType::I64, 1.0));
    let outputs = run(&step, &values);
    assert_eq!(single(&outputs, "loss"), 4.0);
    assert_eq!(single(&outputs, "grad.layers.0.weight"), -10.0);
    assert_eq!(single(&outputs, "grad_norm"), 10.0);
    assert_eq!(single(&outputs, "layers.0.weight"), 2.0);
}

#[test]
fn a_parameter_without_influence_gets_a_zero_gradient() {
    let mut cx = Context::new("unused", DType::F64, true);
    let used = cx.param("used", &[2], Init::Ones).unwrap();
    cx.param("unused", &[3], Init::Ones).unwrap();
    let loss = cx.builder.reduce_sum(used, &[0]).unwrap();
    let graph = gradient_graph(&cx.finish(vec![("loss".into(), loss)]).unwrap().forward).unwrap();
    let mut values = Values::new();
    values.insert("used".into(), f64s(&[2], &[1.0, 2.0]));
    values.insert("unused".into(), f64s(&[3], &[1.0, 2.0, 3.0]));
    let outputs = run(&graph, &values);
    assert_eq!(outputs["grad.used"].to_f64(), [1.0, 1.0]);
    assert_eq!(outputs["grad.unused"].to_f64(), [0.0, 0.0, 0.0]);
}

#[test]
fn what_cannot_be_stepped_is_refused_by_name() {
    let graph = chosen_gradients(DType::F64);
    let options = StepOptions::new(Optimizer::sgd());
    let error = append_update(&graph, &options).unwrap_err();
    assert_eq!(error.code, "E056");
    assert!(error.message.contains("layer.weight"));
    let mut unnamed = graph.clone();
    unnamed.output_names = vec!["other".into()];
    assert_eq!(train_step(&unnamed, &options).unwrap_err().code, "E055");
    let bad = StepOptions::new(Optimizer::Adam { beta1: 1.0, beta2: 0.9, epsilon: 1e-8, weight_decay: 0.0 });
    assert_eq!(train_step(&graph, &bad).unwrap_err().code, "E057");
    let bad = StepOptions { clip_grad_norm: Some(0.0), ..options };
    assert_eq!(train_step(&graph, &bad).unwrap_err().code, "E057");
}

/// Three quarters of the elements round a step of a quarter of a unit away; the others move by a whole unit, so the mean
/// moves by a quarter. Draws differ from step to step and from seed to seed.
#[test]
fn stochastic_rounding_keeps_small_updates_in_the_mean() {
    let shape = [64, 64];
    let mut cx = Context::new("rounded", DType::BF16, true);
    let gradient = cx.input("g", DType::BF16, &shape);
    let weight = cx.scope("layer", |cx| cx.param("weight", &shape, Init::Ones)).unwrap();
    let product = cx.builder.multiply(weight, gradient).unwrap();
    let loss = cx.builder.reduce_sum(product, &[0, 1]).unwrap();
    let model = cx.finish(vec![("loss".into(), loss)]).unwrap();
    let options = StepOptions { stochastic_rounding: true, ..StepOptions::new(Optimizer::sgd()) };
    let after = |options: &StepOptions, step: i64, seed: u64| {
        let graph = train_step(&model.forward, options).unwrap();
        let mut values = Values::new();
        let ty = TensorType::new(DType::BF16, shape);
        values.insert("layer.weight".into(), Literal::splat(&ty, 1.0));
        values.insert("g".into(), Literal::splat(&ty, -(2f64.powi(-9))));
        values.insert("learning_rate".into(), Literal::scalar(DType::F32, 1.0));
        values.insert("step".into(), Literal::new([], vec![step]));
        values.insert("seed".into(), Literal::new([], vec![seed]));
        run(&graph, &values)["layer.weight"].to_f64()
    };
    let unit = 2f64.powi(-7);
    let moved = after(&options, 1, 7);
    assert!(moved.iter().all(|value| [1.0, 1.0 + unit].contains(value)));
    let up = moved.iter().filter(|value| **value > 1.0).count();
    // A quarter of 4096, within five standard deviations.
    assert!(up.abs_diff(1024) < 5 * 28, "{up}");
    assert_eq!(after(&options, 1, 7), moved);
    assert_ne!(after(&options, 2, 7), moved);
    assert_ne!(after(&options, 1, 8), moved);
    let nearest = StepOptions { stochastic_rounding: false, ..options };
    assert!(after(&nearest, 1, 7).iter().all(|value| *value == 1.0));
}
