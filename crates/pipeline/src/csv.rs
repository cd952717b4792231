//! Timetables as CSV, in the form of PyTorch's pipelining: a line for each slice, a cell for each
//! task.
//!
//! A cell is a task (`0F3`), two overlapped tasks (`(3F2;0B0)OVERLAP_F_B`) or empty. Sends, waits and
//! the gathering of parameters follow from the order of tasks, so cells that spell them out
//! (`0SEND_F3`, `1UNSHARD`) are read and left out.

use crate::timetable::{Task, TaskKind, Timetable};
use partita_base::{Diagnostic, Result};
use std::collections::BTreeSet;

const OVERLAPPED: &str = "OVERLAP_F_B";

/// Words of cells that are no tasks.
const DERIVED: &[&str] = &[
    "UNSHARD",
    "RESHARD",
    "REDUCE_GRAD",
    "WAIT_REDUCE_GRAD",
    "SEND_F",
    "RECV_F",
    "SEND_B",
    "RECV_B",
    "WAIT_SEND_F",
    "WAIT_SEND_B",
];

/// What a cell says.
enum Cell {
    One(Task),
    Overlapped(Task, Task),
    Derived,
}

impl Timetable {
    /// The timetable as CSV, without empty cells.
    pub fn to_csv(&self) -> String {
        let mut text = String::new();
        for tasks in &self.slices {
            let mut cells: Vec<String> = Vec::new();
            let mut tasks = tasks.iter();
            while let Some(task) = tasks.next() {
                cells.push(match self.overlapped.contains(task).then(|| tasks.next()).flatten() {
                    Some(with) => format!("({task};{with}){OVERLAPPED}"),
                    None => task.to_string(),
                });
            }
            text += &cells.join(",");
            text.push('\n');
        }
        text
    }

    /// Reads a timetable from CSV. The tasks say how many stages and microbatches there are.
    ///
    /// # Errors
    /// E500 for a cell that is no task, E501 for a text without tasks, E502 for a cell with a number
    /// that the other tasks contradict, E461 where the tasks make no timetable.
    pub fn from_csv(text: &str) -> Result<Timetable> {
        let mut timetable = Timetable::new(0, 0, Vec::new());
        let mut places: Vec<(Task, String)> = Vec::new();
        for (row, line) in text.trim_start_matches('\u{feff}').trim_end().lines().enumerate() {
            let mut tasks = Vec::new();
            for (column, cell) in
                line.split(',').map(str::trim).enumerate().filter(|(_, cell)| !cell.is_empty())
            {
                let place = || format!("row {}, column {}", row + 1, column + 1);
                let read = match read_cell(cell) {
                    Some(Cell::One(task)) => vec![task],
                    Some(Cell::Overlapped(forward, backward)) => {
                        timetable.overlapped.insert(forward);
                        vec![forward, backward]
                    }
                    Some(Cell::Derived) => Vec::new(),
                    None => {
                        return Err(Diagnostic::new("E500", format!("`{cell}` is no task"))
                            .at(place())
                            .expected(format!(
                                "stage, one of F, B, I and W, and microbatch: `0F3`; `(3F2;0B0){OVERLAPPED}`; \
                                 or nothing"
                            ))
                            .found(cell));
                    }
                };
                places.extend(read.iter().map(|&task| (task, place())));
                tasks.extend(read);
            }
            timetable.slices.push(tasks);
        }
        if places.is_empty() {
            return Err(Diagnostic::new("E501", "a timetable without tasks")
                .at("timetable")
                .expected("one row per slice; 0F3 = stage 0, forward, microbatch 3"));
        }
        // Each stage and each microbatch needs a task: larger numbers are mistakes, however large.
        let distinct: BTreeSet<&Task> = places.iter().map(|(task, _)| task).collect();
        for (task, place) in &places {
            if task.stage.max(task.microbatch) >= distinct.len() {
                return Err(Diagnostic::new("E502", format!("task {task} among {} tasks", distinct.len()))
                    .at(place.clone())
                    .expected("stages and microbatches numbered from 0, each with its tasks")
                    .found(task.to_string()));
            }
            timetable.stages = timetable.stages.max(task.stage + 1);
            timetable.microbatches = timetable.microbatches.max(task.microbatch + 1);
        }
        timetable.slots()?;
        Ok(timetable)
    }
}

fn read_cell(cell: &str) -> Option<Cell> {
    if let Some(pair) = cell.strip_suffix(OVERLAPPED) {
        let (forward, backward) = pair.strip_prefix('(')?.strip_suffix(')')?.split_once(';')?;
        let (forward, backward) = (read_task(forward.trim())?, read_task(backward.trim())?);
        let is_pair = forward.kind == TaskKind::Forward
            && matches!(backward.kind, TaskKind::Backward | TaskKind::InputGrad);
        return is_pair.then_some(Cell::Overlapped(forward, backward));
    }
    let (stage, word, microbatch) = parts(cell)?;
    if DERIVED.contains(&word) {
        let is_number = |text: &str| text.parse::<usize>().is_ok();
        return (is_number(stage) && (microbatch.is_empty() || is_number(microbatch)))
            .then_some(Cell::Derived);
    }
    read_task(cell).map(Cell::One)
}

fn read_task(cell: &str) -> Option<Task> {
    let (stage, word, microbatch) = parts(cell)?;
    let kinds = [TaskKind::Forward, TaskKind::Backward, TaskKind::InputGrad, TaskKind::WeightGrad];
    let kind = kinds.into_iter().find(|kind| word.chars().eq([kind.letter()]))?;
    Some(Task { stage: stage.parse().ok()?, kind, microbatch: microbatch.parse().ok()? })
}

/// The number before a word, the word, and the number after it: `0`, `SEND_F`, `3`.
fn parts(cell: &str) -> Option<(&str, &str, &str)> {
    let is_digit = |c: char| c.is_ascii_digit();
    let start = cell.find(|c| !is_digit(c))?;
    let (stage, rest) = cell.split_at(start);
    let (word, microbatch) = rest.split_at(rest.find(is_digit).unwrap_or(rest.len()));
    Some((stage, word, microbatch))
}
