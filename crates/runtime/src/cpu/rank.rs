//! A rank on the CPU device: its memory, and a kernel for each compute instruction.

use partita_base::Result;
use partita_program::{ALIGNMENT_BYTES, Action, BufferId, Compute, Device, Program, RankDevice, RankMemory};

use super::{Cpu, Kernel};
use crate::arena::{Arena, Span};

/// A rank of the CPU device. On its own it runs each instruction on the calling thread; the executor runs its
/// kernels on several threads.
pub struct CpuRank {
    /// For each compute instruction, the kernel and its scratch memory.
    pub(crate) kernels: Vec<Option<(Kernel, Span)>>,
    // Last, because the fields before hold pointers into it and must be dropped first.
    pub(crate) arena: Arena,
}

pub(crate) fn buffer_span(program: &Program, id: BufferId) -> Span {
    let buffer = program.buffer(id);
    Span { offset: buffer.offset_bytes, bytes: buffer.bytes }
}

impl Device for Cpu {
    type Rank = CpuRank;

    /// E426 if the system cannot provide the memory.
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
            Action::Start(_) | Action::Wait(_) => None,
        };
        let kernels: Vec<_> =
            program.instructions.iter().map(|instruction| kernel(&instruction.action)).collect();
        let ends = kernels.iter().flatten().map(|(_, workspace)| workspace.offset + workspace.bytes);
        let mut arena = Arena::new(ends.max().unwrap_or(0).max(program.arena_bytes))?;
        arena.bring_in();
        let mut rank = CpuRank { kernels, arena };
        for (buffer, literal) in &program.constants {
            rank.write(program, *buffer, &literal.bytes());
        }
        Ok(rank)
    }
}

impl RankMemory for CpuRank {
    fn read(&self, program: &Program, buffer: BufferId) -> &[u8] {
        self.arena.memory().bytes(buffer_span(program, buffer))
    }

    fn write(&mut self, program: &Program, buffer: BufferId, bytes: &[u8]) {
        self.arena.memory().bytes_mut(buffer_span(program, buffer)).copy_from_slice(bytes);
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
}
