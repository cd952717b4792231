//! ZB-H2 (Qi et al., 2023, zero bubble pipeline parallelism): no slice ever waits, in twice the memory.

use super::looped::Looped;
use crate::Timetable;

/// The timetable of ZB-H2. Slice `r` runs `2 (p - r) - 1` forward tasks before the first backward
/// task, and computes the gradients of the parameters `2 r` microbatches later, so that it holds at
/// most `min(m, 2 p - 1)` activations. From `2 p - 1` microbatches on, a slice that has begun does not
/// wait. For fewer microbatches it is the same order, and slices wait.
pub fn zb_h2(slices: usize, microbatches: usize) -> Timetable {
    let order = Looped { slices, chunks: 1, microbatches, round: slices };
    order.timetable(|slice| 2 * (slices - 1 - slice), |slice| Some(2 * slice))
}
