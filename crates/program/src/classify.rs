//! What lowering does with each op: the one place that lists them all.

use crate::collective::kind;
use partita_ir::{Graph, Node, Op, Operation, ValueId};

/// How an op is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Computes each result element from the operand elements at the same place: may be fused.
    Elementwise,
    /// Known in advance: cloned into regions where it is one number, otherwise a buffer filled once.
    Constant,
    /// Computed from nothing: cloned into fused regions, otherwise a region of its own.
    Iota,
    /// Moves nothing: another way to look at the operand.
    View,
    /// Ranks exchange data.
    Collective,
    /// A region of its own.
    Single,
    /// Should have been rewritten before lowering.
    Refused,
}

/// The constant that a value is, of one rank or of each rank of a class.
pub(crate) fn known(graph: &Graph, value: ValueId) -> Option<&Op> {
    let (definition, _) = graph.value(value).definition?;
    let op = &graph.node(definition).op;
    matches!(op, Op::Constant(_) | Op::RankConstant(_)).then_some(op)
}

/// How a node is lowered.
pub(crate) fn class(graph: &Graph, node: &Node) -> Class {
    let width = |value: ValueId| graph.ty(value).dtype.size_bytes();
    match &node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Convert(_) => {
            Class::Elementwise
        }
        Op::BitcastConvert(_) if width(node.operands[0]) == width(node.results[0]) => Class::Elementwise,
        Op::Constant(_) | Op::RankConstant(_) => Class::Constant,
        Op::DynamicSlice(_) if node.operands[1..].iter().all(|&start| known(graph, start).is_some()) => {
            Class::View
        }
        Op::Iota(_) => Class::Iota,
        Op::BroadcastInDim(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Reverse(_)
        | Op::OptimizationBarrier(_)
        | Op::ShardingConstraint(_) => Class::View,
        Op::AllReduce(_)
        | Op::AllGather(_)
        | Op::ReduceScatter(_)
        | Op::AllToAll(_)
        | Op::CollectivePermute(_)
        | Op::CollectiveBroadcast(_) => Class::Collective,
        Op::BitcastConvert(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice(_)
        | Op::Concatenate(_)
        | Op::Pad(_)
        | Op::DotGeneral(_)
        | Op::Reduce(_)
        | Op::ReduceWindow(_)
        | Op::Gather(_)
        | Op::Scatter(_)
        | Op::Sort(_)
        | Op::While(_)
        | Op::Case(_)
        | Op::Composite(_) => Class::Single,
        Op::PartitionId(_) | Op::ManualComputation(_) => Class::Refused,
    }
}

/// A short name: `add`, `all_reduce`.
pub(crate) fn op_name(op: &Op) -> &str {
    match kind(op) {
        Some(kind) => kind.name(),
        None if matches!(op, Op::PartitionId(_)) => "partition_id",
        None => op.name().split_once('.').map_or(op.name(), |(_, short)| short),
    }
}

/// A readable name for a value: its own, else the op and module path that compute it.
pub(crate) fn describe(graph: &Graph, value: ValueId) -> String {
    let name = &graph.value(value).name;
    match graph.value(value).definition {
        Some((node, _)) if name.is_empty() => {
            let node = graph.node(node);
            let path = if node.path.is_empty() { "<root>" } else { &node.path };
            format!("{} in {path}", op_name(&node.op))
        }
        _ => name.clone(),
    }
}
