//! The effect of each plan line on a step.

use super::Explain;
use crate::modules::matches_around;
use crate::primitive::{FORK_RNG_NOTE, PIPELINE_NOTE, Primitive};
use crate::style::LOCAL_NOTE;
use partita_ir::{Graph, Op, Phase, Role, ValueId};
use serde::Serialize;

/// A plan line and its effect. Counts cover the whole step, over all modules that the line matches.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Line {
    /// The line: `"layers.*.mlp" = "colwise"`.
    pub line: String,
    /// The source: a file with line number, or a ready plan.
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
    /// Bytes on rank 0 that are recomputed in the backward pass instead of being stored.
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

pub(super) fn lines(explain: &Explain, forward: &Graph) -> Vec<Line> {
    let step = &explain.built.step;
    let pins: Vec<(&str, ValueId)> = step
        .value_ids()
        .filter_map(|v| Some((step.value(v).annotation.as_ref()?.origin.as_str(), v)))
        .collect();
    let constraints: Vec<&str> =
        step.nodes.iter().filter_map(|node| Some(node.op.constraint()?.origin.as_str())).collect();
    let composites = |name: &str| {
        let named = |op: &Op| matches!(op, Op::Composite(c) if c.definition.name == name);
        forward.nodes.iter().filter(|node| named(&node.op)).count()
    };
    let kept = recomputed(explain);
    let of = |entry: &crate::plan::Entry| {
        let described = entry.describe();
        let matched = |path: &str| entry.modules.is_empty() || crate::matches(&entry.modules, path);
        let inside = |path: &str| entry.modules.is_empty() || matches_around(&entry.modules, path);
        let mut line = Line {
            line: format!("\"{}\" = \"{}\"", entry.modules, entry.primitive),
            origin: entry.origin.clone(),
            modules: match entry.modules.as_str() {
                "" => 1,
                _ => explain.modules.paths.iter().filter(|path| matched(path)).count(),
            },
            reads: constraints.iter().filter(|origin| origin.contains(&described)).count(),
            ..Line::default()
        };
        for (_, value) in pins.iter().filter(|(origin, _)| origin.contains(&described)) {
            match step.value(*value).role {
                Role::Param => line.parameters += 1,
                Role::StateOf(_) => line.states += 1,
                Role::GradOf(_) => line.gradients += 1,
                Role::Activation | Role::Input | Role::RematOf(_) => line.activations += 1,
            }
        }
        match &entry.primitive {
            Primitive::Checkpoint { .. } => {
                let within = kept.iter().filter(|(path, _)| inside(path));
                line.recomputed_bytes = within.map(|(_, bytes)| bytes).sum();
            }
            Primitive::Fuse { name, .. } => line.composites = composites(name),
            Primitive::Replace { with, .. } | Primitive::ReplaceAll { with, .. } => {
                line.composites = composites(with)
            }
            Primitive::PipelineSplit { .. } => {
                line.stages = line.modules;
                line.note = Some(PIPELINE_NOTE.to_string());
            }
            Primitive::Layers { remat: true, .. } => {
                line.recomputed_bytes = kept.iter().map(|(_, bytes)| bytes).sum();
            }
            Primitive::Annotate { .. } => line.annotations = line.modules,
            Primitive::ForkRng => line.note = Some(FORK_RNG_NOTE.to_string()),
            Primitive::Style(style) => line.note = style.local.map(|_| LOCAL_NOTE.to_string()),
            Primitive::Shard { .. }
            | Primitive::Sync { .. }
            | Primitive::Layers { remat: false, .. }
            | Primitive::Decompose
            | Primitive::Trace { .. }
            | Primitive::Precision { .. } => {}
        }
        line
    };
    explain.built.plan.entries.iter().map(of).collect()
}

/// For each value that the backward pass recomputes: its module, and its bytes on rank 0. Without
/// recomputation it would be stored from the forward pass.
fn recomputed(explain: &Explain) -> Vec<(String, usize)> {
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
    let path = |v: ValueId| graph.value(v).definition.map(|(node, _)| graph.node(node).path.clone());
    let values = graph.value_ids().filter(|v| again(v) && is_read(v));
    values.filter_map(|v| Some((path(v)?, bytes(v)))).collect()
}
