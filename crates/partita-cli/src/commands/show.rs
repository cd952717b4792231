//! `partita show`: the model, where it lives on the mesh, its plan, and what memory each rank needs.

use crate::command::{Application, Command, ConfigFlags, OF_A_STEP, Unread, of_no_run};
use crate::commands::folded;
use crate::commands::lower::{self, stage};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, table};
use crate::run::{Ending, answer, session};
use clap::{Args, ValueEnum};
use partita::config::Config;
use partita::keys::Key;
use partita::listing::Listing;
use partita::memory::{Memory, memory};
use partita::models::ModelKinds;
use partita::session::Session;
use partita::signature::{Input, Signature};
use partita::stage_table::{StageRow, part_name, stage_table};
use partita_base::{Diagnostic, Result, format_count};
use partita_cost::Cluster;
use partita_ir::Role;
use partita_mesh::rank_list;
use partita_pipeline::Timetable;
use partita_program::ProgramSet;
use partita_schedule::{Built, Plan, Stage};
use serde::Serialize;
use std::fmt::Write;

/// Nothing is read of what `--keys` has no use for.
const OF_KEYS: Unread = of_no_run(&[("", "the keys are those of every config")]);

/// Flags of `show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    pub config: Option<String>,
    /// List every key of configs with its type, default and meaning.
    #[arg(long, conflicts_with_all = ["form", "stage"])]
    pub keys: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Print only the plan, in this format.
    #[arg(long = "as", value_enum, value_name = "FORM")]
    pub form: Option<PlanForm>,
    /// Print only the step, lowered so far.
    #[arg(long, value_enum)]
    pub stage: Option<lower::Stage>,
}

/// The forms of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PlanForm {
    /// Calls, as Slapo writes schedules.
    #[value(alias = "slapo")]
    Calls,
    /// A TOML table: pattern = style.
    Dict,
    /// A plan file with a TOML table for each line, which keeps its source.
    Toml,
}

impl Command for ShowArgs {
    const NAME: &'static str = "show";
    const ABOUT: &'static str =
        "Show the model, the layout of its parameters on the mesh, its plan and its memory";
    const UNREAD: Unread = OF_A_STEP;

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, if self.keys { OF_KEYS } else { Self::UNREAD }))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        show(self, output)?;
        Ok(Ending::Done)
    }
}

/// Runs the command.
///
/// # Errors
/// What the config and the passes refuse; E033 without a config, unless `--keys` lists the keys of every config.
fn show(args: &ShowArgs, output: &mut Output) -> Result<()> {
    if args.keys {
        answer(&Keys::all(), Keys::text, output);
        return Ok(());
    }
    let config = args.config.as_deref().ok_or_else(|| {
        Diagnostic::new("E033", "`partita show` needs a config")
            .expected("a config file, a bundled config, or --keys")
            .help("`partita show gpt` shows a bundled config; `partita show --keys` lists all keys")
    })?;
    let session = session(config, args.flags.overrides()?, output)?;
    let text = output.during("planning the step", || match (args.form, args.stage) {
        (Some(form), _) => Ok(plan_text(&plan(&session)?, form)),
        (None, Some(of)) => stage(&session, &session.build()?, of, 0),
        (None, None) => overview(&session),
    })?;
    output.text(text);
    Ok(())
}

/// The plan of the step; that of a large one without building all of it.
fn plan(session: &Session) -> Result<Plan> {
    Ok(match session.listing()? {
        Some(Listing { built, .. }) => built.plan,
        None => session.build()?.plan,
    })
}

/// The keys of configs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Keys {
    /// In the order of the sections.
    pub keys: Vec<KeyRow>,
}

/// A key of configs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KeyRow {
    /// `train.steps`.
    pub key: String,
    /// The type of its values.
    pub takes: String,
    /// The default as TOML, or what a config without the key means.
    pub default: String,
    /// Its meaning.
    pub about: String,
    /// The values of the section's `kind` that have this key; empty for all.
    pub kinds: Vec<String>,
}

impl Event for Keys {
    const NAME: &'static str = "keys";
}

impl Keys {
    /// The keys of every config.
    pub fn all() -> Keys {
        let row = |Key { section, name, takes, default, about, kinds }| KeyRow {
            key: format!("{section}.{name}"),
            takes: takes.to_string(),
            default,
            about: about.to_string(),
            kinds,
        };
        Keys { keys: Config::keys(&ModelKinds::bundled()).into_iter().map(row).collect() }
    }

    /// A table of them, with left-aligned columns.
    pub fn text(&self) -> String {
        let width = |of: &dyn Fn(&KeyRow) -> usize| self.keys.iter().map(of).max().unwrap_or(0);
        let (key, takes) = (width(&|row| row.key.len()), width(&|row| row.takes.len()));
        let mut text = format!("{:<key$}  {:<takes$}  meaning\n", "key", "type");
        for row in &self.keys {
            let KeyRow { about, default, .. } = row;
            let _ = write!(text, "{:<key$}  {:<takes$}  {about} (default: {default})", row.key, row.takes);
            if !row.kinds.is_empty() {
                let _ = write!(text, " for {}", row.kinds.join(", "));
            }
            text.push('\n');
        }
        text + "\nAny other key of [plan] is a module pattern, and its value a style or a primitive.\n"
    }
}

