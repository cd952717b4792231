//! Local graphs to programs: simplification, bucketing and ordering of collectives, fusion into regions, views,
//! the memory map, static checks, and the executor over the [`Device`] trait.
//!
//! Knows: graphs and what one rank executes. Must not know: kernels, transports, threads, how layouts are chosen.
#![forbid(unsafe_code)]

mod check;
mod collective;
mod counts;
mod display;
mod event;
mod execute;
mod overlap;
mod passes;
mod program;
mod ranks;
mod reference;
mod stages;
mod view;

pub use check::{CheckReport, check};
pub use collective::{Collective, CollectiveKind, CollectiveOp, Transfer};
pub use counts::{Counts, KindCount, PhaseCounts, SendCount, counts, counts_of_graph, sends};
pub use display::ProgramListing;
pub use event::Event;
pub use execute::{Communicator, Cursor, Device, RankDevice, RankMemory, StepOutcome, advance};
pub use overlap::{Overlap, gradient_overlap};
pub use partita_base::CollectiveId;
pub use passes::fuse::{Apart, Fusion, Why};
pub use passes::head::{HeadCut, Whole};
pub use passes::{Lowering, PASSES, Pass, PassContext, find_pass};
pub use program::{
    Action, Buffer, BufferId, BufferKind, Checked, Compute, Instruction, Origin, Port, Program, ProgramSet,
    Region, RegionId, RegionKind, Start, View,
};

pub use reference::{Evaluation, Reference, interpret};
pub use stages::{Edge, Stage, Stages, lower_stages, lower_stages_watched};

use partita_base::Result;
use partita_ir::{ClassGraph, Phase, Target};

/// Every buffer begins at a multiple of this many bytes of its arena: a cache line, and the widest vector.
pub const ALIGNMENT_BYTES: usize = 64;

/// What lowering asks of the device beyond what [`Target`] says of graphs: of regions, which it makes.
pub trait RegionTarget: Target {
    /// Scratch memory that a region needs where its inputs are these views, 0 for none.
    fn workspace_bytes(&self, region: &Region, inputs: &[View]) -> usize;
}

/// Choices of lowering.
#[derive(Clone, PartialEq, Debug)]
pub struct LowerOptions {
    /// All-reduces of gradients are merged up to this many bytes.
    pub bucket_cap_bytes: usize,
    /// Start the gather of a block's parameters when the previous block begins, instead of just before use.
    pub prefetch: bool,
    /// Ops in one fused region, at most.
    pub fused_ops: usize,
    /// Inputs of one fused region, at most.
    pub fused_inputs: usize,
    /// Where the logits of a language model's head take more bytes than this, the head, its cross-entropy and their
    /// gradients run in pieces of rows. A piece has logits of at most so many bytes, but not less than the rows that
    /// [`Target::product_block`] says a product sums at once.
    pub logits_bytes: usize,
    /// Parameters and states are replaced only when the numbers are known that the step is checked by
    /// ([`Program::checked`]), so that a step which fails its check leaves them as they were. Where one of the numbers is the
    /// norm of the gradients, all gradients are held until then, with or without clipping. Otherwise a parameter is
    /// replaced as soon as its gradient is there.
    pub guard: bool,
    /// The gradients with respect to activations and those with respect to parameters share no region and no collective, so
    /// that a timetable may run them at different times. Set where it does.
    pub split_backward: bool,
}

impl LowerOptions {
    /// What runs together of a step: its phases, both gradients as one unless they are to be split.
    pub(crate) fn part(&self, phase: Phase) -> Phase {
        if self.split_backward { phase } else { passes::bucket::phase_class(phase) }
    }
}

impl Default for LowerOptions {
    fn default() -> Self {
        LowerOptions {
            bucket_cap_bytes: 25 << 20,
            prefetch: true,
            fused_ops: 64,
            fused_inputs: 12,
            logits_bytes: 128 << 20,
            guard: true,
            split_backward: false,
        }
    }
}

/// Lowers the local graphs of all ranks to programs, one per class of alike ranks: runs all of [`PASSES`]. The graphs
/// have one structure: the same nodes with the same operands; shapes and attributes may differ from class to class.
///
/// # Errors
/// E400 where they do not, or hold what cannot be lowered; and what [`check`] finds, which would be a bug here.
pub fn lower(locals: &[ClassGraph], options: &LowerOptions, target: &dyn RegionTarget) -> Result<ProgramSet> {
    lower_stages(&Stages::one(locals), options, target)
}

/// What fusion makes of a step, what keeps elementwise ops apart, and what runs in chunks.
///
/// # Errors
/// As [`lower`].
pub fn fusion(locals: &[ClassGraph], options: &LowerOptions, target: &dyn RegionTarget) -> Result<Fusion> {
    let context = PassContext { options, target };
    let (decompose, fuse) = (find_pass("decompose")?, find_pass("fuse")?);
    let lowering = Lowering::new(locals)?.run(&PASSES[..=decompose], &context, &mut |_, _| {})?;
    let heads = lowering.heads(&context);
    let lowering = lowering.run(&PASSES[decompose + 1..=fuse], &context, &mut |_, _| {})?;
    Ok(Fusion { heads, ..lowering.fusion().expect("the pass `fuse` has run").clone() })
}
