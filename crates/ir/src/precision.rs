//! Mixed precision: parameters keep their type, and most of the model computes in a narrower one.
//!
//! [`mixed`] decides for each node of a forward graph in which type it computes:
//!
//! - Matmuls, convolutions and attention compute in the narrow type; kernels and the interpreter add their terms in a wider
//!   one and round once.
//! - What depends on no such product yet (parameters, inputs, constants, embeddings) keeps its type, and is converted where
//!   it is used.
//! - Ops whose results lose their meaning in few bits (exponentials, powers, sums) compute in their own type. A composite
//!   that widens such an inner part itself, as norms and softmax do, computes in the type of its operands.
//! - What follows the last product is the loss. It computes in its own type.
//! - Everything else computes in the widest type of its operands.
//!
//! The gradient of a conversion is the conversion back, so parameters get gradients in their own type. [`widen_sums`] then
//! lets the last sum of such a gradient end in that type instead of rounding to the narrow one first.
//!
//! Sources: P. Micikevicius et al., "Mixed Precision Training", 2018; the op lists of PyTorch's `torch.amp`.

use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::graph_edit;
use crate::literal::Literal;
use crate::op::{Op, Operation};
use crate::ops::{BitcastConvert, Composite, Constant, Convert, Convolution, DotGeneral, Reduce};
use crate::traits::Precision;
use crate::types::TensorType;
use crate::{Attribute, CompositeDefinition};
use partita_base::{DType, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The forward graph in mixed precision: products compute in `compute`, inputs and outputs keep their types. Nodes for which
/// `keeps` is true keep the types that they have.
///
/// # Errors
/// What rebuilding composites says.
pub fn mixed(graph: &Graph, compute: DType, keeps: &dyn Fn(&Node) -> bool) -> Result<Graph> {
    compute_in(graph, &narrow_nodes(graph, compute, keeps), compute)
}

/// How a value may be typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// Depends on no product: any type.
    Free,
    /// Computed in the narrow type.
    Narrow,
    /// Computed in its own type, after a product.
    Own,
}

/// The nodes that compute in the narrow type: see the top of this file.
fn narrow_nodes(graph: &Graph, compute: DType, keeps: &dyn Fn(&Node) -> bool) -> BTreeSet<NodeId> {
    let precisions: Vec<Precision> =
        graph.nodes.iter().map(|node| precision_of(graph, node, compute, keeps)).collect();
    let in_tail = tail(graph, &precisions);
    let mut class = vec![Class::Free; graph.values.len()];
    let mut narrow = BTreeSet::new();
    for id in graph.node_ids() {
        let node = graph.node(id);
        let floats = || node.operands.iter().filter(|v| graph.ty(**v).dtype.is_float());
        let reads = |wanted: Class| floats().any(|v| class[v.index()] == wanted);
        let own = match precisions[id.index()] {
            Precision::Product => Class::Narrow,
            _ if !reads(Class::Narrow) && !reads(Class::Own) => Class::Free,
            Precision::Own => Class::Own,
            Precision::Operands if in_tail[id.index()] || reads(Class::Own) => Class::Own,
            Precision::Operands => Class::Narrow,
        };
        if own == Class::Narrow {
            narrow.insert(id);
        }
        node.results.iter().for_each(|v| class[v.index()] = own);
    }
    narrow
}

/// The precision of a node, given what it contains and the types that it has.
fn precision_of(graph: &Graph, node: &Node, compute: DType, keeps: &dyn Fn(&Node) -> bool) -> Precision {
    let tensors = || node.operands.iter().chain(&node.results).map(|&v| graph.ty(v).dtype);
    // Floats of another narrow type, and complex numbers, were chosen on purpose.
    let fits = |dtype: DType| dtype == compute || !(dtype.is_float() || dtype.is_complex()) || is_wide(dtype);
    if !tensors().all(fits) || keeps(node) {
        return Precision::Own;
    }
    if let Op::Composite(composite) = &node.op {
        return of_composite(composite, &graph.operand_types(node), compute);
    }
    // Loops, branches and bodies have types of their own.
    if !node.op.regions().is_empty() {
        return Precision::Own;
    }
    // A conversion that the model itself makes to a wider type.
    if let Op::Convert(convert) = &node.op
        && is_wide(convert.dtype)
        && graph.ty(node.operands[0]).dtype == compute
    {
        return Precision::Own;
    }
    of_op(graph, node)
}

/// The precision of one op. A bitcast to the same type is the identity without a gradient.
fn of_op(graph: &Graph, node: &Node) -> Precision {
    if let Op::BitcastConvert(cast) = &node.op
        && cast.dtype == graph.ty(node.operands[0]).dtype
    {
        return Precision::Operands;
    }
    node.op.precision()
}

