//! A report about a planned step: what each rank holds, does and sends, predicted and, if it was profiled, measured.
//!
//! Everything is read off the programs that would run: the timeline is that of the simulator, memory that of the memory
//! map, bytes those of the collectives. Ranks with the same program are one row. A step whose programs would be very large
//! is shown by slices, as unfolded from a small one, which is shown whole.

mod large;
mod layers;
mod logs;
mod runs;
mod tables;
mod traffic;

pub use logs::{Log, log, logs};
pub use runs::Run;

use crate::figures::{Figures, model_flops};
use crate::price::Price;
use crate::profile::{self, By, Profiled, Sort};
use crate::session::Session;
use crate::stage_table::stage_table;
use partita_base::{Result, format_bytes, format_seconds};
use partita_mesh::rank_list;
use partita_program::ProgramSet;
use partita_report::{Body, Cell, Report, Series, Timeline};
use partita_schedule::Built;
use partita_simulate::{ClassRun, MemoryKind, Simulation, simulate};
use partita_trace::Trace;

/// Spans of a timeline that a page shows: a browser draws so many without delay.
const MOST_SPANS: usize = 100_000;

/// Classes of ranks whose memory over time is drawn: those with the highest peaks.
const MEMORY_CLASSES: usize = 3;

/// Points of memory over time: more than a screen has columns.
const MOST_POINTS: usize = 1500;

/// Characters of a list of ranks.
const MOST_CHARACTERS: usize = 40;

/// What a report may also show.
#[derive(Default)]
pub struct Measured<'a> {
    /// Recorded steps of the same session.
    pub profiled: Option<&'a Profiled>,
    /// What runs wrote.
    pub logs: Vec<Log>,
    /// The run of the session, and the one beside which it is put.
    pub runs: Vec<Run>,
}

/// The report of a session's step.
///
/// # Errors
/// What building, lowering and simulating refuse.
pub fn report(session: &Session, measured: &Measured) -> Result<Report> {
    if large::is_large(session) && measured.profiled.is_none() {
        // What cannot be unfolded, such as a plan that names single layers, is shown whole.
        match large::report(session, measured) {
            Err(error) if error.code == "E511" => {}
            report => return report,
        }
    }
    let model = session.model()?;
    let built = session.build_model(&model)?;
    let set = session.lower(&built)?;
    let simulation = simulate(&set, &session.config().cluster)?;
    // The figures are those that `simulate` prints.
    let figures = match session.is_folded() {
        true => session.figures(&price(session)?)?,
        false => session.figures_of(
            simulation.step_s,
            simulation.fullest(),
            model_flops(&model),
            model.parameter_count() as f64,
        )?,
    };
    let mut report =
        Report { title: title(session, measured), facts: figures.facts(session), ..Report::default() };
    report.facts.extend(measured.profiled.map(measured_step));
    runs::compare(&mut report, &measured.runs, &figures)?;
    let own = report.sections.len();
    details(&mut report, session, &built, &set, &simulation, measured)?;
    report.sections[own].about += &written_whole(&figures, &simulation).unwrap_or_default();
    Ok(report)
}

/// The price of a step as `simulate` has it; of one that cannot be folded, such as under a plan that names single layers,
/// that of its programs.
fn price(session: &Session) -> Result<Price> {
    match session.price() {
        Err(error) if error.code == "E511" => session.price_of(&session.build()?),
        price => price,
    }
}

/// What the programs of a folded step come to, where that prints otherwise than its figures.
fn written_whole(figures: &Figures, simulation: &Simulation) -> Option<String> {
    let texts = |step_s: f64, bytes: u64| (format_seconds(step_s), format_bytes(bytes));
    let whole = texts(simulation.step_s, simulation.fullest().bytes);
    (whole != texts(figures.step_s, figures.fill.bytes)).then(|| {
        format!(
            " The figures above are predicted from one repeated layer, as partita simulate and partita plan print them; the \
             programs of all layers, which the sections below show, take {} and {}.",
            whole.0, whole.1
        )
    })
}

/// The mean of the recorded steps.
fn measured_step(profiled: &Profiled) -> (String, String) {
    let steps = &profiled.recording.steps;
    let mean = steps.iter().map(|step| step.seconds()).sum::<f64>() / steps.len().max(1) as f64;
    ("measured step".to_string(), format_seconds(mean))
}

/// What the page is about: the step, and beside which run it is put.
fn title(session: &Session, measured: &Measured) -> String {
    let step = format!("{} on mesh {}", session.config().model_name(), session.mesh());
    match &measured.runs[..] {
        [run, other, ..] => format!("{}, {step}, beside {}", run.name, other.name),
        _ => step,
    }
}

