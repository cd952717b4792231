//! What a rank holds for backward passes: the activations in flight of a pipeline.
//!
//! A forward pass leaves values behind that its backward pass reads, and a timetable decides how many
//! microbatches are between the two (Qi et al., arXiv 2405.15362, section 2). Counted are buffers
//! that an instruction of a forward pass writes and one of a backward pass reads last. Parameters,
//! fed tensors and the gradients in between are not activations.

use crate::passes::memory::accesses;
use crate::program::{BufferKind, Program};
use std::collections::BTreeMap;

/// The activations that a rank holds for backward passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// The most forward passes, each of one stage and one microbatch, of which activations are held
    /// at a time.
    pub passes: usize,
    /// The most bytes of them that are held at a time, without padding.
    pub bytes: usize,
}

/// The most that a program holds for backward passes at any instruction.
pub fn held(program: &Program) -> Held {
    // A step with one microbatch does not number it.
    let only = program.instructions.iter().all(|i| i.origin.microbatch.is_none()).then_some(0);
    let mut begins: BTreeMap<usize, Vec<(usize, usize, (usize, usize))>> = BTreeMap::new();
    for (buffer, accesses) in program.buffers.iter().zip(accesses(program)) {
        let Some(&(first, _)) = accesses.writes.first() else { continue };
        let Some(last) = accesses.reads.iter().map(|&(_, last)| last).max() else { continue };
        let [writer, reader] = [first, last].map(|at| &program.instructions[at].origin);
        if buffer.kind == BufferKind::Temporary
            && !writer.phase.is_backward()
            && reader.phase.is_backward()
            && let Some(microbatch) = writer.microbatch.or(only)
        {
            begins.entry(first).or_default().push((last, buffer.bytes, (writer.stage, microbatch)));
        }
    }
    let mut most = Held::default();
    let mut now: Vec<(usize, usize, (usize, usize))> = Vec::new();
    for (first, buffers) in begins {
        now.retain(|&(last, ..)| last >= first);
        now.extend(buffers);
        let mut passes: Vec<(usize, usize)> = now.iter().map(|&(.., pass)| pass).collect();
        passes.sort_unstable();
        passes.dedup();
        most.passes = most.passes.max(passes.len());
        most.bytes = most.bytes.max(now.iter().map(|&(_, bytes, _)| bytes).sum());
    }
    most
}
