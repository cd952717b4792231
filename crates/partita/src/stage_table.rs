//! The stages of a pipeline for people and tools: which slice of the mesh runs them, what it holds and computes, and why
//! each stage ends where it does.

use partita_ir::{Graph, Node, Operation, Phase, Role};
use partita_pipeline::mark::has_repeated_blocks;
use partita_schedule::{Built, Primitive, Stage};
use serde::Serialize;

/// What one slice of the mesh runs in a pipeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageRow {
    /// The number of the slice, which is that of its stage if every slice runs one.
    pub stage: usize,
    /// The stages of the model that it runs.
    pub stages: Vec<usize>,
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
    /// Activations that it holds at most: pairs of a stage and a microbatch whose forward pass is done and whose
    /// backward pass is not.
    pub in_flight: usize,
    /// Why the model is cut after its stages; empty for the last stage.
    pub because: String,
}

/// The slices of a pipeline with their stages; empty without a pipeline.
pub fn stage_table(built: &Built) -> Vec<StageRow> {
    let Some(timetable) = &built.timetable else { return Vec::new() };
    let slice_of_stage = timetable.slice_of_stage();
    let row = |(number, stage): (usize, &Stage)| {
        let graph = &stage.partitioned.graph;
        let parameters = || graph.inputs.iter().filter(|&&value| graph.value(value).role == Role::Param);
        let forward = graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
        let stages: Vec<usize> = (0..timetable.stages).filter(|&s| slice_of_stage[s] == number).collect();
        let mut because: Vec<String> = Vec::new();
        for line in stages.iter().filter_map(|&stage| because_of(built, stage)) {
            if !because.contains(&line) {
                because.push(line);
            }
        }
        StageRow {
            stage: number,
            mesh: stage.partitioned.mesh.to_string(),
            ranks: stage.ranks.clone(),
            modules: modules(parameters().map(|&value| graph.value(value).name.as_str())),
            parameters: parameters().map(|&value| graph.ty(value).element_count()).sum(),
            forward_flops: forward.map(|node| flops(graph, node)).sum(),
            in_flight: timetable.peak(number),
            because: because.join("; "),
            stages,
        }
    };
    built.stages.iter().enumerate().map(row).collect()
}

/// What a listing calls the parts of a pipeline: stages, or slices of the mesh if these run several stages each.
pub fn part_name(built: &Built) -> &'static str {
    let stages = built.timetable.as_ref().map_or(1, |timetable| timetable.stages);
    if stages > built.stages.len() { "slice" } else { "stage" }
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

/// The line of the plan, or the rule, that ends a stage; `None` for the last one.
fn because_of(built: &Built, stage: usize) -> Option<String> {
    let line = built.ending_lines.get(stage)?;
    if !line.is_empty() {
        return Some(line.clone());
    }
    let is_layers = |entry: &&partita_schedule::Entry| matches!(entry.primitive, Primitive::Layers { .. });
    if let Some(layers) = built.plan.entries.iter().find(is_layers) {
        return Some(layers.describe());
    }
    let chosen = "chosen automatically";
    if has_repeated_blocks(&built.step) {
        return Some(format!("{chosen}: blocks split so that stages have similar forward FLOPs"));
    }
    let mut forward = built.step.nodes.iter().filter(|node| node.phase == Phase::Forward);
    let own = forward.rfind(|node| node.stage == stage && !node.path.is_empty());
    let after = own.map_or(String::new(), |node| format!(" after `{}`", node.path));
    let stages = built.ending_lines.len() + 1;
    Some(format!(
        "{chosen}{after}: no blocks repeat, so the model is cut where stages have similar forward FLOPs; `\"\" = \
         \"layers({stages})\"` in the plan cuts where the fewest bytes cross"
    ))
}
