//! V-Half (Qi et al., 2024, pipeline parallelism with controllable memory): half the memory of 1F1B.

use super::v_block::Block;
use crate::Timetable;

/// The timetable of V-Half. Slice `r` runs the stages `r` and `2 p - 1 - r`, and holds at most
/// `2 floor((p + 2) / 2)` activations of these stages. From `2 p` microbatches on, the bubble is at most
/// `6 ceil(p / 2) - 7` slots, or 1 slot on two slices. Fewer microbatches repeat the same building block.
pub fn v_half(slices: usize, microbatches: usize) -> Timetable {
    let block = Block {
        slots: |i, n| {
            let wait = if n.is_multiple_of(2) { 3 } else { 0 };
            [2 * i, 3 * n - i - 2, 3 * n + wait + 2 * i - 1, 6 * n + wait - i - 2]
        },
        cap: (slices + 2) / 2 * 2,
        waits: slices.is_multiple_of(2),
    };
    block.timetable(slices, microbatches)
}