/// f32 or f64.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// A composite is rebuilt for narrow operands. If that leaves an op in the narrow type that must not be, it keeps its own.
fn of_composite(composite: &Composite, operands: &[&TensorType], compute: DType) -> Precision {
    // A subgraph that a plan or a text names has constants of fixed types.
    if matches!(composite.definition.origin, crate::composite::Origin::Outlined) {
        return Precision::Own;
    }
    let narrow = |ty: &&TensorType| if is_wide(ty.dtype) { ty.with_dtype(compute) } else { (*ty).clone() };
    let types: Vec<TensorType> = operands.iter().map(narrow).collect();
    let attributes = retyped_attributes(composite, compute);
    match composite.definition.resized(&attributes, &types) {
        Ok(definition) => match contents(&definition, compute) {
            (_, true) => Precision::Own,
            (true, false) => Precision::Product,
            (false, false) => Precision::Operands,
        },
        Err(_) => Precision::Own,
    }
}

/// Whether a definition contains products, and whether it computes something in `compute` that needs a wider type.
fn contents(definition: &CompositeDefinition, compute: DType) -> (bool, bool) {
    let graph = &definition.decomposition;
    graph.nodes.iter().fold((false, false), |(products, exposed), node| {
        let (more, bare) = if let Op::Composite(inner) = &node.op {
            contents(&inner.definition, compute)
        } else {
            let is_narrow = node.results.iter().any(|&v| graph.ty(v).dtype == compute);
            let precision = of_op(graph, node);
            (precision == Precision::Product, precision == Precision::Own && is_narrow)
        };
        (products | more, exposed | bare)
    })
}

/// For each node, whether no product follows it: only outputs depend on it.
fn tail(graph: &Graph, precisions: &[Precision]) -> Vec<bool> {
    let mut leads_to_product = vec![false; graph.values.len()];
    let mut tail = vec![false; graph.nodes.len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        let before = node.results.iter().any(|v| leads_to_product[v.index()]);
        let is_product = precisions[id.index()] == Precision::Product;
        tail[id.index()] = !before && !is_product;
        if before || is_product {
            node.operands.iter().for_each(|v| leads_to_product[v.index()] = true);
        }
    }
    tail
}

/// The graph in which these nodes compute floats in `compute`: what they read is converted to it, what others read of them
/// is converted back.
///
/// # Errors
/// What rebuilding composites and inferring types say.
pub fn compute_in(graph: &Graph, nodes: &BTreeSet<NodeId>, compute: DType) -> Result<Graph> {
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
        for &old in &node.operands {
            local.push(match inside[old.index()] {
                Some(new) => new,
                None => enter(builder, graph, map, &mut entered, old, compute)?,
            });
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
            // A layout that is requested for the value holds for both of its forms.
            let (annotation, group) = (graph.value(old).annotation.clone(), graph.value(old).group);
            let value = builder.graph_mut().value_mut(new);
            (value.annotation, value.group) = (annotation, group);
            outer.push(builder.convert(new, graph.ty(old).dtype)?);
        }
        Ok(Some(outer))
    })?;
    Ok(graph_edit::prune(rebuilt))
}

/// An outer value as an operand in `compute`. Constants are written in that type, and what is broadcast is converted before.
fn enter(
    builder: &mut GraphBuilder,
    graph: &Graph,
    map: &[Option<ValueId>],
    entered: &mut BTreeMap<ValueId, ValueId>,
    old: ValueId,
    compute: DType,
) -> Result<ValueId> {
    let outer = map[old.index()].expect("nodes stand in execution order");
    let ty = graph.ty(old);
    if !ty.dtype.is_float() || ty.dtype == compute {
        return Ok(outer);
    }
    if let Some(&new) = entered.get(&old) {
        return Ok(new);
    }
    let maker = graph.value(old).definition.map(|(id, _)| graph.node(id));
    let new = if let Some(Op::Constant(constant)) = maker.map(|node| &node.op) {
        builder.constant(constant_in(constant, compute))
    } else if let Some(node) = maker.filter(|node| matches!(node.op, Op::BroadcastInDim(_))) {
        let operand = enter(builder, graph, map, entered, node.operands[0], compute)?;
        builder.push_typed(node.op.clone(), &[operand], vec![ty.with_dtype(compute)])[0]
    } else {
        builder.convert(outer, compute)?
    };
    entered.insert(old, new);
    Ok(new)
}

fn constant_in(constant: &Constant, compute: DType) -> Literal {
    let Constant { value } = constant;
    Literal::from_f64(&value.ty.with_dtype(compute), value.to_f64().into_iter())
}

