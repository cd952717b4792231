//! Timetables: the order in which each slice of the mesh works on its stages and the microbatches.

use partita_ir::Phase;
use std::collections::BTreeSet;
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

    /// Slots that a task of this kind takes where nothing was measured: two for a whole backward pass, else one.
    pub fn slots(self) -> usize {
        if self == TaskKind::Backward { 2 } else { 1 }
    }

    /// Whether activations may be freed after the task.
    fn releases(self) -> bool {
        matches!(self, TaskKind::Backward | TaskKind::WeightGrad)
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
    /// The tasks of each slice, in order. A slice may run several stages.
    pub slices: Vec<Vec<Task>>,
    /// Forward tasks that a slice runs together with the task after them, a backward task of another
    /// microbatch or stage (DualPipe). Both end at the same time. A device that runs one task at a
    /// time may read [`Timetable::slices`] alone.
    pub overlapped: BTreeSet<Task>,
}

impl Timetable {
    /// A timetable without overlapped tasks.
    pub fn new(stages: usize, microbatches: usize, slices: Vec<Vec<Task>>) -> Timetable {
        Timetable { stages, microbatches, slices, overlapped: BTreeSet::new() }
    }

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

    /// For each stage, the number of stages before it on its slice.
    pub fn chunk_of_stage(&self) -> Vec<usize> {
        let slice_of = self.slice_of_stage();
        let mut stages_of = vec![0; self.slices.len().max(1)];
        let chunk_of = |slice: usize| {
            stages_of[slice] += 1;
            stages_of[slice] - 1
        };
        slice_of.into_iter().map(chunk_of).collect()
    }

    /// Whether there are backward tasks. Without any, the timetable is one for inference.
    pub fn trains(&self) -> bool {
        self.slices.iter().flatten().any(|task| task.kind != TaskKind::Forward)
    }

    /// For each task of a slice, how many activations (of one stage and microbatch) the slice holds
    /// while the task runs. They are held from the forward task to the end of the task that computes
    /// the gradients of the parameters; without backward tasks, during the forward task alone.
    pub fn held(&self, slice: usize) -> Vec<usize> {
        self.spans(slice).into_iter().map(|[_, held, _]| held).collect()
    }

    /// For each task of a slice, of how many stages and microbatches the slice holds, while the task runs, what lives from
    /// the forward task to that of input gradients, from the forward task to that of weight gradients, and from the one of
    /// these two to the other. Without backward tasks, a forward task releases what it holds.
    pub fn spans(&self, slice: usize) -> Vec<[usize; 3]> {
        let trains = self.trains();
        let [mut to_input, mut to_weight, mut between] = [0usize; 3];
        let during = |task: &Task| {
            let is = |kind: TaskKind| usize::from(task.kind == kind);
            to_input += is(TaskKind::Forward);
            to_weight += is(TaskKind::Forward);
            between += is(TaskKind::InputGrad);
            let now = [to_input, to_weight, between];
            let ends_input = !trains || matches!(task.kind, TaskKind::InputGrad | TaskKind::Backward);
            to_input = to_input.saturating_sub(usize::from(ends_input));
            to_weight = to_weight.saturating_sub(usize::from(!trains || task.kind.releases()));
            between = between.saturating_sub(is(TaskKind::WeightGrad));
            now
        };
        self.slices[slice].iter().map(during).collect()
    }

    /// The most activations that a slice holds at any time.
    pub fn peak(&self, slice: usize) -> usize {
        self.held(slice).into_iter().max().unwrap_or(0)
    }

    /// The tasks of a slice on one line: `0F0 0F1 0B0 0B1`.
    pub fn line(&self, slice: usize) -> String {
        self.slices[slice].iter().map(Task::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The same order for the first microbatches alone. Whatever was legal stays legal, takes no
    /// longer, and holds no more.
    pub(crate) fn of_first(mut self, microbatches: usize) -> Timetable {
        let is_kept = |task: &Task| task.microbatch < microbatches;
        for tasks in &mut self.slices {
            for pair in tasks.windows(2).filter(|pair| !is_kept(&pair[0]) || !is_kept(&pair[1])) {
                self.overlapped.remove(&pair[0]);
            }
            tasks.retain(is_kept);
        }
        self.microbatches = microbatches;
        self
    }
}

#[cfg(test)]
#[path = "timetable_tests.rs"]
mod tests;
