//! Outlining: replaces some nodes of a graph by one composite. The inverse of inlining.

use crate::composite::{Attributes, CompositeDefinition, Origin};
use crate::graph::{Graph, Node, NodeId, Role, ValueId};
use crate::graph_edit::{push_copy, rebuild};
use crate::op::Op;
use crate::ops::Composite;
use crate::verify::verify;
use crate::{GraphBuilder, Operation};
use partita_base::{Diagnostic, Result};
use std::sync::Arc;

/// Replaces `nodes` by one composite `name`, and returns the graph and the composite's node. Its
/// operands are the values that the nodes read from outside, in order of first use; its results are
/// the values that are read outside or returned, in node order. Constants and broadcasts that other
/// nodes read too stay outside and are duplicated inside.
///
/// The composite takes the position of the last of the nodes, with that node's phase, location and
/// microbatch, under their deepest common module path. Nodes that depend on it move behind it; all
/// others keep their order. E135 if a path leaves the nodes and re-enters, or if nothing is left to
/// outline.
pub fn outline(graph: &Graph, nodes: &[NodeId], name: &str) -> Result<(Graph, NodeId)> {
    let selection = Selection::of(graph, nodes, name)?;
    let operands = selection.reads(graph);
    selection.outlined(graph, name, &operands)
}

/// [`outline`] with these operands first, in this order; one may occur twice. Other values that the
/// nodes read follow in order of first use. E135 also if the nodes do not read one of them.
pub fn outline_over(
    graph: &Graph,
    nodes: &[NodeId],
    name: &str,
    operands: &[ValueId],
) -> Result<(Graph, NodeId)> {
    let selection = Selection::of(graph, nodes, name)?;
    let reads = selection.reads(graph);
    if let Some(&other) = operands.iter().find(|v| !reads.contains(v)) {
        let names: Vec<String> = reads.iter().map(|&v| graph.describe(v)).collect();
        return Err(Diagnostic::new("E135", format!("the nodes of `{name}` do not read this operand"))
            .expected(format!("some of {}", names.join(", ")))
            .found(graph.describe(other)));
    }
    let rest = reads.iter().filter(|v| !operands.contains(v));
    let operands: Vec<ValueId> = operands.iter().chain(rest).copied().collect();
    selection.outlined(graph, name, &operands)
}

/// The longest dotted prefix of two module paths.
fn common_path<'a>(a: &'a str, b: &str) -> &'a str {
    let shared = a.split('.').zip(b.split('.')).take_while(|(x, y)| x == y);
    let length = shared.map(|(x, _)| x.len() + 1).sum::<usize>();
    &a[..length.saturating_sub(1)]
}

/// Nodes to outline.
struct Selection {
    /// In graph order.
    nodes: Vec<NodeId>,
    /// For each node of the graph, whether it goes inside.
    inside: Vec<bool>,
    /// For each node of the graph, whether it stays outside; a duplicated one does both.
    outside: Vec<bool>,
}

impl Selection {
    fn of(graph: &Graph, nodes: &[NodeId], name: &str) -> Result<Selection> {
        let mut inside = vec![false; graph.nodes.len()];
        for node in nodes {
            inside[node.index()] = true;
        }
        let nodes: Vec<NodeId> = graph.node_ids().filter(|id| inside[id.index()]).collect();
        if nodes.is_empty() {
            return Err(Diagnostic::new("E135", format!("`{name}` would contain no nodes")));
        }
        let mut outside: Vec<bool> = inside.iter().map(|inside| !inside).collect();
        let uses = graph.uses();
        for &id in nodes.iter().rev() {
            let node = graph.node(id);
            let readers = || node.results.iter().flat_map(|v| &uses[v.index()]);
            let read_inside = readers().any(|(reader, _)| inside[reader.index()]);
            let read_outside = readers().any(|(reader, _)| outside[reader.index()])
                || node.results.iter().any(|v| graph.outputs.contains(v));
            let cheap = matches!(node.op, Op::Constant(_) | Op::BroadcastInDim(_));
            outside[id.index()] = cheap && read_inside && read_outside;
        }
        Ok(Selection { nodes, inside, outside })
    }

    /// The values that the nodes read from outside, in order of first use.
    fn reads(&self, graph: &Graph) -> Vec<ValueId> {
        let mut reads = Vec::new();
        for operand in self.nodes.iter().flat_map(|&id| &graph.node(id).operands) {
            let own = graph.value(*operand).definition.is_some_and(|(id, _)| self.inside[id.index()]);
            if !own && !reads.contains(operand) {
                reads.push(*operand);
            }
        }
        reads
    }

    /// The values that are read outside or returned, in node order.
    fn results(&self, graph: &Graph) -> Vec<ValueId> {
        let mut read = vec![false; graph.values.len()];
        for (node, _) in graph.nodes.iter().zip(&self.outside).filter(|(_, outside)| **outside) {
            node.operands.iter().for_each(|v| read[v.index()] = true);
        }
        graph.outputs.iter().for_each(|v| read[v.index()] = true);
        let removed = self.nodes.iter().filter(|id| !self.outside[id.index()]);
        let results = removed.flat_map(|&id| graph.node(id).results.iter().copied());
        results.filter(|v| read[v.index()]).collect()
    }

