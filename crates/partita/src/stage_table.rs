//! The stages of a pipeline for people and tools: where each begins and ends, what it holds and computes, and why it ends
//! there.

use partita_ir::{Graph, Node, Operation, Phase, Role};
use partita_schedule::{Built, Primitive, Stage};
use serde::Serialize;

/// What one slice of the mesh runs in a pipeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageRow {
    /// Its number: the slices in the order of the pipeline.
    pub stage: usize,
    /// The mesh of the slice.
    pub mesh: String,
    /// The ranks of the slice.
    pub ranks: Vec<usize>,
    /// The modules whose parameters it holds, in the order of the model: the first two components of their paths.
    pub modules: Vec<String>,
    /// Elements of the parameters, over all ranks of the slice.
    pub parameters: usize,
    /// Floating-point operations of the forward pass of a step, over all ranks of the slice.
    pub forward_flops: f64,
    /// Microbatches whose forward pass is done and whose backward pass is not, at most.
    pub in_flight: usize,
    /// Why the model is cut after it; empty for the last stage.
    pub because: String,
}

/// The stages of a step; empty without a pipeline.
pub fn stage_table(built: &Built) -> Vec<StageRow> {
    let Some(timetable) = &built.timetable else { return Vec::new() };
    let because = because(built);
    let row = |(number, stage): (usize, &Stage)| {
        let graph = &stage.partitioned.graph;
        let parameters = || graph.inputs.iter().filter(|&&value| graph.value(value).role == Role::Param);
        let forward = graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
        StageRow {
            stage: number,
            mesh: stage.partitioned.mesh.to_string(),
            ranks: stage.ranks.clone(),
            modules: modules(parameters().map(|&value| graph.value(value).name.as_str())),
            parameters: parameters().map(|&value| graph.ty(value).element_count()).sum(),
            forward_flops: forward.map(|node| flops(graph, node)).sum(),
            in_flight: timetable.peak(number),
            because: if number + 1 < built.stages.len() { because.clone() } else { String::new() },
        }
    };
    built.stages.iter().enumerate().map(row).collect()
}

fn flops(graph: &Graph, node: &Node) -> f64 {
    node.op.cost(&graph.operand_types(node), &graph.result_types(node)).flops
}

/// The modules that own parameters of these names, shortened to two components, each once.
fn modules<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut modules: Vec<String> = Vec::new();
    for name in names {
        let owner = name.rsplit_once('.').map_or(name, |(owner, _)| owner);
        let module = owner.split('.').take(2).collect::<Vec<_>>().join(".");
        if !modules.contains(&module) {
            modules.push(module);
        }
    }
    modules
}

/// The line of the plan, or the rule, that cuts the model.
fn because(built: &Built) -> String {
    let cuts = built.plan.entries.iter().filter(|entry| {
        matches!(entry.primitive, Primitive::PipelineSplit { .. } | Primitive::Layers { .. })
    });
    let lines: Vec<String> = cuts.map(|entry| entry.describe()).collect();
    match lines.is_empty() {
        true => "the default: blocks split so that stages have similar forward FLOPs".to_string(),
        false => lines.join("; "),
    }
}
