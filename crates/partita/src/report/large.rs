//! The report of a large step: its slices, tasks and memory as unfolded from two small steps ([`crate::predict::unfold`]),
//! and the smaller one of these whole.

use super::{Measured, details, ranks_name, runs, timeline};
use crate::predict::small::{SmallStep, check_stages};
use crate::predict::step::Bytes;
use crate::predict::unfold::{self, LargeStep, SmallSteps, TaskRun};
use crate::session::Session;
use partita_base::{Result, format_bytes, format_seconds};
use partita_mesh::{Slice, rank_list};
use partita_pipeline::TaskKind;
use partita_report::{Body, Cell, Report};
use partita_schedule::PIPELINE_AXIS;
use partita_trace::{Span, Trace};

/// Layers times microbatches up to which a report shows the step whole, on a mesh of any size.
const MOST_LAYERS: usize = 64;
/// The same on a mesh of few ranks.
const MOST_LAYERS_OF_FEW: usize = 1024;
/// The most ranks of such a mesh.
const FEW_RANKS: usize = 64;

/// Whether the report of a step unfolds it: to build, lower and run it whole over the clock would take minutes.
pub fn is_large(session: &Session) -> bool {
    let Some([layers, ..]) = session.config().model.stream() else { return false };
    if check_stages(session).is_err() {
        return false;
    }
    let most = if session.mesh().rank_count() > FEW_RANKS { MOST_LAYERS } else { MOST_LAYERS_OF_FEW };
    layers * session.config().train.microbatches > most
}

/// The report.
///
/// # Errors
/// Those of [`unfold::unfolded`].
pub fn report(session: &Session, measured: &Measured) -> Result<Report> {
    let plan = session.searched_folded_plan()?;
    let large = unfold::unfolded(session, plan.as_ref(), &SmallSteps::default())?;
    let layers = unfold::small_size(session)?;
    let small = SmallStep::of(&session.clone().in_this_process(), plan.as_ref(), &layers)?;
    let (stages, layers): (usize, usize) = (layers.len(), layers.iter().sum());
    let forecast = &large.forecast;
    let figures =
        session.figures_of(forecast.seconds.step_s, forecast.fill(), forecast.flops, forecast.parameters)?;
    let mut report =
        Report { title: super::title(session, measured), facts: figures.facts(session), ..Report::default() };
    let share = |seconds: f64| format!("{:.1}%", 100.0 * seconds / figures.step_s.max(f64::MIN_POSITIVE));
    report.facts.push(("bubble".to_string(), share(forecast.seconds.bubble_s)));
    report.facts.push(("communication not hidden".to_string(), share(forecast.seconds.exposed_s)));
    runs::compare(&mut report, &measured.runs, &figures)?;
    let slices = session.mesh().slices(PIPELINE_AXIS);
    report.section(
        "Mesh",
        "Slices of the mesh with equal memory are one cell. The bar is the share of a device's memory that is in use at the \
         peak of the fullest rank.",
        mesh(session, &slices, &large),
    );
    if slices.len() > 1 {
        report.section(
            "Timetable",
            "Slots of the pipeline, before times are known.",
            Body::Text { text: large.timetable.chart()? },
        );
        report.section("Timeline", TIMELINE, timeline(&tasks(&large)));
    }
    report.section("Memory", "Of the fullest rank of each slice, at its peak.", memory(&slices, &large));
    super::curves(&mut report, session, &measured.logs);
    let train = &small.session.config().train;
    let about = format!(
        "The step above is predicted from the programs of small ones like it. The sections below show one of them whole: \
         {}, {}, {}.",
        counted(layers, "layer"),
        counted(stages, "stage"),
        counted(train.microbatches, "microbatch")
    );
    let rows = vec![
        vec!["layers".to_string(), format!("{}", large.layers.iter().sum::<f64>()), layers.to_string()],
        vec!["stages".to_string(), large.layers.len().to_string(), stages.to_string()],
        vec![
            "microbatches".to_string(),
            large.timetable.microbatches.to_string(),
            train.microbatches.to_string(),
        ],
        vec!["mesh".to_string(), session.mesh().to_string(), small.session.mesh().to_string()],
        vec![
            "step".to_string(),
            format_seconds(large.forecast.seconds.step_s),
            format_seconds(small.simulation.step_s),
        ],
    ];
    let header = ["", "the step", "the small step"].map(String::from).to_vec();
    report.section("Small step", &about, Body::Table { header, rows });
    let own = report.sections.len();
    let nothing = Measured::default();
    details(&mut report, &small.session, &small.built, &small.set, &small.simulation, &nothing)?;
    for section in &mut report.sections[own..] {
        section.title = format!("Small step: {}", section.title.to_lowercase());
    }
    Ok(report)
}

