//! Timetables that repeat one building block of a V, and fill the gaps with gradients of parameters
//! (Qi et al., 2024, pipeline parallelism with controllable memory).

use super::Placement;
use crate::{Task, TaskKind, Timetable};
use std::collections::VecDeque;

/// The slots of a microbatch on each slice, and the memory that the block needs.
pub(super) struct Block {
    /// The slots of the forward tasks of a slice's two stages, and of the activations' gradients of
    /// its second and first stage.
    pub slots: fn(slice: usize, slices: usize) -> [usize; 4],
    /// The most activations that a slice holds.
    pub cap: usize,
    /// Whether the block waits between its forward and backward half, so that no two tasks of a slice
    /// fall on one slot. Tasks may make up for that before the first microbatch has come back, and after
    /// the last forward task.
    pub waits: bool,
}

/// A slot of a block after the same slot of the microbatch before.
const PERIOD: usize = 6;

impl Block {
    /// The block repeated for each microbatch. Slices run their tasks in the order of its slots, each as
    /// soon as it can begin; the gradients of the parameters fill the slots in which a slice would
    /// wait, or holds `cap` activations. If the block waits, tasks overtake others at both ends, as long
    /// as the slice would not hold more than `cap` activations later.
    ///
    /// A slice never waits for memory in vain: of the first tasks of all slices, the one with the first
    /// slot can run once its slice has computed all gradients of parameters that it can.
    pub fn timetable(&self, slices: usize, microbatches: usize) -> Timetable {
        let mut left: Vec<VecDeque<Task>> =
            (0..slices).map(|slice| self.order(slice, slices, microbatches)).collect();
        let mut tasks: Vec<Vec<Task>> = vec![Vec::new(); slices];
        let mut weights: Vec<VecDeque<Task>> = vec![VecDeque::new(); slices];
        let mut held = vec![0; slices];
        let mut done = Done::new(2 * slices);
        while left.iter().any(|left| !left.is_empty()) {
            // Of the stages of the first slice, the last one is the last to run a forward task.
            let may_overtake =
                self.waits && (done.input_grads[0] == 0 || done.forwards[2 * slices - 1] == microbatches);
            // All slices choose before the slot ends.
            let chosen: Vec<Option<usize>> = (0..slices)
                .map(|slice| {
                    let count = if may_overtake { left[slice].len() } else { 1 };
                    let can_run = |place: &usize| {
                        let task = left[slice][*place];
                        done.is_next(task) && self.fits(held[slice], &left[slice], *place)
                    };
                    (0..count.min(left[slice].len())).find(can_run)
                })
                .collect();
            for (slice, place) in chosen.into_iter().enumerate() {
                let task = place.and_then(|place| left[slice].remove(place));
                let Some(task) = task.or_else(|| weights[slice].pop_front()) else { continue };
                tasks[slice].push(task);
                match task.kind {
                    TaskKind::Forward => held[slice] += 1,
                    TaskKind::WeightGrad => held[slice] -= 1,
                    _ => weights[slice].push_back(Task { kind: TaskKind::WeightGrad, ..task }),
                }
                done.add(task);
            }
        }
        for (tasks, weights) in tasks.iter_mut().zip(weights) {
            tasks.extend(weights);
        }
        Timetable::new(2 * slices, microbatches, tasks)
    }

    /// The tasks of a slice without the gradients of parameters, by their slots.
    fn order(&self, slice: usize, slices: usize, microbatches: usize) -> VecDeque<Task> {
        let [down, up] = [0, 1].map(|chunk| Placement::V.stage(slice, chunk, slices));
        let block = [
            (TaskKind::Forward, down),
            (TaskKind::Forward, up),
            (TaskKind::InputGrad, up),
            (TaskKind::InputGrad, down),
        ];
        let mut order: Vec<(usize, Task)> = Vec::new();
        for (slot, (kind, stage)) in (self.slots)(slice, slices).into_iter().zip(block) {
            order.extend((0..microbatches).map(|m| (slot + PERIOD * m, Task { stage, kind, microbatch: m })));
        }
        order.sort_unstable();
        order.into_iter().map(|(_, task)| task).collect()
    }

    /// Whether a slice that holds `held` activations can run a task next, ahead of those before it,
    /// without a need for more than `cap` activations later.
    fn fits(&self, held: usize, left: &VecDeque<Task>, place: usize) -> bool {
        if left[place].kind != TaskKind::Forward {
            return true;
        }
        let mut held = held + 1;
        left.iter().take(place).all(|task| {
            let fits = held <= self.cap;
            held = if task.kind == TaskKind::Forward { held + 1 } else { held.saturating_sub(1) };
            fits
        }) && held <= self.cap
    }
}

/// How many microbatches of each stage are done: a stage takes them in order.
struct Done {
    forwards: Vec<usize>,
    input_grads: Vec<usize>,
}

impl Done {
    fn new(stages: usize) -> Done {
        Done { forwards: vec![0; stages], input_grads: vec![0; stages] }
    }

    fn add(&mut self, task: Task) {
        match task.kind {
            TaskKind::Forward => self.forwards[task.stage] += 1,
            TaskKind::InputGrad => self.input_grads[task.stage] += 1,
            _ => {}
        }
    }

    /// Whether a task is the next one of its stage, and what it reads is there.
    fn is_next(&self, Task { stage, kind, microbatch }: Task) -> bool {
        let is_there =
            |counts: &[usize], stage: usize| counts.get(stage).is_none_or(|&count| count > microbatch);
        match kind {
            TaskKind::Forward => {
                self.forwards[stage] == microbatch && (stage == 0 || is_there(&self.forwards, stage - 1))
            }
            _ => {
                self.input_grads[stage] == microbatch
                    && is_there(&self.forwards, stage)
                    && is_there(&self.input_grads, stage + 1)
            }
        }
    }
}
