//! What the planned memory of a step holds.

use partita::compile::{self, Build};
use partita::config::Config;
use partita_program::{LowerOptions, ProgramSet};
use partita_runtime::Cpu;

/// The programs of a config's step on one rank.
fn lowered(name: &str, sizes: &[String]) -> ProgramSet {
    lowered_with(name, sizes, &LowerOptions::default())
}

fn lowered_with(name: &str, sizes: &[String], options: &LowerOptions) -> ProgramSet {
    let config = Config::load(name, sizes).unwrap();
    let build = Build::from_config(&config);
    let model = compile::model(&config, &build).unwrap();
    let mesh = compile::mesh(&config).unwrap();
    let planned = compile::plan_step(&config, &model, &mesh, &build).unwrap();
    partita_program::lower(&planned.classes, options, &Cpu::default()).unwrap()
}

/// A GPT of one narrow layer, on one rank, and a batch of so many rows of the sequence.
fn narrow(vocab: usize, sequence: usize, batch: usize) -> Vec<String> {
    vec![
        "mesh.shape=dp=1".to_string(),
        format!("model.vocab={vocab}"),
        "model.dim=8".to_string(),
        "model.heads=2".to_string(),
        "model.layers=1".to_string(),
        format!("model.sequence={sequence}"),
        format!("train.batch={batch}"),
    ]
}

/// Bytes of the arena of a GPT's step beside parameters and states, and those of its logits.
fn activations(vocab: usize) -> (usize, usize) {
    let (sequence, batch) = (32, 4);
    let set = lowered("gpt", &narrow(vocab, sequence, batch));
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

/// Large logits are made and used up in pieces of as many rows as the product sums at once.
#[test]
fn large_logits_are_held_in_pieces() {
    let (vocab, rows, piece) = (1 << 15, 1536, 384);
    let mut sizes = narrow(vocab, rows / 4, 4);
    sizes.push("optimizer.clip_grad_norm=0".to_string());
    let bytes = |logits_bytes: usize| {
        let options = LowerOptions { logits_bytes, ..LowerOptions::default() };
        lowered_with("gpt", &sizes, &options).programs[0].arena_bytes
    };
    let logits = |rows: usize| rows * vocab * 4;
    assert_eq!(bytes(logits(rows)), bytes(usize::MAX), "not larger than the limit");
    // When a later piece's gradient needs scratch, a row and a little, the gradient of the weight is there already.
    let saved = bytes(usize::MAX) - bytes(logits(piece));
    let scratch = logits(rows - piece) - saved;
    assert!((vocab * 4..=vocab * 4 + 256).contains(&scratch), "{scratch} bytes are not saved");
}

/// Without clipping a parameter is updated when its gradient is there, so few gradients are held; with clipping all of
/// them wait for the norm.
#[test]
fn gradients_are_not_all_held() {
    let bytes = |clip: f64| {
        let sizes = [
            "mesh.shape=dp=1".to_string(),
            "model.dims=[256,256,256,256,256,256,256,256,256]".to_string(),
            "train.batch=1".to_string(),
            format!("optimizer.clip_grad_norm={clip}"),
        ];
        let program = &lowered("mlp", &sizes).programs[0];
        program.arena_bytes - program.persistent_bytes()
    };
    let gradients = 8 * (256 * 256 + 256) * 4;
    let (free, clipped) = (bytes(0.0), bytes(1.0));
    assert!(free < gradients / 3, "{free} bytes, and {gradients} of gradients");
    assert!(clipped > gradients, "{clipped} bytes, and {gradients} of gradients");
}
