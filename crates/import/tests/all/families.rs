//! Weights of tiny random Hugging Face models (`tests/pt2/families`) in the bundled models: the
//! logits are theirs, and the weights come out again as they went in.

use indexmap::IndexMap;
use partita_base::DType;
use partita_import::families::Family;
use partita_import::{Limits, Weights, save, save_sharded};
use partita_ir::{Literal, evaluate};
use partita_nn::{BertConfig, GptConfig, LlamaConfig, Model, ModelConfig};

fn weights(name: &str) -> Weights {
    Weights::open(&crate::common::recorded().join("families").join(name), &Limits::default()).unwrap()
}

fn record(name: &str) -> Weights {
    Weights::open(&crate::common::recorded().join(format!("families/{name}.safetensors")), &Limits::default())
        .unwrap()
}

/// The bundled model with the sizes of the recorded one, with fused projections or not.
fn model(name: &str, fused_qkv: bool) -> Model {
    let config = match name {
        "gpt" => ModelConfig::Gpt(GptConfig {
            vocab: 31,
            dim: 16,
            layers: 2,
            heads: 2,
            sequence: 8,
            fused_qkv,
            ..GptConfig::default()
        }),
        "llama" => ModelConfig::Llama(LlamaConfig {
            vocab: 31,
            dim: 16,
            layers: 2,
            heads: 4,
            kv_heads: Some(2),
            sequence: 8,
            hidden: Some(24),
            fused_qkv,
            ..LlamaConfig::default()
        }),
        _ => ModelConfig::Bert(BertConfig {
            vocab: 31,
            dim: 16,
            layers: 2,
            heads: 2,
            sequence: 8,
            mlp_ratio: 2,
            types: 2,
            padding_mask: true,
            fused_qkv,
            ..BertConfig::default()
        }),
    };
    config.build(3, DType::F32, false).unwrap()
}

const NAMES: [&str; 3] = ["gpt", "llama", "bert"];

fn literals(weights: &Weights) -> IndexMap<String, Literal> {
    weights.iter().map(|(name, tensor)| (name.to_string(), tensor.literal().unwrap())).collect()
}

#[test]
fn bundled_models_compute_what_hugging_face_computes() {
    for (name, fused) in NAMES.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let (model, record) = (model(name, fused), record(name));
        let loaded = Family::of(name).unwrap().load(&model, &weights(name)).unwrap();
        let forward = &model.forward;
        let feed = |v: &partita_ir::ValueId| {
            let value = forward.value(*v);
            match loaded.tensors.get(&value.name) {
                Some(tensor) => tensor.literal().unwrap(),
                None => match record.get(&format!("input.{}", value.name)) {
                    Some(input) => {
                        Literal::from_f64(&value.ty, input.literal().unwrap().to_f64().into_iter())
                    }
                    None => Literal::zeros(&value.ty),
                },
            }
        };
        let results = evaluate(forward, &forward.inputs.iter().map(feed).collect::<Vec<_>>()).unwrap();
        let found = results[forward.output_position("logits").unwrap()].to_f64();
        let expected = record.get("logits").unwrap().literal().unwrap().to_f64();
        let apart = found.iter().zip(&expected).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(found.len() == expected.len() && apart < 1e-4, "{name}, fused {fused}: {apart:e}");
        let unused: Vec<&str> = loaded.unused.iter().map(String::as_str).collect();
        assert_eq!(unused, [""; 0], "{name}");
    }
}

#[test]
fn weights_come_out_as_they_went_in() {
    for (name, fused) in NAMES.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let (family, model, weights) = (Family::of(name).unwrap(), model(name, fused), weights(name));
        let loaded = family.load(&model, &weights).unwrap();
        let params =
            loaded.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.literal().unwrap())).collect();
        let mut out = family.checkpoint(&params).unwrap();
        let original = literals(&weights);
        // A file has one name of a tied tensor; BERT's may be another than ours.
        if let Some(bias) = out.shift_remove("cls.predictions.decoder.bias") {
            out.insert("cls.predictions.bias".into(), bias);
        }
        out.sort_keys();
        assert_eq!(out, original, "{name}, fused {fused}");
    }
}

#[test]
fn files_and_shards_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let original = literals(&weights("llama"));
    let file = folder.path().join("all.safetensors");
    save(&file, &original).unwrap();
    assert_eq!(literals(&Weights::open(&file, &Limits::default()).unwrap()), original);
    // 1000 bytes a shard: the largest tensors have more, and have one alone.
    save_sharded(folder.path(), &original, 1000).unwrap();
    let shards = std::fs::read_dir(folder.path()).unwrap().count() - 2;
    let bytes: usize = original.values().map(|literal| literal.ty.bytes()).sum();
    assert!(shards > bytes / 2500, "{shards} shards");
    assert_eq!(literals(&Weights::open(folder.path(), &Limits::default()).unwrap()), original);
    assert_eq!(save(&folder.path().join("no/such/folder"), &original).unwrap_err().code, "E362");
}

#[test]
fn what_does_not_fit_is_reported_at_once() {
    let error = Family::Gpt2.load(&model("gpt", false), &weights("llama")).unwrap_err();
    assert_eq!(error.code, "E363");
    assert!(
        error.notes.iter().any(|note| note.contains("expected as `transformer.h.0.attn.c_attn.weight`")),
        "{error}"
    );
    let wider = ModelConfig::Gpt(GptConfig {
        vocab: 32,
        dim: 16,
        layers: 2,
        heads: 2,
        sequence: 8,
        ..GptConfig::default()
    });
    let error = Family::Gpt2.load(&wider.build(1, DType::F32, false).unwrap(), &weights("gpt")).unwrap_err();
    assert_eq!(
        error.notes,
        ["`embed_tokens.weight` has another shape: [32, 16] here, [31, 16] as `transformer.wte.weight`"]
    );
}
