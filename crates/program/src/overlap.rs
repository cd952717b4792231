//! Reports how much compute overlaps with each gradient collective.

use crate::collective::CollectiveKind;
use crate::program::{Action, ProgramSet};
use indexmap::IndexMap;
use partita_ir::Phase;

/// One bucket of gradients of a rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Overlap {
    /// The kind of the collective.
    pub kind: CollectiveKind,
    /// The label of its first tensor.
    pub what: String,
    /// Number of tensors in the bucket.
    pub tensors: usize,
    /// Bytes of the full tensors.
    pub bytes: usize,
    /// Floating-point operations of the instructions between its start and its wait.
    pub flops: f64,
}

/// Every gradient bucket that a rank exchanges with other ranks, in the order of their starts.
pub fn gradient_overlap(set: &ProgramSet, rank: usize) -> Vec<Overlap> {
    let Some(program) = set.program(rank) else { return Vec::new() };
    let mut open = IndexMap::new();
    let mut overlaps: Vec<Overlap> = Vec::new();
    for instruction in &program.instructions {
        match &instruction.action {
            Action::Start(start) => {
                let collective = &set.collectives[start.collective.index()];
                let member = collective.members.iter().position(|&member| member == rank);
                let (Phase::WeightGrad, Some(member), 2.., true) = (
                    instruction.origin.phase,
                    member,
                    collective.members.len(),
                    collective.kind != CollectiveKind::Send,
                ) else {
                    continue;
                };
                let transfers = &collective.transfers;
                let bytes = transfers.iter().map(|transfer| transfer.full_bytes(member)).sum();
                open.insert(start.collective, overlaps.len());
                overlaps.push(Overlap {
                    kind: collective.kind,
                    what: transfers.first().map_or_else(String::new, |transfer| transfer.what.clone()),
                    tensors: transfers.len(),
                    bytes,
                    flops: 0.0,
                });
            }
            Action::Wait(collective) => {
                open.shift_remove(collective);
            }
            Action::Move(_) | Action::Moved(_) => {}
            Action::Compute(compute) => {
                let flops = program.region(compute.region).cost().flops;
                open.values().for_each(|&bucket| overlaps[bucket].flops += flops);
            }
        }
    }
    overlaps
}
