//! Writes the tasks of a slice one by one, with the microbatches of each stage in order.

use crate::{Task, TaskKind};
use std::collections::{BTreeMap, VecDeque};

/// The tasks of a slice so far.
#[derive(Default)]
pub(super) struct Queue {
    pub tasks: Vec<Task>,
    /// How many forward and backward tasks of a stage there are.
    counts: BTreeMap<(usize, bool), usize>,
    /// Gradients of parameters that are to be computed, oldest first.
    weights: VecDeque<Task>,
}

impl Queue {
    /// The next task of this kind of a stage: `W` belongs to the oldest `I` of the stage that has none.
    pub fn push(&mut self, kind: TaskKind, stage: usize) -> Task {
        let task = match kind {
            TaskKind::WeightGrad => {
                let place = self.weights.iter().position(|task| task.stage == stage);
                place.and_then(|place| self.weights.remove(place)).expect("a W follows its I")
            }
            _ => {
                let count = self.counts.entry((stage, kind == TaskKind::Forward)).or_default();
                *count += 1;
                Task { stage, kind, microbatch: *count - 1 }
            }
        };
        if kind == TaskKind::InputGrad {
            self.weights.push_back(Task { kind: TaskKind::WeightGrad, ..task });
        }
        self.tasks.push(task);
        task
    }

    /// The oldest gradients of parameters that are to be computed, if there are any.
    pub fn push_weights(&mut self) {
        self.tasks.extend(self.weights.pop_front());
    }
}
