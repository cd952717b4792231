//! Canonical value numbering, for graphs with equal text.

use crate::graph::{Graph, Value, ValueId};

/// The same graph with values numbered as in text: inputs first, then results in execution order;
/// undefined values are dropped. Regions inside ops are unchanged.
pub fn canonical(graph: &Graph) -> Graph {
    let order: Vec<ValueId> =
        graph.inputs.iter().chain(graph.nodes.iter().flat_map(|n| &n.results)).copied().collect();
    let mut map = vec![None; graph.values.len()];
    for (position, value) in order.iter().enumerate() {
        map[value.index()] = Some(ValueId::new(position));
    }
    let find = |v: &ValueId| map[v.index()].expect("a value is an input or a result");
    let values: Vec<Value> = order
        .iter()
        .map(|&old| {
            let value = graph.value(old).clone();
            let role = value.role.renamed(|v| map[v.index()]);
            Value { role, ..value }
        })
        .collect();
    let mut result = graph.clone();
    result.values = values;
    for node in &mut result.nodes {
        node.operands = node.operands.iter().map(find).collect();
        node.results = node.results.iter().map(find).collect();
    }
    result.inputs = graph.inputs.iter().map(find).collect();
    result.outputs = graph.outputs.iter().map(find).collect();
    result
}
