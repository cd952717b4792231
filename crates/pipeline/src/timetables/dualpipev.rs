//! DualPipeV (DeepSeek-AI, 2024, DeepSeek-V3 and its DualPipe; the half of it that keeps one copy of
//! the parameters): forward and backward tasks overlap.

use super::Placement;
use super::queue::Queue;
use crate::{TaskKind, Timetable};
use std::collections::BTreeSet;

/// The timetable of DualPipeV, in the order of PyTorch's. Slice `r` runs the stages `r` and
/// `2 p - 1 - r`. In the main part, a forward task of one stage overlaps the backward task of the other
/// one, so that one may compute while the other communicates. A slice holds at most `2 p + 1`
/// activations. The published order is for `2 p` microbatches or more; for fewer it is the order of
/// `2 p`, without the missing microbatches.
pub fn dualpipev(slices: usize, microbatches: usize) -> Timetable {
    use TaskKind::{Backward, Forward, InputGrad};
    let count = microbatches.max(2 * slices);
    let mut overlapped = BTreeSet::new();
    let mut tasks = |slice: usize| {
        let [down, up] = [0, 1].map(|chunk| Placement::V.stage(slice, chunk, slices));
        let after = slices - 1 - slice;
        let mut queue = Queue::default();
        let mut overlap = |queue: &mut Queue, forward, backward| {
            overlapped.insert(queue.push(Forward, forward));
            queue.push(Backward, backward);
        };
        for _ in 0..2 * after {
            queue.push(Forward, down);
        }
        for _ in 0..slice + 1 {
            queue.push(Forward, down);
            queue.push(Forward, up);
        }
        for _ in 0..after {
            queue.push(InputGrad, up);
            queue.push_weights();
            queue.push(Forward, up);
        }
        for n in 0..count - 2 * slices + slice + 1 {
            if n == 0 && after == 0 {
                // Nothing is there to overlap yet: one after the other shortens the warm-up.
                queue.push(Forward, down);
                queue.push(Backward, up);
            } else {
                overlap(&mut queue, down, up);
            }
            overlap(&mut queue, up, down);
        }
        for _ in 0..after {
            queue.push(Backward, up);
            overlap(&mut queue, up, down);
        }
        // The second half of the remaining backward tasks is split.
        let whole = slice + 1;
        for n in 0..2 * (slice + 1) {
            let kind = if n < whole { Backward } else { InputGrad };
            queue.push(kind, if n % 2 == 0 { up } else { down });
        }
        for _ in 0..after {
            queue.push_weights();
            queue.push(InputGrad, down);
        }
        for _ in 0..slice + 1 {
            queue.push_weights();
        }
        queue.tasks
    };
    let slices_tasks = (0..slices).map(&mut tasks).collect();
    let mut timetable = Timetable::new(2 * slices, count, slices_tasks);
    timetable.overlapped = overlapped;
    timetable.of_first(microbatches)
}
