//! Counts the collectives of a rank and their payload, by part of the step and kind.

use crate::collective::{CollectiveKind, kind};
use crate::passes::bucket::phase_class;
use crate::program::ProgramSet;
use indexmap::IndexMap;
use partita_ir::{Graph, Phase, TensorType};
use std::fmt;

/// Collectives of one kind in one part of the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KindCount {
    /// Collectives per rank, after bucketing.
    pub count: usize,
    /// Tensors, which is the number of collectives before bucketing.
    pub logical: usize,
    /// Payload of the rank in bytes of the full tensors (the operand of a reduction, the result of
    /// a gather, the operand of others); of a send, the bytes that leave the rank. The bytes on a link
    /// depend on the algorithm.
    pub bytes: usize,
}

/// Collectives of one part of the step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhaseCounts {
    /// By [`CollectiveKind::name`]; every kind is present.
    pub kinds: IndexMap<&'static str, KindCount>,
}

impl Default for PhaseCounts {
    fn default() -> Self {
        let kinds = CollectiveKind::ALL.iter().map(|kind| (kind.name(), KindCount::default())).collect();
        PhaseCounts { kinds }
    }
}

impl PhaseCounts {
    /// The count of one kind.
    pub fn of(&self, kind: CollectiveKind) -> KindCount {
        self.kinds[kind.name()]
    }

    /// The sum over all kinds.
    pub fn total(&self) -> KindCount {
        self.kinds.values().fold(KindCount::default(), |a, b| KindCount {
            count: a.count + b.count,
            logical: a.logical + b.logical,
            bytes: a.bytes + b.bytes,
        })
    }
}

/// Collectives of a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// The forward pass: the model and its loss.
    pub forward: PhaseCounts,
    /// Both gradient phases.
    pub backward: PhaseCounts,
    /// Clipping and the optimizer.
    pub update: PhaseCounts,
}

impl Counts {
    /// (name, counts) of each part.
    pub fn phases(&self) -> [(&'static str, &PhaseCounts); 3] {
        [("forward", &self.forward), ("backward", &self.backward), ("update", &self.update)]
    }

    fn of_mut(&mut self, phase: Phase, kind: CollectiveKind) -> &mut KindCount {
        let phase = match phase_class(phase) {
            Phase::Forward => &mut self.forward,
            Phase::Update => &mut self.update,
            Phase::InputGrad | Phase::WeightGrad => &mut self.backward,
        };
        phase.kinds.get_mut(kind.name()).expect("every kind is present")
    }
}

impl fmt::Display for Counts {
    /// One line per part of the step that has collectives: `forward: 2 all_reduce (512 bytes)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (phase, counts) in self.phases() {
            let occurs = |(_, count): &(&&str, &KindCount)| count.count > 0;
            let kinds: Vec<String> = (counts.kinds.iter().filter(occurs))
                .map(|(name, kind)| format!("{} {name} ({} bytes)", kind.count, kind.bytes))
                .collect();
            if !kinds.is_empty() {
                writeln!(f, "{phase}: {}", kinds.join(", "))?;
            }
        }
        Ok(())
    }
}

/// Bytes of the full tensor of a transfer.
pub(crate) fn full_bytes(kind: CollectiveKind, input: &TensorType, output: &TensorType) -> usize {
    match kind {
        CollectiveKind::AllGather | CollectiveKind::CollectiveBroadcast => output.bytes(),
        CollectiveKind::AllReduce
        | CollectiveKind::ReduceScatter
        | CollectiveKind::AllToAll
        | CollectiveKind::CollectivePermute
        | CollectiveKind::Send => input.bytes(),
    }
}

/// Counts the collectives of a rank's program. A bucket counts once. A group of one rank is not counted, and a
/// send only where the rank sends, in the part of the step that computes the value.
pub fn counts(set: &ProgramSet, rank: usize) -> Counts {
    let mut counts = Counts::default();
    for collective in set.collectives.iter().filter(|c| c.members.len() > 1) {
        let Some(member) = collective.member(rank) else { continue };
        let bytes: usize = collective.transfers.iter().map(|transfer| transfer.sent_bytes(member)).sum();
        if collective.kind == CollectiveKind::Send && bytes == 0 {
            continue;
        }
        let total = counts.of_mut(collective.phase, collective.kind);
        total.count += 1;
        total.logical += collective.transfers.len();
        total.bytes += bytes;
    }
    counts
}

/// Counts the collectives of one rank's graph before bucketing: `count` equals `logical`.
pub fn counts_of_graph(graph: &Graph) -> Counts {
    let mut counts = Counts::default();
    for node in &graph.nodes {
        if let Some(op) = graph.traits(node).collective() {
            let kind = kind(op);
            let total = counts.of_mut(node.phase, kind);
            total.count += 1;
            total.logical += 1;
            total.bytes += full_bytes(kind, graph.ty(node.operands[0]), graph.ty(node.results[0]));
        }
    }
    counts
}
