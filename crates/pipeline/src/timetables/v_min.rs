//! V-Min (Qi et al., 2024, pipeline parallelism with controllable memory): a third of the memory of
//! 1F1B.

use super::v_block::Block;
use crate::Timetable;

/// The timetable of V-Min. Slice `r` runs the stages `r` and `2 p - 1 - r`, and holds at most
/// `2 floor((p + 4) / 3)` activations of these stages. From `p` microbatches on, the bubble is `4 p - 7`
/// slots if `p` is a multiple of 3, else `4 p - 5`. Fewer microbatches repeat the same building block.
pub fn v_min(slices: usize, microbatches: usize) -> Timetable {
    let block = Block {
        slots: |i, n| {
            let wait = if n.is_multiple_of(3) { 2 } else { 0 };
            [i, 2 * n - i - 1, 2 * n + wait + i, 4 * n + wait - i - 1]
        },
        cap: (slices + 4) / 3 * 2,
        waits: slices.is_multiple_of(3),
    };
    block.timetable(slices, microbatches)
}
