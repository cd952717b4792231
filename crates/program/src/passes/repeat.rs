//! Rematerialises cheap elementwise ops, such as the bias add after a matmul: the backward region
//! that reads the sum recomputes it instead of reading a stored copy. The matmul's result is stored
//! in its stead, so memory use is unchanged, and the forward region writes one tensor less.

use crate::passes::bucket::phase_class;
use crate::passes::fuse::uniform;
use crate::passes::simplify::Copier;
use indexmap::IndexMap;
use partita_ir::ops::{BinaryKind, UnaryKind};
use partita_ir::traits::{Elementwise, Traits, ViewMap};
use partita_ir::{Graph, Node, NodeId, Phase, ValueId};

/// Nodes that may share a region: part of the step and microbatch.
type Stretch = (Phase, Option<usize>);

fn stretch(node: &Node) -> Stretch {
    (phase_class(node.phase), node.microbatch)
}

/// Recomputes the nodes for which it pays. The graphs keep one structure.
pub(crate) fn repeat(graphs: Vec<Graph>) -> Vec<Graph> {
    let uses = graphs[0].uses();
    let is_output = graphs[0].is_output();
    let all_pay = |id: &NodeId| graphs.iter().all(|graph| pays(graph, &uses, &is_output, *id));
    let chosen: Vec<NodeId> = graphs[0].node_ids().filter(all_pay).collect();
    if chosen.is_empty() {
        return graphs;
    }
    graphs.iter().map(|graph| rewritten(graph, &uses, &chosen)).collect()
}

/// Whether recomputing pays: the node is cheap, its one large operand has no other reader, and all
/// its readers are elementwise, some of them in another phase or microbatch.
fn pays(graph: &Graph, uses: &[Vec<(NodeId, usize)>], is_output: &[bool], id: NodeId) -> bool {
    let node = graph.node(id);
    let Traits::Elementwise(function) = graph.traits(node) else { return false };
    let is_cheap = match function {
        Elementwise::Binary(kind) => matches!(
            kind,
            BinaryKind::Add
                | BinaryKind::Subtract
                | BinaryKind::Multiply
                | BinaryKind::Maximum
                | BinaryKind::Minimum
        ),
        Elementwise::Unary(kind) => matches!(kind, UnaryKind::Negate | UnaryKind::Abs),
        Elementwise::Compare(_)
        | Elementwise::Select
        | Elementwise::Clamp
        | Elementwise::Convert
        | Elementwise::Bitcast => false,
    };
    if !is_cheap {
        return false;
    }
    let large: Vec<ValueId> =
        node.operands.iter().copied().filter(|&operand| !is_small(graph, operand)).collect();
    let &[large] = &large[..] else { return false };
    // A graph input, or computed in the same phase and microbatch: then the operand, which only
    // this node reads, is not recomputed itself.
    let is_at_hand = |value: ValueId| {
        graph.value(value).definition.is_none_or(|(maker, _)| {
            let maker = graph.node(maker);
            !graph.traits(maker).is_view() && stretch(maker) == stretch(node)
        })
    };
    let readers = |value: ValueId| uses[value.index()].iter().map(|&(reader, _)| reader);
    let result = node.results[0];
    let is_kept = |value: ValueId| is_output[value.index()];
    is_at_hand(large)
        && !is_kept(large)
        && !is_kept(result)
        && readers(large).all(|reader| reader == id)
        && readers(result).all(|reader| graph.traits(graph.node(reader)).is_elementwise())
        && readers(result).any(|reader| stretch(graph.node(reader)) != stretch(node))
}

/// Whether the value is one number or the broadcast of a smaller value, which is kept anyway.
fn is_small(graph: &Graph, value: ValueId) -> bool {
    if uniform(graph, value).is_some() {
        return true;
    }
    let (mut source, mut grows) = (value, false);
    while let Some((definition, _)) = graph.value(source).definition {
        let node = graph.node(definition);
        let Traits::View(view @ (ViewMap::Broadcast { .. } | ViewMap::Reshape)) = graph.traits(node) else {
            return false;
        };
        source = node.operands[0];
        grows |= graph.ty(source).rank() < graph.ty(node.results[0]).rank()
            && matches!(view, ViewMap::Broadcast { .. });
    }
    grows
}

/// Rebuilds the graph with a copy of the chosen nodes for each other phase or microbatch that reads
/// them.
fn rewritten(graph: &Graph, uses: &[Vec<(NodeId, usize)>], chosen: &[NodeId]) -> Graph {
    let mut copy = Copier::new(graph);
    // The recomputed result of a chosen node, by phase and microbatch.
    let mut again: IndexMap<(ValueId, Stretch), ValueId> = IndexMap::new();
    for (id, node) in graph.node_ids().zip(&graph.nodes) {
        if chosen.binary_search(&id).is_ok() {
            let mut readers = uses[node.results[0].index()].iter();
            if !readers.any(|&(reader, _)| stretch(graph.node(reader)) == stretch(node)) {
                continue;
            }
        }
        let mut restored = Vec::new();
        for &operand in &node.operands {
            let Some((definition, _)) = graph.value(operand).definition else { continue };
            let maker = graph.node(definition);
            if chosen.binary_search(&definition).is_err() || stretch(maker) == stretch(node) {
                continue;
            }
            let own = match again.get(&(operand, stretch(node))) {
                Some(&own) => own,
                None => {
                    let Node { phase, microbatch, remat, .. } = *node;
                    let here = Node { phase, microbatch, remat, ..maker.clone() };
                    let own = copy.append_copy(graph, &here, maker.op.clone())[0];
                    again.insert((operand, stretch(node)), own);
                    own
                }
            };
            restored.push((operand, copy.map[operand.index()].replace(own)));
        }
        copy.node(graph, node, node.op.clone());
        for (operand, before) in restored.into_iter().rev() {
            copy.map[operand.index()] = before;
        }
    }
    copy.finish(graph)
}
