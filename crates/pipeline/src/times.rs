//! When the tasks of a timetable run, and why a timetable is impossible.

use crate::timetable::{Task, TaskKind, Timetable};
use partita_base::{Diagnostic, Result};
use std::collections::BTreeMap;

/// The backward tasks of a stage and microbatch.
const BACKWARD: &str = "either B (full backward), or I (input gradient) and W (weight gradient)";

/// When each task of a timetable runs, in the unit of the durations that it was computed from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Times {
    /// When each task begins, in the order of [`Timetable::slices`].
    pub starts: Vec<Vec<usize>>,
    /// When the result of each task is there. Overlapped tasks end together.
    pub ends: Vec<Vec<usize>>,
    /// How long each slice works.
    pub work: Vec<usize>,
}

impl Times {
    /// When the last task ends.
    pub fn makespan(&self) -> usize {
        self.ends.iter().flatten().copied().max().unwrap_or(0)
    }

    /// How long a slice waits between its first task and the end of its last one.
    pub fn idle(&self, slice: usize) -> usize {
        match (self.starts[slice].first(), self.ends[slice].last()) {
            (Some(start), Some(end)) => (end - start).saturating_sub(self.work[slice]),
            _ => 0,
        }
    }

    /// How long a slice does not work: the makespan less its work.
    pub fn bubble_of(&self, slice: usize) -> usize {
        self.makespan().saturating_sub(self.work[slice])
    }

    /// The longest time that a slice does not work.
    pub fn bubble(&self) -> usize {
        self.work.iter().map(|work| self.makespan().saturating_sub(*work)).max().unwrap_or(0)
    }
}

impl Timetable {
    /// When each task begins if every task takes one slot. A task begins when the previous task on
    /// its slice and the tasks that it reads from are done.
    ///
    /// # Errors
    /// E461, as [`Timetable::times`].
    pub fn slots(&self) -> Result<Vec<Vec<usize>>> {
        Ok(self.times(|_| 1)?.starts)
    }

    /// When each task runs if a task takes as long as `duration` says, in any unit. Overlapped tasks
    /// take the sum of their durations.
    ///
    /// # Errors
    /// E461 if a task is missing, occurs twice, names a stage or microbatch that does not exist, is
    /// on another slice than the rest of its stage, comes before a task that it reads from, or waits
    /// for a task that waits for it.
    pub fn times(&self, duration: impl Fn(Task) -> usize) -> Result<Times> {
        let places = self.places()?;
        self.check_overlapped(&places)?;
        let none = || vec![Vec::new(); self.slices.len()];
        let mut times = Times { starts: none(), ends: none(), work: vec![0; self.slices.len()] };
        loop {
            let mut advanced = false;
            for slice in 0..self.slices.len() {
                while let Some(tasks) = self.next(slice, &times) {
                    let end_of = |needed: Task| {
                        let &(slice, place) = places.get(&needed)?;
                        times.ends[slice].get(place).copied()
                    };
                    let needed = tasks.iter().flat_map(|&task| self.needed(task, &places));
                    let Some(ready) = needed.map(end_of).collect::<Option<Vec<usize>>>() else { break };
                    let before = times.ends[slice].last().copied().unwrap_or(0);
                    let mut start = ready.into_iter().fold(before, usize::max);
                    let end = tasks.iter().fold(start, |end, &task| end.saturating_add(duration(task)));
                    for &task in tasks {
                        times.starts[slice].push(start);
                        times.ends[slice].push(end);
                        start = start.saturating_add(duration(task));
                        times.work[slice] = times.work[slice].saturating_add(duration(task));
                    }
                    advanced = true;
                }
            }
            if self.slices.iter().zip(&times.ends).all(|(tasks, ends)| tasks.len() == ends.len()) {
                return Ok(times);
            }
            if !advanced {
                return Err(self.stuck(&times, &places));
            }
        }
    }

    /// What a slice runs next: one task, or two overlapped ones.
    fn next(&self, slice: usize, times: &Times) -> Option<&[Task]> {
        let place = times.ends[slice].len();
        let task = self.slices[slice].get(place)?;
        let count = if self.overlapped.contains(task) { 2 } else { 1 };
        self.slices[slice].get(place..place + count)
    }

