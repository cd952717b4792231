//! Where a step in microbatches needs the rows of all of them.

use partita_ir::port::microbatch_of;
use partita_ir::{Graph, NodeId, Op, Phase, Role, Value};

/// What an op of the forward pass sees of the batch.
#[derive(Clone, Copy, PartialEq)]
enum Sees {
    /// Nothing, or the rows of one microbatch.
    Own,
    /// A figure of all rows, such as a mean.
    Figure,
    /// The rows of all microbatches.
    Rows,
}

/// The first op of the forward pass that no microbatch can do alone: one that reads a figure of all rows for the rows of
/// a microbatch, as a batch norm does, or that works on all rows at once, as a softmax over the batch. All microbatches
/// wait for each other there. What follows from the fed tensors alone does not count, such as the number of labels by
/// which a mean is divided. `None` if there is no such op.
pub fn coupled_op(graph: &Graph) -> Option<NodeId> {
    let mut sees = vec![Sees::Own; graph.values.len()];
    let is_piece = |value: &Value| value.role == Role::Input && microbatch_of(&value.name).is_some();
    let mut is_of_one: Vec<bool> = graph.values.iter().map(is_piece).collect();
    let mut has_parameters: Vec<bool> = graph.values.iter().map(|value| value.role == Role::Param).collect();
    for id in graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Forward) {
        let node = graph.node(id);
        let reads = |what: Sees| node.operands.iter().any(|operand| sees[operand.index()] == what);
        if reads(Sees::Rows) || (node.microbatch.is_some() && reads(Sees::Figure)) {
            return Some(id);
        }
        let is_of_parameters = node.operands.iter().any(|v| has_parameters[v.index()]);
        let joins = node.microbatch.is_none() && node.operands.iter().any(|v| is_of_one[v.index()]);
        let seen = if joins && matches!(node.op, Op::Concatenate(_)) {
            Sees::Rows
        } else if (joins && is_of_parameters) || reads(Sees::Figure) {
            Sees::Figure
        } else {
            Sees::Own
        };
        for result in &node.results {
            sees[result.index()] = seen;
            has_parameters[result.index()] = is_of_parameters;
            is_of_one[result.index()] = node.microbatch.is_some();
        }
    }
    None
}
