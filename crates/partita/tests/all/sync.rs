//! When gradients are reduced and parameters gathered: how often they travel, and what waits for them.

use crate::session;
use partita_ir::Phase;
use partita_program::{Action, Collective, CollectiveKind, Origin, ProgramSet, gradient_overlap};
use std::collections::BTreeSet;

/// Four blocks; every dimension that is sharded is even.
const SMALL: [&str; 6] = [
    "model.vocab=64",
    "model.dim=32",
    "model.heads=4",
    "model.layers=4",
    "model.sequence=16",
    "train.batch=24",
];

fn lowered(items: &[&str]) -> ProgramSet {
    let session = session("gpt", &[&SMALL[..], items].concat());
    let built = session.build().unwrap_or_else(|error| panic!("{items:?}: {error}"));
    session.lower(&built).unwrap_or_else(|error| panic!("{items:?}: {error}"))
}

/// The collectives that a rank starts, in order.
fn started(set: &ProgramSet, rank: usize) -> Vec<(&Collective, Origin)> {
    let starts = set.program(rank).unwrap().instructions.into_iter().filter_map(|instruction| {
        let Action::Start(start) = &instruction.action else { return None };
        Some((&set.collectives[start.collective.index()], instruction.origin))
    });
    starts.collect()
}

/// Bytes of the full tensors of a collective.
fn bytes(collective: &Collective) -> usize {
    collective.transfers.iter().map(|transfer| transfer.full_bytes(0)).sum()
}

/// Shards of gradients are summed over microbatches before the replicas of a shard add theirs, so these exchange each
/// shard once a step, however many microbatches it has.
#[test]
fn replicas_of_shards_are_reduced_once_a_step() {
    let parameters = 4 * session("gpt", &SMALL).model().unwrap().parameter_count();
    for microbatches in [1, 2, 3] {
        let count = format!("train.microbatches={microbatches}");
        let set = lowered(&["mesh.shape=dp=2,fsdp=2", &count]);
        let gradients: Vec<_> =
            started(&set, 0).into_iter().filter(|(_, origin)| origin.phase.is_backward()).collect();
        let of_kind = |kind: CollectiveKind, members: [usize; 2]| {
            let own = gradients.iter().filter(move |(one, _)| one.kind == kind && *one.members == members);
            own.cloned().collect::<Vec<_>>()
        };
        let shards = of_kind(CollectiveKind::ReduceScatter, [0, 1]);
        let replicas = of_kind(CollectiveKind::AllReduce, [0, 2]);
        let sum = |all: &[(&Collective, Origin)]| all.iter().map(|(one, _)| bytes(one)).sum::<usize>();
        assert_eq!(sum(&shards), parameters * microbatches);
        assert_eq!(sum(&replicas), parameters / 2);
        let last = (microbatches > 1).then_some(microbatches - 1);
        assert!(replicas.iter().all(|(_, origin)| origin.microbatch == last), "{microbatches} microbatches");
    }
}

/// Ranks that share the states alone (`zero1`) sum gradients over microbatches before they exchange anything of them. With
/// few rows it would move fewer bytes in a microbatch to gather activations and compute shards of gradients, but not in all
/// of them.
#[test]
fn gradients_of_shared_states_are_exchanged_once_a_step() {
    let items = [
        "model.layers=2",
        "model.vocab=1024",
        "train.dtype=f16",
        "cluster.name=v100-16g:8x8",
        "mesh.shape=dp=4",
    ];
    let counts = ["train.batch=16", "train.microbatches=4", "plan.**=zero1"];
    let session = session("gpt-39b", &[&items[..], &counts].concat());
    let set = session.lower(&session.build().unwrap()).unwrap();
    let early = started(&set, 0).into_iter().filter(|(one, origin)| {
        one.members.len() > 1 && origin.phase.is_backward() && origin.microbatch.is_some_and(|m| m < 3)
    });
    assert_eq!(early.count(), 0);
}

