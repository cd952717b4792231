//! Mixtures of experts against plain loops, and their gradients against finite differences.

use crate::common::*;
use partita_base::DType;
use partita_ir::Literal;
use partita_nn::{
    Context, DeepseekConfig, ExpertsConfig, GptConfig, LlamaConfig, MixtureOfExperts, Model, ModelConfig,
    Scores,
};

const BATCH: usize = 2;
const SEQUENCE: usize = 6;

fn layer(experts: usize, top_k: usize, capacity: Option<f64>, gated: bool) -> MixtureOfExperts {
    MixtureOfExperts { top_k, capacity, gated, ..MixtureOfExperts::new(4, 5, experts) }
}

/// A model that is one layer of experts: its output, and the sum of its squares as the loss.
fn model(layer: &MixtureOfExperts) -> Model {
    let mut cx = Context::new("layer", DType::F64, true);
    let x = cx.input("x", DType::F64, &[BATCH, SEQUENCE, layer.dim]);
    let y = cx.call("moe", layer, x).unwrap();
    let squares = cx.builder.multiply(y, y).unwrap();
    let loss = cx.builder.reduce_sum(squares, &[0, 1, 2]).unwrap();
    cx.finish(vec![("loss".into(), loss), ("y".into(), y)]).unwrap()
}

fn feed(model: &Model, dim: usize) -> Values {
    let mut values = parameters(model, 1.0);
    values.insert("x".into(), f64s(&[BATCH, SEQUENCE, dim], &noise(5, BATCH * SEQUENCE * dim)));
    values
}

/// `y = w x` for the matrix `w[rows, x.len()]` that begins at `from`.
fn product(w: &[f64], from: usize, rows: usize, x: &[f64]) -> Vec<f64> {
    let row = |r: usize| (0..x.len()).map(|c| w[from + r * x.len() + c] * x[c]).sum();
    (0..rows).map(row).collect()
}

