//! Memory in use over time, by kind. Sizes and live spans are those of the memory map, so they are
//! exact; only the times are predicted.

use partita_ir::{Phase, Role};
use partita_program::{Action, BufferKind, Event, Program};
use std::collections::BTreeMap;

/// What a buffer holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemoryKind {
    /// Trained tensors.
    Parameters,
    /// States of the optimizer, and constants.
    OptimizerState,
    /// Values computed in the forward pass.
    Activations,
    /// Values computed in the backward pass and the update.
    Gradients,
    /// Results of collectives.
    Communication,
    /// Tensors of the batch.
    Inputs,
    /// Scratch memory of single instructions.
    Workspace,
}

impl MemoryKind {
    /// Every kind, in declaration order.
    pub const ALL: [MemoryKind; 7] = [
        MemoryKind::Parameters,
        MemoryKind::OptimizerState,
        MemoryKind::Activations,
        MemoryKind::Gradients,
        MemoryKind::Communication,
        MemoryKind::Inputs,
        MemoryKind::Workspace,
    ];

    /// The name in tables and traces.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Parameters => "parameters",
            MemoryKind::OptimizerState => "optimizer state",
            MemoryKind::Activations => "activations",
            MemoryKind::Gradients => "gradients",
            MemoryKind::Communication => "communication",
            MemoryKind::Inputs => "inputs",
            MemoryKind::Workspace => "workspace",
        }
    }
}

/// Bytes in use over a step, on each rank of a class.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Memory {
    /// After each change: the time in seconds, and the bytes of each of [`MemoryKind::ALL`].
    pub over_time: Vec<(f64, [usize; 7])>,
    /// The most bytes in use at once, by kind, at the time of the largest sum.
    pub peak: [usize; 7],
    /// Bytes of the arena: the peak, and what alignment and placement add.
    pub arena_bytes: usize,
}

impl Memory {
    /// The most bytes in use at once.
    pub fn peak_bytes(&self) -> usize {
        self.peak.iter().sum()
    }
}

/// The memory of a step of a program that begins at `begin_s` seconds and whose instructions have these events, in the
/// order of the program.
pub fn over_time(program: &Program, events: &[Event], begin_s: f64) -> Memory {
    let kinds = kinds(program);
    let count = program.instructions.len();
    let mut changes = vec![[0isize; 7]; count.max(1) + 1];
    let of_arena =
        || program.buffers.iter().zip(&kinds).filter(|(buffer, _)| buffer.kind != BufferKind::Host);
    // By its first instruction and its place, the bytes of a buffer.
    let begins: BTreeMap<(usize, usize), usize> =
        of_arena().map(|(buffer, _)| ((buffer.first, buffer.offset_bytes), buffer.bytes)).collect();
    for (buffer, kind) in of_arena() {
        changes[buffer.first][*kind as usize] += buffer.bytes as isize;
        changes[buffer.last + 1][*kind as usize] -= buffer.bytes as isize;
        // A result that replaces its operand in place is the one that counts.
        let replaced = begins.get(&(buffer.last, buffer.offset_bytes)).filter(|_| buffer.first < buffer.last);
        let shared = replaced.map_or(0, |&bytes| bytes.min(buffer.bytes)) as isize;
        changes[buffer.last][*kind as usize] -= shared;
        changes[buffer.last + 1][*kind as usize] += shared;
    }
    let mut memory = Memory { arena_bytes: program.arena_bytes, ..Memory::default() };
    let (mut now, mut now_s, mut next) = ([0isize; 7], begin_s, 0);
    for (instruction, change) in changes.iter().enumerate().take(count) {
        while next < events.len() && events[next].instruction < instruction {
            now_s = events[next].end_ns as f64 / 1e9;
            next += 1;
        }
        if change.iter().all(|&bytes| bytes == 0) {
            continue;
        }
        now.iter_mut().zip(change).for_each(|(now, change)| *now += change);
        let bytes = now.map(|bytes| bytes as usize);
        if bytes.iter().sum::<usize>() > memory.peak_bytes() {
            memory.peak = bytes;
        }
        match memory.over_time.last_mut() {
            Some(last) if last.0 == now_s => last.1 = bytes,
            _ => memory.over_time.push((now_s, bytes)),
        }
    }
    memory
}

/// What each buffer holds.
fn kinds(program: &Program) -> Vec<MemoryKind> {
    let mut kinds: Vec<MemoryKind> = program
        .buffers
        .iter()
        .map(|buffer| match buffer.kind {
            BufferKind::Persistent => MemoryKind::OptimizerState,
            BufferKind::Input => MemoryKind::Inputs,
            BufferKind::Output | BufferKind::Temporary => MemoryKind::Activations,
            BufferKind::Workspace => MemoryKind::Workspace,
            BufferKind::Host => MemoryKind::OptimizerState,
        })
        .collect();
    let is_state = |host| program.inputs.iter().any(|port| port.buffer == host);
    for instruction in &program.instructions {
        let (outputs, kind) = match &instruction.action {
            Action::Compute(compute) if instruction.origin.phase != Phase::Forward => {
                (&compute.outputs, MemoryKind::Gradients)
            }
            Action::Start(start) => (&start.outputs, MemoryKind::Communication),
            // Loaded states; the rest are activations, as what was stored.
            Action::Move(moved) if is_state(moved.host) => {
                kinds[moved.buffer.index()] = MemoryKind::OptimizerState;
                continue;
            }
            _ => continue,
        };
        for output in outputs {
            let is_kept = kinds[output.index()] == MemoryKind::OptimizerState;
            if !is_kept {
                kinds[output.index()] = kind;
            }
        }
    }
    for port in &program.inputs {
        if port.role == Role::Param {
            kinds[port.buffer.index()] = MemoryKind::Parameters;
        }
    }
    kinds
}
