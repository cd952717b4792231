//! `partita lower`: what a step becomes, stage by stage, and how often its ranks meet.

use crate::cli::Stage;
use crate::compile::{self, Build};
use crate::config::Config;
use crate::output::events::{Bucket, Overlaps};
use partita_base::{Diagnostic, Result};
use partita_ir::{Annotation, Graph, ValueId, text};
use partita_program::{Counts, Fusion, LowerOptions, Overlap, ProgramSet, RegionSizes, gradient_overlap};
use partita_schedule::Built;
use partita_spmd::{Cause, Partitioned};

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
pub fn programs(config: &Config, request: LowerRequest, sizes: &dyn RegionSizes) -> Result<ProgramSet> {
    compile::lower(&plan(config, request)?, sizes)
}

/// How often ranks meet in a step of `config`, after bucketing and before.
pub fn counts(config: &Config, request: LowerRequest, sizes: &dyn RegionSizes) -> Result<Counts> {
    Ok(partita_program::counts(&programs(config, request, sizes)?))
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
pub fn fusion(planned: &Built, sizes: &dyn RegionSizes) -> Result<Fusion> {
    partita_program::fusion(&planned.classes, &LowerOptions::default(), sizes)
}

/// A planned step at a stage as text; `rank` says whose, where ranks differ. E014 for a rank that is not there.
pub fn stage(planned: &Built, stage: Stage, rank: usize, sizes: &dyn RegionSizes) -> Result<String> {
    check_rank(rank, planned.partitioned.mesh.rank_count())?;
    Ok(match stage {
        Stage::Global => text::print(&planned.step),
        Stage::Sharded => text::print(&with_layouts(&planned.partitioned)),
        Stage::Local => text::print(&planned.local(rank)?),
        Stage::Program => compile::lower(planned, sizes)?.display(rank).to_string(),
    })
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
            Cause::RematOf(of) => format!("{} computed again", graph.describe(*of)),
            Cause::Alias(other) => format!("replaces or is replaced by {}", graph.describe(*other)),
        };
        if !causes.contains(&text) {
            causes.push(text);
        }
    }
    causes.join("; ")
}