/// What is read off the programs of a step.
fn details(
    report: &mut Report,
    session: &Session,
    built: &Built,
    set: &ProgramSet,
    simulation: &Simulation,
    measured: &Measured,
) -> Result<()> {
    let config = session.config();
    report.section(
        "Mesh",
        "Ranks with the same program are one cell. The bar is the share of a device's memory that is in use at the peak.",
        mesh(session, built, simulation),
    );
    if let Some(timetable) = &built.timetable {
        report.section("Stages", "What each slice of the mesh runs.", tables::stages(&stage_table(built)));
        report.section(
            "Timetable",
            "Slots of the pipeline, before times are known.",
            text(timetable.chart()?),
        );
    }
    report.section("Timeline", TIMELINE, timeline(&simulation.trace(set)));
    if let Some(profiled) = measured.profiled {
        let trace = profile::timeline(&profiled.recording, "measured", 0);
        report.section("Measured timeline", "The recorded steps, as they ran.", timeline(&trace));
    }
    memory(report, set, simulation);
    report.section("Communication", TRAFFIC, traffic::matrix(set, simulation));
    report.section("Collectives", "Of all ranks, in one step.", traffic::table(set));
    let by_op = measured
        .profiled
        .map(|profiled| profile::rows(&profiled.recording, &config.cluster, By::Op, Sort::Time).0);
    for (title, about, roofline) in tables::rooflines(session, set, by_op.as_deref()) {
        report.section(&title, &about, roofline);
    }
    if let Some(profiled) = measured.profiled {
        let about = "Means over the recorded steps; time is the sum over threads.";
        report.section("Predicted and measured", about, tables::compared(session, simulation, profiled));
        report.section("Time by op", about, tables::profile(by_op.as_deref().unwrap_or_default()));
    }
    curves(report, session, &measured.logs);
    report.section("Parameters", "Each with its layout, and why it has it.", tables::parameters(built));
    report.section("Plan", "", text(plan(built)));
    Ok(())
}

/// What the logs say, over steps.
fn curves(report: &mut Report, session: &Session, logs: &[Log]) {
    let mut draw = |title: &str, of: &str, kinds: &[(&str, fn(&Log) -> &Vec<(f64, f64)>)]| {
        let mut series = Vec::new();
        for log in logs {
            for (kind, points) in kinds.iter().map(|(kind, points)| (kind, points(log))) {
                if !points.is_empty() {
                    series.push(Series { name: format!("{}{kind}", log.name), points: points.clone() });
                }
            }
        }
        if !series.is_empty() {
            let (x, y) = ("step".to_string(), of.to_string());
            report.section(
                title,
                "Of the logs that were given.",
                Body::Lines { x, y, stacked: false, series, marks: Vec::new() },
            );
        }
    };
    draw("Loss", "loss", &[("", |log| &log.losses), (", validation", |log| &log.validations)]);
    let unit = logs.first().map_or("", |log| log.unit(session));
    draw("Throughput", unit, &[("", |log| &log.speeds)]);
}

const TIMELINE: &str =
    "A step as the simulator predicts it on the cluster, from the programs that would run.";
const TRAFFIC: &str = "Bytes that each row sends to each column in a step: sends and permutes as they are, other collectives \
                       around the ring of their members.";

fn text(text: String) -> Body {
    Body::Text { text }
}

/// What a drawing of memory shows.
const MEMORY: &str =
    "Memory in use over the step. Sizes and live spans are those of the memory map; the times are predicted.";

/// A cell for each class of ranks.
fn mesh(session: &Session, built: &Built, simulation: &Simulation) -> Body {
    let mesh = session.mesh();
    let axes = mesh.axes.iter().map(|axis| (axis.name.clone(), axis.size)).collect();
    let stages = stage_table(built);
    let cell = |class: &ClassRun| {
        // The coordinates that all ranks of the class share.
        let places: Vec<Vec<usize>> = class.ranks.iter().map(|&rank| mesh.coordinates(rank)).collect();
        let shared = |axis: usize| places.iter().all(|place| place[axis] == places[0][axis]);
        let place: Vec<String> = (0..mesh.axes.len())
            .filter(|&axis| shared(axis))
            .map(|axis| format!("{}={}", mesh.axes[axis].name, places[0][axis]))
            .collect();
        let mut holds: Vec<String> = MemoryKind::ALL
            .iter()
            .zip(class.memory.peak)
            .filter(|&(_, bytes)| bytes > 0)
            .map(|(kind, bytes)| format!("{} {}", kind.name(), format_bytes(bytes as u64)))
            .collect();
        let stage = stages.iter().find(|stage| stage.ranks.contains(&class.ranks[0]));
        let gaps = class.memory.arena_bytes.saturating_sub(class.memory.peak.iter().sum());
        holds.extend((gaps > 0).then(|| format!("gaps {}", format_bytes(gaps as u64))));
        holds.extend(stage.map(|stage| layers::names(&stage.modules).join(", ")));
        Cell {
            ranks: match class.ranks.len() {
                1 => format!("rank {}", class.ranks[0]),
                count => format!("ranks {} ({count})", ranks_name(&class.ranks)),
            },
            place: place.join(", "),
            holds,
            filled: class.memory.arena_bytes as f64 / class.device_bytes.max(1) as f64,
        }
    };
    Body::Mesh {
        axes,
        cells: simulation.classes.iter().filter(|class| !class.ranks.is_empty()).map(cell).collect(),
    }
}

