//! Interleaved 1F1B (Narayanan et al., 2021, Megatron-LM): several stages on each slice, for a
//! shorter warm-up.

use super::looped::Looped;
use crate::Timetable;

/// The timetable of interleaved 1F1B with `chunks` stages on each slice. The slices take `p`
/// microbatches at a time through all stages; slice `r` runs `(v - 1) p + 2 (p - 1 - r)` forward
/// tasks, then alternates. So it holds at most `min(v m, (v - 1) p + 2 (p - 1 - r) + 1)` activations.
///
/// The published order is for multiples of `p` microbatches. For other numbers it is the order of the
/// next multiple, without the missing microbatches.
pub fn interleaved_1f1b(slices: usize, chunks: usize, microbatches: usize) -> Timetable {
    let order = Looped { slices, chunks, microbatches, round: slices };
    order.timetable(|slice| chunks.saturating_sub(1) * slices + 2 * (slices - 1 - slice), |_| None)
}
