//! Values on one device alone: layouts on a mesh without axes (`sdy.mesh @one = <[], device_ids=[3]>`, Shardy's maximal
//! shardings).
//!
//! Nothing but its number tells one device from another. So a value on one device is what every rank computes once the
//! numbers of ranks that it depends on are the number of that device. [`on_own_devices`] writes these numbers as constants;
//! what is left of the layout is that the value is whole on every rank, and none has to receive it.

use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, ValueId};
use crate::graph_edit::{push_copy, rebuild};
use crate::op::{Op, Operation};
use partita_base::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The graph in which each value on one device alone sees the number of its device as that of the rank.
pub(super) fn on_own_devices(graph: Graph) -> Result<Graph> {
    let mut by_rank = vec![false; graph.values.len()];
    let mut needed = false;
    for node in &graph.nodes {
        let is_by_rank = reads_rank(&node.op) || node.operands.iter().any(|operand| by_rank[operand.index()]);
        let is_alone = device_of(&graph, node).is_some();
        needed |= is_by_rank && is_alone;
        node.results.iter().for_each(|result| by_rank[result.index()] = is_by_rank && !is_alone);
    }
    if !needed {
        return Ok(graph);
    }
    let mut copies: BTreeMap<(usize, ValueId), ValueId> = BTreeMap::new();
    rebuild(&graph, |builder, map, index, operands| {
        let node = &graph.nodes[index];
        let Some(device) = device_of(&graph, node) else {
            return Ok(Some(push_copy(builder, &graph, index, operands)));
        };
        let mut cone = Cone { graph: &graph, by_rank: &by_rank, map, copies: &mut copies, device };
        Ok(Some(cone.copy(builder, index)))
    })
}

/// The device on which alone a node computes, if its first result has such a layout.
fn device_of(graph: &Graph, node: &Node) -> Option<usize> {
    let annotation = graph.value(*node.results.first()?).annotation.as_ref()?;
    graph.meshes.get(annotation.mesh)?.only_device()
}

/// Whether an op, or one in its regions, reads the rank's number. The body of a manual computation has numbers of its own.
fn reads_rank(op: &Op) -> bool {
    let inner = || op.regions().iter().any(|region| region.nodes.iter().any(|node| reads_rank(&node.op)));
    matches!(op, Op::PartitionId(_)) || (!matches!(op, Op::ManualComputation(_)) && inner())
}

/// What one device computes of a graph.
struct Cone<'a> {
    graph: &'a Graph,
    /// The values that depend on the rank's number.
    by_rank: &'a [bool],
    /// The values of the new graph.
    map: &'a [Option<ValueId>],
    /// Copies for one device.
    copies: &'a mut BTreeMap<(usize, ValueId), ValueId>,
    device: usize,
}

impl Cone<'_> {
    /// A node on this device, after copies of the nodes that it depends on and that depend on the rank's number.
    fn copy(&mut self, builder: &mut GraphBuilder, index: usize) -> Vec<ValueId> {
        let mut needed = BTreeSet::new();
        let mut stack = vec![index];
        while let Some(at) = stack.pop() {
            if !needed.insert(at) {
                continue;
            }
            let operands = self.graph.nodes[at].operands.iter();
            let open = operands
                .filter(|&&v| self.by_rank[v.index()] && !self.copies.contains_key(&(self.device, v)));
            stack.extend(open.filter_map(|&v| self.graph.value(v).definition).map(|(node, _)| node.index()));
        }
        let mut results = Vec::new();
        for at in needed {
            let node = &self.graph.nodes[at];
            let find = |v: &ValueId| {
                let copy = self.copies.get(&(self.device, *v)).copied();
                copy.or(self.map[v.index()]).expect("nodes stand in execution order")
            };
            let operands: Vec<ValueId> = node.operands.iter().map(find).collect();
            let types = node.results.iter().map(|&v| self.graph.ty(v).clone()).collect();
            builder.enter(node);
            results = builder.push_typed(node.op.on_rank(self.device), &operands, types);
            if at != index {
                let pairs = node.results.iter().zip(&results);
                self.copies.extend(pairs.map(|(&old, &new)| ((self.device, old), new)));
            }
        }
        results
    }
}