/// A trace, without its shortest spans if there are too many.
fn timeline(trace: &Trace) -> Body {
    Body::Timeline { timeline: Timeline::of(trace, MOST_SPANS) }
}

/// At most [`MOST_POINTS`] of the moments, even in number over the step: the fullest of each part, and the last one.
fn thinned<const N: usize>(over_time: &[(f64, [usize; N])]) -> Vec<(f64, [usize; N])> {
    let each = over_time.len().div_ceil(MOST_POINTS - 1).max(1);
    let parts = over_time.chunks(each);
    let mut kept: Vec<_> = parts
        .filter_map(|part| part.iter().max_by_key(|(_, bytes)| bytes.iter().sum::<usize>()))
        .copied()
        .collect();
    match (kept.last(), over_time.last()) {
        (Some(kept_last), Some(last)) if kept_last.0 < last.0 => kept.push(*last),
        _ => {}
    }
    kept
}

/// The ranks of a class in a few characters: `0-7`, or the first ones and the last one.
fn ranks_name(ranks: &[usize]) -> String {
    let list = rank_list(ranks);
    match ranks.last() {
        Some(last) if list.len() > MOST_CHARACTERS => {
            let first: Vec<&str> = list.split(',').take(4).collect();
            format!("{},..,{last}", first.join(","))
        }
        _ => list,
    }
}

/// Memory over time of the fullest classes, and what holds it at the peak.
fn memory(report: &mut Report, set: &ProgramSet, simulation: &Simulation) {
    let mut order: Vec<usize> = (0..simulation.classes.len()).collect();
    order.retain(|&class| !simulation.classes[class].ranks.is_empty());
    order.sort_by_key(|&class| std::cmp::Reverse(simulation.classes[class].memory.peak_bytes()));
    let last = order.len().min(MEMORY_CLASSES).saturating_sub(1);
    let others = match order.len().saturating_sub(MEMORY_CLASSES) {
        0 => String::new(),
        1 => " Of the classes of ranks the fullest are drawn, and 1 more class is not.".to_string(),
        more => format!(" Of the classes of ranks the fullest are drawn, and {more} more classes are not."),
    };
    for (place, &class) in order.iter().take(MEMORY_CLASSES).enumerate() {
        let run = &simulation.classes[class];
        let over_time = thinned(&run.memory.over_time);
        let points = |kind: usize| -> Vec<(f64, f64)> {
            over_time.iter().map(|(at_s, bytes)| (*at_s, bytes[kind] as f64)).collect()
        };
        let series = MemoryKind::ALL.iter().enumerate().filter(|&(kind, _)| run.memory.peak[kind] > 0);
        let series: Vec<Series> =
            series.map(|(kind, of)| Series { name: of.name().to_string(), points: points(kind) }).collect();
        let ranks = match &run.ranks[..] {
            [rank] => format!("rank {rank}"),
            several => format!("ranks {}", ranks_name(several)),
        };
        let (x, y) = ("seconds".to_string(), "bytes".to_string());
        let mark = |name: &str, bytes: u64| (format!("{name} {}", format_bytes(bytes)), bytes as f64);
        let marks =
            vec![mark("allocated", run.memory.arena_bytes as u64), mark("a device has", run.device_bytes)];
        report.section(
            &format!("Memory of {ranks}"),
            &format!("{MEMORY}{}", if place == last { others.as_str() } else { "" }),
            Body::Lines { x, y, stacked: true, series, marks },
        );
        let about = "The largest buffers among those that are live when most memory is in use.";
        let title = format!("Owners of the peak of {ranks}");
        report.section(&title, about, tables::owners(&set.programs[run.program]));
    }
}

/// The plan in its short form, and where each line comes from.
fn plan(built: &Built) -> String {
    if built.plan.entries.is_empty() {
        return "[plan]\n# no lines: only the batch is sharded\n".to_string();
    }
    let mut text = built.plan.to_dict_toml();
    text += "\n# the lines as calls\n";
    text += &built.plan.to_calls();
    for note in &built.notes {
        text += &format!("# note: {note}\n");
    }
    text
}
