//! Timetables as pictures: a chart of characters, and an SVG.

use crate::times::Times;
use crate::timetable::{Task, TaskKind, Timetable};
use partita_base::Result;
use std::fmt::Write;

impl Timetable {
    /// A chart with a row for each slice and a column for each slot: `F3` is the forward task of
    /// microbatch 3, `B3---` the backward task, which takes two slots. A slice's second stage has small
    /// letters (`f3`). If slices run more than two stages, all tasks have their stage (`5F3`). `&` joins
    /// overlapped tasks, and a dot is a slot in which the slice waits.
    ///
    /// # Errors
    /// E461, as [`Timetable::times`].
    pub fn chart(&self) -> Result<String> {
        let times = self.times(|task| task.kind.slots())?;
        let chunks = self.chunk_of_stage();
        let label = |task: &Task| match chunks.iter().max() {
            Some(0 | 1) => {
                let letter = task.kind.letter();
                let letter = if chunks[task.stage] == 0 { letter } else { letter.to_ascii_lowercase() };
                format!("{letter}{}", task.microbatch)
            }
            _ => task.to_string(),
        };
        let width = self.slices.iter().flatten().map(|task| label(task).len()).max().unwrap_or(0);
        let names = self.slices.len().saturating_sub(1).to_string().len();
        let mut chart = String::new();
        for (slice, tasks) in self.slices.iter().enumerate() {
            let mut row = format!("{slice:>names$} |");
            let mut joined = false;
            let mut now = 0;
            for (task, &start) in tasks.iter().zip(&times.starts[slice]) {
                for _ in now..start {
                    let _ = write!(row, " {:width$}", ".");
                }
                let wide = task.kind.slots() * (width + 1) - 1;
                let fill = if task.kind == TaskKind::Backward { "-" } else { " " };
                let label = label(task);
                row += if joined { "&" } else { " " };
                row += &label;
                row += &fill.repeat(wide - label.len());
                joined = self.overlapped.contains(task);
                now = start + task.kind.slots();
            }
            chart += row.trim_end();
            chart.push('\n');
        }
        Ok(chart)
    }

    /// An SVG of the timetable for these times: a row for each slice, a colour for each kind of task,
    /// darker for each further stage of a slice. It has no script, and is readable on light and dark
    /// pages.
    pub fn svg(&self, times: &Times) -> String {
        const ROW: usize = 22;
        const LEFT: usize = 30;
        let chunks = self.chunk_of_stage();
        let shades = chunks.iter().max().map_or(1, |most| most + 1);
        let durations =
            times.starts.iter().zip(&times.ends).flat_map(|(starts, ends)| starts.iter().zip(ends));
        let shortest = durations.map(|(start, end)| end - start).filter(|&time| time > 0).min().unwrap_or(1);
        let span = times.makespan().max(1);
        let scale = (20.0 / shortest as f64).min(4000.0 / span as f64);
        let (width, height) = (LEFT as f64 + span as f64 * scale + 2.0, self.slices.len() * ROW + 4);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" width=\"{width:.0}\" \
             height=\"{height}\" role=\"img\">\n<title>{} stages on {} slices, {} microbatches</title>\n<style>\
             text{{font:11px sans-serif;text-anchor:middle;fill:#111}}.s{{fill:#555}}\
             path{{stroke:#777;stroke-width:.5}}\
             @media(prefers-color-scheme:dark){{.s{{fill:#bbb}}}}</style>\n",
            self.stages,
            self.slices.len(),
            self.microbatches
        );
        let mut labels = String::new();
        // One path for each kind and shade keeps the file small.
        let kinds = [TaskKind::Forward, TaskKind::Backward, TaskKind::InputGrad, TaskKind::WeightGrad];
        for (kind, chunk) in kinds.into_iter().flat_map(|kind| (0..shades).map(move |chunk| (kind, chunk))) {
            let mut path = String::new();
            for (slice, tasks) in self.slices.iter().enumerate() {
                for (place, task) in tasks.iter().enumerate() {
                    if task.kind != kind || chunks[task.stage] != chunk {
                        continue;
                    }
                    let start = times.starts[slice][place];
                    // The first of two overlapped tasks is drawn up to where the second one begins.
                    let end = match times.starts[slice].get(place + 1) {
                        Some(&next) if self.overlapped.contains(task) => next,
                        _ => times.ends[slice][place],
                    };
                    let (x, w) = (LEFT as f64 + start as f64 * scale, (end - start) as f64 * scale);
                    let _ = write!(path, "M{} {}h{}v18h-{}z", short(x), slice * ROW + 4, short(w), short(w));
                    let label = task.microbatch.to_string();
                    if w >= 7.0 * label.len() as f64 {
                        let _ = writeln!(
                            labels,
                            "<text x=\"{}\" y=\"{}\">{label}</text>",
                            short(x + w / 2.0),
                            slice * ROW + 17
                        );
                    }
                }
            }
            if !path.is_empty() {
                let _ = writeln!(svg, "<path fill=\"{}\" d=\"{path}\"/>", colour(kind, chunk, shades));
            }
        }
        for slice in 0..self.slices.len() {
            let _ = writeln!(labels, "<text class=\"s\" x=\"14\" y=\"{}\">{slice}</text>", slice * ROW + 17);
        }
        svg + &labels + "</svg>\n"
    }
}

/// The colour of a kind of task: light enough for dark text, and darker for further stages.
fn colour(kind: TaskKind, chunk: usize, chunks: usize) -> String {
    let hue = match kind {
        TaskKind::Forward => 210,
        TaskKind::Backward => 150,
        TaskKind::InputGrad => 175,
        TaskKind::WeightGrad => 40,
    };
    format!("hsl({hue},65%,{}%)", 78 - 24 * chunk / chunks.max(2))
}

/// A coordinate with at most one decimal.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}
