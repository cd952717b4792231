//! Local graphs to programs: simplification, bucketing and ordering of collectives, fusion into regions, views,
//! the memory map, static checks, and the executor over the [`Device`] trait.
//!
//! Knows: graphs and what one rank executes. Must not know: kernels, transports, threads, how layouts are chosen.
#![forbid(unsafe_code)]

mod collective;
mod execute;
mod program;

pub use collective::{Collective, CollectiveId, CollectiveKind, Exchange, Transfer};
pub use execute::{Communicator, Cursor, Device, Poll, StepOutcome, advance};
pub use program::{
    Action, Buffer, BufferId, BufferKind, Compute, Instruction, Origin, Port, Program, ProgramSet, Region,
    RegionId, RegionKind, Start, View,
};

use partita_ir::ops::Composite;

/// Every buffer begins at a multiple of this many bytes of its arena: a cache line, and the widest vector.
pub const ALIGNMENT_BYTES: usize = 64;

/// What lowering asks of whoever will run the regions.
pub trait RegionSizes {
    /// Scratch memory that a region needs, 0 for none.
    fn workspace_bytes(&self, region: &Region) -> usize;

    /// Whether a composite can be run as one region; if not, its decomposition is inlined.
    fn has_kernel(&self, _composite: &Composite) -> bool {
        false
    }
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
}

impl Default for LowerOptions {
    fn default() -> Self {
        LowerOptions { bucket_cap_bytes: 25 << 20, prefetch: true, fused_ops: 64, fused_inputs: 12 }
    }
}
