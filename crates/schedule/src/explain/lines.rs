//! The effect of each plan line on a step.

use super::Explain;
use crate::build::Built;
use crate::modules::{Modules, matches_around};
use crate::primitive::{FORK_RNG_NOTE, PIPELINE_NOTE, Primitive};
use crate::style::LOCAL_NOTE;
use partita_ir::{Graph, Op, Phase, Role, ValueId};
use serde::Serialize;
use std::collections::BTreeSet;

/// A plan line and its effect. Counts cover the whole step, over all modules that the line matches.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Line {
    /// The line: `"layers.*.mlp" = "colwise"`.
    pub line: String,
    /// The source: a file with line number, or a built-in plan.
    pub origin: String,
    /// Modules that it matches.
    pub modules: usize,
    /// Parameters whose layout it sets.
    pub parameters: usize,
    /// Optimizer states whose layout it sets.
    pub states: usize,
    /// Gradients whose layout it sets.
    pub gradients: usize,
    /// Activations whose layout it sets.
    pub activations: usize,
    /// Operands that read a value in a layout it sets.
    pub reads: usize,
    /// Bytes on a rank that are recomputed in the backward pass instead of being stored: the most of any stage.
    pub recomputed_bytes: usize,
    /// Composites of the model that it created.
    pub composites: usize,
    /// Pipeline stages that end because of it.
    pub stages: usize,
    /// Parameters that it annotates.
    pub annotations: usize,
    /// A note for the user.
    pub note: Option<String>,
}

/// The effect of each plan line of a step, in order. `forward` is the model after its structural lines.
pub fn lines(built: &Built, forward: &Graph) -> Vec<Line> {
    let modules = Modules::of(&built.step);
    // What a stage receives is laid out where it is computed.
    let mut pins: Vec<(&str, Role)> = Vec::new();
    let mut constraints: Vec<&str> = Vec::new();
    for stage in &built.stages {
        let graph = &stage.partitioned.graph;
        let received: BTreeSet<ValueId> =
            stage.received().into_iter().map(|(position, _)| graph.inputs[position]).collect();
        let own = graph.value_ids().filter(|value| !received.contains(value)).map(|v| graph.value(v));
        pins.extend(own.filter_map(|v| Some((v.annotation.as_ref()?.origin.as_str(), v.role.clone()))));
        constraints.extend(graph.nodes.iter().filter_map(|n| Some(n.op.constraint()?.origin.as_str())));
    }
    let composites = |name: &str| {
        let named = |op: &Op| matches!(op, Op::Composite(c) if c.definition.name == name);
        forward.nodes.iter().filter(|node| named(&node.op)).count()
    };
    let kept: Vec<Vec<Recomputed>> =
        (0..built.stages.len()).map(|stage| recomputed(&Explain::new(built, stage))).collect();
    let most_kept = |is_meant: &dyn Fn(&Recomputed) -> bool| {
        let of_stage = |kept: &Vec<Recomputed>| kept.iter().filter(|r| is_meant(r)).map(|r| r.bytes).sum();
        kept.iter().map(of_stage).max().unwrap_or(0)
    };
    let of = |entry: &crate::plan::Entry| {
        let described = entry.describe();
        let inside = |path: &str| entry.modules.is_empty() || matches_around(&entry.modules, path);
        let mut line = Line {
            line: entry.line(),
            origin: entry.origin.clone(),
            modules: modules.named(entry.scope(), &described).map_or(0, |modules| modules.len()),
            reads: constraints.iter().filter(|origin| origin.contains(&described)).count(),
            ..Line::default()
        };
        for (_, role) in pins.iter().filter(|(origin, _)| origin.contains(&described)) {
            match role {
                Role::Param => line.parameters += 1,
                Role::StateOf(_) => line.states += 1,
                Role::GradOf(_) => line.gradients += 1,
                Role::Activation | Role::Input | Role::RematOf(_) => line.activations += 1,
            }
        }
        match &entry.primitive {
            Primitive::Checkpoint { .. } => {
                let is_meant = |r: &Recomputed| entry.stage.is_none_or(|s| s == r.stage) && inside(&r.module);
                line.recomputed_bytes = most_kept(&is_meant);
            }
            Primitive::Fuse { name, .. } => line.composites = composites(name),
            Primitive::Replace { with, .. } | Primitive::ReplaceAll { with, .. } => {
                line.composites = composites(with)
            }
            Primitive::PipelineSplit { .. } => {
                line.stages = line.modules;
                line.note = (built.stages.len() == 1).then(|| PIPELINE_NOTE.to_string());
            }
            Primitive::Layers { remat: true, .. } => {
                line.recomputed_bytes = most_kept(&|_| true);
            }
            Primitive::Annotate { .. } => line.annotations = line.modules,
            Primitive::ForkRng => line.note = Some(FORK_RNG_NOTE.to_string()),
            Primitive::Style(style) => line.note = style.local.map(|_| LOCAL_NOTE.to_string()),
            Primitive::Shard { .. }
            | Primitive::Sync { .. }
            | Primitive::Layers { remat: false, .. }
            | Primitive::Decompose
            | Primitive::Trace { .. }
            | Primitive::Precision { .. }
            | Primitive::Offload { .. } => {}
        }
        line
    };
    built.plan.entries.iter().map(of).collect()
}

/// A value that the backward pass recomputes.
struct Recomputed {
    module: String,
    /// The stage of the model that computes it.
    stage: usize,
    /// Its bytes on a rank, which would be stored from the forward pass on.
    bytes: usize,
}

/// What the first rank of a stage recomputes.
fn recomputed(explain: &Explain) -> Vec<Recomputed> {
    let graph = explain.graph;
    let again = |v: &ValueId| matches!(graph.value(*v).role, Role::RematOf(_));
    let is_read = |v: &ValueId| {
        explain.modules.uses(*v).iter().any(|(id, _)| {
            let node = graph.node(*id);
            node.phase != Phase::Forward && !node.results.iter().any(again)
        })
    };
    let bytes = |v: ValueId| {
        let ty = graph.ty(v);
        ty.with_shape(explain.layout(v).local_shape(explain.mesh, &ty.shape, 0)).bytes()
    };
    let of = |v: ValueId| {
        let (node, _) = graph.value(v).definition?;
        let node = graph.node(node);
        Some(Recomputed { module: node.path.clone(), stage: node.stage, bytes: bytes(v) })
    };
    graph.value_ids().filter(|v| again(v) && is_read(v)).filter_map(of).collect()
}
