//! One program per class of alike ranks: what it is bound to for a rank is what the rank's own graph lowers to, and a
//! larger mesh of alike ranks has no more programs.

use crate::session;
use partita_ir::{ClassGraph, TensorType};
use partita_program::{Buffer, LowerOptions, Program, ProgramSet, Transfer, counts, lower};
use partita_runtime::Cpu;
use partita_schedule::Built;
use partita_spmd::virtual_ranks;
use std::collections::BTreeSet;

fn planned(model: &str, overrides: &[&str]) -> Built {
    session(model, overrides).build().unwrap_or_else(|error| panic!("{error}"))
}

fn lowered(classes: &[ClassGraph]) -> ProgramSet {
    lower(classes, &LowerOptions::default(), &Cpu::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_class_bound_to_a_rank_is_the_rank_s_own_program() {
    let cases: [(&str, &[&str]); 8] = [
        ("mlp", &["mesh.shape=dp=2,tp=2"]),
        ("gpt", &["mesh.shape=dp=2,tp=2", "plan.sequence_parallel=true"]),
        ("gpt", &["mesh.shape=dp=3,tp=2", "train.microbatches=2"]),
        ("gpt", &["mesh.shape=tp=3", "plan.vocab_parallel=true"]),
        ("gpt", &["mesh.shape=fsdp=3,tp=2", "model.fused_qkv=true"]),
        ("llama", &["mesh.shape=tp=3,sp=2"]),
        ("bert", &["mesh.shape=sp=2,dp=2"]),
        ("bert", &["mesh.shape=fsdp=4", "train.dtype=bf16"]),
    ];
    let mut shared = 0;
    for (model, overrides) in cases {
        let built = planned(model, overrides);
        let by_class = lowered(&built.stages[0].classes);
        let rank_graphs = virtual_ranks::rank_graphs(&built.stages[0].partitioned).unwrap();
        let by_rank = lowered(&ClassGraph::each(rank_graphs));
        assert_eq!(by_class.rank_count(), by_rank.rank_count());
        shared += by_rank.programs.len() - by_class.programs.len();
        assert_eq!(counts(&by_class, 0), counts(&by_rank, 0), "{model} {overrides:?}");
        assert_eq!(by_class.collectives, by_rank.collectives, "{model} {overrides:?}");
        for (own, bound) in by_rank.programs.iter().zip(by_class.each_rank().programs) {
            assert_eq!(own.ranks, bound.ranks);
            assert_eq!(own.arena_bytes, bound.arena_bytes, "{model} {overrides:?}");
            assert_eq!(own.instructions, bound.instructions, "{model} {overrides:?}, rank {}", own.rank());
            // Labels of copies say `slice` where a class says `dynamic_slice`.
            let unlabelled = |program: &Program| -> Vec<Buffer> {
                program.buffers.iter().map(|b| Buffer { what: String::new(), ..b.clone() }).collect()
            };
            assert_eq!(unlabelled(own), unlabelled(&bound), "{model} {overrides:?}, rank {}", own.rank());
            assert_eq!(own.regions, bound.regions, "{model} {overrides:?}, rank {}", own.rank());
        }
    }
    assert!(shared >= 12, "{shared} ranks share a program with another");
}

/// A thousand alike ranks have one program, with the collectives of sixteen, and take no more work than those: tables over
/// ranks are as many, and all groups of a collective share what they carry.
#[test]
fn alike_ranks_share_one_program_on_any_mesh() {
    // Two rows of the batch on each rank.
    let on = |dp: usize| {
        let (mesh, batch) = (format!("mesh.shape=dp={dp},tp=8"), format!("train.batch={}", 2 * dp));
        let overrides = ["model.heads=8", "model.dim=128", mesh.as_str(), batch.as_str()];
        let built = planned("gpt", &overrides);
        (lowered(&built.stages[0].classes), built.stages[0].partitioned.rank_tables)
    };
    let ((small, small_tables), (large, large_tables)) = (on(2), on(128));
    assert_eq!((small.rank_count(), large.rank_count()), (16, 1024));
    assert_eq!(small_tables, large_tables);
    assert_eq!(lists(&small), lists(&large));
    assert_eq!((small.programs.len(), large.programs.len()), (1, 1));
    assert_eq!(small.programs[0].instructions.len(), large.programs[0].instructions.len());
    let kinds = |set: &ProgramSet| -> Vec<usize> {
        counts(set, 0).phases().iter().map(|(_, phase)| phase.total().count).collect()
    };
    assert_eq!(kinds(&small), kinds(&large));
    let last = large.program(1023).expect("the last rank");
    assert_eq!(last.ranks, [1023]);
    assert_eq!(large.program(1024), None);
}

/// How many lists of transfers and of types the collectives hold.
fn lists(set: &ProgramSet) -> (usize, usize) {
    let transfers: BTreeSet<*const Transfer> = set.collectives.iter().map(|c| c.transfers.as_ptr()).collect();
    let all = set.collectives.iter().flat_map(|c| c.transfers.iter());
    let types: BTreeSet<*const TensorType> =
        all.flat_map(|t| [t.inputs.as_ptr(), t.outputs.as_ptr()]).collect();
    (transfers.len(), types.len())
}
