//! A mesh axis shards the sequence through attention: the numbers of one device, exact counts and bytes, and memory.

use crate::counts::seen;
use crate::session;
use partita_program::{CollectiveKind, Counts, ProgramSet, counts};
use partita_schedule::verify::Unwatched;

const ULYSSES: &str = "plan.layers.*.attn=ulysses";

/// Verifies a small model in f64 on a mesh with more lines of a plan.
fn check(name: &str, mesh: &str, more: &[&str]) {
    let mesh = format!("mesh.shape={mesh}");
    let mut all = vec!["model.dim=24", "model.heads=4", "model.layers=1", "model.sequence=8"];
    all.extend(["train.dtype=f64", &mesh]);
    all.extend(more);
    let session = session(name, &all);
    let verified = session.verify(6, &session.interpreter(), &Unwatched);
    let report = verified.unwrap_or_else(|e| panic!("{name} {mesh} {more:?}: {e}")).report;
    assert!(report.ok, "{name} {mesh} {more:?}: {:?}, first {:?}", report.worst(), report.first_diverging);
    assert_eq!(report.excused(), 0, "{name} {mesh}");
}

#[test]
fn attention_by_heads_changes_nothing() {
    for mesh in ["cp=2", "cp=3", "cp=4", "dp=2,cp=2", "tp=2,cp=2", "fsdp=2,cp=2", "sp=2,cp=2"] {
        check("gpt", mesh, &[ULYSSES]);
    }
    // Rotary positions, key heads that several query heads share, and a mask.
    for mesh in ["cp=2", "cp=4", "tp=2,cp=2"] {
        check("llama", mesh, &[ULYSSES]);
        check("bert", mesh, &[ULYSSES]);
    }
    check("gpt", "cp=2", &[ULYSSES, "train.microbatches=2"]);
    check("gpt", "pp=2,cp=2", &[ULYSSES, "train.microbatches=2", "model.layers=2"]);
    check("gpt", "cp=2", &[ULYSSES, "plan.layers.*=checkpoint"]);
}

const BATCH: usize = 2;
const DIM: usize = 32;

/// A GPT of one head for each 8 features, lowered for a mesh.
fn gpt(mesh: &str, sequence: usize, layers: usize, line: &str) -> ProgramSet {
    let all = [
        format!("mesh.shape={mesh}"),
        format!("train.batch={BATCH}"),
        format!("model.dim={DIM}"),
        format!("model.sequence={sequence}"),
        format!("model.layers={layers}"),
    ];
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    all.extend(["model.heads=4", "model.vocab=64", "model.dropout=0", "model.tied=false"]);
    all.extend(["optimizer.clip_grad_norm=0", line]);
    let session = session("gpt", &all);
    let planned = session.build().unwrap_or_else(|error| panic!("{error}"));
    session.lower(&planned).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn heads_are_exchanged_four_times_each_way() {
    for ranks in [2, 4] {
        for layers in [1, 2] {
            let set = gpt(&format!("cp={ranks}"), 64, layers, ULYSSES);
            let counts: Counts = counts(&set, 0);
            let shard = BATCH * 64 * DIM * 4 / ranks;
            for phase in [&counts.forward, &counts.backward] {
                let exchanged = phase.of(CollectiveKind::AllToAll);
                assert_eq!(exchanged.logical, 4 * layers, "{:?}", seen(phase));
                assert_eq!(exchanged.bytes, 4 * layers * shard);
                assert!(seen(phase).iter().all(|(kind, ..)| ["all_to_all", "all_reduce"].contains(kind)));
            }
        }
    }
}
