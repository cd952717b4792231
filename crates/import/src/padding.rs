//! Takes padding into the windows that read it.
//!
//! JAX writes the gradients of pools as windows over an operand that a `pad` made larger, and for maxima it slices the
//! result. With the same padding as an attribute of the windows all shapes are those of the images, so they are sharded
//! alike, and ranks exchange the rows that windows see and nothing else.

use partita_base::Result;
use partita_ir::graph_edit::{prune, push_copy, rebuild};
use partita_ir::ops::{Direction, Op, Pad, ReduceWindow, SelectAndScatter};
use partita_ir::traits::ConstantOp;
use partita_ir::{Graph, Node, NodeId, ValueId};
use std::collections::BTreeMap;

/// The graph with padding, and slices that remove it again, taken into windows, without nodes that no result needs.
///
/// # Errors
/// Those of building nodes: none for a well-formed graph.
pub fn fold_padding(graph: &Graph) -> Result<Graph> {
    let uses = graph.uses();
    let is_output = graph.is_output();
    // What replaces a node: an op over the operand without padding.
    let mut folded: BTreeMap<NodeId, (Op, ValueId)> = BTreeMap::new();
    // Slices that become their operand.
    let mut slices: BTreeMap<NodeId, ValueId> = BTreeMap::new();
    for id in graph.node_ids() {
        let node = graph.node(id);
        let Some((pad, operand, fill)) = padded(graph, node) else { continue };
        if let Op::ReduceWindow(windows) = &node.op {
            if node.operands.len() == 2 && number(graph, node.operands[1]) == Some(fill) {
                folded.insert(id, (reduced(windows, pad).into(), operand));
            }
        } else if let Op::SelectAndScatter(windows) = &node.op {
            let result = node.results[0];
            let is_cut = |&(reader, _): &(NodeId, usize)| undoes(graph, reader, pad, operand);
            let is_free = !is_output[result.index()] && graph.value(result).annotation.is_none();
            if is_free
                && is_never_selected(windows, fill)
                && uses[result.index()].iter().all(is_cut)
                && let Some(windows) = scattered(windows, pad)
            {
                folded.insert(id, (windows.into(), operand));
                slices.extend(uses[result.index()].iter().map(|&(reader, _)| (reader, result)));
            }
        }
    }
    if folded.is_empty() {
        return Ok(graph.clone());
    }
    let rewritten = rebuild(graph, |builder, map, index, operands| {
        let (id, node) = (NodeId::new(index), &graph.nodes[index]);
        if let Some(result) = slices.get(&id) {
            return Ok(map[result.index()].map(|value| vec![value]));
        }
        let Some((op, operand)) = folded.get(&id) else {
            return Ok(Some(push_copy(builder, graph, index, operands)));
        };
        builder.enter(node);
        let mut operands = operands.to_vec();
        operands[0] = map[operand.index()].expect("operands come first");
        Ok(Some(builder.push(op.clone(), &operands)?))
    })?;
    Ok(prune(rewritten))
}

/// The padding of a node's first operand: the op, what it pads, and with which number. `None` if it removes anything, or
/// if a layout is requested for it.
fn padded<'a>(graph: &'a Graph, node: &Node) -> Option<(&'a Pad, ValueId, f64)> {
    let value = graph.value(*node.operands.first()?);
    let maker = graph.node(value.definition?.0);
    let Op::Pad(pad) = &maker.op else { return None };
    let adds = pad.low.iter().chain(&pad.high).all(|&edge| edge >= 0);
    let fill = number(graph, maker.operands[1])?;
    (adds && value.annotation.is_none()).then_some((pad, maker.operands[0], fill))
}

/// A constant scalar, which may be a broadcast of one.
fn number(graph: &Graph, value: ValueId) -> Option<f64> {
    if let Some(ConstantOp::OfAll(constant)) = graph.constant(value) {
        return constant.value.to_f64().first().copied().filter(|_| graph.ty(value).rank() == 0);
    }
    let maker = graph.node(graph.value(value).definition?.0);
    let Op::BroadcastInDim(_) = &maker.op else { return None };
    number(graph, maker.operands[0]).filter(|_| graph.ty(value).rank() == 0)
}

/// Windows over what a `pad` pads with their initial value.
fn reduced(windows: &ReduceWindow, pad: &Pad) -> ReduceWindow {
    let mut windows = windows.clone();
    for (dim, padding) in windows.padding.iter_mut().enumerate() {
        // Edges are elements, between which there may be gaps already.
        let apart = windows.base_dilation[dim] as i64;
        *padding = (padding.0 + pad.low[dim] * apart, padding.1 + pad.high[dim] * apart);
        windows.base_dilation[dim] *= pad.interior[dim] + 1;
    }
    windows
}

/// Whether windows never select an element of this value beside another.
fn is_never_selected(windows: &SelectAndScatter, fill: f64) -> bool {
    match windows.relation() {
        Some(Direction::Ge | Direction::Gt) => fill == f64::NEG_INFINITY,
        Some(Direction::Le | Direction::Lt) => fill == f64::INFINITY,
        _ => false,
    }
}

/// The same for what windows select and scatter to. `None` if elements are not neighbours.
fn scattered(windows: &SelectAndScatter, pad: &Pad) -> Option<SelectAndScatter> {
    let mut windows = windows.clone();
    for (padding, (low, high)) in windows.padding.iter_mut().zip(pad.low.iter().zip(&pad.high)) {
        *padding = (padding.0 + low, padding.1 + high);
    }
    pad.interior.iter().all(|&interior| interior == 0).then_some(windows)
}

/// Whether a node slices what a `pad` adds to an operand off again.
fn undoes(graph: &Graph, reader: NodeId, pad: &Pad, operand: ValueId) -> bool {
    let Op::Slice(slice) = &graph.node(reader).op else { return false };
    graph.ty(operand).shape.iter().enumerate().all(|(dim, &extent)| {
        let start = usize::try_from(pad.low[dim]).ok();
        start == Some(slice.start[dim])
            && slice.limit[dim] == slice.start[dim] + extent
            && slice.stride[dim] == 1
    })
}
