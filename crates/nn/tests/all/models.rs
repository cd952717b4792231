//! The model zoo: names, losses, masks, and gradients against finite differences.

use crate::common::*;
use partita_base::DType;
use partita_ir::Literal;
use partita_nn::{
    Activation, BertConfig, GptConfig, LlamaConfig, MlpConfig, Model, ModelConfig, Optimizer, StepOptions,
    gradient_graph, train_step,
};

fn tiny_gpt() -> GptConfig {
    GptConfig { vocab: 11, dim: 8, layers: 2, heads: 2, sequence: 4, mlp_ratio: 2, ..GptConfig::default() }
}

fn tiny_llama() -> LlamaConfig {
    LlamaConfig {
        vocab: 11,
        dim: 8,
        layers: 2,
        heads: 2,
        kv_heads: Some(1),
        sequence: 4,
        hidden: Some(12),
        ..LlamaConfig::default()
    }
}

fn tiny_bert() -> BertConfig {
    BertConfig {
        vocab: 11,
        dim: 8,
        layers: 1,
        heads: 2,
        sequence: 4,
        mlp_ratio: 2,
        types: 2,
        padding_mask: true,
        ..BertConfig::default()
    }
}

/// Two rows of tokens and labels (one ignored), types and a mask, for models that read them.
fn batch() -> Values {
    let mut values = Values::new();
    values.insert("tokens".into(), integers(1, &[2, 4], 11));
    values.insert("labels".into(), i32s(&[2, 4], &[3, 0, -100, 10, 5, 5, 2, 1]));
    values.insert("token_types".into(), i32s(&[2, 4], &[0, 0, 1, 1, 0, 1, 1, 1]));
    values.insert("attention_mask".into(), i32s(&[2, 4], &[1, 1, 1, 0, 1, 1, 1, 1]));
    values.insert("seed".into(), Literal::new([], vec![3u64]));
    values.insert("step".into(), Literal::new([], vec![1i64]));
    values
}

fn with_params(model: &Model, mut values: Values) -> Values {
    values.extend(parameters(model, 0.3));
    values
}

#[test]
fn gradients_of_gpt_equal_finite_differences() {
    let config = GptConfig { dropout: 0.2, ..tiny_gpt() };
    let model = ModelConfig::Gpt(config).build(2, DType::F64, true).unwrap();
    check_gradients(&model, &with_params(&model, batch()));
}

#[test]
fn gradients_of_llama_equal_finite_differences() {
    let model = ModelConfig::Llama(tiny_llama()).build(2, DType::F64, true).unwrap();
    check_gradients(&model, &with_params(&model, batch()));
}

#[test]
fn gradients_of_bert_equal_finite_differences() {
    let model = ModelConfig::Bert(tiny_bert()).build(2, DType::F64, true).unwrap();
    check_gradients(&model, &with_params(&model, batch()));
}

#[test]
fn gradients_of_mlps_equal_finite_differences() {
    for activation in Activation::ALL {
        let config = MlpConfig { dims: vec![3, 5, 2], activation, bias: true, classify: false };
        let model = ModelConfig::Mlp(config.clone()).build(4, DType::F64, true).unwrap();
        let mut values = with_params(&model, Values::new());
        values.insert("inputs".into(), f64s(&[4, 3], &noise(1, 12)));
        values.insert("targets".into(), f64s(&[4, 2], &noise(2, 8)));
        check_gradients(&model, &values);
        let model =
            ModelConfig::Mlp(MlpConfig { classify: true, ..config }).build(4, DType::F64, true).unwrap();
        values.insert("labels".into(), i32s(&[4], &[1, 0, -100, 1]));
        check_gradients(&model, &values);
    }
}