/// A plan in a form that `--plan` reads back.
pub fn plan_text(plan: &Plan, form: PlanForm) -> String {
    match form {
        PlanForm::Calls => plan.to_calls(),
        PlanForm::Dict => plan.to_dict_toml(),
        PlanForm::Toml => plan.to_toml(),
    }
}

/// Everything: mesh, parameters and their layouts, plan, memory by rank, notes. Of a large step, memory is that of the
/// slices of the mesh, as it is predicted.
pub fn overview(session: &Session) -> Result<String> {
    let (parts, notes, of) = match session.listing()? {
        Some(listing) => {
            let stages = listing.stages();
            let signature = listing.session.signature(&listing.model);
            let rows = [&listing.session, session].map(|session| session.config().train.batch);
            let text = plan_and_parameters(session, &inputs(&signature, rows), &listing.built)
                + &stages_text(&listing.built, &stages, Some(&listing.large.timetable))?
                + &folded::memory_table(session, &listing.large.forecast)
                + "memory: of the fullest rank of each slice, as `partita simulate` predicts it from a few layers\n";
            let few = listing.session.config().train.microbatches;
            (text, listing.session.notes(&listing.model, &listing.built), few)
        }
        None => {
            let model = session.model()?;
            let built = session.build_model(&model)?;
            let set = session.lower(&built)?;
            let rows = [session.config().train.batch; 2];
            let text = plan_and_parameters(session, &inputs(&session.signature(&model), rows), &built)
                + &stages_text(&built, &stage_table(&built), built.timetable.as_ref())?
                + &memory_table(&set, &session.config().cluster);
            (text, session.notes(&model, &built), session.config().train.microbatches)
        }
    };
    let of = match of == session.config().train.microbatches {
        true => String::new(),
        false => format!(" of {of} microbatches"),
    };
    let mut text = parts;
    for note in &notes {
        let _ = write!(text, "\nnote{of}: {note}");
    }
    if !notes.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

/// The mesh, what is fed, the parameters with their layouts, the plan.
fn plan_and_parameters(session: &Session, inputs: &str, built: &Built) -> String {
    let (mesh, name) = (session.mesh(), session.config().model.name());
    let mut text = format!("model {name} on mesh {mesh} ({} ranks)\n\n", mesh.rank_count());
    text += inputs;
    text += &parameters(built);
    let lines = built.plan.to_dict_toml();
    let nothing = "[plan]\n# no lines: only the batch is sharded\n";
    let _ = write!(text, "\n{}\n", if built.plan.entries.is_empty() { nothing } else { &lines });
    text
}

/// What a file of data has arrays for, with the shape of a batch: of as many rows as the second number, where the signature
/// has as many as the first. Nothing for a model that is fed nothing.
fn inputs(signature: &Signature, [rows, all]: [usize; 2]) -> String {
    let row = |input: &Input| {
        let mut shape = input.ty.shape.clone();
        shape.iter_mut().take(1).filter(|extent| **extent == rows).for_each(|extent| *extent = all);
        vec![input.name.clone(), input.ty.dtype.to_string(), format!("{shape:?}")]
    };
    let rows: Vec<Vec<String>> = signature.inputs.iter().map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["input", "type", "shape"], &rows) + "\n" }
}

/// The parameters as a tree of modules: global shape, layout, the shapes ranks hold, bytes of the largest.
pub fn parameters(built: &Built) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let (mut elements, mut most_bytes) = (0, vec![0; built.mesh.rank_count()]);
    for (stage, position) in parameters_in_order(built) {
        let partitioned = &stage.partitioned;
        let (graph, mesh) = (&partitioned.graph, &partitioned.mesh);
        let value = graph.value(graph.inputs[position]);
        let sharding = &partitioned.inputs[position];
        let parts: Vec<&str> = value.name.split('.').collect();
        let (own, modules) = parts.split_last().expect("splitting gives at least one part");
        let common = open.iter().zip(modules).take_while(|(a, b)| a == b).count();
        for (depth, module) in modules.iter().enumerate().skip(common) {
            let mut row = vec![format!("{}{module}", "  ".repeat(depth))];
            row.resize(5, String::new());
            rows.push(row);
        }
        open = modules.to_vec();
        let locals: Vec<Vec<usize>> =
            (0..mesh.rank_count()).map(|rank| sharding.local_shape(mesh, &value.ty.shape, rank)).collect();
        let mut shapes: Vec<String> = Vec::new();
        let mut largest = 0;
        for (local, &rank) in locals.iter().zip(&stage.ranks) {
            let held = value.ty.with_shape(local.clone()).bytes();
            largest = largest.max(held);
            most_bytes[rank] += held;
            let shape = extents(local);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        elements += value.ty.element_count();
        rows.push(vec![
            format!("{}{own}", "  ".repeat(modules.len())),
            extents(&value.ty.shape),
            layout_on(built, stage, &sharding.display(mesh)),
            shapes.join(" or "),
            bytes(largest as u64),
        ]);
    }
    let mut text = table(&["parameter", "shape", "layout", "on a rank", "bytes"], &rows);
    let most = most_bytes.iter().max().copied().unwrap_or(0);
    let _ = writeln!(text, "{elements} elements; at most {} on a rank", bytes(most as u64));
    text
}

