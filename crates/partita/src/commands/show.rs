//! `partita show`: the model, where it lives on the mesh, its plan, and what memory each rank needs.

use crate::cli::PlanForm;
use crate::commands::lower::{LowerRequest, plan};
use crate::compile::{self, Build};
use crate::config::Config;
use crate::output::format::{bytes, table};
use partita_base::Result;
use partita_ir::Role;
use partita_mesh::rank_list;
use partita_program::{BufferKind, ProgramSet, RegionTarget};
use partita_schedule::{Built, Plan, Stage};
use std::fmt::Write;

/// A plan in a form that `--plan` reads back.
pub fn plan_text(plan: &Plan, form: PlanForm) -> String {
    match form {
        PlanForm::Calls => plan.to_calls(),
        PlanForm::Dict => plan.to_dict_toml(),
        PlanForm::Toml => plan.to_toml(),
    }
}

/// The plan of a config alone, as text.
pub fn plan_of(config: &Config, form: PlanForm) -> Result<String> {
    Ok(plan_text(&plan(config, LowerRequest::default())?.plan, form))
}

/// Everything: mesh, parameters and their layouts, plan, memory by rank, notes.
pub fn show(config: &Config, target: &dyn RegionTarget) -> Result<String> {
    let varied = Build::from_config(config);
    let (mesh, model) = (compile::mesh(config)?, compile::model(config, &varied)?);
    let planned = compile::plan_step(config, &model, &mesh, &varied)?;
    let set = compile::lower(&planned, target)?;
    let mut text = format!("model {} on mesh {mesh} ({} ranks)\n\n", config.model.name(), mesh.rank_count());
    text += &parameters(&planned);
    let lines = planned.plan.to_dict_toml();
    let nothing = "[plan]\n# no lines: only the batch is cut\n";
    let _ = write!(text, "\n{}\n", if planned.plan.entries.is_empty() { nothing } else { &lines });
    text += &memory_table(&set);
    let notes = compile::notes(config, &model, &planned, &varied);
    for note in &notes {
        let _ = write!(text, "\nnote: {note}");
    }
    if !notes.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

/// The parameters as a tree of modules: global shape, layout, the shapes ranks hold, bytes of the largest.
pub fn parameters(planned: &Built) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let (mut elements, mut most_bytes) = (0, vec![0; planned.mesh.rank_count()]);
    for (stage, position) in parameters_in_order(planned) {
        let partitioned = &stage.partitioned;
        let (graph, mesh) = (&partitioned.graph, &partitioned.mesh);
        let value = graph.value(graph.inputs[position]);
        let sharding = &partitioned.inputs[position];
        let parts: Vec<&str> = value.name.split('.').collect();
        let (own, modules) = parts.split_last().expect("splitting gives at least one part");
        let common = open.iter().zip(modules).take_while(|(a, b)| a == b).count();
        for (depth, module) in modules.iter().enumerate().skip(common) {
            let mut row = vec![format!("{}{module}", "  ".repeat(depth))];
            row.resize(5, String::new());
            rows.push(row);
        }
        open = modules.to_vec();
        let locals: Vec<Vec<usize>> =
            (0..mesh.rank_count()).map(|rank| sharding.local_shape(mesh, &value.ty.shape, rank)).collect();
        let mut shapes: Vec<String> = Vec::new();
        let mut largest = 0;
        for (local, &rank) in locals.iter().zip(&stage.ranks) {
            let held = value.ty.with_shape(local.clone()).bytes();
            largest = largest.max(held);
            most_bytes[rank] += held;
            let shape = extents(local);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        elements += value.ty.element_count();
        rows.push(vec![
            format!("{}{own}", "  ".repeat(modules.len())),
            extents(&value.ty.shape),
            layout_on(planned, stage, &sharding.display(mesh)),
            shapes.join(" or "),
            bytes(largest as u64),
        ]);
    }
    let mut text = table(&["parameter", "shape", "layout", "on a rank", "bytes"], &rows);
    let most = most_bytes.iter().max().copied().unwrap_or(0);
    let _ = writeln!(text, "{elements} elements; at most {} on a rank", bytes(most as u64));
    text
}

/// The stage and the input position of each parameter, in the order of the step.
fn parameters_in_order(planned: &Built) -> Vec<(&Stage, usize)> {
    let mut found: Vec<(usize, &Stage, usize)> = Vec::new();
    for stage in &planned.stages {
        let graph = &stage.partitioned.graph;
        let is_parameter = |position: usize| graph.value(graph.inputs[position]).role == Role::Param;
        let own = stage.fed().filter(|&(position, _)| is_parameter(position));
        found.extend(own.map(|(position, of_step)| (of_step, stage, position)));
    }
    found.sort_by_key(|&(of_step, ..)| of_step);
    found.into_iter().map(|(_, stage, position)| (stage, position)).collect()
}

/// A layout, with the stage where there are several.
fn layout_on(planned: &Built, stage: &Stage, layout: &str) -> String {
    match planned.stages.iter().position(|other| std::ptr::eq(other, stage)) {
        Some(number) if planned.stages.len() > 1 => format!("stage {number} {layout}"),
        _ => layout.to_string(),
    }
}

/// `4x3`; a scalar is `1`.
fn extents(shape: &[usize]) -> String {
    if shape.is_empty() {
        return "1".to_string();
    }
    shape.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("x")
}

/// What a rank's memory is for, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Parameters.
    pub parameters: usize,
    /// Optimizer state.
    pub states: usize,
    /// Constants and scalars kept from step to step.
    pub constants: usize,
    /// Fed tensors.
    pub inputs: usize,
    /// The rest of the arena: activations, gradients, what is gathered, scratch memory, at their peak.
    pub activations: usize,
    /// The arena: the planned peak.
    pub arena: usize,
}

