//! `partita plan`: finds a plan by search, and says what it costs and why others lost.

use crate::cli::PlanArgs;
use crate::files::write_new;
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, table};
use crate::run::answer;
use partita::auto_plan::{AutoPlan, Candidate, Freedom, meshes};
use partita::session::Session;
use partita_base::Result;
use partita_mesh::Mesh;
use serde::Serialize;
use std::fmt::Write;

/// The stages of a pipeline that are tried at most.
const MOST_STAGES: usize = 64;

/// A plan that was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Found {
    /// The cluster whose figures are used.
    pub cluster: String,
    /// The candidates, the chosen one first.
    pub candidates: Vec<Row>,
    /// The searches over layouts.
    pub searches: Vec<Search>,
    /// Candidates that could not be built, with the reason.
    pub refused: Vec<String>,
    /// Seconds of writing the steps, of listing and pricing choices, of solving, of building and pricing the plans.
    pub tracing_s: f64,
    /// See `tracing_s`.
    pub enumerating_s: f64,
    /// See `tracing_s`.
    pub solving_s: f64,
    /// See `tracing_s`.
    pub checking_s: f64,
    /// The chosen plan as `[plan]` in TOML.
    pub plan: String,
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
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Bytes of the fullest rank, where they were computed.
    pub bytes: Option<usize>,
}

/// A search over layouts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Search {
    /// The mesh of a stage.
    pub mesh: String,
    /// Variables of the problem.
    pub variables: usize,
    /// The cost of the layouts found, in seconds.
    pub cost_s: f64,
    /// No layouts cost less.
    pub bound_s: f64,
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
pub fn plan(args: &PlanArgs, session: &Session, output: &mut Output) -> Result<()> {
    let model = session.model()?;
    let tried: Vec<Mesh> = match args.devices {
        Some(devices) => meshes(devices as usize, MOST_STAGES, session.config().train.batch),
        None => vec![session.mesh().clone()],
    };
    let freedom = Freedom { microbatches: args.devices.is_some(), explain: args.why };
    let found = output.during("searching plans", || session.auto_plan_over(&model, &tried, freedom))?;
    if let Some(path) = &args.out {
        let Candidate { mesh, microbatches, plan, .. } = &found.best;
        let text = format!("mesh = \"{mesh}\"\nmicrobatches = {microbatches}\n\n{}", plan.to_toml());
        write_new(path, "the plan", "--out", |file| file.write_all(text.as_bytes()))?;
    }
    answer(&Found::of(session, &found), Found::text, output);
    Ok(())
}

impl Found {
    fn of(session: &Session, found: &AutoPlan) -> Found {
        let row = |candidate: &Candidate| Row {
            mesh: candidate.mesh.to_string(),
            source: candidate.source.to_string(),
            microbatches: candidate.microbatches,
            stages: candidate.stages.clone(),
            step_s: candidate.step_s,
            bytes: candidate.bytes,
        };
        let search = |search: &partita::auto_plan::Searched| Search {
            mesh: search.mesh.to_string(),
            variables: search.variables,
            cost_s: search.cost_s,
            bound_s: search.bound_s,
            without: search
                .without
                .iter()
                .map(|(line, cost)| (line.clone(), Some(*cost).filter(|c| c.is_finite())))
                .collect(),
        };
        Found {
            cluster: session.config().cluster.name.clone(),
            candidates: [&found.best].into_iter().chain(&found.others).map(row).collect(),
            searches: found.searched.iter().map(search).collect(),
            refused: found
                .refused
                .iter()
                .map(|(mesh, source, why)| format!("{mesh}, {source}: {why}"))
                .collect(),
            tracing_s: found.time.tracing.as_secs_f64(),
            enumerating_s: found.time.enumerating.as_secs_f64(),
            solving_s: found.time.solving.as_secs_f64(),
            checking_s: found.time.checking.as_secs_f64(),
            plan: found.best.plan.to_dict_toml(),
        }
    }

    fn text(&self) -> String {
        let best = &self.candidates[0];
        let mut text = format!(
            "mesh {} with {} microbatch{}: a step takes {} on cluster {} (predicted), {} on the fullest rank\n\n",
            best.mesh,
            best.microbatches,
            if best.microbatches == 1 { "" } else { "es" },
            seconds(best.step_s),
            self.cluster,
            best.bytes.map_or("?".to_string(), |count| bytes(count as u64)),
        );
        let rows: Vec<Vec<String>> = self.candidates.iter().map(|row| row.cells(best)).collect();
        text += &table(&["mesh", "plan", "microbatches", "stages", "step", "to the best"], &rows);
        for search in &self.searches {
            let gap =
                100.0 * (search.cost_s - search.bound_s).max(0.0) / search.cost_s.max(f64::MIN_POSITIVE);
            let _ = write!(
                text,
                "\nsearch on {}: {} choices cost {}, at most {gap:.2} % above the best",
                search.mesh,
                search.variables,
                seconds(search.cost_s)
            );
            for (line, cost) in &search.without {
                let _ = match cost {
                    Some(cost) => write!(text, "\n  without {line}: {} more", seconds(cost - search.cost_s)),
                    None => write!(text, "\n  without {line}: no layouts"),
                };
            }
        }
        for refused in &self.refused {
            let _ = write!(text, "\nrefused: {refused}");
        }
        let _ = write!(
            text,
            "\ntime: tracing {}, enumerating {}, solving {}, checking {}\n\n{}",
            seconds(self.tracing_s),
            seconds(self.enumerating_s),
            seconds(self.solving_s),
            seconds(self.checking_s),
            if self.plan.trim().is_empty() {
                "[plan]\n# no lines: only the batch is sharded\n"
            } else {
                &self.plan
            },
        );
        text
    }
}

impl Row {
    fn cells(&self, best: &Row) -> Vec<String> {
        let stage = |(first, last): &(String, String)| match (first.is_empty(), first == last) {
            (true, _) => "-".to_string(),
            (_, true) => first.clone(),
            _ => format!("{first}-{last}"),
        };
        vec![
            self.mesh.clone(),
            self.source.clone(),
            self.microbatches.to_string(),
            self.stages.iter().map(stage).collect::<Vec<_>>().join(" | "),
            seconds(self.step_s),
            format!("{:.2} x", self.step_s / best.step_s.max(f64::MIN_POSITIVE)),
        ]
    }
}

/// A time with three digits.
fn seconds(value: f64) -> String {
    match value.abs() {
        v if v >= 1.0 => format!("{value:.2} s"),
        v if v >= 1e-3 => format!("{:.2} ms", value * 1e3),
        _ => format!("{:.2} us", value * 1e6),
    }
}
