//! `model.weights`: checkpoints of Hugging Face in the bundled models, against the logits that `transformers` computed.

use super::session;
use indexmap::IndexMap;
use partita::prelude::*;
use partita_import::{Limits, Weights};
use partita_schedule::verify::Unwatched;
use partita_testkit::{assert_close, overrides};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2/families")
}

/// The sizes of the recorded checkpoints.
fn sizes(name: &str) -> &'static [&'static str] {
    match name {
        "gpt" => &["model.vocab=31", "model.dim=16", "model.layers=2", "model.heads=2", "model.sequence=8"],
        "llama" => &[
            "model.vocab=31",
            "model.dim=16",
            "model.layers=2",
            "model.heads=4",
            "model.kv_heads=2",
            "model.sequence=8",
            "model.hidden=24",
        ],
        _ => &[
            "model.vocab=31",
            "model.dim=16",
            "model.layers=2",
            "model.heads=2",
            "model.sequence=8",
            "model.mlp_ratio=2",
            "model.types=2",
            "model.padding_mask=true",
        ],
    }
}

fn with_weights(name: &str, weights: &Path, more: &[&str]) -> Session {
    let weights = format!("model.weights={}", weights.display());
    session(name, &[sizes(name), &[&weights, "train.batch=3"], more].concat())
}

#[test]
fn bundled_models_begin_with_a_checkpoint_on_any_mesh() {
    for (name, mesh, more) in [
        ("gpt", "dp=1", &[][..]),
        ("gpt", "tp=2", &["model.fused_qkv=true"]),
        ("llama", "tp=2", &[]),
        ("bert", "dp=1", &[]),
    ] {
        let record = folder().join(format!("{name}.safetensors"));
        let record = Weights::open(&record, &Limits::default()).unwrap();
        let mesh_of = format!("mesh.shape={mesh}");
        let session = with_weights(name, &folder().join(name), &[&[mesh_of.as_str()], more].concat());
        let model = session.model().unwrap();
        let mut fed = IndexMap::new();
        for &input in &model.forward.inputs {
            let value = model.forward.value(input);
            if let Some(given) = record.get(&format!("input.{}", value.name)) {
                let given = Literal::from_f64(&value.ty, given.literal().unwrap().to_f64().into_iter());
                fed.insert(value.name.clone(), given);
            }
        }
        let found = session.infer(None, &fed).unwrap_or_else(|error| panic!("{name} {mesh}: {error}"));
        let expected = record.get("logits").unwrap().literal().unwrap();
        assert_close(&found["logits"], &expected, 1e-4, &format!("{name} {mesh}"));
    }
}

#[test]
fn rows_may_be_shorter_and_other_checkpoints_are_refused() {
    let place = folder().join("gpt");
    assert_eq!(
        with_weights("gpt", &place, &["model.sequence=5"]).model().unwrap().params["embed_positions.weight"]
            .ty
            .shape,
        [5, 16]
    );
    let refused = |weights: &Path, more: &[&str]| {
        let weights = format!("model.weights={}", weights.display());
        let items = [sizes("gpt"), &[weights.as_str()], more].concat();
        Session::load("gpt", &overrides(&items)).and_then(|session| session.model().map(|_| ())).unwrap_err()
    };
    assert_eq!(refused(&place, &["model.vocab=32"]).code, "E363");
    assert_eq!(refused(&folder().join("llama"), &[]).code, "E363");
    assert_eq!(refused(&folder().join("nothing"), &[]).code, "E350");
    // Shapes do not tell the number of heads; the file beside them does.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(place.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let stated =
        r#"{"n_head": 2, "n_layer": 2, "n_positions": 8, "activation_function": "relu", "n_inner": null}"#;
    std::fs::write(copy.path().join("config.json"), stated).unwrap();
    let error = refused(copy.path(), &["model.heads=4"]);
    assert_eq!(error.code, "E363");
    let text = error.to_string();
    for words in
        ["`n_head` is 2; expected 4, by model.heads", "`activation_function` is \"relu\"", "2 that differ"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_checkpoint_that_changes_before_it_is_used_ends_with_one_message() {
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(folder().join("gpt/model.safetensors")).unwrap();
    let cut = |kept: usize| std::fs::write(&path, &bytes[..kept]).unwrap();
    for mesh in ["mesh.shape=dp=1", "mesh.shape=dp=2,tp=2"] {
        cut(bytes.len());
        let session = with_weights("gpt", copy.path(), &[mesh, "train.batch=4"]);
        let model = session.model().unwrap();
        let built = session.build().unwrap();
        cut(bytes.len() / 2);
        let step = PlannedStep::new(&built, &model, 1, session.runner_options());
        let error = step.map(|_| ()).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            ("E350", "a file of weights changed while it was read")
        );
        assert_eq!(error.at.as_deref(), Some(path.to_str().unwrap()));
        assert_eq!(error.found, Some(format!("{} bytes: it was truncated", bytes.len() / 2)));
        let verified = session.verify(4, &session.interpreter(), &Unwatched);
        assert_eq!(verified.map(|_| ()).unwrap_err().code, "E350");
    }
}
