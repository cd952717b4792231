//! Lines that candidates have beside what a search over layouts finds: what `ep` and `fsdp` shard, what is in host memory,
//! where stages end.

use super::{blocks, slices};
use crate::predict::fold::states;
use crate::session::Session;
use partita_base::Result;
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_schedule::{Entry, Kind, Plan, Primitive, ReadyOptions};

/// Lines for what the axis `ep` of a session's mesh shards, which no search over layouts chooses: those of the ready plan.
pub(super) fn expert_lines(session: &Session) -> Result<Plan> {
    let Some(axis) = session.mesh().axis_named("ep").filter(|axis| axis.size > 1) else {
        return Ok(Plan::default());
    };
    let (config, alone) = (session.config(), Mesh::new("mesh", &[("ep", axis.size)]));
    let forward = config.model.build(1, config.train.dtype, true)?.forward;
    let ready = config.model.plan(&forward, &alone, &ReadyOptions::default())?;
    let is_of_experts = |entry: &&Entry| match &entry.primitive {
        Primitive::Style(style) => style.kind == Kind::Dispatch || style.axis.as_deref() == Some("ep"),
        _ => false,
    };
    Ok(Plan { entries: ready.entries.iter().filter(is_of_experts).cloned().collect() })
}

/// Lines for what an axis `fsdp` shards, which no search over layouts chooses.
pub(super) fn storage(mesh: &Mesh) -> Result<Plan> {
    let mut plan = Plan::default();
    if mesh.axis_named("fsdp").is_some_and(|axis| axis.size > 1) {
        plan.add("**", "fsdp", "planner")?;
    }
    Ok(plan)
}

/// A plan whose optimizer states are in host memory, and what it is called; none if the optimizer has none, or the plan
/// says where they are.
pub(super) fn offloaded(
    session: &Session,
    source: &'static str,
    plan: &Plan,
) -> Result<Option<(&'static str, Plan)>> {
    let is_said = plan.entries.iter().any(|entry| matches!(entry.primitive, Primitive::Offload { .. }));
    if is_said || states(&session.config().step.optimizer) == 0.0 {
        return Ok(None);
    }
    let source = match source {
        "planner" => "planner, offload",
        "ready plan" => "ready plan, offload",
        "ready plan, vocab-parallel" => "ready plan, vocab-parallel, offload",
        slices::SOURCE => "planner, slices, offload",
        _ => "given lines, offload",
    };
    let mut plan = plan.clone();
    plan.add("**", "offload(optimizer)", "planner")?;
    Ok(Some((source, plan)))
}

/// Patterns of the numbered blocks of a model, which may be recomputed.
pub(crate) fn recomputed(forward: &Graph) -> Vec<String> {
    blocks::patterns(&blocks::blocks(forward))
}

/// A plan without the ends of stages that a search found.
pub(super) fn without_splits(plan: &Plan) -> Plan {
    let is_own_split = |entry: &Entry| entry.origin == "planner" && entry.primitive.ends_stage();
    Plan { entries: plan.entries.iter().filter(|entry| !is_own_split(entry)).cloned().collect() }
}

/// A plan with more lines behind it.
pub(super) fn with(plan: &Plan, more: &Plan) -> Plan {
    let is_new = |entry: &&Entry| !plan.entries.contains(*entry);
    let more = more.entries.iter().filter(is_new).cloned();
    Plan { entries: plan.entries.iter().cloned().chain(more).collect() }
}
