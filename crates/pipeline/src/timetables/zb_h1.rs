//! ZB-H1 (Qi et al., 2023, zero bubble pipeline parallelism): 1F1B with a third of its bubble, in the
//! same memory.

use super::looped::Looped;
use crate::Timetable;

/// The timetable of ZB-H1: 1F1B with split backward passes. Slice `r` computes the gradients of the
/// parameters `r` microbatches later, so that no slice holds more than `min(m, p)` activations. For any
/// number of microbatches; with fewer than `p` the bubble is up to `2 (p - 1)` slots.
pub fn zb_h1(slices: usize, microbatches: usize) -> Timetable {
    let order = Looped { slices, chunks: 1, microbatches, round: slices };
    order.timetable(|slice| slices - 1 - slice, Some)
}
