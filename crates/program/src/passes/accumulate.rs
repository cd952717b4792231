//! Matmul accumulation: replaces the sum of two matmuls by one matmul that adds to the other's
//! result in place, if the device's kernel gives the same bits.

use crate::passes::simplify::is_sum;
use partita_ir::composites::{DOT_GENERAL_ADD, dot_general_dims};
use partita_ir::ops::{Composite, DotGeneral, Reshape};
use partita_ir::{Graph, NodeId, Op, Target, ValueId};

/// For each sum of two matmuls that have no other reader, the later matmul adds to the result of
/// the earlier one. It keeps its place in the graph, so no value lives longer. The graphs keep one
/// structure.
pub(crate) fn accumulate(mut graphs: Vec<Graph>, target: &dyn Target) -> Vec<Graph> {
    let first = &graphs[0];
    let uses = first.uses();
    let is_output = first.is_output();
    let is_alone = |value: &ValueId| uses[value.index()].len() == 1 && !is_output[value.index()];
    let sums: Vec<NodeId> = first
        .node_ids()
        .filter(|&id| is_sum(&first.node(id).op) && first.node(id).operands.iter().all(is_alone))
        .collect();
    // The matmul that replaced each sum.
    let mut became: Vec<ValueId> = first.value_ids().collect();
    for id in sums {
        let first = &graphs[0];
        let [a, b] = [0, 1].map(|operand| became[first.node(id).operands[operand].index()]);
        let maker = |value: ValueId| first.value(value).definition.map(|(node, _)| node);
        let (Some(a_maker), Some(b_maker)) = (maker(a), maker(b)) else { continue };
        let (sum, product, place) = if a_maker < b_maker { (a, b, b_maker) } else { (b, a, a_maker) };
        let earlier = &first.node(a_maker.min(b_maker)).op;
        let is_product = matches!(earlier, Op::DotGeneral(_)) || is_product_added(earlier);
        let added = |graph: &Graph| {
            let Op::DotGeneral(dot) = &graph.node(place).op else { return None };
            added(graph, dot, sum, place).filter(|composite| target.has_kernel(composite))
        };
        let added: Option<Vec<Composite>> = graphs.iter().map(added).collect();
        let Some(added) = added.filter(|_| is_product) else { continue };
        for (graph, added) in graphs.iter_mut().zip(added) {
            let node = &mut graph.nodes[place.index()];
            node.op = added.into();
            node.operands.insert(0, sum);
            let shape = graph.ty(product).shape.clone();
            let node = &mut graph.nodes[id.index()];
            (node.op, node.operands) = (Reshape { shape }.into(), vec![product]);
        }
        let result = graphs[0].node(id).results[0];
        became[result.index()] = product;
    }
    graphs
}

fn is_product_added(op: &Op) -> bool {
    matches!(op, Op::Composite(composite) if composite.definition.name == DOT_GENERAL_ADD.name)
}

/// The matmul at `place` with `sum` added.
fn added(graph: &Graph, dot: &DotGeneral, sum: ValueId, place: NodeId) -> Option<Composite> {
    let operands = std::iter::once(&sum).chain(&graph.node(place).operands);
    let types: Vec<_> = operands.map(|&operand| graph.ty(operand).clone()).collect();
    Composite::new(&DOT_GENERAL_ADD, dot_general_dims(dot), &types).ok()
}