#[test]
fn parameters_are_named_by_module_path() {
    let names = |config: ModelConfig| -> Vec<String> {
        config.build(1, DType::F32, true).unwrap().params.into_keys().collect()
    };
    let gpt = names(ModelConfig::Gpt(GptConfig { layers: 1, bias: false, fused_qkv: true, ..tiny_gpt() }));
    let expected = [
        "embed_tokens.weight",
        "embed_positions.weight",
        "layers.0.attn_norm.weight",
        "layers.0.attn.qkv_proj.weight",
        "layers.0.attn.o_proj.weight",
        "layers.0.mlp_norm.weight",
        "layers.0.mlp.up_proj.weight",
        "layers.0.mlp.down_proj.weight",
        "norm.weight",
    ];
    assert_eq!(gpt, expected);
    let llama = names(ModelConfig::Llama(LlamaConfig { layers: 1, ..tiny_llama() }));
    let expected = [
        "embed_tokens.weight",
        "layers.0.attn_norm.weight",
        "layers.0.attn.q_proj.weight",
        "layers.0.attn.k_proj.weight",
        "layers.0.attn.v_proj.weight",
        "layers.0.attn.o_proj.weight",
        "layers.0.mlp_norm.weight",
        "layers.0.mlp.gate_proj.weight",
        "layers.0.mlp.up_proj.weight",
        "layers.0.mlp.down_proj.weight",
        "norm.weight",
        "lm_head.weight",
    ];
    assert_eq!(llama, expected);
    let bert = names(ModelConfig::Bert(tiny_bert()));
    for name in ["embed_types.weight", "embed_norm.bias", "lm_transform.weight", "lm_head.bias"] {
        assert!(bert.iter().any(|n| n == name), "{name} in {bert:?}");
    }
    let model = ModelConfig::Gpt(tiny_gpt()).build(1, DType::F32, true).unwrap();
    assert_eq!(model.ties, [("lm_head.weight".to_string(), "embed_tokens.weight".to_string())]);
}

#[test]
fn inputs_come_first_and_outputs_have_the_shapes_promised() {
    let config = GptConfig { dropout: 0.1, ..tiny_gpt() };
    let model = ModelConfig::Gpt(config).build(3, DType::BF16, true).unwrap();
    let graph = &model.forward;
    let names: Vec<&str> = graph.inputs[..5].iter().map(|&v| graph.value(v).name.as_str()).collect();
    assert_eq!(names, ["tokens", "labels", "seed", "step", "embed_tokens.weight"]);
    assert_eq!(graph.inputs.len(), 4 + model.params.len());
    assert_eq!(graph.output_names, ["loss", "logits"]);
    assert_eq!(graph.ty(graph.outputs[0]).to_string(), "tensor<f32>");
    assert_eq!(graph.ty(graph.outputs[1]).to_string(), "tensor<3x4x11xbf16>");
    train_step(graph, &StepOptions::new(Optimizer::adamw())).unwrap();
    let mlp = ModelConfig::Mlp(MlpConfig::default()).build(3, DType::F32, true).unwrap();
    assert_eq!(mlp.forward.output_names, ["loss", "prediction"]);
    assert_eq!(mlp.parameter_count(), 8 * 32 + 32 + 32 * 32 + 32 + 32 * 4 + 4);
}

#[test]
fn an_untrained_model_knows_nothing() {
    let (batch, sequence, vocab) = (2, 16, 50);
    let configs = [
        ModelConfig::Gpt(GptConfig { vocab, sequence, dim: 32, ..GptConfig::default() }),
        ModelConfig::Llama(LlamaConfig { vocab, sequence, dim: 32, ..LlamaConfig::default() }),
        ModelConfig::Bert(BertConfig { vocab, sequence, dim: 32, ..BertConfig::default() }),
    ];
    for config in configs {
        let model = config.build(batch, DType::F32, true).unwrap();
        let mut values = model.initial(0).unwrap();
        values.insert("tokens".into(), integers(1, &[batch, sequence], vocab));
        values.insert("labels".into(), integers(2, &[batch, sequence], vocab));
        let loss = single(&run(&model.forward, &values), "loss");
        assert!((loss - (vocab as f64).ln()).abs() < 0.15, "{}: {loss}", config.name());
    }
}

#[test]
fn ignored_labels_do_not_count() {
    let model = ModelConfig::Gpt(tiny_gpt()).build(2, DType::F64, true).unwrap();
    let mut values = with_params(&model, batch());
    let outputs = run(&model.forward, &values);
    let logits = outputs["logits"].to_f64();
    let mut losses = Vec::new();
    for (row, label) in logits.chunks(11).zip(values["labels"].to_i64()) {
        if label >= 0 {
            let total: f64 = row.iter().map(|x| x.exp()).sum();
            losses.push(total.ln() - row[label as usize]);
        }
    }
    assert_eq!(losses.len(), 7);
    let mean = losses.iter().sum::<f64>() / 7.0;
    assert!((single(&outputs, "loss") - mean).abs() < 1e-12);
    values.insert("labels".into(), i32s(&[2, 4], &[-100; 8]));
    assert_eq!(single(&run(&model.forward, &values), "loss"), 0.0);
}