/// The stage and the input position of each parameter, in the order of the step.
fn parameters_in_order(built: &Built) -> Vec<(&Stage, usize)> {
    let mut found: Vec<(usize, &Stage, usize)> = Vec::new();
    for stage in &built.stages {
        let graph = &stage.partitioned.graph;
        let is_parameter = |position: usize| graph.value(graph.inputs[position]).role == Role::Param;
        let own = stage.fed().filter(|&(position, _)| is_parameter(position));
        found.extend(own.map(|(position, of_step)| (of_step, stage, position)));
    }
    found.sort_by_key(|&(of_step, ..)| of_step);
    found.into_iter().map(|(_, stage, position)| (stage, position)).collect()
}

/// A layout, with the stage where there are several.
fn layout_on(built: &Built, stage: &Stage, layout: &str) -> String {
    match built.stages.iter().position(|other| std::ptr::eq(other, stage)) {
        Some(number) if built.stages.len() > 1 => format!("{} {number} {layout}", part_name(built)),
        _ => layout.to_string(),
    }
}

/// `4x3`; a scalar is `[]`, as in other tables.
fn extents(shape: &[usize]) -> String {
    if shape.is_empty() {
        return "[]".to_string();
    }
    shape.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("x")
}

/// The stages of a pipeline with their timetable; empty without a pipeline.
///
/// # Errors
/// E461, as [`partita_pipeline::Timetable::times`].
fn stages_text(built: &Built, stages: &[StageRow], timetable: Option<&Timetable>) -> Result<String> {
    let Some(timetable) = timetable.filter(|_| built.timetable.is_some()) else { return Ok(String::new()) };
    let part = part_name(built);
    let mut header = vec![part, "mesh", "ranks", "parameters", "forward", "activations held", "modules"];
    let mut rows: Vec<Vec<String>> = stages.iter().map(stage_row).collect();
    if part == "slice" {
        header.insert(1, "stages");
        rows.iter_mut().zip(stages).for_each(|(row, of)| row.insert(1, rank_list(&of.stages)));
    }
    let mut text = table(&header, &rows);
    for row in stages.iter().filter(|row| !row.because.is_empty()) {
        let ends = if row.stages.len() == 1 { "ends there" } else { "stages end there" };
        let _ = writeln!(text, "{part} {} {ends}: {}", row.stage, row.because);
    }
    let chart = timetable.chart()?;
    if chart.lines().all(|line| line.len() <= WIDEST_CHART) {
        let _ = write!(text, "\n{chart}");
    }
    text.push('\n');
    Ok(text)
}

/// The widest timetable that is drawn among other tables, in columns; `partita timetable` draws any.
const WIDEST_CHART: usize = 160;

fn stage_row(row: &StageRow) -> Vec<String> {
    let modules = match &row.modules[..] {
        [] => "-".to_string(),
        [only] => only.clone(),
        [first, .., last] => format!("{first} .. {last}"),
    };
    vec![
        row.stage.to_string(),
        row.mesh.clone(),
        rank_list(&row.ranks),
        row.parameters.to_string(),
        format!("{} FLOP", format_count(row.forward_flops)),
        row.in_flight.to_string(),
        modules,
    ]
}

/// [`memory`] as a table, ranks with equal figures in one row; on a cluster of several kinds of devices, those of each kind,
/// with its memory.
pub fn memory_table(set: &ProgramSet, cluster: &Cluster) -> String {
    let cluster = cluster.of_first(set.rank_count());
    let kinds = cluster.kinds(set.rank_count());
    let mut groups: Vec<((Memory, usize), Vec<usize>)> = Vec::new();
    for (rank, memory) in memory(set).into_iter().enumerate() {
        let key = (memory, kinds[rank]);
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((key, vec![rank])),
        }
    }
    let has_host = groups.iter().any(|((memory, _), _)| memory.host > 0);
    let device = |rank: usize| {
        let device = cluster.device_of(rank);
        format!("{} with {}", device.kind, bytes(device.memory_bytes))
    };
    let row = |((memory, _), ranks): &((Memory, usize), Vec<usize>)| {
        let figures = [
            memory.parameters,
            memory.states,
            memory.inputs,
            memory.constants,
            memory.activations,
            memory.arena,
        ];
        let mut row = vec![rank_list(ranks)];
        row.extend(figures.iter().map(|&figure| bytes(figure as u64)));
        row.extend(has_host.then(|| bytes(memory.host as u64)));
        row.extend(cluster.is_mixed().then(|| device(ranks[0])));
        row
    };
    let rows: Vec<Vec<String>> = groups.iter().map(row).collect();
    let mut head =
        vec!["memory of rank", "parameters", "optimizer", "inputs", "constants", "activations", "peak"];
    head.extend(has_host.then_some("on the host"));
    head.extend(cluster.is_mixed().then_some("device"));
    table(&head, &rows)
}