    /// The slice and position of each task.
    fn places(&self) -> Result<BTreeMap<Task, (usize, usize)>> {
        let mut places = BTreeMap::new();
        for (slice, tasks) in self.slices.iter().enumerate() {
            for (place, &task) in tasks.iter().enumerate() {
                if task.stage >= self.stages || task.microbatch >= self.microbatches {
                    return Err(illegal(format!("task {task} does not exist")).expected(format!(
                        "{} stages and {} microbatches, from 0",
                        self.stages, self.microbatches
                    )));
                }
                if let Some((other, _)) = places.insert(task, (slice, place)) {
                    return Err(illegal(format!("task {task} appears twice"))
                        .found(format!("on slice {other} and on slice {slice}")));
                }
            }
        }
        self.check_slices(&places)?;
        let trains = self.trains();
        for stage in 0..self.stages {
            for microbatch in 0..self.microbatches {
                let of = |kind| Task { stage, kind, microbatch };
                let has = |kind| places.contains_key(&of(kind));
                let halves = has(TaskKind::InputGrad) || has(TaskKind::WeightGrad);
                let missing = |kind| {
                    Err(illegal(format!("task {} is missing", of(kind)))
                        .expected(format!("one F, and {BACKWARD}, of each stage and microbatch")))
                };
                if has(TaskKind::Backward) && halves {
                    return Err(illegal(format!(
                        "task {} is given both as B and as I/W",
                        of(TaskKind::Backward)
                    ))
                    .expected(BACKWARD));
                }
                if !has(TaskKind::Forward) {
                    return missing(TaskKind::Forward);
                }
                match halves {
                    false if trains && !has(TaskKind::Backward) => return missing(TaskKind::Backward),
                    true if !has(TaskKind::InputGrad) => return missing(TaskKind::InputGrad),
                    true if !has(TaskKind::WeightGrad) => return missing(TaskKind::WeightGrad),
                    _ => {}
                }
            }
        }
        Ok(places)
    }

    /// Whether each stage is on one slice. If not, the slice with the fewest of its tasks is wrong.
    fn check_slices(&self, places: &BTreeMap<Task, (usize, usize)>) -> Result<()> {
        let mut on: Vec<BTreeMap<usize, Vec<Task>>> = vec![BTreeMap::new(); self.stages];
        for (task, (slice, _)) in places {
            on[task.stage].entry(*slice).or_default().push(*task);
        }
        let Some((stage, on)) = on.iter().enumerate().find(|(_, on)| on.len() > 1) else { return Ok(()) };
        let by_count = |(_, tasks): &(&usize, &Vec<Task>)| tasks.len();
        let (wrong, few) = on.iter().min_by_key(by_count).expect("two slices");
        let (right, many) = on.iter().max_by_key(by_count).expect("two slices");
        Err(illegal(format!("task {} is on the wrong slice: stage {stage} is on two", few[0]))
            .found(format!("{} on slice {wrong}, {} on slice {right}", few[0], many[0])))
    }

    /// Whether each overlapped task is a forward task with a backward task after it.
    fn check_overlapped(&self, places: &BTreeMap<Task, (usize, usize)>) -> Result<()> {
        for task in &self.overlapped {
            let next = places.get(task).and_then(|&(slice, place)| self.slices[slice].get(place + 1));
            let is_backward = |next: &&Task| matches!(next.kind, TaskKind::Backward | TaskKind::InputGrad);
            if task.kind != TaskKind::Forward || next.filter(is_backward).is_none() {
                return Err(illegal(format!("task {task} overlaps nothing"))
                    .expected("a forward task, with a B or I after it on its slice"));
            }
        }
        Ok(())
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

    /// Why no slice can run its next task: a slice has two tasks in the wrong order, or tasks of
    /// several slices wait for each other.
    fn stuck(&self, times: &Times, places: &BTreeMap<Task, (usize, usize)>) -> Box<Diagnostic> {
        let is_done = |task: &Task| places.get(task).is_some_and(|&(s, place)| place < times.ends[s].len());
        // What a slice waits in, and for which task.
        let wait = |slice: usize| -> Option<(Task, Task)> {
            self.next(slice, times)?.iter().find_map(|&task| {
                let needed = self.needed(task, places).into_iter().find(|needed| !is_done(needed))?;
                Some((task, needed))
            })
        };
        let waits: Vec<Option<(Task, Task)>> = (0..self.slices.len()).map(wait).collect();
        let slice_of = |task: &Task| places.get(task).map_or(0, |&(slice, _)| slice);
        let is_on_one_slice = |(task, needed): &&(Task, Task)| slice_of(task) == slice_of(needed);
        if let Some((task, needed)) = waits.iter().flatten().find(is_on_one_slice) {
            return illegal(format!("task {task} can never begin"))
                .expected(format!("{needed} before it"))
                .found(format!("slice {}: {}", slice_of(task), self.line(slice_of(task))));
        }
        // Each slice waits for another: following them leads into a cycle.
        let mut slice = waits.iter().position(Option::is_some).unwrap_or(0);
        let mut path: Vec<usize> = Vec::new();
        while !path.contains(&slice) {
            path.push(slice);
            slice = waits[slice].map_or(slice, |(_, needed)| slice_of(&needed));
        }
        let from = path.iter().position(|&on_path| on_path == slice).unwrap_or(0);
        let cycle: Vec<(Task, Task)> = path[from..].iter().filter_map(|&slice| waits[slice]).collect();
        let tasks: Vec<String> = cycle.iter().map(|(task, _)| task.to_string()).collect();
        let mut error = illegal(format!("tasks {} wait for each other", tasks.join(", ")));
        for (task, needed) in &cycle {
            error = error.note(format!(
                "slice {} can begin {task} after {needed}, which slice {} runs later than {}",
                slice_of(task),
                slice_of(needed),
                waits[slice_of(needed)].map_or(*needed, |(task, _)| task)
            ));
        }
        error
    }
}

fn illegal(message: String) -> Box<Diagnostic> {
    Diagnostic::new("E461", message).at("timetable")
}
