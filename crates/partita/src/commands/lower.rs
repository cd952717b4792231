//! `partita lower`: what a step becomes, stage by stage, and how often its ranks meet.

use crate::cli::Stage;
use crate::compile::{self, Build};
use crate::config::Config;
use crate::output::events::{Bucket, Overlaps};
use crate::play;
use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, Graph, ValueId, text};
use partita_mesh::Mesh;
use partita_program::{
    Counts, Fusion, LowerOptions, Lowering, Overlap, PASSES, Pass, ProgramSet, RegionTarget, find_pass,
    gradient_overlap, lower_stages_watched,
};
use partita_schedule::Built;
use partita_spmd::{Cause, Layouts, Partitioned};

/// What is lowered beside what the config says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LowerRequest {
    /// Whether the step also returns the gradient with respect to the first real input.
    pub input_gradient: bool,
}

/// The planned step of a config.
pub fn plan(config: &Config, request: LowerRequest) -> Result<Built> {
    let mesh = compile::mesh(config)?;
    let build = Build { input_gradient: request.input_gradient, ..Build::from_config(config) };
    let model = compile::model(config, &build)?;
    compile::plan_step(config, &model, &mesh, &build)
}

/// The programs of all ranks of a config's step.
pub fn programs(config: &Config, request: LowerRequest, target: &dyn RegionTarget) -> Result<ProgramSet> {
    compile::lower(&plan(config, request)?, target)
}

/// How often ranks meet in a step of `config`, after bucketing and before.
pub fn counts(config: &Config, request: LowerRequest, target: &dyn RegionTarget) -> Result<Counts> {
    Ok(partita_program::counts(&programs(config, request, target)?))
}

/// What a rank computes while its gradients are under way. E014 for a rank that is not there.
pub fn overlap(programs: &ProgramSet, rank: usize) -> Result<Overlaps> {
    check_rank(rank, programs.rank_count())?;
    let bucket = |overlap: Overlap| Bucket {
        kind: overlap.kind.name(),
        first: overlap.what,
        tensors: overlap.tensors as u64,
        bytes: overlap.bytes as u64,
        flops: overlap.flops,
    };
    Ok(Overlaps { rank, buckets: gradient_overlap(programs, rank).into_iter().map(bucket).collect() })
}

/// What fusion makes of a planned step, and what keeps elementwise ops apart.
pub fn fusion(planned: &Built, target: &dyn RegionTarget) -> Result<Fusion> {
    let of_stage = |stage: &partita_schedule::Stage| {
        partita_program::fusion(&stage.classes, &LowerOptions::default(), target)
    };
    let mut stages = planned.stages.iter().map(of_stage);
    let first = stages.next().expect("a step has a stage")?;
    stages.try_fold(first, |all, stage| Ok(all.with(stage?)))
}

/// A planned step at a stage as text; `rank` says whose, where ranks differ. E014 for a rank that is not there.
pub fn stage(planned: &Built, stage: Stage, rank: usize, target: &dyn RegionTarget) -> Result<String> {
    check_rank(rank, planned.mesh.rank_count())?;
    Ok(match stage {
        Stage::Global => text::print(&planned.step),
        Stage::Sharded => text::print(&with_layouts(&planned.stages[planned.place_of(rank)?.0].partitioned)),
        Stage::Local => text::print(&planned.local(rank)?),
        Stage::Program => compile::lower(planned, target)?.display(rank).to_string(),
    })
}

/// What the passes of lowering make of a rank's graph: after each of the named ones, or after all of them for `all`.
/// E400 for a pass that does not exist, E014 for a rank that does not.
pub fn after_passes(
    planned: &Built,
    names: &[String],
    rank: usize,
    target: &dyn RegionTarget,
) -> Result<String> {
    check_rank(rank, planned.mesh.rank_count())?;
    let is_all = names.iter().any(|name| name == "all");
    let wanted: Vec<usize> =
        names.iter().filter(|name| *name != "all").map(|name| find_pass(name)).collect::<Result<_>>()?;
    let (stage, rank) = planned.place_of(rank)?;
    let mut printed = String::new();
    let mut after = |number: usize, pass: &Pass, lowering: &Lowering| {
        let is_wanted = is_all || wanted.iter().any(|&wanted| PASSES[wanted].name == pass.name);
        if number == stage && is_wanted {
            printed +=
                &format!("// after {}: {}\n{}\n", pass.name, pass.about, lowering.print(rank).trim_end());
        }
    };
    lower_stages_watched(&play::stages(planned), &LowerOptions::default(), target, &mut after)?;
    Ok(printed)
}

fn check_rank(rank: usize, ranks: usize) -> Result<()> {
    if rank < ranks {
        return Ok(());
    }
    Err(Diagnostic::new("E014", format!("there is no rank {rank}"))
        .at("--rank")
        .expected(format!("below {ranks}, the ranks of the mesh")))
}

/// The global graph with the layout of every value as its annotation, and the cause as the annotation's origin.
pub fn with_layouts(partitioned: &Partitioned) -> Graph {
    annotated(&partitioned.graph, &partitioned.mesh, &partitioned.layouts)
}

/// A graph with the layout of every value as its annotation, and the cause as the annotation's origin.
pub fn annotated(source: &Graph, on: &Mesh, layouts: &Layouts) -> Graph {
    let mut graph = source.clone();
    let mesh = graph.meshes.iter().position(|mesh| mesh == on).unwrap_or_else(|| {
        graph.meshes.push(on.clone());
        graph.meshes.len() - 1
    });
    for value in source.value_ids() {
        let sharding = layouts.sharding(value).clone();
        let open = vec![false; sharding.dims.len()];
        let origin = origin(source, layouts, value);
        graph.value_mut(value).annotation =
            Some(Annotation { mesh, sharding, open, replicated: vec![], origin });
    }
    graph
}

/// Why a value lies where it lies; empty where nothing cuts it.
pub fn origin(graph: &Graph, layouts: &Layouts, value: ValueId) -> String {
    let mut causes: Vec<String> = Vec::new();
    for cause in layouts.causes[value.index()].iter().flatten() {
        let text = match cause {
            Cause::Pinned(who) => who.clone(),
            Cause::Through { from, .. } => format!("from {}", graph.describe(*from)),
            Cause::GradientOf(of) => format!("gradient of {}", graph.describe(*of)),
            Cause::RematOf(of) => format!("{} computed again", graph.describe(*of)),
            Cause::Alias(other) => format!("replaces or is replaced by {}", graph.describe(*other)),
        };
        if !causes.contains(&text) {
            causes.push(text);
        }
    }
    causes.join("; ")
}
