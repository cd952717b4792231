//! A rank on the CPU device: its memory, and a kernel for each compute instruction.

use std::ops::Range;

use partita_base::Result;
use partita_comm::HostMemory;
use partita_program::{
    ALIGNMENT_BYTES, Action, BufferId, BufferKind, Compute, Device, Move, MoveKind, Program, RankDevice,
    RankMemory,
};

use super::{Cpu, Kernel};
use crate::arena::{Arena, Memory, Span};

/// A rank of the CPU device. On its own it runs each instruction on the calling thread; the executor runs its
/// kernels on several threads.
pub struct CpuRank {
    /// For each compute instruction, the kernel and its scratch memory.
    pub(crate) kernels: Vec<Option<(Kernel, Span)>>,
    /// What it keeps beside the arena, if anything.
    pub(crate) host: Option<HostMemory>,
    // Last, because the fields before hold pointers into it and must be dropped first.
    pub(crate) arena: Arena,
}

pub(crate) fn buffer_span(program: &Program, id: BufferId) -> Span {
    let buffer = program.buffer(id);
    Span { offset: buffer.offset_bytes, bytes: buffer.bytes }
}

/// The bytes of a buffer in host memory.
pub(crate) fn host_range(program: &Program, id: BufferId) -> Range<usize> {
    let buffer = program.buffer(id);
    buffer.offset_bytes..buffer.offset_bytes + buffer.bytes
}

/// Begins a move: the system reads ahead what will be loaded, and what is stored is copied at once, to be written to disk
/// meanwhile.
pub(crate) fn begin_move(program: &Program, moved: Move, memory: &Memory<'_>, host: Option<&mut HostMemory>) {
    let Some(host) = host else { return };
    let range = host_range(program, moved.host);
    match moved.kind {
        MoveKind::Load => host.prefetch(range),
        MoveKind::Store => {
            host.bytes_mut(range.clone()).copy_from_slice(memory.bytes(buffer_span(program, moved.buffer)));
            host.write_back(range);
        }
    }
}

/// Ends a move: what is loaded is copied, by now from memory.
pub(crate) fn end_move(program: &Program, moved: Move, memory: &Memory<'_>, host: Option<&HostMemory>) {
    if let (MoveKind::Load, Some(host)) = (moved.kind, host) {
        let loaded = host.bytes(host_range(program, moved.host));
        memory.bytes_mut(buffer_span(program, moved.buffer)).copy_from_slice(loaded);
    }
}

impl Device for Cpu {
    type Rank = CpuRank;

    /// E426 if the system cannot provide the memory, E429 if it cannot provide host memory in a file.
    fn rank(&self, program: &Program) -> Result<CpuRank> {
        // Scratch memory that was not planned follows the planned arena; all instructions share it.
        let spill_offset = program.arena_bytes.next_multiple_of(ALIGNMENT_BYTES);
        let compiled = |compute: &Compute| {
            let kernel = self.compile(program, compute);
            let planned = compute.workspace.map_or(Span::default(), |id| buffer_span(program, id));
            let spill = Span { offset: spill_offset, bytes: kernel.workspace_bytes() };
            let workspace = if kernel.workspace_bytes() <= planned.bytes { planned } else { spill };
            (kernel, workspace)
        };
        let kernel = |action: &Action| match action {
            Action::Compute(compute) => Some(compiled(compute)),
            _ => None,
        };
        let kernels: Vec<_> =
            program.instructions.iter().map(|instruction| kernel(&instruction.action)).collect();
        let ends = kernels.iter().flatten().map(|(_, workspace)| workspace.offset + workspace.bytes);
        let mut arena = Arena::new(ends.max().unwrap_or(0).max(program.arena_bytes))?;
        arena.bring_in();
        let host = match program.host_bytes {
            0 => None,
            bytes => Some(HostMemory::new(&std::env::temp_dir(), bytes)?),
        };
        let mut rank = CpuRank { kernels, host, arena };
        for (buffer, literal) in &program.constants {
            rank.write(program, *buffer, &literal.bytes());
        }
        Ok(rank)
    }
}

impl RankMemory for CpuRank {
    fn read(&self, program: &Program, buffer: BufferId) -> &[u8] {
        match (program.buffer(buffer).kind, &self.host) {
            (BufferKind::Host, Some(host)) => host.bytes(host_range(program, buffer)),
            _ => self.arena.memory().bytes(buffer_span(program, buffer)),
        }
    }

    fn write(&mut self, program: &Program, buffer: BufferId, bytes: &[u8]) {
        let place = match (program.buffer(buffer).kind, &mut self.host) {
            (BufferKind::Host, Some(host)) => host.bytes_mut(host_range(program, buffer)),
            _ => self.arena.memory().bytes_mut(buffer_span(program, buffer)),
        };
        place.copy_from_slice(bytes);
    }
}

impl RankDevice for CpuRank {
    fn run(&mut self, _program: &Program, index: usize, _compute: &Compute) -> Result<()> {
        let memory = self.arena.memory();
        match &self.kernels[index] {
            Some((kernel, workspace)) => kernel.run(&memory, *workspace),
            None => Ok(()),
        }
    }

    fn begin_move(&mut self, program: &Program, _index: usize, moved: Move) -> Result<()> {
        begin_move(program, moved, &self.arena.memory(), self.host.as_mut());
        Ok(())
    }

    fn end_move(&mut self, program: &Program, _index: usize, moved: Move) -> Result<()> {
        end_move(program, moved, &self.arena.memory(), self.host.as_ref());
        Ok(())
    }
}
