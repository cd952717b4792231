//! Interleaved 1F1B with split backward passes, as in PyTorch's `InterleavedZeroBubble` (after Qi et
//! al., 2023, zero bubble pipeline parallelism).

use super::looped::Looped;
use crate::Timetable;

/// The timetable of interleaved ZB-H1 with `chunks` stages on each slice. Slice `r` runs
/// `(v - 1) p + p - 1 - r` forward tasks, then alternates; the gradients of the parameters follow `r`
/// tasks later. Every slice holds at most `min(v m, v p)` activations.
///
/// The published order is for multiples of `p` microbatches. For other numbers it is the order of the
/// next multiple, without the missing microbatches.
pub fn interleaved_zero_bubble(slices: usize, chunks: usize, microbatches: usize) -> Timetable {
    let order = Looped { slices, chunks, microbatches, round: slices };
    order.timetable(|slice| chunks.saturating_sub(1) * slices + slices - 1 - slice, Some)
}
