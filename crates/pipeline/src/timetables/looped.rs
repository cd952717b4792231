//! Orders in which each slice alternates forward and backward tasks after a warm-up: what 1F1B, its
//! interleaved form and the zero-bubble timetables share.

use super::Placement;
use crate::{Task, TaskKind, Timetable};

/// What tells these timetables apart.
pub(super) struct Looped {
    /// The number of slices.
    pub slices: usize,
    /// Stages of a slice: slice `r` runs the stages `r`, `p + r`, `2p + r`, ..
    pub chunks: usize,
    /// The number of microbatches.
    pub microbatches: usize,
    /// How many microbatches a slice takes through all its stages before the next ones.
    pub round: usize,
}

impl Looped {
    /// The timetable in which slice `r` runs `warm_up(r)` forward tasks, then alternates one forward
    /// and one backward task. Where `weights(r)` is a number `d`, backward tasks are split, and the
    /// gradients of the parameters follow `d` tasks after those of the activations.
    ///
    /// The order is made for full rounds; of a round that is not full, the missing microbatches are
    /// left out.
    pub fn timetable(
        &self,
        warm_up: impl Fn(usize) -> usize,
        weights: impl Fn(usize) -> Option<usize>,
    ) -> Timetable {
        let round = self.round.max(1);
        let rounds = self.microbatches.div_ceil(round);
        let order = |slice: usize, chunk_of: &dyn Fn(usize) -> usize| -> Vec<(usize, usize)> {
            let in_round = |start: usize| {
                (0..self.chunks).flat_map(move |nth| (start..start + round).map(move |m| (nth, m)))
            };
            let stage = |nth| Placement::Loop.stage(slice, chunk_of(nth), self.slices);
            (0..rounds).flat_map(|n| in_round(n * round)).map(|(nth, m)| (stage(nth), m)).collect()
        };
        let tasks = |slice| {
            let forward = order(slice, &|nth| nth);
            let backward = order(slice, &|nth| self.chunks - 1 - nth);
            alternate(&forward, &backward, warm_up(slice), weights(slice))
        };
        let slices = (0..self.slices).map(tasks).collect();
        Timetable::new(self.slices * self.chunks, rounds * round, slices).of_first(self.microbatches)
    }
}

/// Forward and backward tasks, given as stage and microbatch, in the order that [`Looped::timetable`]
/// describes.
fn alternate(
    forward: &[(usize, usize)],
    backward: &[(usize, usize)],
    warm_up: usize,
    weights: Option<usize>,
) -> Vec<Task> {
    let task = |kind| move |&(stage, microbatch): &(usize, usize)| Task { stage, kind, microbatch };
    let (first, rest) = forward.split_at(warm_up.min(forward.len()));
    let mut tasks: Vec<Task> = first.iter().map(task(TaskKind::Forward)).collect();
    for (n, of) in backward.iter().enumerate() {
        tasks.extend(rest.get(n).map(task(TaskKind::Forward)));
        match weights {
            None => tasks.push(task(TaskKind::Backward)(of)),
            Some(delay) => {
                tasks.push(task(TaskKind::InputGrad)(of));
                tasks.extend(n.checked_sub(delay).map(|n| task(TaskKind::WeightGrad)(&backward[n])));
            }
        }
    }
    let late = weights.unwrap_or(0).min(backward.len());
    tasks.extend(backward[backward.len() - late..].iter().map(task(TaskKind::WeightGrad)));
    tasks
}