/// Over an axis that shards a parameter, each microbatch adds to a shard of its gradient. With few rows it would move fewer
/// bytes to split the sum over tokens, and to add up whole gradients in each rank until the end of the step.
#[test]
fn microbatches_add_to_shards_of_the_gradients_of_sharded_parameters() {
    let items = ["model.layers=2", "model.vocab=1024", "train.dtype=f16", "cluster.name=v100-16g:8x8"];
    let more =
        ["mesh.shape=dp=2,tp=4", "train.batch=8", "train.microbatches=4", "plan.sequence_parallel=true"];
    let session = session("gpt-39b", &[&items[..], &more].concat());
    let set = session.lower(&session.build().unwrap()).unwrap();
    let program = set.program(0).unwrap();
    let largest =
        program.inputs.iter().map(|port| program.buffer(port.buffer).ty.element_count()).max().unwrap();
    let mut added = 0;
    for instruction in program.instructions.iter().filter(|one| one.origin.phase == Phase::WeightGrad) {
        let Action::Compute(compute) = &instruction.action else { continue };
        for &output in &compute.outputs {
            let elements = program.buffer(output).ty.element_count();
            assert!(elements <= largest, "{}: {elements} elements", instruction.origin.path);
            added += usize::from(instruction.origin.microbatch == Some(2));
        }
    }
    assert!(added > 0);
}

/// Every reduction of gradients has compute to hide behind, but for the last one of each kind in a step.
#[test]
fn ranks_compute_while_gradients_are_reduced() {
    for mesh in ["mesh.shape=fsdp=2", "mesh.shape=dp=2,fsdp=2"] {
        for microbatches in ["train.microbatches=1", "train.microbatches=3"] {
            let reductions = gradient_overlap(&lowered(&[mesh, microbatches]), 0);
            for kind in reductions.iter().map(|one| one.kind).collect::<BTreeSet<_>>() {
                let own: Vec<_> = reductions.iter().filter(|one| one.kind == kind).collect();
                for reduction in &own[..own.len() - 1] {
                    assert!(reduction.flops > 0.0, "{mesh} {microbatches}: {reduction:?}");
                }
            }
        }
    }
}

/// A stage of a pipeline gathers the parameters of a block while it computes with those of the block before, whatever the
/// number of microbatches: more of them in flight would hold more than one copy of the stage. So does the last stage what it
/// gathers of a tied head that the first one sends, over two axes.
#[test]
fn stages_gather_parameters_block_by_block() {
    for (timetable, mesh) in [
        ("1f1b", "pp=2,fsdp=2"),
        ("gpipe", "pp=2,fsdp=2"),
        ("zb-h1", "pp=2,fsdp=2"),
        ("interleaved-1f1b", "pp=2,fsdp=2"),
        ("1f1b", "pp=2,fsdp=2,tp=2"),
        ("gpipe", "pp=2,fsdp=2,tp=2"),
    ] {
        let (order, mesh) = (format!("train.timetable={timetable}"), format!("mesh.shape={mesh}"));
        let set = lowered(&[&mesh, "plan.sequence_parallel=true", "train.microbatches=6", &order]);
        for rank in set.programs.iter().flat_map(|program| program.ranks.clone()) {
            let (mut open, mut most, mut all) = (BTreeSet::new(), 0, 0);
            for instruction in &set.program(rank).unwrap().instructions {
                match &instruction.action {
                    Action::Start(start)
                        if set.collectives[start.collective.index()].kind == CollectiveKind::AllGather =>
                    {
                        open.insert(start.collective);
                        all += 1;
                    }
                    Action::Wait(collective) => _ = open.remove(collective),
                    _ => {}
                }
                most = most.max(open.len());
            }
            assert!(all >= 6 * 4 && most <= 3, "{mesh}, {timetable}, rank {rank}: {most} of {all} at once");
        }
    }
}
