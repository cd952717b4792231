//! `partita lower`: what a step becomes, stage by stage, and how often its ranks meet.

use crate::cli::Stage;
use crate::compile::{self, Build, Planned};
use crate::config::Config;
use crate::output::format::{bytes, table};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, Graph, ValueId, text};
use partita_program::{Counts, PhaseCounts, ProgramSet, RegionSizes};
use partita_spmd::{Cause, Partitioned};
use serde::Serialize;

/// What is lowered beside what the config says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LowerRequest {
    /// Whether the step also returns the gradient with respect to the first real input.
    pub input_gradient: bool,
}

/// The planned step of a config.
pub fn plan(config: &Config, request: LowerRequest) -> Result<Planned> {
    let mesh = compile::mesh(config)?;
    let build = Build { input_gradient: request.input_gradient, ..Build::from_config(config) };
    let model = compile::model(config, &build)?;
    compile::plan_step(config, &model, &mesh, &build)
}

/// The programs of all ranks of a config's step.
pub fn programs(config: &Config, request: LowerRequest, sizes: &dyn RegionSizes) -> Result<ProgramSet> {
    compile::lower(&plan(config, request)?, sizes)
}

/// How often ranks meet in a step of `config`, after bucketing and before.
pub fn counts(config: &Config, request: LowerRequest, sizes: &dyn RegionSizes) -> Result<Counts> {
    Ok(partita_program::counts(&programs(config, request, sizes)?))
}

/// A step at a stage as text; `rank` says whose, where ranks differ. E014 for a rank that is not there.
pub fn stage(
    config: &Config,
    stage: Stage,
    rank: usize,
    request: LowerRequest,
    sizes: &dyn RegionSizes,
) -> Result<String> {
    let planned = plan(config, request)?;
    if rank >= planned.locals.len() {
        return Err(Diagnostic::new("E014", format!("there is no rank {rank}"))
            .at("--rank")
            .expected(format!("below {}, the ranks of {}", planned.locals.len(), planned.partitioned.mesh)));
    }
    Ok(match stage {
        Stage::Global => text::print(&planned.step),
        Stage::Sharded => text::print(&with_layouts(&planned.partitioned)),
        Stage::Local => text::print(&planned.locals[rank]),
        Stage::Program => compile::lower(&planned, sizes)?.display(rank).to_string(),
    })
}

/// The global graph with the layout of every value as its annotation, and the cause as the annotation's origin.
pub fn with_layouts(partitioned: &Partitioned) -> Graph {
    let mut graph = partitioned.graph.clone();
    let mesh = graph.meshes.iter().position(|m| *m == partitioned.mesh).unwrap_or_else(|| {
        graph.meshes.push(partitioned.mesh.clone());
        graph.meshes.len() - 1
    });
    for value in partitioned.graph.value_ids() {
        let sharding = partitioned.layouts.sharding(value).clone();
        let open = vec![false; sharding.dims.len()];
        let origin = origin(partitioned, value);
        graph.value_mut(value).annotation =
            Some(Annotation { mesh, sharding, open, replicated: vec![], origin });
    }
    graph
}

/// Why a value lies where it lies; empty where nothing cuts it.
pub fn origin(partitioned: &Partitioned, value: ValueId) -> String {
    let graph = &partitioned.graph;
    let mut causes: Vec<String> = Vec::new();
    for cause in partitioned.layouts.causes[value.index()].iter().flatten() {
        let text = match cause {
            Cause::Pinned(who) => who.clone(),
            Cause::Through { from, .. } => format!("from {}", graph.describe(*from)),
            Cause::GradientOf(of) => format!("gradient of {}", graph.describe(*of)),
            Cause::Alias(other) => format!("replaces or is replaced by {}", graph.describe(*other)),
        };
        if !causes.contains(&text) {
            causes.push(text);
        }
    }
    causes.join("; ")
}

/// Collectives of one part of a step by kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`,
/// `collective_permute`, `collective_broadcast`, `send`.
pub type Kinds = IndexMap<&'static str, usize>;

/// One figure for each part of a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ByPhase<T> {
    /// The model and its loss.
    pub forward: T,
    /// Gradients.
    pub backward: T,
    /// Clipping and the optimizer.
    pub update: T,
}

/// The `counts` event: meetings of ranks after bucketing, with the figures before it under `logical`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CountsEvent {
    /// Meetings by part and kind.
    #[serde(flatten)]
    pub counts: ByPhase<Kinds>,
    /// Bytes of the full tensors that one rank takes part with.
    pub bytes: ByPhase<usize>,
    /// Collectives before neighbours were joined into one.
    pub logical: ByPhase<Kinds>,
}

impl From<&Counts> for CountsEvent {
    fn from(counts: &Counts) -> CountsEvent {
        fn by_phase<T>(counts: &Counts, of: impl Fn(&PhaseCounts) -> T) -> ByPhase<T> {
            ByPhase {
                forward: of(&counts.forward),
                backward: of(&counts.backward),
                update: of(&counts.update),
            }
        }
        CountsEvent {
            counts: by_phase(counts, |phase| phase.kinds.iter().map(|(&k, c)| (k, c.count)).collect()),
            bytes: by_phase(counts, |phase| phase.total().bytes),
            logical: by_phase(counts, |phase| phase.kinds.iter().map(|(&k, c)| (k, c.logical)).collect()),
        }
    }
}

/// [`CountsEvent`] as one JSON object, `"event": "counts"` included.
pub fn counts_json(counts: &Counts) -> serde_json::Value {
    let mut value = serde_json::to_value(CountsEvent::from(counts)).expect("plain structs have a JSON form");
    value["event"] = "counts".into();
    value
}

/// Counts as a table: `2 (6)` is 2 meetings that carry 6 tensors.
pub fn counts_table(counts: &Counts) -> String {
    let phases = counts.phases();
    let used = |kind: &&&str| {
        **kind == "all_reduce" || phases.iter().any(|(_, phase)| phase.kinds[**kind].count > 0)
    };
    let kinds: Vec<&str> = counts.forward.kinds.keys().filter(used).copied().collect();
    let mut header = vec![""];
    header.extend(&kinds);
    header.push("bytes");
    let cell = |phase: &PhaseCounts, kind: &str| match phase.kinds[kind] {
        of if of.count == 0 => "-".to_string(),
        of if of.count == of.logical => of.count.to_string(),
        of => format!("{} ({})", of.count, of.logical),
    };
    let row = |(name, phase): &(&'static str, &PhaseCounts)| {
        let mut row = vec![name.to_string()];
        row.extend(kinds.iter().map(|kind| cell(phase, kind)));
        row.push(bytes(phase.total().bytes as u64));
        row
    };
    let rows: Vec<Vec<String>> = phases.iter().map(row).collect();
    table(&header, &rows) + "collectives of a rank in one step; in parentheses: before they were joined\n"
}
