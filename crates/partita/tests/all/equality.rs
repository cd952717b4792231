//! A plan never changes the numbers: every bundled model over the meshes of the docs.

use partita::Session;
use partita_schedule::verify::Unwatched;

/// Sizes at which one verification takes a second or so in a debug build.
fn small(name: &str) -> Vec<String> {
    let sizes: &[&str] = match name {
        "mlp" => &["model.dims=[12,20,12]"],
        _ => &["model.dim=24", "model.heads=4", "model.layers=1", "model.sequence=8"],
    };
    sizes.iter().map(|s| s.to_string()).collect()
}

fn check(name: &str, overrides: &[&str]) {
    let mut all = small(name);
    all.push("train.dtype=f64".into());
    all.extend(overrides.iter().map(|s| s.to_string()));
    let session = Session::load(name, &all).unwrap_or_else(|e| panic!("{e}"));
    let verified = session
        .verify(6, &session.interpreter(), &Unwatched)
        .unwrap_or_else(|e| panic!("{name} {overrides:?}: {e}"));
    let worst = verified.report.worst().cloned();
    assert!(
        verified.report.ok,
        "{name} {overrides:?}: {worst:?}, first {:?}",
        verified.report.first_diverging
    );
    assert_eq!(verified.report.excused(), 0, "{name} {overrides:?}");
}

const MESHES: &[&str] = &["dp=1", "tp=2", "dp=4", "fsdp=4", "dp=2,tp=2", "fsdp=2,tp=2", "tp=3"];

#[test]
fn every_model_on_every_mesh() {
    for name in ["mlp", "gpt", "llama", "bert"] {
        for mesh in MESHES {
            check(name, &[&format!("mesh.shape={mesh}")]);
        }
    }
}

#[test]
fn sequence_parallel_changes_nothing() {
    for name in ["gpt", "llama", "bert"] {
        for mesh in ["tp=2", "dp=2,tp=2", "fsdp=2,tp=2", "tp=3"] {
            check(name, &[&format!("mesh.shape={mesh}"), "plan.sequence_parallel=true"]);
        }
    }
}

#[test]
fn vocabulary_and_fused_projections_may_be_sharded() {
    check("gpt", &["mesh.shape=tp=2", "plan.vocab_parallel=true"]);
    check("gpt", &["mesh.shape=tp=2", "plan.vocab_parallel=true", "model.tied=true"]);
    check("gpt", &["mesh.shape=tp=2", "model.fused_qkv=true", "model.kv_heads=2"]);
    check("llama", &["mesh.shape=tp=3", "model.fused_qkv=true"]);
    check("llama", &["mesh.shape=sp=2"]);
}

#[test]
fn microbatches_change_nothing() {
    for mesh in ["dp=1", "dp=2,tp=2", "fsdp=2"] {
        for microbatches in [2, 4] {
            let overrides = [format!("mesh.shape={mesh}"), format!("train.microbatches={microbatches}")];
            check("gpt", &[&overrides[0], &overrides[1]]);
        }
    }
}

#[test]
fn sharded_states_change_nothing() {
    for style in ["zero1", "zero2", "fsdp"] {
        let overrides = [format!("plan.**={style}(axis=dp)")];
        check("gpt", &["mesh.shape=dp=2", "train.microbatches=2", &overrides[0]]);
    }
}

#[test]
fn single_precision_is_within_its_own_rounding() {
    for (name, mesh) in [("gpt", "dp=2,tp=2"), ("bert", "tp=3"), ("llama", "fsdp=2,tp=2")] {
        let mut all = small(name);
        all.push(format!("mesh.shape={mesh}"));
        let session = Session::load(name, &all).unwrap_or_else(|e| panic!("{e}"));
        let verified =
            session.verify(6, &session.interpreter(), &Unwatched).unwrap_or_else(|e| panic!("{e}"));
        assert!(verified.report.ok, "{name} {mesh}: {:?}", verified.report.worst());
    }
}

#[test]
fn a_broken_rule_is_found_and_named() {
    let mut all = small("gpt");
    all.extend(["train.dtype=f64".to_string(), "mesh.shape=tp=2".to_string()]);
    let session = Session::load("gpt", &all).unwrap_or_else(|e| panic!("{e}"));
    let session = session.with_broken_rule(Some("layers.0.mlp.down_proj".to_string()));
    let verified = session.verify(6, &session.interpreter(), &Unwatched).unwrap_or_else(|e| panic!("{e}"));
    assert!(!verified.report.ok);
    let first = verified.report.first_diverging.expect("something is named");
    assert!(first.contains("layers.0.mlp.down_proj"), "{first}");
}
