//! `partita timetable`: the order in which pipeline stages work on microbatches, as a chart, an SVG or a CSV file.

use crate::cli::TimetableArgs;
use crate::files::write_new;
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::table;
use crate::run::answer;
use partita_base::{Diagnostic, Result};
use partita_pipeline::{Order, Timetable, timetables};
use serde::Serialize;

/// A timetable with its figures, in slots: a forward task takes one, a backward task two, each half of a split one one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Drawn {
    /// Its name, or that of its file.
    pub timetable: String,
    /// Slices of the mesh.
    pub slices: usize,
    /// Stages; a slice may run several.
    pub stages: usize,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// Slots from the first task to the last.
    pub makespan: usize,
    /// Slots in which each slice has no task.
    pub idle: Vec<usize>,
    /// For each slice, the microbatches whose activations it holds, at most, over all its stages.
    pub in_flight: Vec<usize>,
    /// A row for each slice.
    pub chart: String,
}

impl Event for Drawn {
    const NAME: &'static str = "timetable";
}

/// A timetable that has a name.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// `1f1b`.
    pub name: &'static str,
    /// Stages on each slice.
    pub chunks: usize,
    /// Its properties.
    pub about: &'static str,
}

/// Every timetable that has a name.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct List {
    /// The first is the default.
    pub timetables: Vec<Row>,
}

impl Event for List {
    const NAME: &'static str = "timetables";
}

/// Runs the command.
///
/// # Errors
/// E462 for an unknown name, E461 and E50x for a CSV file that is no timetable, E005 and E043 for files that cannot be read
/// or written.
pub fn timetable(args: &TimetableArgs, output: &mut Output) -> Result<()> {
    let Some(name) = &args.name else {
        let row =
            |named: &timetables::Named| Row { name: named.name, chunks: named.chunks, about: named.about };
        let list = List { timetables: timetables::ALL.iter().map(row).collect() };
        answer(&list, List::text, output);
        return Ok(());
    };
    let (slices, microbatches) = (args.slices as usize, args.microbatches as usize);
    let timetable = match order(name)? {
        Order::Given(_, timetable) => timetable,
        order if args.forward || order.name() == "inference" => order.forward(slices, microbatches)?,
        order => order.timetable(slices, microbatches)?,
    };
    if let Some(path) = &args.svg {
        let times = timetable.times(|task| task.kind.slots())?;
        write_new(path, "the picture", "--svg", |file| file.write_all(timetable.svg(&times).as_bytes()))?;
    }
    if let Some(path) = &args.csv {
        write_new(path, "the timetable", "--csv", |file| file.write_all(timetable.to_csv().as_bytes()))?;
    }
    answer(&Drawn::of(name, &timetable)?, Drawn::text, output);
    Ok(())
}

/// A named timetable, or the one of a CSV file.
fn order(name: &str) -> Result<Order> {
    if !name.to_lowercase().ends_with(".csv") {
        return Order::named(name);
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        Diagnostic::new("E005", format!("the timetable `{name}` cannot be read")).found(error.to_string())
    })?;
    Order::from_csv(&text, name)
}

impl Drawn {
    fn of(name: &str, timetable: &Timetable) -> Result<Drawn> {
        let times = timetable.times(|task| task.kind.slots())?;
        let slices = timetable.slices.len();
        Ok(Drawn {
            timetable: name.to_string(),
            slices,
            stages: timetable.stages,
            microbatches: timetable.microbatches,
            makespan: times.makespan(),
            idle: (0..slices).map(|slice| times.idle(slice)).collect(),
            in_flight: (0..slices).map(|slice| timetable.peak(slice)).collect(),
            chart: timetable.chart()?,
        })
    }

    fn text(&self) -> String {
        let Drawn { timetable, slices, stages, microbatches, makespan, .. } = self;
        let mut text = format!(
            "{timetable}: {stages} stages on {slices} slices, {microbatches} microbatches, {makespan} slots\n\n{}\n",
            self.chart
        );
        let row = |(slice, (idle, held)): (usize, (&usize, &usize))| {
            vec![
                slice.to_string(),
                idle.to_string(),
                format!("{:.1}%", 100.0 * *idle as f64 / *makespan as f64),
                held.to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = self.idle.iter().zip(&self.in_flight).enumerate().map(row).collect();
        text += &table(&["slice", "idle slots", "of all", "microbatches in flight"], &rows);
        text
    }
}

impl List {
    fn text(&self) -> String {
        let width = self.timetables.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let line = |row: &Row| format!("{:width$}  {} a slice  {}\n", row.name, row.chunks, row.about);
        let lines: String = self.timetables.iter().map(line).collect();
        format!("{:width$}  stages\n{lines}", "name")
    }
}
