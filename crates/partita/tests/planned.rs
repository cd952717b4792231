//! What the planned memory of a step holds.

use partita::compile::{self, Build};
use partita::config::Config;
use partita_runtime::Cpu;

/// Bytes of the arena of a GPT's step beside parameters and states, and those of its logits.
fn activations(vocab: usize) -> (usize, usize) {
    let (sequence, batch) = (32, 4);
    let sizes = [
        "mesh.shape=dp=1".to_string(),
        format!("model.vocab={vocab}"),
        "model.dim=8".to_string(),
        "model.heads=2".to_string(),
        "model.layers=1".to_string(),
        format!("model.sequence={sequence}"),
        format!("train.batch={batch}"),
    ];
    let config = Config::load("gpt", &sizes).unwrap();
    let build = Build::from_config(&config);
    let model = compile::model(&config, &build).unwrap();
    let mesh = compile::mesh(&config).unwrap();
    let planned = compile::plan_step(&config, &model, &mesh, &build).unwrap();
    let set = compile::lower(&planned, &Cpu::default()).unwrap();
    let program = &set.programs[0];
    (program.arena_bytes - program.persistent_bytes(), batch * sequence * vocab * 4)
}

/// Cross-entropy writes the gradient of the logits over them.
#[test]
fn logits_are_never_held_twice() {
    let [small, large] = [1024, 4096].map(activations);
    let (grown, logits_grown) = (large.0 - small.0, large.1 - small.1);
    assert!(
        (logits_grown..logits_grown * 3 / 2).contains(&grown),
        "{grown} bytes for {logits_grown} of logits"
    );
}