#[test]
fn a_tied_weight_gets_the_sum_of_both_gradients() {
    let tied = ModelConfig::Gpt(tiny_gpt()).build(2, DType::F64, true).unwrap();
    let untied =
        ModelConfig::Gpt(GptConfig { tied: false, ..tiny_gpt() }).build(2, DType::F64, true).unwrap();
    let mut values = with_params(&tied, batch());
    values.insert("lm_head.weight".into(), values["embed_tokens.weight"].clone());
    let one = run(&gradient_graph(&tied.forward).unwrap(), &values);
    let two = run(&gradient_graph(&untied.forward).unwrap(), &values);
    assert_eq!(single(&one, "loss"), single(&two, "loss"));
    let (embed, head) = (two["grad.embed_tokens.weight"].to_f64(), two["grad.lm_head.weight"].to_f64());
    let sum: Vec<f64> = embed.iter().zip(&head).map(|(a, b)| a + b).collect();
    assert_close(&one["grad.embed_tokens.weight"].to_f64(), &sum, 1e-12, "tied gradient");
    assert!(!one.contains_key("grad.lm_head.weight"));
}

#[test]
fn decoders_do_not_see_the_future() {
    for config in [ModelConfig::Gpt(tiny_gpt()), ModelConfig::Llama(tiny_llama())] {
        let model = config.build(2, DType::F64, true).unwrap();
        let mut values = with_params(&model, batch());
        values.insert("tokens".into(), i32s(&[2, 4], &[1, 2, 3, 4, 5, 6, 7, 8]));
        let before = run(&model.forward, &values)["logits"].to_f64();
        values.insert("tokens".into(), i32s(&[2, 4], &[1, 2, 9, 4, 5, 6, 7, 8]));
        let after = run(&model.forward, &values)["logits"].to_f64();
        let changed: Vec<bool> = before.chunks(11).zip(after.chunks(11)).map(|(a, b)| a != b).collect();
        assert_eq!(changed, [false, false, true, true, false, false, false, false], "{}", config.name());
    }
}

#[test]
fn an_encoder_does_not_see_padding() {
    let model = ModelConfig::Bert(tiny_bert()).build(2, DType::F64, true).unwrap();
    let mut values = with_params(&model, batch());
    values.insert("tokens".into(), i32s(&[2, 4], &[1, 2, 3, 4, 5, 6, 7, 8]));
    let before = run(&model.forward, &values)["logits"].to_f64();
    // In the first row the last token is padding, in the second it is not.
    values.insert("tokens".into(), i32s(&[2, 4], &[1, 2, 3, 9, 5, 6, 7, 9]));
    let after = run(&model.forward, &values)["logits"].to_f64();
    let changed: Vec<bool> = before.chunks(11).zip(after.chunks(11)).map(|(a, b)| a != b).collect();
    assert_eq!(changed, [false, false, false, true, true, true, true, true]);
}

#[test]
fn ten_steps_of_adamw_learn_a_batch_by_heart() {
    let model = ModelConfig::Llama(tiny_llama()).build(2, DType::F32, true).unwrap();
    let options = StepOptions { clip_grad_norm: Some(1.0), ..StepOptions::new(Optimizer::adamw()) };
    let step = train_step(&model.forward, &options).unwrap();
    let mut values = batch();
    values.extend(model.initial(0).unwrap());
    for &input in &step.inputs {
        let name = &step.value(input).name;
        if !values.contains_key(name) {
            values.insert(name.clone(), zeros(step.ty(input)));
        }
    }
    values.insert("learning_rate".into(), scalar(DType::F32, 0.03));
    let mut losses = Vec::new();
    for number in 1..=10 {
        values.insert("step".into(), scalar(DType::I64, number as f64));
        let outputs = run(&step, &values);
        losses.push(single(&outputs, "loss"));
        values.extend(outputs);
    }
    assert!(losses[9] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let code = |config: ModelConfig| config.build(2, DType::F32, true).unwrap_err().code;
    assert_eq!(code(ModelConfig::Gpt(GptConfig { heads: 3, ..tiny_gpt() })), "E050");
    assert_eq!(code(ModelConfig::Gpt(GptConfig { vocab: 0, ..tiny_gpt() })), "E050");
    assert_eq!(code(ModelConfig::Gpt(GptConfig { dropout: 1.0, ..tiny_gpt() })), "E050");
    assert_eq!(code(ModelConfig::Llama(LlamaConfig { heads: 8, kv_heads: None, ..tiny_llama() })), "E050");
    assert_eq!(code(ModelConfig::Llama(LlamaConfig { kv_heads: Some(3), ..tiny_llama() })), "E050");
    assert_eq!(code(ModelConfig::Mlp(MlpConfig { dims: vec![3], ..MlpConfig::default() })), "E050");
    let integer = ModelConfig::Gpt(tiny_gpt()).build(2, DType::I32, true).unwrap_err();
    assert_eq!(integer.code, "E050");
}
