//! ZB-V (Qi et al., 2024, pipeline parallelism with controllable memory; 2023, section 6): no slice
//! ever waits, in the memory of 1F1B.

use super::Placement;
use super::queue::Queue;
use crate::{TaskKind, Timetable};

/// The timetable of ZB-V, in the order of PyTorch's `ZBVZeroBubble`. Slice `r` runs the stages `r` and
/// `2 p - 1 - r`, and holds at most `2 p` activations of these stages, each half as large as one of
/// 1F1B. From `2 p` microbatches on, a slice that has begun does not wait. For fewer than `2 p - 1`
/// microbatches it is the order of `2 p - 1`, without the missing microbatches.
pub fn zbv(slices: usize, microbatches: usize) -> Timetable {
    use TaskKind::{Forward, InputGrad, WeightGrad};
    let count = microbatches.max((2 * slices).saturating_sub(1));
    let tasks = |slice: usize| {
        let [down, up] = [0, 1].map(|chunk| Placement::V.stage(slice, chunk, slices));
        let mut queue = Queue::default();
        let mut run = |kinds: &[TaskKind], stage| kinds.iter().for_each(|&kind| _ = queue.push(kind, stage));
        // Warm-up.
        for _ in 0..2 * (slices - slice) - 1 {
            run(&[Forward], down);
        }
        for _ in 0..slice {
            run(&[Forward], up);
            run(&[Forward], down);
        }
        for _ in 0..slices - slice {
            run(&[Forward, InputGrad, WeightGrad], up);
        }
        // Both stages, until the second one, which ran `slices` forward tasks so far, has run all.
        let first = 2 * slices - 1 - slice;
        for first in first..first + count - slices {
            run(
                if first < count { &[Forward, InputGrad, WeightGrad] } else { &[InputGrad, WeightGrad] },
                down,
            );
            run(&[Forward, InputGrad, WeightGrad], up);
        }
        // Cool-down.
        for _ in 0..slice {
            run(&[InputGrad], down);
            run(&[InputGrad], up);
        }
        for _ in 0..slices - slice {
            run(&[InputGrad, WeightGrad], down);
        }
        for stage in [up, down] {
            for _ in 0..slice {
                run(&[WeightGrad], stage);
            }
        }
        queue.tasks
    };
    Timetable::new(2 * slices, count, (0..slices).map(tasks).collect()).of_first(microbatches)
}
