//! Lowers local graphs to programs: simplification, bucketing and ordering of collectives, fusion
//! into regions, views, memory planning, static checks, and execution over the [`Device`] trait.
//!
//! Knows: graphs and what one rank executes. Must not know: kernels, transports, threads, how
//! layouts are chosen.
#![forbid(unsafe_code)]

mod alike;
mod check;
mod collective;
mod counts;
mod display;
mod edges;
mod event;
mod execute;
mod held;
mod outside;
mod overlap;
mod passes;
mod program;
mod ranks;
mod reference;
mod stages;
mod view;

pub use alike::{alike, alike_on};
pub use check::{CheckReport, check};
pub use collective::{Collective, CollectiveKind, CollectiveOp, Transfer};
pub use counts::{Counts, KindCount, PhaseCounts, counts, counts_of_graph};
pub use display::ProgramListing;
pub use edges::{EdgeCount, EdgeCounts, edge_counts};
pub use event::Event;
pub use execute::{
    Communicator, Cursor, Device, Progress, RankDevice, RankMemory, StepOutcome, advance, step_once,
};
pub use held::{Held, held};
pub use overlap::{Overlap, gradient_overlap};
pub use partita_base::CollectiveId;
pub use partita_ir::Offload;
pub use passes::collective_matmul::{CollectiveMatmul, RingChoice};
pub use passes::fuse::{Apart, Fusion, Why};
pub use passes::head::{HeadCut, NotChunked};
pub use passes::keep::Kept;
pub use passes::timing::{StageTasks, tasks_of_stages};
pub use passes::{Back, Lowering, PASSES, PassContext, find_pass};
pub use program::{
    Action, Buffer, BufferId, BufferKind, Checked, Compute, Instruction, Move, MoveKind, Origin, Port,
    Program, ProgramSet, Region, RegionId, RegionKind, Start, View,
};

pub use reference::{Evaluation, Reference, interpret};
pub use stages::{Edge, Stage, Stages, lower_stages, lower_stages_watched};

use partita_base::Result;
use partita_ir::pass::run_passes;
use partita_ir::{ClassGraph, Phase, Target};

/// The least alignment of a buffer within its arena, in bytes: a cache line, which is also the widest
/// vector.
pub const ALIGNMENT_BYTES: usize = 64;

/// What lowering must know of the device beyond [`Target`]: its requirements for regions.
pub trait RegionTarget: Target {
    /// Bytes of scratch memory that a region needs when its inputs are these views; 0 for none.
    fn workspace_bytes(&self, region: &Region, inputs: &[View]) -> usize;

    /// Alignment of every buffer within its arena, in bytes: a multiple of [`ALIGNMENT_BYTES`].
    fn alignment_bytes(&self) -> usize {
        ALIGNMENT_BYTES
    }
}

/// Options of lowering.
#[derive(Clone, PartialEq, Debug)]
pub struct LowerOptions {
    /// Largest bucket of merged gradient all-reduces, in bytes.
    pub bucket_cap_bytes: usize,
    /// Prefetch: start the all_gather of a block's parameters when the previous block begins,
    /// instead of just before their use.
    pub prefetch: bool,
    /// Most ops in one fused region.
    pub fused_ops: usize,
    /// Most inputs of one fused region.
    pub fused_inputs: usize,
    /// Where the logits of a language model take more bytes than this, the LM head, its
    /// cross-entropy and their gradients run in chunks of rows. The logits of a chunk take at most
    /// this many bytes, but a chunk has no fewer rows than one block of the device's matmul sum
    /// ([`Target::product_block`]).
    pub logits_bytes: usize,
    /// Replace parameters and optimizer states only after the numbers that validate the step
    /// ([`Program::checked`]) are known, so that a step that fails validation leaves them
    /// unchanged. If one of these numbers is the gradient norm, all gradients are held until it is
    /// known, with or without clipping. Without this option a parameter is replaced as soon as its
    /// gradient is ready.
    pub guard: bool,
    /// Keep input gradients and weight gradients apart: they share no region and no collective, so
    /// a timetable may run them at different times. Set for timetables that do.
    pub split_backward: bool,
    /// The most bytes of forward values that a rank keeps for the backward pass of a microbatch; what is left out is
    /// computed again.
    pub kept_bytes: Option<usize>,
    /// Which collectives around matmuls are permutes under them.
    pub collective_matmul: CollectiveMatmul,
}

impl LowerOptions {
    /// The group of phases that may share regions and collectives. Both gradient phases are one
    /// group unless `split_backward` is set.
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
            kept_bytes: None,
            collective_matmul: CollectiveMatmul::Off,
        }
    }
}

/// Lowers the local graphs of all ranks to programs, one per rank class, with all of [`PASSES`].
/// The graphs must have one structure: the same nodes with the same operands; shapes and attributes
/// may differ between classes.
///
/// # Errors
/// E400 if the structures differ or an op cannot be lowered. Errors of [`check`], which would mean
/// a bug in lowering.
pub fn lower(locals: &[ClassGraph], options: &LowerOptions, target: &dyn RegionTarget) -> Result<ProgramSet> {
    lower_stages(&Stages::one(locals), options, target)
}

/// Reports what fusion does to a step, what keeps elementwise ops apart, and which LM heads run in
/// chunks.
///
/// # Errors
/// As [`lower`].
pub fn fusion(locals: &[ClassGraph], options: &LowerOptions, target: &dyn RegionTarget) -> Result<Fusion> {
    let context = PassContext { options, target };
    let (decompose, fuse) = (find_pass("decompose")?, find_pass("fuse")?);
    let lowering = run_passes(&PASSES[..=decompose], Lowering::new(locals)?, &context, &mut |_, _| Ok(()))?;
    let heads = lowering.heads(&context);
    let lowering = run_passes(&PASSES[decompose + 1..=fuse], lowering, &context, &mut |_, _| Ok(()))?;
    Ok(Fusion { heads, ..lowering.fusion().expect("the pass `fuse` has run").clone() })
}

/// The gathers before matmuls, and the reduce-scatters behind them, that [`CollectiveMatmul::Auto`] prices, in execution
/// order. One stage of a step.
///
/// # Errors
/// As [`lower`].
pub fn collective_matmuls(
    locals: &[ClassGraph],
    options: &LowerOptions,
    target: &dyn RegionTarget,
) -> Result<Vec<RingChoice>> {
    let context = PassContext { options, target };
    let before = find_pass("collective-matmul")?;
    let lowering = run_passes(&PASSES[..before], Lowering::new(locals)?, &context, &mut |_, _| Ok(()))?;
    Ok(lowering.priced_rings(&options.collective_matmul))
}

/// Bytes of forward values that a rank keeps for its backward pass against the work that is done again for it, for `points`
/// budgets from all that is read to the least, largest first. One stage of a step.
///
/// # Errors
/// As [`lower`].
pub fn kept_curve(
    locals: &[ClassGraph],
    options: &LowerOptions,
    target: &dyn RegionTarget,
    points: usize,
) -> Result<Vec<Kept>> {
    let options = &LowerOptions { kept_bytes: None, ..options.clone() };
    let context = PassContext { options, target };
    let lowering =
        run_passes(&PASSES[..find_pass("keep")?], Lowering::new(locals)?, &context, &mut |_, _| Ok(()))?;
    Ok(passes::keep::curve(&lowering.graphs()[0].graph, points))
}
