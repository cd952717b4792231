//! The pause of a step between its forward and its backward pass.
//!
//! A caller that computes the loss itself, such as a Python program that calls `loss.backward()`, reads the outputs of
//! the forward pass and gives the gradients with respect to them: inputs of the kind [`InputKind::Cotangent`]. The step
//! is one program with the memory between the two passes planned, and it pauses before the backward pass. The order of
//! the two passes is that of a timetable with one stage and one microbatch.

use crate::program::{Action, BufferId, Instruction, Program, RegionKind};
use indexmap::IndexMap;
use partita_ir::{Graph, InputKind, Phase, ValueId};
use partita_pipeline::{Task, TaskKind, Timetable};

/// Whether an input is given after the forward pass.
fn is_cotangent(graph: &Graph, input: ValueId) -> bool {
    let value = graph.value(input);
    matches!(InputKind::of(&value.name, &value.role, false), InputKind::Cotangent(_))
}

/// The order of the two passes, for a step that pauses between them.
pub(crate) fn timetable(graph: &Graph) -> Option<Timetable> {
    let task = |kind| Task { kind, stage: 0, microbatch: 0 };
    let tasks = vec![task(TaskKind::Forward), task(TaskKind::Backward)];
    pauses(graph).then(|| Timetable::new(1, 1, vec![tasks]))
}

/// Whether a graph reads a cotangent.
pub(crate) fn pauses(graph: &Graph) -> bool {
    graph.inputs.iter().any(|&input| is_cotangent(graph, input))
}

/// Counts nodes of the forward pass that read a cotangent, directly or not, to the backward pass. All graphs have one
/// structure.
pub(crate) fn after(mut graphs: Vec<Graph>) -> Vec<Graph> {
    for graph in &mut graphs {
        let mut is_late = vec![false; graph.values.len()];
        for &input in &graph.inputs {
            is_late[input.index()] = is_cotangent(graph, input);
        }
        if !is_late.contains(&true) {
            continue;
        }
        for node in &mut graph.nodes {
            if node.operands.iter().any(|operand| is_late[operand.index()]) {
                node.results.iter().for_each(|result| is_late[result.index()] = true);
                if node.phase == Phase::Forward {
                    node.phase = Phase::InputGrad;
                }
            }
        }
    }
    graphs
}

/// Places the pause behind the instructions that the outputs of the forward pass and the values sent to other stages
/// need. Copies to outputs that are known by then, which are emitted at the end of a step, move before it.
pub(crate) fn place(mut program: Program) -> Program {
    let mut writers: Vec<Option<usize>> = vec![None; program.buffers.len()];
    let mut waits = IndexMap::new();
    for (index, instruction) in program.instructions.iter().enumerate() {
        match &instruction.action {
            Action::Compute(compute) => written(&mut writers, &compute.outputs, index),
            Action::Start(start) => written(&mut writers, &start.outputs, index),
            Action::Wait(collective) => _ = waits.insert(*collective, index),
            Action::Move(_) | Action::Moved(_) => {}
        }
    }
    // Where the value of a buffer is known; `None` if the backward pass computes it.
    let known = |buffer: BufferId| {
        let Some(writer) = writers[buffer.index()] else { return Some(0) };
        let Instruction { action, origin } = &program.instructions[writer];
        let at = match action {
            Action::Start(start) => waits.get(&start.collective).copied(),
            _ => Some(writer),
        };
        at.filter(|_| origin.phase == Phase::Forward).map(|at| at + 1)
    };
    let mut pause = 0;
    let mut copies = Vec::new();
    for port in program.outputs.iter().filter(|port| port.replaces.is_none()) {
        let writer = writers[port.buffer.index()];
        match writer.map(|writer| (writer, &program.instructions[writer].action)) {
            Some((writer, Action::Compute(compute)))
                if program.region(compute.region).kind == RegionKind::Copy =>
            {
                if let Some(at) = known(compute.inputs[0].buffer) {
                    pause = pause.max(at);
                    copies.push(writer);
                }
            }
            _ => pause = pause.max(known(port.buffer).unwrap_or(0)),
        }
    }
    for (index, instruction) in program.instructions.iter().enumerate() {
        if let Action::Start(start) = &instruction.action
            && start.outputs.iter().all(|&output| program.buffer(output).bytes == 0)
            && start.inputs.iter().all(|view| known(view.buffer).is_some())
        {
            pause = pause.max(index + 1);
        }
    }
    copies.sort_unstable();
    for copy in copies.into_iter().filter(|&copy| copy >= pause).collect::<Vec<_>>() {
        program.instructions[pause..=copy].rotate_right(1);
        pause += 1;
    }
    program.pause = Some(pause);
    program
}

fn written(writers: &mut [Option<usize>], buffers: &[BufferId], by: usize) {
    buffers.iter().for_each(|buffer| writers[buffer.index()] = Some(by));
}
