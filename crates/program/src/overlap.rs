//! What a rank computes while its gradients are under way.

use crate::collective::CollectiveKind;
use crate::program::{Action, ProgramSet};
use indexmap::IndexMap;
use partita_ir::Phase;

/// One bucket of gradients of a rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Overlap {
    /// What ranks do with it.
    pub kind: CollectiveKind,
    /// What it carries, by its first tensor.
    pub what: String,
    /// How many tensors.
    pub tensors: usize,
    /// Bytes of the full tensors.
    pub bytes: usize,
    /// Floating-point operations of the instructions between its start and its wait.
    pub flops: f64,
}

/// Every bucket of gradients that a rank exchanges with others, in the order of their starts.
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
            Action::Compute(compute) => {
                let flops = program.region(compute.region).cost().flops;
                open.values().for_each(|&bucket| overlaps[bucket].flops += flops);
            }
        }
    }
    overlaps
}