const TIMELINE: &str = "The tasks of each slice as the timetable runs over a clock: forward and backward passes of microbatches, \
                        with their waits for collectives within the slice.";

/// A number with its noun.
fn counted(number: usize, of: &str) -> String {
    match (number, of.ends_with("ch")) {
        (1, _) => format!("1 {of}"),
        (_, true) => format!("{number} {of}es"),
        (_, false) => format!("{number} {of}s"),
    }
}

/// Slices, in order, with those next to each other that have equal layers and memory in one group.
fn groups(large: &LargeStep) -> Vec<std::ops::Range<usize>> {
    let layers = layers_of_slices(large);
    let alike = |a: usize, b: usize| {
        let [a_bytes, b_bytes] = [a, b].map(|slice| large.forecast.stages[slice]);
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * a.abs().max(b.abs());
        near(a_bytes.total(), b_bytes.total())
            && near(layers[a], layers[b])
            && large.forecast.limits[a] == large.forecast.limits[b]
    };
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for slice in 0..large.forecast.stages.len() {
        match groups.last_mut() {
            Some(group) if alike(group.start, slice) => group.end = slice + 1,
            _ => groups.push(slice..slice + 1),
        }
    }
    groups
}

fn layers_of_slices(large: &LargeStep) -> Vec<f64> {
    let mut layers = vec![0.0; large.forecast.stages.len()];
    for (stage, slice) in large.timetable.slice_of_stage().into_iter().enumerate() {
        layers[slice] += large.layers[stage];
    }
    layers
}

/// A cell for each group of slices.
fn mesh(session: &Session, slices: &[Slice], large: &LargeStep) -> Body {
    let mesh = session.mesh();
    let layers = layers_of_slices(large);
    let cell = |group: std::ops::Range<usize>| {
        let bytes = large.forecast.stages[group.start];
        let ranks: Vec<usize> = slices[group.clone()].iter().flat_map(|slice| slice.ranks.clone()).collect();
        let held = bytes.by_kind().into_iter().filter(|&(_, bytes)| bytes > 0);
        let mut holds: Vec<String> =
            held.map(|(kind, bytes)| format!("{kind} {}", format_bytes(bytes))).collect();
        holds.push(counted(layers[group.start].round() as usize, "layer"));
        let numbers: Vec<usize> = group.clone().collect();
        Cell {
            ranks: format!("ranks {} ({})", ranks_name(&ranks), ranks.len()),
            place: if slices.len() > 1 {
                format!("{PIPELINE_AXIS}={}", rank_list(&numbers))
            } else {
                String::new()
            },
            holds,
            filled: bytes.total() / large.forecast.limits[group.start].max(1) as f64,
        }
    };
    let axes = mesh.axes.iter().map(|axis| (axis.name.clone(), axis.size)).collect();
    Body::Mesh { axes, cells: groups(large).into_iter().map(cell).collect() }
}

/// The tasks on tracks of slices.
fn tasks(large: &LargeStep) -> Trace {
    let mut trace = Trace::default();
    let slices = 0..large.timetable.slices.len();
    let tracks: Vec<_> = slices.map(|slice| trace.track("pipeline", format!("slice {slice}"))).collect();
    let span = |run: &TaskRun| Span {
        track: tracks[run.slice],
        name: run.task.to_string(),
        category: match run.task.kind {
            TaskKind::Forward => "forward",
            TaskKind::Backward => "backward",
            TaskKind::InputGrad => "input gradient",
            TaskKind::WeightGrad => "weight gradient",
        },
        begin_s: run.begin_s,
        duration_s: run.end_s - run.begin_s,
        arguments: vec![("path", format!("stage {}, microbatch {}", run.task.stage, run.task.microbatch))],
    };
    trace.spans = large.tasks.iter().map(span).collect();
    trace
}

/// Bytes by kind, a row for each group of slices.
fn memory(slices: &[Slice], large: &LargeStep) -> Body {
    let kinds = Bytes::default().by_kind().map(|(name, _)| name.to_string());
    let header = ["slices", "ranks", "sum"].map(String::from).into_iter().chain(kinds).collect();
    let row = |group: std::ops::Range<usize>| {
        let bytes = large.forecast.stages[group.start];
        let ranks: usize = slices[group.clone()].iter().map(|slice| slice.ranks.len()).sum();
        let numbers: Vec<usize> = group.collect();
        let mut row = vec![rank_list(&numbers), ranks.to_string(), format_bytes(bytes.whole())];
        row.extend(bytes.by_kind().map(|(_, bytes)| format_bytes(bytes)));
        row
    };
    Body::Table { header, rows: groups(large).into_iter().map(row).collect() }
}
