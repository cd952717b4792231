//! Loop unrolling: a loop whose trip count follows from constants, such as `lax.scan` and `lax.fori_loop` print, becomes
//! straight-line code.
//!
//! Everything that works on ops then works on the body of the loop: layouts spread through it, the batch and the layers
//! are cut, it is differentiated, and it runs as compiled instructions. What a loop hides in counters is made plain again.
//! Integers that follow from constants are evaluated, so a dynamic slice of stacked weights becomes a slice at a fixed
//! position, and a slice of a stack that the loop has written becomes the value that was written there.

use crate::graph::{Graph, Node, ValueId};
use crate::graph_edit::{prune, push_copy, rebuild};
use crate::literal::Literal;
use crate::op::{Op, Operation};
use crate::ops::Slice;
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Result};
use std::borrow::Cow;

/// The largest element count of an integer value that is evaluated.
const FOLD_LIMIT: usize = 64;

/// Unrolls every loop whose trip count follows from constants ([`crate::ops::While::trip_count`]), loops inside the bodies
/// included, while the nodes that this adds stay below `limit` in all; the remaining loops stay. A graph without such
/// loops is returned as it is.
pub fn unroll_loops(graph: &Graph, limit: usize) -> Result<Graph> {
    let mut current = Cow::Borrowed(graph);
    let mut added = 0;
    loop {
        let mut is_done = true;
        let source = current;
        let next = if source.nodes.iter().any(|node| matches!(node.op, Op::While(_))) {
            rebuild(&source, |builder, _, index, operands| {
                if let Some(results) = unrolled(builder, &source.nodes[index], operands, limit, &mut added)? {
                    is_done = false;
                    return Ok(Some(results));
                }
                Ok(Some(push_copy(builder, &source, index, operands)))
            })?
        } else {
            return Ok(source.into_owned());
        };
        if is_done {
            return Ok(source.into_owned());
        }
        current = Cow::Owned(prune(fold_positions(&next)?));
    }
}

/// The results of a loop, written out; `None` if the node is no such loop, or its trips exceed the limit.
fn unrolled(
    builder: &mut GraphBuilder,
    node: &Node,
    operands: &[ValueId],
    limit: usize,
    added: &mut usize,
) -> Result<Option<Vec<ValueId>>> {
    let Op::While(op) = &node.op else { return Ok(None) };
    let Some(trips) = op.trip_count(builder.graph(), operands) else { return Ok(None) };
    let grown = trips.saturating_mul(size(&op.body));
    if grown > limit.saturating_sub(*added) {
        return Ok(None);
    }
    *added += grown;
    builder.enter(node);
    let mut carried = operands.to_vec();
    for _ in 0..trips {
        let first = builder.graph().nodes.len();
        carried = builder.inline(&op.body, &carried, true)?;
        // The body has no phase, microbatch or stage of its own.
        for inner in &mut builder.graph_mut().nodes[first..] {
            (inner.phase, inner.microbatch, inner.stage) = (node.phase, node.microbatch, node.stage);
            if inner.path.is_empty() {
                inner.path.clone_from(&node.path);
            }
        }
    }
    Ok(Some(carried))
}

/// The number of nodes of a graph and of the regions in it.
fn size(graph: &Graph) -> usize {
    graph.nodes.iter().map(|node| 1 + node.op.regions().into_iter().map(size).sum::<usize>()).sum()
}

/// Evaluates small integers and truth values that follow from constants, and places the dynamic slices whose position is
/// then known. No float is evaluated, so no result is rounded in another way.
fn fold_positions(graph: &Graph) -> Result<Graph> {
    let mut known: Vec<Option<Literal>> = Vec::new();
    rebuild(graph, |builder, _, index, operands| {
        let node = &graph.nodes[index];
        let value = evaluated(graph, node, operands, &known)?;
        let results = match &value {
            Some(value) => {
                builder.enter(node);
                vec![builder.constant(value.clone())]
            }
            None => match placed(builder, node, operands, &known)? {
                Some(result) => vec![result],
                None => push_copy(builder, graph, index, operands),
            },
        };
        known.resize(builder.graph().values.len(), None);
        if let Some(value) = value {
            known[results[0].index()] = Some(value);
        }
        Ok(Some(results))
    })
}

/// The value of a node with one small result of integers or truth values, if its operands are known.
fn evaluated(
    graph: &Graph,
    node: &Node,
    operands: &[ValueId],
    known: &[Option<Literal>],
) -> Result<Option<Literal>> {
    let [result] = node.results[..] else { return Ok(None) };
    let ty = graph.ty(result);
    let is_whole = |ty: &TensorType| ty.dtype == DType::Bool || ty.dtype.is_integer();
    let is_plain = node.op.regions().is_empty() && !node.op.is_collective() && !node.op.is_by_rank();
    if !is_plain || !is_whole(ty) || ty.element_count() > FOLD_LIMIT {
        return Ok(None);
    }
    let operands: Option<Vec<&Literal>> = operands.iter().map(|&v| literal(known, v)).collect();
    match operands.filter(|list| list.iter().all(|operand| is_whole(&operand.ty))) {
        Some(operands) => Ok(node.op.evaluate(&operands, std::slice::from_ref(ty))?.pop()),
        None => Ok(None),
    }
}

fn literal(known: &[Option<Literal>], value: ValueId) -> Option<&Literal> {
    known.get(value.index()).and_then(Option::as_ref)
}

/// A dynamic slice at a known position: what was written there, or a slice of the tensor that holds it.
fn placed(
    builder: &mut GraphBuilder,
    node: &Node,
    operands: &[ValueId],
    known: &[Option<Literal>],
) -> Result<Option<ValueId>> {
    let Op::DynamicSlice(slice) = &node.op else { return Ok(None) };
    let (mut source, shape) = (operands[0], builder.shape(operands[0]));
    let Some(window) = window(&operands[1..], &slice.sizes, &shape, known) else { return Ok(None) };
    while let Some((id, _)) = builder.graph().value(source).definition {
        let writer = builder.graph().node(id);
        let Op::DynamicUpdateSlice(_) = writer.op else { break };
        let update = writer.operands[1];
        let sizes = &builder.graph().ty(update).shape;
        let Some(written) = self::window(&writer.operands[2..], sizes, &shape, known) else { break };
        if written == window {
            return Ok(Some(update));
        }
        let apart =
            |dim: usize| written.limit[dim] <= window.start[dim] || window.limit[dim] <= written.start[dim];
        if !(0..shape.len()).any(apart) {
            break;
        }
        source = writer.operands[0];
    }
    builder.enter(node);
    Ok(Some(builder.push1(window, &[source])?))
}

/// The window of these sizes at known positions, clamped as dynamic slices are.
fn window(starts: &[ValueId], sizes: &[usize], shape: &[usize], known: &[Option<Literal>]) -> Option<Slice> {
    let starts: Option<Vec<i64>> = starts.iter().map(|&v| Some(literal(known, v)?.to_i64()[0])).collect();
    Some(Slice::clamped(&starts?, sizes, shape))
}
