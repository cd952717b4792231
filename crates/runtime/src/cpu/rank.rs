//! A rank on the CPU: its memory, and a kernel for each compute instruction.

use partita_base::Result;
use partita_program::{ALIGNMENT_BYTES, Action, BufferId, Compute, Device, Program, RankDevice, RankMemory};

use super::{Cpu, Kernel};
use crate::arena::{Arena, Span};

/// A rank of the CPU device. By itself it runs each instruction on the thread that asks; the executor has its kernels run by
/// teams of threads.
pub struct CpuRank {
    /// Per instruction: the kernel and its scratch memory, where it computes.
    pub(crate) kernels: Vec<Option<(Kernel, Span)>>,
    // Last: what holds pointers into it goes before.
    pub(crate) arena: Arena,
}

pub(crate) fn buffer_span(program: &Program, id: BufferId) -> Span {
    let buffer = program.buffer(id);
    Span { offset: buffer.offset_bytes, bytes: buffer.bytes }
}

impl Device for Cpu {
    type Rank = CpuRank;

    /// E426 where there is no memory.
    fn rank(&self, program: &Program) -> Result<CpuRank> {
        // Scratch that was not planned lies behind the arena proper; all instructions share it.
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