    /// For each node that stays outside, whether it depends on `results`. E135 if a node inside
    /// depends on one of those.
    fn followers(&self, graph: &Graph, name: &str, results: &[ValueId]) -> Result<Vec<bool>> {
        let mut depends = vec![false; graph.values.len()];
        results.iter().for_each(|v| depends[v.index()] = true);
        let mut follows = vec![false; graph.nodes.len()];
        for id in graph.node_ids().filter(|id| self.outside[id.index()]) {
            let node = graph.node(id);
            follows[id.index()] = node.operands.iter().any(|v| depends[v.index()]);
            // Nodes inside read a duplicated node's results from its copy.
            if follows[id.index()] {
                node.results.iter().for_each(|v| depends[v.index()] = true);
            }
        }
        let reads = self.reads(graph);
        match reads.iter().find(|v| depends[v.index()]) {
            None => Ok(follows),
            Some(&value) => {
                let path = graph.value(value).definition.map(|(id, _)| graph.node(id).path.clone());
                Err(Diagnostic::new("E135", format!("`{name}` would depend on its own results"))
                    .at(path.unwrap_or_default())
                    .expected("nodes such that no path leaves them and comes back")
                    .found(format!("{} is computed outside, between them", graph.describe(value)))
                    .help("include the nodes in between, or leave out the nodes before or after them"))
            }
        }
    }

    fn definition(
        &self,
        graph: &Graph,
        name: &str,
        operands: &[ValueId],
        results: &[ValueId],
    ) -> CompositeDefinition {
        let mut builder = GraphBuilder::new(name.rsplit('.').next().unwrap_or(name));
        let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
        for (position, &operand) in operands.iter().enumerate() {
            let ty = graph.ty(operand).clone();
            map[operand.index()] = Some(builder.input(&format!("arg{position}"), ty, Role::Activation));
        }
        let inner = |map: &[Option<ValueId>], v: &ValueId| map[v.index()].expect("read or computed inside");
        for &id in &self.nodes {
            let node = graph.node(id);
            let operands: Vec<ValueId> = node.operands.iter().map(|v| inner(&map, v)).collect();
            let types = graph.result_types(node).into_iter().cloned().collect();
            let copies = builder.push_typed(node.op.clone(), &operands, types);
            node.results.iter().zip(copies).for_each(|(old, new)| map[old.index()] = Some(new));
        }
        // Ops inside may refer to meshes by index.
        if self.nodes.iter().any(|&id| names_mesh(&graph.node(id).op)) {
            builder.graph_mut().meshes = graph.meshes.clone();
        }
        CompositeDefinition {
            name: name.to_string(),
            decomposition: builder.finish(results.iter().map(|v| inner(&map, v)).collect()),
            origin: Origin::Outlined,
        }
    }

    fn outlined(&self, graph: &Graph, name: &str, operands: &[ValueId]) -> Result<(Graph, NodeId)> {
        let results = self.results(graph);
        if results.is_empty() {
            return Err(Diagnostic::new("E135", format!("nothing reads what `{name}` would compute"))
                .help("include nodes whose results are read"));
        }
        let follows = self.followers(graph, name, &results)?;
        let definition = Arc::new(self.definition(graph, name, operands, &results));
        let last = *self.nodes.last().expect("not empty");
        let path = |id: &NodeId| graph.node(*id).path.as_str();
        let composite = Node {
            op: Composite { attributes: Attributes::new(), definition }.into(),
            operands: operands.to_vec(),
            results,
            path: self.nodes.iter().map(path).reduce(common_path).expect("not empty").to_string(),
            ..graph.node(last).clone()
        };
        let staying = graph.node_ids().filter(|id| self.outside[id.index()]);
        let (before, after): (Vec<NodeId>, Vec<NodeId>) =
            staying.partition(|id| *id <= last && !follows[id.index()]);
        let place = NodeId::new(before.len());
        let copy = |id: NodeId| graph.node(id).clone();
        let mut edited = graph.clone();
        edited.nodes =
            before.into_iter().map(copy).chain([composite]).chain(after.into_iter().map(copy)).collect();
        for (index, node) in edited.nodes.iter().enumerate() {
            for (number, result) in node.results.iter().enumerate() {
                edited.values[result.index()].definition = Some((NodeId::new(index), number));
            }
        }
        // Rebuilding drops the values that moved inside.
        let outlined = rebuild(&edited, |builder, _, index, operands| {
            Ok(Some(push_copy(builder, &edited, index, operands)))
        })?;
        verify(&outlined)?;
        Ok((outlined, place))
    }
}

/// Whether an op, or one in its regions, refers to a mesh.
fn names_mesh(op: &Op) -> bool {
    matches!(op, Op::ShardingConstraint(_) | Op::ManualComputation(_))
        || op.regions().iter().any(|region| region.nodes.iter().any(|node| names_mesh(&node.op)))
}

#[cfg(test)]
#[path = "outline_tests.rs"]
mod tests;
