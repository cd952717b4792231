//! The planned memory of each rank by purpose.

use partita_ir::Role;
use partita_program::{BufferKind, ProgramSet};

/// What a rank's memory is for, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Parameters.
    pub parameters: usize,
    /// Optimizer state.
    pub states: usize,
    /// What is kept in host memory, beside the arena.
    pub host: usize,
    /// Constants and scalars kept from step to step.
    pub constants: usize,
    /// Fed tensors.
    pub inputs: usize,
    /// The rest of the arena: activations, gradients, what is gathered, scratch memory, at their peak.
    pub activations: usize,
    /// The arena: the planned peak.
    pub arena: usize,
}

/// What each rank's memory is for, read off its program.
pub fn memory(set: &ProgramSet) -> Vec<Memory> {
    let of = |program: &partita_program::Program| {
        let mut memory = Memory { arena: program.arena_bytes, host: program.host_bytes, ..Memory::default() };
        let mut is_port = vec![false; program.buffers.len()];
        let is_near = |buffer| program.buffer(buffer).kind != BufferKind::Host;
        for port in program.inputs.iter().filter(|port| is_near(port.buffer)) {
            let bytes = program.buffer(port.buffer).bytes;
            is_port[port.buffer.index()] = true;
            match port.role {
                Role::Param => memory.parameters += bytes,
                Role::StateOf(_) => memory.states += bytes,
                _ => memory.inputs += bytes,
            }
        }
        for (index, buffer) in program.buffers.iter().enumerate() {
            if buffer.kind == BufferKind::Persistent && !is_port[index] {
                memory.constants += buffer.bytes;
            }
        }
        let kept = memory.parameters + memory.states + memory.constants + memory.inputs;
        memory.activations = memory.arena.saturating_sub(kept);
        memory
    };
    let mut ranks = vec![Memory::default(); set.rank_count()];
    for program in &set.programs {
        let memory = of(program);
        program.ranks.iter().for_each(|&rank| ranks[rank] = memory);
    }
    ranks
}
