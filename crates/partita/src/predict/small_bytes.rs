//! Bytes of the slices of a small step, read off its programs.

use super::small::{Blocks, ByPlace};
use super::step::Bytes;
use partita_ir::{Phase, Role};
use partita_pipeline::{TaskKind, Timetable};
use partita_program::{BufferKind, Event, Program};
use partita_simulate::{ClassRun, MemoryKind};

/// Bytes of a rank by kind at its peak; what alignment and placement add, or save where results replace operands, counts
/// with activations.
pub(super) fn bytes(run: &ClassRun) -> Bytes {
    let mut bytes = used(run);
    bytes.activations += run.memory.arena_bytes as f64 - bytes.total();
    bytes
}

/// Bytes in use on a rank by kind at its peak; scratch memory and inputs count with activations.
pub(super) fn used(run: &ClassRun) -> Bytes {
    let of = |kind: MemoryKind| run.memory.peak[kind as usize] as f64;
    Bytes {
        parameters: of(MemoryKind::Parameters),
        gradients: of(MemoryKind::Gradients),
        optimizer_state: of(MemoryKind::OptimizerState),
        activations: [MemoryKind::Activations, MemoryKind::Inputs, MemoryKind::Workspace]
            .map(of)
            .iter()
            .sum(),
        communication: of(MemoryKind::Communication),
    }
}

/// Bytes that a microbatch in the middle keeps from its forward pass to its input gradients, from its forward pass to its
/// weight gradients, and from the one of these to the other: see [`Timetable::spans`].
pub(super) fn saved(program: &Program, microbatches: usize, blocks: &Blocks) -> [ByPlace<f64>; 3] {
    let wanted = (microbatches > 1).then_some(microbatches / 2);
    let mut saved = [blocks.none(), blocks.none(), blocks.none()];
    let temporary = |kind: BufferKind| matches!(kind, BufferKind::Temporary | BufferKind::Output);
    for buffer in program.buffers.iter().filter(|buffer| temporary(buffer.kind)) {
        let [first, last] = [buffer.first, buffer.last].map(|at| program.instructions.get(at));
        let Some((first, last)) = first.zip(last).map(|(first, last)| (&first.origin, &last.origin)) else {
            continue;
        };
        let span = match (first.phase, last.phase) {
            _ if first.microbatch != wanted => continue,
            (Phase::Forward, Phase::InputGrad) => 0,
            (Phase::Forward, Phase::WeightGrad) => 1,
            (Phase::InputGrad, Phase::WeightGrad) if last.microbatch == wanted => 2,
            _ => continue,
        };
        saved[span][blocks.place(&first.path)] += buffer.bytes as f64;
    }
    saved
}

/// How often a slice holds what lives in each span when it holds most, with so many bytes of each.
pub(super) fn in_flight(timetable: &Timetable, slice: usize, saved: [f64; 3]) -> [f64; 3] {
    let counts = timetable.spans(slice).into_iter().map(|counts| counts.map(|count| count as f64));
    let bytes = |counts: &[f64; 3]| counts.iter().zip(saved).map(|(count, bytes)| count * bytes).sum::<f64>();
    counts.max_by(|a, b| bytes(a).total_cmp(&bytes(b))).unwrap_or_default()
}

/// The part of a rank's parameters at each place.
pub(super) fn parameters(program: &Program, blocks: &Blocks) -> ByPlace<f64> {
    let mut bytes = blocks.none();
    for port in program.inputs.iter().filter(|port| port.role == Role::Param) {
        bytes[blocks.place(&port.name)] += program.buffer(port.buffer).bytes as f64;
    }
    let all: f64 = bytes.iter().sum();
    bytes.iter().map(|of_place| if all > 0.0 { of_place / all } else { 0.0 }).collect()
}

/// Whether a slice has gradients of earlier microbatches when it holds most activations.
pub(super) fn accumulates(timetable: &Timetable, slice: usize) -> bool {
    let most = timetable.peak(slice);
    let held = timetable.held(slice);
    let done = timetable.slices[slice].iter().position(|task| task.kind != TaskKind::Forward);
    // The first backward task itself releases what it holds as it goes.
    done.is_some_and(|done| held[done + 1..].contains(&most))
}

/// Bytes of gradients of the microbatches before the last one, as its backward pass begins.
pub(super) fn accumulated(program: &Program, run: &ClassRun, microbatches: usize) -> f64 {
    let last = microbatches.checked_sub(1).filter(|&last| last > 0);
    let is_begin = |event: &&Event| {
        let origin = &program.instructions[event.instruction].origin;
        last.is_some() && origin.microbatch == last && origin.phase.is_backward()
    };
    let Some(begin) = run.events.iter().find(is_begin) else { return 0.0 };
    let begin_s = begin.begin_ns as f64 / 1e9;
    let before = run.memory.over_time.iter().take_while(|(now_s, _)| *now_s < begin_s);
    before.last().map_or(0.0, |(_, bytes)| bytes[MemoryKind::Gradients as usize] as f64)
}
