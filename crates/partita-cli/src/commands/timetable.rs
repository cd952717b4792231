//! `partita timetable`: the order in which pipeline stages work on microbatches, as a chart, an SVG or a CSV file.

use crate::command::{Application, Command};
use crate::files::{check_new, write_new};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::table;
use crate::run::{Ending, answer};
use clap::Args;
use partita_base::{Diagnostic, Result};
use partita_pipeline::{Order, Timetable, timetables};
use serde::Serialize;
use std::path::PathBuf;

/// Flags of `timetable`.
#[derive(Args, Clone, Debug)]
pub struct TimetableArgs {
    /// The name of a timetable, such as 1f1b, or a file in the CSV format of torch.distributed.pipelining; without it,
    /// all names are listed.
    #[arg(value_name = "NAME|FILE.csv")]
    pub name: Option<String>,
    /// Slices of the mesh along pp, 4 by default; a CSV file has its own number.
    #[arg(long, value_name = "N", requires = "name", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub slices: Option<u32>,
    /// Microbatches of a step, 8 by default; a CSV file has its own number.
    #[arg(long, value_name = "N", requires = "name", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub microbatches: Option<u32>,
    /// Draw the forward passes alone, as inference runs them.
    #[arg(long, requires = "name")]
    pub forward: bool,
    /// Also write the picture to a new SVG file.
    #[arg(long, value_name = "FILE.svg", requires = "name")]
    pub svg: Option<PathBuf>,
    /// Also write the tasks to a new CSV file, which --timetable and PyTorch read.
    #[arg(long, value_name = "FILE.csv", requires = "name")]
    pub csv: Option<PathBuf>,
}

impl Command for TimetableArgs {
    const NAME: &'static str = "timetable";
    const ABOUT: &'static str =
        "Draw the order in which pipeline stages work on microbatches, or list the orders";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        timetable(self, output)?;
        Ok(Ending::Done)
    }
}

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
    /// Slots in which each slice has no task between its first and its last one.
    pub idle: Vec<usize>,
    /// Slots in which each slice has no task.
    pub bubble: Vec<usize>,
    /// For each slice, the activations that it holds at most: pairs of a stage and a microbatch.
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
fn timetable(args: &TimetableArgs, output: &mut Output) -> Result<()> {
    let Some(name) = &args.name else {
        let row =
            |named: &timetables::Named| Row { name: named.name, chunks: named.chunks, about: named.about };
        let list = List { timetables: timetables::ALL.iter().map(row).collect() };
        answer(&list, List::text, output);
        return Ok(());
    };
    let order = Order::open(name)?;
    let given = match &order {
        Order::Given(_, timetable) => Some((timetable.slices.len(), timetable.microbatches)),
        Order::Named(_) | Order::Looped(..) => None,
    };
    for (flag, own) in [("--slices", args.slices), ("--microbatches", args.microbatches)] {
        if let (Some(own), Some((slices, microbatches))) = (own, given) {
            return Err(Diagnostic::new("E033", format!("a CSV file has its own number for `{flag}`"))
                .at(flag)
                .expected(format!(
                    "no `{flag}`: `{name}` has {slices} slices and {microbatches} microbatches"
                ))
                .found(own.to_string()));
        }
    }
    let number = |given: Option<u32>, default: usize| given.map_or(default, |given| given as usize);
    let (slices, microbatches) =
        given.unwrap_or((number(args.slices, SLICES), number(args.microbatches, MICROBATCHES)));
    let timetable = match &order {
        _ if args.forward || order.name() == "inference" => order.forward(slices, microbatches)?,
        Order::Given(_, timetable) => timetable.clone(),
        Order::Named(_) | Order::Looped(..) => order.timetable(slices, microbatches)?,
    };
    // No file is written unless all can be.
    for (path, what, flag) in [(&args.svg, PICTURE, "--svg"), (&args.csv, TABLE, "--csv")] {
        path.as_ref().map_or(Ok(()), |path| check_new(path, what, flag))?;
    }
    if let Some(path) = &args.svg {
        let times = timetable.times(|task| task.kind.slots())?;
        write_new(path, PICTURE, "--svg", |file| file.write_all(timetable.svg(&times).as_bytes()))?;
    }
    if let Some(path) = &args.csv {
        write_new(path, TABLE, "--csv", |file| file.write_all(timetable.to_csv().as_bytes()))?;
    }
    answer(&Drawn::of(name, &timetable)?, Drawn::text, output);
    Ok(())
}

/// Slices and microbatches of a picture that names none.
const SLICES: usize = 4;
const MICROBATCHES: usize = 8;

/// What messages call the files.
const PICTURE: &str = "the picture";
const TABLE: &str = "the timetable";

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
            bubble: (0..slices).map(|slice| times.bubble_of(slice)).collect(),
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
        let row = |(slice, (bubble, held)): (usize, (&usize, &usize))| {
            vec![
                slice.to_string(),
                bubble.to_string(),
                format!("{:.1}%", 100.0 * *bubble as f64 / *makespan as f64),
                held.to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = self.bubble.iter().zip(&self.in_flight).enumerate().map(row).collect();
        text += &table(&["slice", "bubble", "of all", "activations held"], &rows);
        text += "bubble: slots without a task; activations held: the most pairs of a stage and a microbatch at once\n";
        text
    }
}

impl List {
    fn text(&self) -> String {
        let width = self.timetables.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let line = |row: &Row| format!("{:width$}  {:>16}  {}\n", row.name, row.chunks, row.about);
        let lines: String = self.timetables.iter().map(line).collect();
        format!("{:width$}  stages per slice  order\n{lines}", "name")
    }
}
