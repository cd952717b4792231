//! 1F1B (Narayanan et al., 2019, PipeDream; 2021, Megatron-LM, without interleaving).

use super::looped::Looped;
use crate::Timetable;

/// The timetable of 1F1B. Slice `r` of `p` runs `min(p - r, m)` forward passes, then alternates one
/// backward and one forward pass. So it holds the activations of at most `min(p - r, m)`
/// microbatches. For any number of microbatches.
pub fn one_f_one_b(slices: usize, microbatches: usize) -> Timetable {
    let order = Looped { slices, chunks: 1, microbatches, round: slices };
    order.timetable(|slice| slices - 1 - slice, |_| None)
}
