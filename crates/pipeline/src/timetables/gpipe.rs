//! GPipe (Huang et al., 2019): all forward passes, then all backward passes.

use super::looped::Looped;
use crate::Timetable;

/// The timetable of GPipe. Each slice holds the activations of all microbatches. For any number of
/// microbatches.
pub fn gpipe(slices: usize, microbatches: usize) -> Timetable {
    let order = Looped { slices, chunks: 1, microbatches, round: microbatches };
    order.timetable(|_| usize::MAX, |_| None)
}
