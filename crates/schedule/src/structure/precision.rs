//! Modules that compute in another element type (mixed precision).

use partita_base::{DType, Result};
use partita_ir::ops::{Composite, Constant, Convert};
use partita_ir::{Attribute, Graph, Literal, NodeId, Op, ValueId, graph_edit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The graph in which these nodes compute floats in `compute`: inputs are converted to it, outputs
/// back.
pub(super) fn compute_in(graph: &Graph, nodes: &BTreeSet<NodeId>, compute: DType) -> Result<Graph> {
    // Inner values in the new type; outer values, each converted once.
    let mut inside: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut entered: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let rebuilt = graph_edit::rebuild(graph, |builder, map, index, operands| {
        if !nodes.contains(&NodeId::new(index)) {
            return Ok(Some(graph_edit::push_copy(builder, graph, index, operands)));
        }
        let node = &graph.nodes[index];
        builder.enter(node);
        let mut local = Vec::with_capacity(operands.len());
        for old in &node.operands {
            let new = match inside[old.index()] {
                Some(new) => new,
                None => {
                    let outer = map[old.index()].expect("nodes stand in execution order");
                    if graph.ty(*old).dtype.is_float() && !entered.contains_key(old) {
                        entered.insert(*old, builder.convert(outer, compute)?);
                    }
                    entered.get(old).copied().unwrap_or(outer)
                }
            };
            local.push(new);
        }
        let results = match retyped(&node.op, builder.graph(), &local, compute)? {
            // Ops whose result type does not follow from their operands.
            (op, true) => {
                let types = node.results.iter().map(|&v| {
                    let ty = graph.ty(v);
                    if ty.dtype.is_float() { ty.with_dtype(compute) } else { ty.clone() }
                });
                let types = types.collect();
                builder.push_typed(op, &local, types)
            }
            (op, false) => builder.push(op, &local)?,
        };
        let mut outer = Vec::with_capacity(results.len());
        for (&old, &new) in node.results.iter().zip(&results) {
            inside[old.index()] = Some(new);
            outer.push(builder.convert(new, graph.ty(old).dtype)?);
        }
        Ok(Some(outer))
    })?;
    Ok(graph_edit::prune(rebuilt))
}

/// The op for operands in the new type, and whether its result type must be given.
fn retyped(op: &Op, graph: &Graph, operands: &[ValueId], compute: DType) -> Result<(Op, bool)> {
    if let Op::Constant(Constant { value }) = op
        && value.ty.dtype.is_float()
    {
        let value = Literal::from_f64(&value.ty.with_dtype(compute), value.to_f64().into_iter());
        return Ok((Constant { value }.into(), false));
    }
    if matches!(op, Op::Convert(convert) if convert.dtype.is_float()) {
        return Ok((Convert { dtype: compute }.into(), false));
    }
    if let Op::Composite(composite) = op {
        let types: Vec<_> = operands.iter().map(|&v| graph.ty(v).clone()).collect();
        let mut attributes = composite.attributes.clone();
        if let Some(Attribute::DType(dtype)) = attributes.get_mut("dtype")
            && dtype.is_float()
        {
            *dtype = compute;
        }
        let definition = Arc::new(composite.definition.resized(&attributes, &types)?);
        return Ok((Composite { attributes, definition }.into(), false));
    }
    Ok((op.clone(), true))
}
