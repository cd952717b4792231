//! What the planned memory of a step holds.

use partita::Session;
use partita_program::{Action, BufferId, Instruction, LowerOptions, Program, ProgramSet};
use partita_runtime::Cpu;

/// The programs of a config's step on one rank.
fn lowered(name: &str, sizes: &[String]) -> ProgramSet {
    lowered_with(name, sizes, &LowerOptions::default())
}

fn lowered_with(name: &str, sizes: &[String], options: &LowerOptions) -> ProgramSet {
    let planned = Session::load(name, sizes).unwrap().build().unwrap();
    partita_program::lower(&planned.stages[0].classes, options, &Cpu::default()).unwrap()
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

/// Without a guard and clipping a parameter is updated when its gradient is there, so few gradients are held; otherwise
/// all of them wait for the norm.
#[test]
fn gradients_are_not_all_held() {
    let bytes = |clip: f64, guard: bool| {
        let sizes = [
            "mesh.shape=dp=1".to_string(),
            "model.dims=[256,256,256,256,256,256,256,256,256]".to_string(),
            "train.batch=1".to_string(),
            format!("optimizer.clip_grad_norm={clip}"),
        ];
        let options = LowerOptions { guard, ..LowerOptions::default() };
        let program = &lowered_with("mlp", &sizes, &options).programs[0];
        program.arena_bytes - program.persistent_bytes()
    };
    let gradients = 8 * (256 * 256 + 256) * 4;
    let free = bytes(0.0, false);
    assert!(free < gradients / 3, "{free} bytes, and {gradients} of gradients");
    let clipped = bytes(1.0, true);
    assert!(clipped > gradients, "{clipped} bytes, and {gradients} of gradients");
    assert_eq!(
        [bytes(0.0, true), bytes(1.0, false)],
        [clipped; 2],
        "the guard costs nothing where norms are clipped"
    );
}

/// What replaces parameters and states is written after the loss and the norm of the gradients are known, and in place:
/// with as many copies as without a guard.
#[test]
fn no_state_is_replaced_before_the_step_is_checked() {
    let tiny = |model: &str| match model {
        "mlp" => vec![],
        _ => ["dim=24", "layers=2", "heads=4", "sequence=8"].map(|size| format!("model.{size}")).to_vec(),
    };
    for model in ["mlp", "gpt", "llama", "bert"] {
        for mesh in ["dp=1", "dp=2", "tp=2", "fsdp=2,tp=2"] {
            for settings in
                [&["clip_grad_norm=1.0"][..], &["clip_grad_norm=0"], &["clip_grad_norm=0", "kind=lion"]]
            {
                let mut sizes = tiny(model);
                sizes.extend([format!("mesh.shape={mesh}"), "train.batch=4".to_string()]);
                sizes.extend(settings.iter().map(|setting| format!("optimizer.{setting}")));
                let lower = |guard: bool| {
                    let options = LowerOptions { guard, ..LowerOptions::default() };
                    lowered_with(model, &sizes, &options)
                };
                let (set, free) = (lower(true), lower(false));
                for (program, free) in set.programs.iter().zip(&free.programs) {
                    let what = format!("{model} on {mesh} with {settings:?}, rank {}", program.rank());
                    let names: Vec<&str> = program.checked().iter().map(|checked| checked.name).collect();
                    assert_eq!(names, ["loss", "grad_norm"], "{what}");
                    let known = program.checked().iter().map(|checked| checked.known).max().unwrap();
                    let state: Vec<BufferId> = program
                        .outputs
                        .iter()
                        .filter(|port| port.replaces.is_some())
                        .map(|p| p.buffer)
                        .collect();
                    let writes = |instruction: &Instruction| match &instruction.action {
                        Action::Compute(compute) => compute.outputs.iter().any(|id| state.contains(id)),
                        Action::Start(start) => start.outputs.iter().any(|id| state.contains(id)),
                        _ => false,
                    };
                    let first =
                        program.instructions.iter().position(writes).expect("a step replaces its state");
                    assert!(first > known, "{what}: written at {first}, known at {known}");
                    let copies = |program: &Program| {
                        program.instructions.iter().filter(|i| i.origin.what == "copy").count()
                    };
                    assert_eq!(copies(program), copies(free), "{what}");
                }
            }
        }
    }
}