/// What each rank's memory is for, read off its program.
pub fn memory(set: &ProgramSet) -> Vec<Memory> {
    let of = |program: &partita_program::Program| {
        let mut memory = Memory { arena: program.arena_bytes, ..Memory::default() };
        let mut is_port = vec![false; program.buffers.len()];
        for port in &program.inputs {
            let bytes = program.buffer(port.buffer).bytes;
            is_port[port.buffer.index()] = true;
            match port.role {
                Role::Param => memory.parameters += bytes,
                Role::StateOf(_) => memory.states += bytes,
                _ => memory.inputs += bytes,
            }
        }
        for (index, buffer) in program.buffers.iter().enumerate() {
            if buffer.kind == BufferKind::Persistent && !is_port[index] {
                memory.constants += buffer.bytes;
            }
        }
        let kept = memory.parameters + memory.states + memory.constants + memory.inputs;
        memory.activations = memory.arena.saturating_sub(kept);
        memory
    };
    let mut ranks = vec![Memory::default(); set.rank_count()];
    for program in &set.programs {
        let memory = of(program);
        program.ranks.iter().for_each(|&rank| ranks[rank] = memory);
    }
    ranks
}

/// [`memory`] as a table, ranks with equal figures in one row.
pub fn memory_table(set: &ProgramSet) -> String {
    let mut groups: Vec<(Memory, Vec<usize>)> = Vec::new();
    for (rank, memory) in memory(set).into_iter().enumerate() {
        match groups.iter_mut().find(|(other, _)| *other == memory) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((memory, vec![rank])),
        }
    }
    let row = |(memory, ranks): &(Memory, Vec<usize>)| {
        let figures = [
            memory.parameters,
            memory.states,
            memory.inputs,
            memory.constants,
            memory.activations,
            memory.arena,
        ];
        let mut row = vec![rank_list(ranks)];
        row.extend(figures.iter().map(|&figure| bytes(figure as u64)));
        row
    };
    let rows: Vec<Vec<String>> = groups.iter().map(row).collect();
    table(&["memory of rank", "parameters", "optimizer", "inputs", "constants", "activations", "peak"], &rows)
}
