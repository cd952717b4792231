//! Values that the import can compute, since they depend on constants only: positions, mostly.

use partita_ir::interpret::evaluate;
use partita_ir::op::Operation;
use partita_ir::{Graph, Literal, ValueId};
use std::collections::BTreeSet;

/// The most elements of each value, and the most nodes, of a computation that is done at import.
const LIMITS: (usize, usize) = (1 << 20, 64);

/// A value, if it depends on constants only and is computed by a few ops on small values.
pub fn value(graph: &Graph, value: ValueId) -> Option<Literal> {
    let mut nodes = BTreeSet::new();
    let mut wanted = vec![value];
    while let Some(value) = wanted.pop() {
        let (node, _) = graph.value(value).definition?;
        let of = graph.node(node);
        let fits = nodes.len() < LIMITS.1
            && graph.ty(value).element_count() <= LIMITS.0
            && of.op.regions().is_empty()
            && !of.op.is_collective();
        if !fits {
            return None;
        }
        if nodes.insert(node) {
            wanted.extend(&of.operands);
        }
    }
    let part = Graph {
        name: graph.name.clone(),
        values: graph.values.clone(),
        nodes: nodes.into_iter().map(|node| graph.node(node).clone()).collect(),
        outputs: vec![value],
        ..Graph::default()
    };
    evaluate(&part, &[]).ok()?.pop()
}
