//! `partita plan`: finds a plan by search, and says what it costs and why others lost.

use crate::command::{Application, Command, ConfigFlags, OF_A_STEP, Unread};
use crate::files::{check_folder, check_new, write_new};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, seconds, table};
use crate::run::{Ending, answer, session};
use clap::{Args, ValueEnum};
use partita::auto_plan::tables::npy;
use partita::auto_plan::{AutoPlan, Candidate, Freedom, Progress};
use partita::session::Session;
use partita_base::Result;
use partita_mesh::Mesh;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Flags of `plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// A config file, a bundled config, a model by name such as gpt-39b, or a config.json of Hugging Face.
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Search every mesh of so many devices instead of the one of the config; by default of all that --cluster names, if
    /// there is no --mesh.
    #[arg(long, value_name = "N", conflicts_with = "mesh", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub devices: Option<u32>,
    /// Say what each search over layouts found and why candidates could not be built, and price each line of the plan
    /// against the best layouts without it, which solves the search once more for each.
    #[arg(long)]
    pub why: bool,
    /// What the search over layouts minimises. Candidates are compared by the seconds of the cluster in either case.
    #[arg(long, value_enum, default_value = "cluster")]
    pub cost: CostModel,
    /// Also list the candidates of which no other is both faster and smaller.
    #[arg(long)]
    pub pareto: bool,
    /// Write the plan to a new file.
    #[arg(long, value_name = "FILE.toml")]
    pub out: Option<PathBuf>,
    /// Also write what each range of layers costs on each part of the cluster, as arrays of NumPy in a folder:
    /// compute-cost-TIME.npy, max-n-succ-stage-TIME.npy and memory-TIME.npy. The result is printed as Alpa prints it.
    #[arg(long, value_name = "FOLDER")]
    pub tables: Option<PathBuf>,
}

/// What a search over layouts minimises.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CostModel {
    /// Seconds of work and communication on the cluster.
    Cluster,
    /// Alpa's formula: bytes that collectives move, over the slowest mesh axis.
    Alpa,
}

impl Command for PlanArgs {
    const NAME: &'static str = "plan";
    const ABOUT: &'static str = "Find the mesh, the layouts and the stages of a step by search, and say why";
    const UNREAD: Unread = OF_A_STEP;

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, Self::UNREAD))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        plan(self, &session(&self.config, self.flags.overrides()?, output)?, output)?;
        Ok(Ending::Done)
    }
}

/// The work that progress is printed for.
const SEARCHING: &str = "searching plans";
/// The stages of a pipeline that are tried at most.
const MOST_STAGES: usize = 128;
/// Candidates that the table shows.
const MOST_ROWS: usize = 24;
/// Stages whose modules the table shows.
const MOST_NAMED: usize = 4;

/// A plan that was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Found {
    /// The cluster whose figures are used.
    pub cluster: String,
    /// What the searches over layouts minimise.
    pub formula: CostModel,
    /// The candidates, the chosen one first.
    pub candidates: Vec<Row>,
    /// What axes for experts and for long rows gain or cost.
    pub reasons: Vec<String>,
    /// The searches over layouts.
    pub searches: Vec<Search>,
    /// Why candidates could not be built, with their meshes and plans.
    pub refused: Vec<(String, Vec<String>)>,
    /// Seconds from the beginning of the search to its end.
    pub wall_s: f64,
    /// Seconds of writing the steps, of listing and pricing choices, of solving, of building and pricing the plans, each
    /// added up over all threads.
    pub tracing_s: f64,
    /// See `tracing_s`.
    pub enumerating_s: f64,
    /// See `tracing_s`.
    pub solving_s: f64,
    /// See `tracing_s`.
    pub checking_s: f64,
    /// The chosen plan as `[plan]` in TOML.
    pub plan: String,
    /// The keys of a plan file that say with which mesh, microbatches, timetable and limit it runs.
    pub made_for: String,
    /// What the text calls the rank that the memory is of.
    #[serde(skip)]
    rank: &'static str,
    /// The costs of stages, if `--tables` requests them.
    pub tables: Option<Tables>,
}

/// The costs of stages, as they were written.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tables {
    /// The files of `cost[i, j, m]`, of `max_n_succ_stage[i, j, m]` and of `memory[i, j, m, 3]`.
    pub files: Vec<String>,
    /// Layers of the model.
    pub layers: usize,
    /// Rows of a microbatch over all ranks of a stage.
    pub rows: usize,
    /// The submeshes `m`: nodes, and devices of each.
    pub submeshes: Vec<(usize, usize)>,
    /// For each of them, its uses as data parallel ranks and ranks of `tp`.
    pub logical: Vec<Vec<(usize, usize)>>,
    /// The chosen plan as Alpa prints it.
    pub result: String,
}

/// A candidate.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The mesh.
    pub mesh: String,
    /// Where the plan comes from.
    pub source: String,
    /// The microbatches of a step.
    pub microbatches: usize,
    /// The first and the last block of each stage.
    pub stages: Vec<(String, String)>,
    /// The mesh of the slice of each stage.
    pub slices: Vec<String>,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Bytes of the fullest rank.
    pub bytes: u64,
    /// Whether they fit a device.
    pub fits: bool,
    /// A mesh axis that shards nothing, so that its ranks all compute the same.
    pub idle: Option<String>,
    /// Whether no other candidate is both faster and smaller.
    pub pareto: bool,
    /// The flags with which other commands run this candidate, beside its plan.
    pub flags: String,
}

/// A search over layouts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Search {
    /// The mesh of a stage.
    pub mesh: String,
    /// The repeated layers of the step that was searched, if those are not all of the model.
    pub layers: Option<usize>,
    /// Variables of the problem.
    pub variables: usize,
    /// The cost of the layouts found, in seconds, or by Alpa's formula.
    pub cost_s: f64,
    /// No layouts cost less.
    pub bound_s: f64,
    /// What the best plan built from them costs in the same terms.
    pub built_s: Option<f64>,
    /// Lines of the plan, and the cost of the best layouts without each; absent if there are none.
    pub without: Vec<(String, Option<f64>)>,
}

impl Event for Found {
    const NAME: &'static str = "plan";
}

/// Runs the command.
///
/// # Errors
/// What the search and the passes refuse; E043 if the plan cannot be written.
fn plan(args: &PlanArgs, session: &Session, output: &mut Output) -> Result<()> {
    if let Some(path) = &args.out {
        check_new(path, "the plan", "--out")?;
    }
    if let Some(folder) = &args.tables {
        check_folder(folder, TABLES, "--tables")?;
    }
    // A cluster that was named says how many devices there are, unless a mesh does.
    let levels = &session.config().cluster.levels;
    let of_cluster = args.flags.cluster.as_ref().and(levels.last()).and_then(|level| level.ranks);
    let devices = args.devices.map(|devices| devices as usize);
    let devices = devices.or(of_cluster.filter(|_| args.flags.mesh.is_none()));
    let tried: Vec<Mesh> = match devices {
        Some(devices) => session.meshes(devices, MOST_STAGES),
        None => vec![session.mesh().clone()],
    };
    let ranks = tried.iter().map(Mesh::rank_count).max().unwrap_or(1);
    session.config().notes_on_price(ranks).into_iter().for_each(|note| output.note(note));
    let alpa = args.cost == CostModel::Alpa;
    let is_given = |key: &str| args.flags.gives(key);
    let freedom = Freedom {
        microbatches: !is_given("train.microbatches"),
        flags: !is_given("train.timetable"),
        slices: devices.is_some(),
        explain: args.why,
        alpa,
    };
    let working = output.working(SEARCHING);
    let watch = |progress: &Progress| {
        if let Some(best) = &progress.best {
            let flags = best.flags();
            working.becomes(&format!("{SEARCHING}, best so far {} with {flags}", seconds(best.step_s)));
        }
        working.expect(progress.total as u64);
        working.advance(progress.done as u64);
    };
    let found = session.auto_plan_over(None, &tried, freedom, &watch)?;
    drop(working);
    found.notes.iter().for_each(|note| output.note(note.as_str()));
    if let Some(path) = &args.out {
        let text = format!("{}\n{}", found.best.made_for(), found.best.plan.to_toml());
        write_new(path, "the plan", "--out", |file| file.write_all(text.as_bytes()))?;
    }
    let tables =
        args.tables.as_ref().map(|folder| Tables::write(folder, session, &found.best)).transpose()?;
    let found = Found { tables, ..Found::of(session, &found, args.cost) };
    answer(&found, |found| found.text(args.pareto, args.why), output);
    Ok(())
}

/// What messages call the arrays.
const TABLES: &str = "the costs of stages";

impl Tables {
    /// Writes the costs of stages as arrays in a folder.
    fn write(folder: &Path, session: &Session, best: &Candidate) -> Result<Tables> {
        let costs = session.stage_costs(best)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let shape = costs.shape();
        let of_memory = [&shape[..], &[3]].concat();
        let arrays = [
            ("compute-cost", npy("<f8", &shape, costs.seconds.iter().map(|v| v.to_le_bytes()))),
            ("max-n-succ-stage", npy("<i8", &shape, costs.successors.iter().map(|v| v.to_le_bytes()))),
            ("memory", npy("<f8", &of_memory, costs.memory.iter().map(|v| v.to_le_bytes()))),
        ];
        let mut files = Vec::new();
        for (name, bytes) in arrays {
            let path = folder.join(format!("{name}-{time}.npy"));
            write_new(&path, TABLES, "--tables", |file| file.write_all(&bytes))?;
            files.push(path.display().to_string());
        }
        Ok(Tables {
            files,
            layers: costs.layers,
            rows: costs.rows,
            submeshes: costs.submeshes.clone(),
            logical: costs.logical.clone(),
            result: session.alpa_result(best),
        })
    }

    fn text(&self) -> String {
        let shapes: Vec<String> =
            self.submeshes.iter().map(|(nodes, devices)| format!("({nodes}, {devices})")).collect();
        let mut text = format!(
            "\ncosts of stages, by first layer, last layer and submesh ({} layers, {} rows of a microbatch):\n",
            self.layers, self.rows
        );
        for (file, what) in self.files.iter().zip([
            "seconds of a microbatch, forward and backward",
            "the most stages that may follow; -1 where one microbatch does not fit",
            "bytes of parameters and what belongs to them, kept for a microbatch, needed at a time",
        ]) {
            let _ = writeln!(text, "  {file}: {what}");
        }
        let _ = writeln!(text, "submeshes, as nodes and devices of each: {}", shapes.join(" "));
        text + &self.result
    }
}

impl Found {
    fn of(session: &Session, found: &AutoPlan, formula: CostModel) -> Found {
        let pareto = found.pareto();
        let row = |candidate: &Candidate| Row {
            fits: candidate.fits(),
            idle: candidate.idle.clone(),
            pareto: pareto.iter().any(|other| std::ptr::eq(*other, candidate)),
            flags: candidate.flags(),
            mesh: candidate.mesh.to_string(),
            source: match candidate.other_timetable() {
                Some(timetable) => format!("{}, {timetable}", candidate.source),
                None => candidate.source.to_string(),
            },
            microbatches: candidate.microbatches,
            stages: candidate.stages.clone(),
            slices: candidate.slices.iter().map(Mesh::to_string).collect(),
            step_s: candidate.step_s,
            bytes: candidate.bytes,
        };
        let search = |search: &partita::auto_plan::Searched| Search {
            mesh: search.mesh.to_string(),
            layers: search.layers,
            variables: search.variables,
            cost_s: search.cost_s,
            bound_s: search.bound_s,
            built_s: search.built_s,
            without: search
                .without
                .iter()
                .map(|(line, cost)| (line.clone(), Some(*cost).filter(|c| c.is_finite())))
                .collect(),
        };
        let mut refused: Vec<(String, Vec<String>)> = Vec::new();
        for (mesh, source, why) in &found.refused {
            let at = format!("{mesh}, {source}");
            match refused.iter_mut().find(|(known, _)| known == why) {
                Some((_, places)) if places.contains(&at) => {}
                Some((_, places)) => places.push(at),
                None => refused.push((why.clone(), vec![at])),
            }
        }
        Found {
            cluster: session.config().cluster.name.clone(),
            formula,
            candidates: [&found.best].into_iter().chain(&found.others).map(row).collect(),
            reasons: found.reasons(),
            searches: found.searched.iter().map(search).collect(),
            refused,
            wall_s: found.wall.as_secs_f64(),
            tracing_s: found.time.tracing.as_secs_f64(),
            enumerating_s: found.time.enumerating.as_secs_f64(),
            solving_s: found.time.solving.as_secs_f64(),
            checking_s: found.time.checking.as_secs_f64(),
            plan: found.best.plan.to_dict_toml(),
            made_for: found.best.made_for(),
            rank: if session.config().cluster.is_mixed() {
                "the rank with the least room"
            } else {
                "the fullest rank"
            },
            tables: None,
        }
    }

    fn text(&self, pareto: bool, why: bool) -> String {
        let best = &self.candidates[0];
        let mut text = format!(
            "mesh {} with {} microbatch{}: a step takes {} on cluster {} (predicted), {} on {}\n\n",
            best.mesh,
            best.microbatches,
            if best.microbatches == 1 { "" } else { "es" },
            seconds(best.step_s),
            self.cluster,
            bytes(best.bytes),
            self.rank,
        );
        let head = ["mesh", "plan", "microbatches", "stages", "step", "memory", "to the best"];
        let cells = |rows: &[&Row]| rows.iter().map(|row| row.cells(best)).collect::<Vec<_>>();
        let all: Vec<&Row> = self.candidates.iter().collect();
        text += &table(&head, &cells(&all[..all.len().min(MOST_ROWS)]));
        if all.len() > MOST_ROWS {
            let _ = writeln!(text, "and {} slower ones (--json lists them)", all.len() - MOST_ROWS);
        }
        for reason in &self.reasons {
            let _ = writeln!(text, "{reason}");
        }
        if pareto {
            let mut front: Vec<&Row> = all.iter().copied().filter(|row| row.pareto).collect();
            front.sort_by(|a, b| a.step_s.total_cmp(&b.step_s));
            text += "\ntime against memory: no candidate is both faster and smaller than one of these\n";
            text += &table(&head, &cells(&front));
        }
        text += &if why { self.searched() } else { self.counted() };
        let _ = write!(
            text,
            "\ntime: {} in all; added up over the threads: tracing {}, enumerating {}, solving {}, checking {}\n\n{}\n{}",
            seconds(self.wall_s),
            seconds(self.tracing_s),
            seconds(self.enumerating_s),
            seconds(self.solving_s),
            seconds(self.checking_s),
            self.made_for,
            if self.plan.trim().is_empty() {
                "[plan]\n# no lines: only the batch is sharded\n"
            } else {
                &self.plan
            },
        );
        text + &self.tables.as_ref().map(Tables::text).unwrap_or_default()
    }

    /// That there is more to say of the searches.
    fn counted(&self) -> String {
        let several = |count: usize, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{count} {many}")),
        };
        let searches = several(self.searches.len(), "search", "searches");
        let reasons = several(self.refused.len(), "reason", "reasons");
        let reasons = reasons.map(|reasons| format!("{reasons} for which candidates could not be built"));
        let all: Vec<String> = searches.into_iter().chain(reasons).collect();
        if all.is_empty() { String::new() } else { format!("\n`--why` tells of {}", all.join(", and ")) }
    }

    /// What each search over layouts found, what lines of the plan save, and why candidates could not be built.
    fn searched(&self) -> String {
        let mut text = String::new();
        let price = |cost: f64| match self.formula {
            CostModel::Cluster => seconds(cost),
            CostModel::Alpa => format!("{cost:.2} by Alpa's formula"),
        };
        for search in &self.searches {
            let gap =
                100.0 * (search.cost_s - search.bound_s).max(0.0) / search.cost_s.max(f64::MIN_POSITIVE);
            let layers = search.layers.map(|layers| format!(", {layers} layers")).unwrap_or_default();
            let _ = write!(
                text,
                "\nsearch on {}{layers}: the layouts found, {} choices, add up to {}; no others add up to {gap:.2} % less",
                search.mesh,
                search.variables,
                price(search.cost_s)
            );
            if let Some(built_s) = search.built_s.filter(|_| self.formula == CostModel::Cluster) {
                let _ = write!(text, "\n  the best plan built from them adds up to {}", seconds(built_s));
            }
            for (line, cost) in &search.without {
                let _ = match cost {
                    Some(cost) => write!(text, "\n  without {line}: {} more", price(cost - search.cost_s)),
                    None => write!(text, "\n  without {line}: no layouts"),
                };
            }
        }
        if !self.searches.is_empty() {
            text += "\na search adds up the times of all ops and collectives, as if none ran beside another. The plan built from it is \
                     added up too, but as it was built: with what fsdp shards and with layouts that propagation adds, so the sum \
                     may be larger or smaller. Rows of the table are simulated: ops are fused and collectives overlap with them, \
                     so they take less, and their order may differ";
        }
        for (why, places) in &self.refused {
            let more =
                if places.len() > 3 { format!(" and {} more", places.len() - 3) } else { String::new() };
            let _ = write!(text, "\nrefused: {why} ({}{more})", places[..places.len().min(3)].join("; "));
        }
        text
    }
}

impl Row {
    fn cells(&self, best: &Row) -> Vec<String> {
        let are_alike = self.slices.iter().all(|slice| *slice == self.slices[0]);
        let stage = |(number, (first, last)): (usize, &(String, String))| {
            let blocks = match (first.is_empty(), first == last) {
                (true, _) => "-".to_string(),
                (_, true) => first.clone(),
                _ => format!("{first}-{last}"),
            };
            match self.slices.get(number).filter(|_| !are_alike) {
                Some(slice) => format!("{blocks} on {slice}"),
                None => blocks,
            }
        };
        let stages = match &self.stages[..] {
            few if few.len() <= MOST_NAMED => {
                few.iter().enumerate().map(stage).collect::<Vec<_>>().join(" | ")
            }
            many => format!("{} stages", many.len()),
        };
        let against = match (&self.idle, self.fits) {
            (_, false) => "too large".to_string(),
            (Some(axis), _) => format!("{axis} shares no work"),
            _ => format!("{:.2} x", self.step_s / best.step_s.max(f64::MIN_POSITIVE)),
        };
        vec![
            self.mesh.clone(),
            self.source.clone(),
            self.microbatches.to_string(),
            stages,
            seconds(self.step_s),
            bytes(self.bytes),
            against,
        ]
    }
}
