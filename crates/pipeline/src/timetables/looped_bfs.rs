//! Looped BFS (Lamy-Poirier, 2023, breadth-first pipeline parallelism): GPipe with several stages on
//! each slice.

use super::looped::Looped;
use crate::Timetable;

/// The timetable of looped BFS: each slice runs all microbatches through its first stage, then all
/// through the next one, and back. It holds the activations of all microbatches and `chunks` stages.
/// For any number of microbatches. Backward passes take the microbatches from the first one on, as in
/// all timetables here (in PyTorch, from the last one), so that gradients are summed in one order.
pub fn looped_bfs(slices: usize, chunks: usize, microbatches: usize) -> Timetable {
    let order = Looped { slices, chunks, microbatches, round: microbatches };
    order.timetable(|_| usize::MAX, |_| None)
}