/// The op for operands in the new type, and whether its result type must be given.
fn retyped(op: &Op, graph: &Graph, operands: &[ValueId], compute: DType) -> Result<(Op, bool)> {
    if let Op::Constant(constant) = op
        && constant.value.ty.dtype.is_float()
    {
        return Ok((Constant { value: constant_in(constant, compute) }.into(), false));
    }
    if matches!(op, Op::Convert(convert) if convert.dtype.is_float()) {
        return Ok((Convert { dtype: compute }.into(), false));
    }
    if matches!(op, Op::BitcastConvert(cast) if cast.dtype.is_float()) {
        return Ok((BitcastConvert { dtype: compute }.into(), false));
    }
    if let Op::DotGeneral(dot) = op {
        return Ok((DotGeneral { result_dtype: None, ..dot.clone() }.into(), false));
    }
    if let Op::Convolution(convolution) = op {
        return Ok((Convolution { dtype: compute, ..convolution.clone() }.into(), false));
    }
    // The sums of a product may have results of their own in a wider type, such as those of a ring's scores.
    if op.precision() == Precision::Product {
        return Ok((op.clone(), false));
    }
    if let Op::Composite(composite) = op {
        let types: Vec<_> = operands.iter().map(|&v| graph.ty(v).clone()).collect();
        let attributes = retyped_attributes(composite, compute);
        let definition = composite.definition.resized(&attributes, &types)?;
        return Ok((Composite { attributes, definition }.into(), false));
    }
    Ok((op.clone(), true))
}

fn retyped_attributes(composite: &Composite, compute: DType) -> crate::Attributes {
    let mut attributes = composite.attributes.clone();
    if let Some(Attribute::DType(dtype)) = attributes.get_mut("dtype")
        && dtype.is_float()
    {
        *dtype = compute;
    }
    attributes
}

/// Lets sums end in the type that their only reader converts them to: a matmul or a sum along dimensions whose narrow result
/// is only converted to a wider float type has its result in that type at once, which saves a rounding. Views in between
/// follow.
///
/// # Errors
/// What inferring types says.
pub fn widen_sums(graph: &Graph) -> Result<Graph> {
    let uses = graph.uses();
    let is_output = graph.is_output();
    let widens = |node: &Node| {
        let (from, to) = (graph.ty(node.operands[0]).dtype, graph.ty(node.results[0]).dtype);
        matches!(node.op, Op::Convert(_)) && matches!(from, DType::F16 | DType::BF16) && is_wide(to)
    };
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Convert(_)) && widens(node)) {
        return Ok(graph.clone());
    }
    let single = |value: ValueId| uses[value.index()].len() == 1 && !is_output[value.index()];
    let rebuilt = graph_edit::rebuild(graph, |builder, map, index, operands| {
        let node = &graph.nodes[index];
        if matches!(node.op, Op::Convert(_)) && widens(node) {
            let to = graph.ty(node.results[0]).dtype;
            if let Some(wide) = ended_in(builder, graph, map, &single, node.operands[0], to)? {
                return Ok(Some(vec![wide]));
            }
        }
        Ok(Some(graph_edit::push_copy(builder, graph, index, operands)))
    })?;
    Ok(graph_edit::prune(rebuilt))
}

/// A value computed again with its last sum in the type `to`; `None` if it is no sum, or has other readers.
fn ended_in(
    builder: &mut GraphBuilder,
    graph: &Graph,
    map: &[Option<ValueId>],
    single: &dyn Fn(ValueId) -> bool,
    value: ValueId,
    to: DType,
) -> Result<Option<ValueId>> {
    let Some((id, _)) = graph.value(value).definition.filter(|_| single(value)) else { return Ok(None) };
    let node = graph.node(id);
    let ty = graph.ty(value).with_dtype(to);
    let new = |v: ValueId| map[v.index()].expect("nodes stand in execution order");
    if let Op::DotGeneral(dot) = &node.op {
        builder.enter(node);
        let dot = DotGeneral { result_dtype: Some(to), ..dot.clone() };
        let operands = [new(node.operands[0]), new(node.operands[1])];
        return Ok(Some(builder.push_typed(dot, &operands, vec![ty])[0]));
    }
    if let Op::Reduce(reduce) = &node.op
        && node.operands.len() == 2
        && is_sum(reduce)
    {
        builder.enter(node);
        let x = builder.convert(new(node.operands[0]), to)?;
        return Ok(Some(builder.reduce_sum(x, &reduce.dims)?));
    }
    if !matches!(node.op, Op::Transpose(_) | Op::Reshape(_)) {
        return Ok(None);
    }
    let Some(operand) = ended_in(builder, graph, map, single, node.operands[0], to)? else { return Ok(None) };
    builder.enter(node);
    Ok(Some(builder.push_typed(node.op.clone(), &[operand], vec![ty])[0]))
}

fn is_sum(reduce: &Reduce) -> bool {
    matches!(reduce.reducer, crate::ops::Reducer::Combiner(partita_mesh::Combiner::Sum))
}

#[cfg(test)]
#[path = "precision_tests.rs"]
mod tests;
