//! Rematerialisation (activation checkpointing, Chen et al. 2016): the backward pass recomputes
//! values instead of reading stored ones.
//!
//! Forward nodes are marked in groups before differentiation. The inputs of a group are stored, and
//! so are those of its values that other forward nodes read or the graph returns. All others are
//! freed in the forward pass. Random numbers depend only on a seed and a position, so recomputed
//! values are bitwise equal, dropout included.

use crate::graph::{Graph, Node, NodeId, Phase, Role, ValueId};
use crate::op::Operation;
use crate::{GraphBuilder, graph_edit};
use partita_base::{Diagnostic, Result};

/// Marks these forward nodes as a new group. E136 for a node that is in a group already, E137 for
/// one that is not in the forward pass; on an error no node is marked.
pub fn mark(graph: &mut Graph, nodes: impl IntoIterator<Item = NodeId>) -> Result<()> {
    let nodes: Vec<NodeId> = nodes.into_iter().collect();
    for &id in &nodes {
        let node = graph.node(id);
        check_phase(node)?;
        if node.remat.is_some() {
            return Err(Diagnostic::new("E136", "two requests recompute the same op")
                .at(place(node))
                .expected("each op in at most one recomputed group")
                .help("checkpoint the module or modules inside it, not both"));
        }
    }
    let group = graph.nodes.iter().filter_map(|node| node.remat).max().map_or(0, |last| last + 1);
    for id in nodes {
        graph.nodes[id.index()].remat = Some(group);
    }
    Ok(())
}

/// Rewrites the gradient graph: values that a group does not store are recomputed right before the
/// first node that needs them, and no node stays marked. Recomputed values have the role
/// [`Role::RematOf`]. E137 if a marked node is not in the forward pass.
pub fn rematerialise(mut graph: Graph) -> Result<Graph> {
    if graph.nodes.iter().all(|node| node.remat.is_none()) {
        return Ok(graph);
    }
    graph.nodes.iter().filter(|node| node.remat.is_some()).try_for_each(check_phase)?;
    let dropped = dropped(&graph);
    let mut needed = needed(&graph, &dropped);
    graph.nodes.iter_mut().for_each(|node| node.remat = None);
    let mut again: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let result = graph_edit::rebuild(&graph, |builder, map, index, operands| {
        let mut operands = operands.to_vec();
        if graph.nodes[index].phase != Phase::Forward {
            for (old, new) in graph.nodes[index].operands.iter().zip(&mut operands) {
                let Some(group) = dropped[old.index()] else { continue };
                // The whole group at its first reader.
                for id in std::mem::take(&mut needed[group]) {
                    repeat(builder, &graph, graph.node(id), map, &mut again);
                }
                *new = again[old.index()].expect("what is read is needed");
            }
        }
        Ok(Some(graph_edit::push_copy(builder, &graph, index, &operands)))
    })?;
    Ok(graph_edit::prune(result))
}

/// For each value that is not stored, its group.
fn dropped(graph: &Graph) -> Vec<Option<usize>> {
    let mut dropped = vec![None; graph.values.len()];
    for node in &graph.nodes {
        node.results.iter().for_each(|v| dropped[v.index()] = node.remat);
    }
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward) {
        for operand in &node.operands {
            if dropped[operand.index()] != node.remat {
                dropped[operand.index()] = None;
            }
        }
    }
    graph.outputs.iter().for_each(|v| dropped[v.index()] = None);
    dropped
}

/// For each group, its nodes that lead to values read outside, in order.
fn needed(graph: &Graph, dropped: &[Option<usize>]) -> Vec<Vec<NodeId>> {
    let groups = graph.nodes.iter().filter_map(|node| node.remat).max().map_or(0, |last| last + 1);
    let mut needed = vec![Vec::new(); groups];
    let mut read = vec![false; graph.values.len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        let leads = node.results.iter().any(|v| dropped[v.index()].is_some() && read[v.index()]);
        if let (Some(group), true) = (node.remat, leads) {
            needed[group].push(id);
        }
        if leads || node.phase != Phase::Forward {
            node.operands.iter().for_each(|v| read[v.index()] = true);
        }
    }
    needed.iter_mut().for_each(|nodes| nodes.reverse());
    needed
}

/// Recomputes a node from recomputed or stored values.
fn repeat(
    builder: &mut GraphBuilder,
    graph: &Graph,
    node: &Node,
    map: &[Option<ValueId>],
    again: &mut [Option<ValueId>],
) {
    let operand = |v: &ValueId| again[v.index()].or(map[v.index()]).expect("nodes stand in execution order");
    let operands: Vec<ValueId> = node.operands.iter().map(operand).collect();
    let types = node.results.iter().map(|&v| graph.ty(v).clone()).collect();
    builder.enter(node);
    builder.phase = Phase::InputGrad;
    let results = builder.push_typed(node.op.clone(), &operands, types);
    for (&old, new) in node.results.iter().zip(results) {
        let value = builder.graph_mut().value_mut(new);
        value.role = map[old.index()].map_or(Role::Activation, Role::RematOf);
        value.annotation = graph.value(old).annotation.clone();
        value.group = graph.value(old).group;
        again[old.index()] = Some(new);
    }
}

fn check_phase(node: &Node) -> Result<()> {
    if node.phase == Phase::Forward {
        return Ok(());
    }
    Err(Diagnostic::new("E137", "only ops of the forward pass can be recomputed")
        .at(place(node))
        .expected("nodes of the forward pass")
        .found(format!("a `{}` of {}", node.op.name(), node.phase.name())))
}

fn place(node: &Node) -> String {
    if node.path.is_empty() { "<root>".to_string() } else { node.path.clone() }
}

#[cfg(test)]
#[path = "remat_tests.rs"]
mod tests;