/// The layer, token by token: outputs, tokens that were dropped, and choices of each expert in each row of the batch.
fn by_loops(layer: &MixtureOfExperts, values: &Values) -> (Vec<f64>, usize, Vec<Vec<usize>>) {
    let of = |name: &str| values.get(&format!("moe.{name}")).map(Literal::to_f64);
    let (router, up, down) =
        (of("router.weight").unwrap(), of("experts.up_proj").unwrap(), of("experts.down_proj").unwrap());
    let gate = of("experts.gate_proj");
    let (dim, hidden, experts) = (layer.dim, layer.hidden, layer.experts);
    let x = values["x"].to_f64();
    let mut y = vec![0.0; x.len()];
    let (mut dropped, mut all_counts) = (0, Vec::new());
    for row in 0..BATCH {
        let token = |s: usize| &x[(row * SEQUENCE + s) * dim..][..dim];
        let routed: Vec<Vec<(usize, f64)>> = (0..SEQUENCE)
            .map(|s| {
                let logits = product(&router, 0, experts, token(s));
                let total: f64 = logits.iter().map(|l| l.exp()).sum();
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
                let chosen = &order[..layer.top_k];
                let sum: f64 = chosen.iter().map(|&e| logits[e].exp() / total).sum();
                let scale = if layer.normalise { sum } else { 1.0 };
                chosen.iter().map(|&e| (e, logits[e].exp() / total / scale)).collect()
            })
            .collect();
        let mut counts = vec![0; experts];
        let by_choice = (0..layer.top_k).flat_map(|choice| (0..SEQUENCE).map(move |s| (choice, s)));
        for (choice, s) in by_choice {
            let (e, weight) = routed[s][choice];
            counts[e] += 1;
            if layer.slots(SEQUENCE).is_some_and(|slots| counts[e] > slots) {
                dropped += 1;
                continue;
            }
            let h = product(&up, e * hidden * dim, hidden, token(s));
            let h: Vec<f64> = match &gate {
                Some(gate) => {
                    let g = product(gate, e * hidden * dim, hidden, token(s));
                    h.iter().zip(g).map(|(h, g)| h * g / (1.0 + (-g).exp())).collect()
                }
                None => h.iter().map(|&h| gelu(h)).collect(),
            };
            let out = product(&down, e * dim * hidden, dim, &h);
            (0..dim).for_each(|d| y[(row * SEQUENCE + s) * dim + d] += weight * out[d]);
        }
        all_counts.push(counts);
    }
    (y, dropped, all_counts)
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

#[test]
fn experts_with_a_capacity_are_those_of_plain_loops() {
    let mut all_dropped = Vec::new();
    for (experts, top_k, capacity, gated) in
        [(4, 2, 1.25, false), (3, 1, 0.5, true), (3, 2, 0.5, false), (2, 2, 1.0, true), (5, 3, 2.0, false)]
    {
        let layer = layer(experts, top_k, Some(capacity), gated);
        let model = model(&layer);
        let values = feed(&model, layer.dim);
        let (y, dropped, _) = by_loops(&layer, &values);
        assert_close(&run(&model.forward, &values)["y"].to_f64(), &y, 1e-12, "y");
        all_dropped.push(dropped);
    }
    assert!(all_dropped[1] > 0 && all_dropped[2] > 0 && all_dropped[3] == 0, "{all_dropped:?}");
}

#[test]
fn experts_without_a_capacity_drop_nothing() {
    for (experts, top_k, gated) in [(4, 2, true), (3, 1, false), (2, 2, true)] {
        let layer = layer(experts, top_k, None, gated);
        let model = model(&layer);
        let values = feed(&model, layer.dim);
        let (y, dropped, _) = by_loops(&layer, &values);
        assert_eq!(dropped, 0);
        assert_close(&run(&model.forward, &values)["y"].to_f64(), &y, 1e-12, "y");
    }
}

#[test]
fn gradients_of_experts_equal_finite_differences() {
    for capacity in [Some(0.75), None] {
        for gated in [false, true] {
            let layer = MixtureOfExperts { shared_hidden: 3, ..layer(3, 2, capacity, gated) };
            let model = model(&layer);
            check_gradients(&model, &feed(&model, layer.dim));
        }
    }
}

/// Switch Transformer's loss: experts times the sum of share of the choices times mean gate, for each row.
#[test]
fn the_balance_loss_is_the_mean_over_rows() {
    let plain = layer(4, 2, None, false);
    let layer = MixtureOfExperts { balance: 0.5, ..plain.clone() };
    let mut cx = Context::new("balance", DType::F64, true);
    let x = cx.input("x", DType::F64, &[BATCH, SEQUENCE, layer.dim]);
    cx.call("moe", &layer, x).unwrap();
    let zero = cx.builder.scalar(DType::F64, 0.0);
    let loss = cx.with_added_losses(zero).unwrap();
    let balance = cx.finish(vec![("loss".into(), loss)]).unwrap();
    let values = feed(&model(&plain), layer.dim);
    let (_, _, counts) = by_loops(&plain, &values);
    let (x, router) = (values["x"].to_f64(), values["moe.router.weight"].to_f64());
    let mut expected = 0.0;
    for (row, counts) in counts.iter().enumerate() {
        let mut means = [0.0; 4];
        for s in 0..SEQUENCE {
            let logits = product(&router, 0, 4, &x[(row * SEQUENCE + s) * 4..][..4]);
            let total: f64 = logits.iter().map(|l| l.exp()).sum();
            (0..4).for_each(|e| means[e] += logits[e].exp() / total / SEQUENCE as f64);
        }
        let share = |e: usize| counts[e] as f64 / (2 * SEQUENCE) as f64;
        expected += 0.5 * 4.0 * (0..4).map(|e| share(e) * means[e]).sum::<f64>() / BATCH as f64;
    }
    assert_close(&[single(&run(&balance.forward, &values), "loss")], &[expected], 1e-12, "balance");
}

/// The bias rises where an expert has fewer choices than the mean.
#[test]
fn biases_move_towards_balance() {
    let layer = MixtureOfExperts { scores: Scores::BiasedSigmoid { rate: 0.25 }, ..layer(3, 1, None, false) };
    let model = model(&layer);
    assert_eq!(model.states.keys().collect::<Vec<_>>(), ["moe.router.balance_bias"]);
    let mut values = feed(&model, layer.dim);
    values.insert("moe.router.balance_bias".into(), f64s(&[3], &[9.0, 0.0, -9.0]));
    // Every token chooses the first expert.
    let outputs = run(&model.forward, &values);
    assert_eq!(outputs["moe.router.balance_bias"].to_f64(), [8.75, 0.25, -8.75]);
    let state =
        model.forward.inputs.iter().position(|&v| model.forward.value(v).name.ends_with("balance_bias"));
    assert_eq!(model.forward.aliases, [(state.unwrap(), 2)]);
}

fn batch() -> Values {
    let mut values = Values::new();
    values.insert("tokens".into(), integers(1, &[2, 4], 11));
    values.insert("labels".into(), i32s(&[2, 4], &[3, 0, -100, 10, 5, 5, 2, 1]));
    values
}

#[test]
fn gradients_of_decoders_with_experts_equal_finite_differences() {
    let experts =
        |every, capacity| Some(ExpertsConfig { experts: 3, every, capacity, balance: 0.1, top_k: 2 });
    let gpt = GptConfig {
        vocab: 11,
        dim: 8,
        layers: 2,
        heads: 2,
        sequence: 4,
        mlp_ratio: 2,
        experts: experts(2, Some(1.0)),
        ..GptConfig::default()
    };
    let mixtral = LlamaConfig {
        vocab: 11,
        dim: 8,
        layers: 1,
        heads: 2,
        kv_heads: Some(1),
        sequence: 4,
        hidden: Some(6),
        experts: experts(1, None),
        ..LlamaConfig::default()
    };
    for config in [ModelConfig::Gpt(gpt), ModelConfig::Llama(mixtral)] {
        let model = config.build(2, DType::F64, true).unwrap();
        let mut values = batch();
        values.extend(parameters(&model, 0.3));
        check_gradients(&model, &values);
    }
}

#[test]
fn every_second_layer_of_a_gpt_has_experts() {
    let model = ModelConfig::from_name("moe-gpt").unwrap().build(1, DType::F32, true).unwrap();
    let has = |name: &str| model.params.contains_key(name);
    assert!(has("layers.0.mlp.up_proj.weight") && !has("layers.0.moe.router.weight"));
    assert!(has("layers.1.moe.router.weight") && !has("layers.1.mlp.up_proj.weight"));
    assert_eq!(model.params["layers.1.moe.experts.up_proj"].ty.shape, [4, 256, 64]);
    assert_eq!(model.params["layers.1.moe.experts.down_proj"].ty.shape, [4, 64, 256]);
    let mixtral = ModelConfig::from_name("mixtral").unwrap().build(1, DType::F32, true).unwrap();
    assert!((0..2).all(|n| mixtral.params.contains_key(&format!("layers.{n}.moe.experts.gate_proj"))));
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let sizes = [
        MixtureOfExperts { top_k: 5, ..MixtureOfExperts::new(4, 5, 4) },
        MixtureOfExperts { capacity: Some(0.0), ..MixtureOfExperts::new(4, 5, 4) },
        MixtureOfExperts { balance: f64::NAN, ..MixtureOfExperts::new(4, 5, 4) },
        MixtureOfExperts::new(4, 5, 0),
    ];
    for layer in sizes {
        assert_eq!(layer.validate().unwrap_err().code, "E050", "{layer:?}");
    }
    let experts = Some(ExpertsConfig { every: 3, ..ExpertsConfig::default() });
    let config = ModelConfig::Gpt(GptConfig { experts, ..GptConfig::default() });
    assert_eq!(config.validate().unwrap_err().code, "E050");
}

#[test]
fn gradients_of_deepseek_equal_finite_differences() {
    let config = DeepseekConfig {
        vocab: 11,
        dim: 8,
        heads: 2,
        query_rank: 4,
        latent_rank: 3,
        plain_features: 4,
        rotary_features: 2,
        value_features: 5,
        sequence: 4,
        hidden: 6,
        expert_hidden: 3,
        experts: 4,
        balance: 0.1,
        ..DeepseekConfig::default()
    };
    for config in
        [config.clone(), DeepseekConfig { query_rank: 0, capacity: Some(1.0), next_weight: 0.0, ..config }]
    {
        let model = ModelConfig::Deepseek(config).build(2, DType::F64, true).unwrap();
        let mut values = batch();
        values.extend(parameters(&model, 0.3));
        check_gradients(&model, &values);
    }
}

/// The loss without the second prediction, and that of logits one position further.
#[test]
fn the_second_head_predicts_the_token_after_the_next() {
    let plain = DeepseekConfig {
        vocab: 11,
        sequence: 4,
        next_weight: 0.0,
        balance: 0.0,
        ..DeepseekConfig::default()
    };
    let both = DeepseekConfig { next_weight: 0.5, ..plain.clone() };
    let [plain, both] = [plain, both].map(|c| ModelConfig::Deepseek(c).build(2, DType::F64, true).unwrap());
    let mut values = batch();
    values.extend(parameters(&both, 0.3));
    let loss = |model: &Model, values: &Values| single(&run(&model.forward, values), "loss");
    let second = |values: &Values| loss(&both, values) - loss(&plain, values);
    let before = second(&values);
    // The first label of a row is no target of the second head; the last token is no input of it.
    let mut other = values.clone();
    other.insert("labels".into(), i32s(&[2, 4], &[7, 0, -100, 10, 6, 5, 2, 1]));
    assert!((second(&other) - before).abs() < 1e-12);
    other.insert("labels".into(), i32s(&[2, 4], &[3, 8, -100, 10, 5, 5, 2, 1]));
    assert!((second(&other) - before).abs() > 1e-3);
    assert!(loss(&both, &values) > loss(&plain, &values));
}
