//! Timetables: the order in which each stage processes the microbatches.

use partita_base::{Diagnostic, Result};
use partita_ir::Phase;
use std::collections::BTreeMap;
use std::fmt;

/// The work for one microbatch on one stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum TaskKind {
    /// The forward pass.
    Forward,
    /// Both gradients, with respect to activations and to parameters.
    Backward,
    /// The gradient with respect to activations only; the previous stage waits for it.
    InputGrad,
    /// The gradient with respect to parameters only; the update waits for it.
    WeightGrad,
}

impl TaskKind {
    /// `F`, `B`, `I` or `W`, the letters of the CSV files of PyTorch's pipelining.
    pub fn letter(self) -> char {
        match self {
            TaskKind::Forward => 'F',
            TaskKind::Backward => 'B',
            TaskKind::InputGrad => 'I',
            TaskKind::WeightGrad => 'W',
        }
    }

    /// Whether nodes of this phase are part of the task.
    pub fn includes(self, phase: Phase) -> bool {
        match self {
            TaskKind::Forward => phase == Phase::Forward,
            TaskKind::Backward => phase.is_backward(),
            TaskKind::InputGrad => phase == Phase::InputGrad,
            TaskKind::WeightGrad => phase == Phase::WeightGrad,
        }
    }
}

/// One cell of a timetable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Task {
    /// The stage; a slice of the mesh may run several stages.
    pub stage: usize,
    /// The kind of work.
    pub kind: TaskKind,
    /// The microbatch, from 0.
    pub microbatch: usize,
}

impl fmt::Display for Task {
    /// `0F3`: stage 0, forward, microbatch 3.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage, self.kind.letter(), self.microbatch)
    }
}

/// The order of work on every slice of the mesh.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timetable {
    /// The number of stages.
    pub stages: usize,
    /// The number of microbatches per step.
    pub microbatches: usize,
    /// The tasks of each slice, in order.
    pub slices: Vec<Vec<Task>>,
}

impl Timetable {
    /// The slice that runs each stage; the first slice for a stage without tasks.
    pub fn slice_of_stage(&self) -> Vec<usize> {
        let mut slice_of = vec![0; self.stages];
        for (slice, tasks) in self.slices.iter().enumerate() {
            for task in tasks.iter().filter(|task| task.stage < self.stages) {
                slice_of[task.stage] = slice;
            }
        }
        slice_of
    }

    /// When each task begins, in slots: every task takes one slot, and begins when the previous
    /// task on its slice and the tasks that it reads from are done.
    ///
    /// # Errors
    /// E461 if a task is missing, occurs twice, names a stage or microbatch that does not exist, is
    /// on another slice than the rest of its stage, or waits for one that comes after it.
    pub fn slots(&self) -> Result<Vec<Vec<usize>>> {
        let places = self.places()?;
        let mut slots: Vec<Vec<usize>> = vec![Vec::new(); self.slices.len()];
        loop {
            let mut is_done = true;
            let mut advanced = false;
            for (slice, tasks) in self.slices.iter().enumerate() {
                while let Some(task) = tasks.get(slots[slice].len()) {
                    let slot_of = |needed: &Task| {
                        let &(slice, place) = places.get(needed)?;
                        slots[slice].get(place).map(|slot| slot + 1)
                    };
                    let ready: Option<Vec<usize>> = self.needed(*task, &places).iter().map(slot_of).collect();
                    let Some(ready) = ready else { break };
                    let before = slots[slice].last().map_or(0, |slot| slot + 1);
                    slots[slice].push(ready.into_iter().fold(before, usize::max));
                    advanced = true;
                }
                is_done &= slots[slice].len() == tasks.len();
            }
            if is_done {
                return Ok(slots);
            }
            if !advanced {
                let stuck = self.slices.iter().zip(&slots).find_map(|(tasks, slots)| tasks.get(slots.len()));
                let stuck = *stuck.expect("a slice is not done");
                let needed: Vec<String> = self.needed(stuck, &places).iter().map(Task::to_string).collect();
                return Err(illegal(format!("task {stuck} can never begin"))
                    .expected(format!("{} before it", needed.join(" and ")))
                    .found(format!("slice {}: {}", places[&stuck].0, self.line(places[&stuck].0))));
            }
        }
    }

    /// The slice and position of each task.
    fn places(&self) -> Result<BTreeMap<Task, (usize, usize)>> {
        let mut places = BTreeMap::new();
        let slice_of = self.slice_of_stage();
        for (slice, tasks) in self.slices.iter().enumerate() {
            for (place, &task) in tasks.iter().enumerate() {
                if task.stage >= self.stages || task.microbatch >= self.microbatches {
                    return Err(illegal(format!("task {task} does not exist")).expected(format!(
                        "{} stages and {} microbatches, from 0",
                        self.stages, self.microbatches
                    )));
                }
                if slice_of[task.stage] != slice {
                    return Err(illegal(format!("stage {} is on two slices", task.stage)).found(format!(
                        "{task} on slice {slice}, others on slice {}",
                        slice_of[task.stage]
                    )));
                }
                if places.insert(task, (slice, place)).is_some() {
                    return Err(illegal(format!("task {task} appears twice")));
                }
            }
        }
        for stage in 0..self.stages {
            for microbatch in 0..self.microbatches {
                let has = |kind| places.contains_key(&Task { stage, kind, microbatch });
                let halves = has(TaskKind::InputGrad) || has(TaskKind::WeightGrad);
                let both = has(TaskKind::InputGrad) && has(TaskKind::WeightGrad);
                let backward = has(TaskKind::Backward);
                if !has(TaskKind::Forward) || backward == halves || halves != both {
                    return Err(illegal(format!(
                        "microbatch {microbatch} is not worked on in full by stage {stage}"
                    ))
                    .expected("one F, and either one B or one I and one W"));
                }
            }
        }
        Ok(places)
    }

    /// The tasks that a task reads from.
    fn needed(&self, task: Task, places: &BTreeMap<Task, (usize, usize)>) -> Vec<Task> {
        let Task { stage, kind, microbatch } = task;
        let of = |stage, kind| Task { stage, kind, microbatch };
        let upstream = |stage: usize| {
            let whole = of(stage, TaskKind::Backward);
            if places.contains_key(&whole) { whole } else { of(stage, TaskKind::InputGrad) }
        };
        match kind {
            TaskKind::Forward if stage == 0 => Vec::new(),
            TaskKind::Forward => vec![of(stage - 1, TaskKind::Forward)],
            TaskKind::Backward | TaskKind::InputGrad => {
                let mut needed = vec![of(stage, TaskKind::Forward)];
                needed.extend((stage + 1 < self.stages).then(|| upstream(stage + 1)));
                needed
            }
            TaskKind::WeightGrad => vec![of(stage, TaskKind::InputGrad)],
        }
    }

    /// The tasks of a slice on one line: `0F0 0F1 0B0 0B1`.
    pub fn line(&self, slice: usize) -> String {
        self.slices[slice].iter().map(Task::to_string).collect::<Vec<_>>().join(" ")
    }
}

fn illegal(message: String) -> Box<Diagnostic> {
    Diagnostic::new("E461", message).at("timetable")
}

#[cfg(test)]
#[path = "timetable_tests.rs"]
mod tests;
