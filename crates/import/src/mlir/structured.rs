//! Structured ops: an iteration space, a map from it to each operand, a body. What `linalg.generic` writes out, and what
//! the named ops of `linalg` abbreviate.
//!
//! Maps are projections: each dimension of an operand is one of the space, no dimension twice, or the constant 0. The body
//! is read once, on tensors over the whole space. A result whose map leaves dimensions out is a reduction; its body must
//! combine the old value with a new one: `old + x`, or with another combiner. `old + a * b` of two operands is a
//! `dot_general`, and the products are not stored.

use super::reader::{Op, Reader};
use partita_base::{Combiner, Result};
use partita_ir::ops::{BinaryKind, DotGeneral, Op as IrOp};
use partita_ir::{GraphBuilder, ValueId};
use std::collections::BTreeSet;

/// The dimension of the space that each dimension of an operand is; `None` where it is always 0.
pub(super) type Map = Vec<Option<usize>>;

/// A structured op: the operands it reads, those it replaces, their maps in this order, and the extents of the space.
pub(super) struct Structured {
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    pub maps: Vec<Map>,
    pub space: Vec<usize>,
}

impl Structured {
    /// With the extents of the space from the operands. E146 if they disagree, or nothing says an extent.
    pub fn new(
        reader: &Reader,
        op: &Op,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        maps: Vec<Map>,
        rank: usize,
    ) -> Result<Structured> {
        let wrong = |what: String| reader.error(op.at, "E146", what);
        let mut space: Vec<Option<usize>> = vec![None; rank];
        if maps.len() != inputs.len() + outputs.len() {
            return Err(
                wrong("an op needs a map for each operand".to_string()).found(format!("{} maps", maps.len()))
            );
        }
        for (&value, map) in inputs.iter().chain(&outputs).zip(&maps) {
            let shape = reader.b.shape(value);
            if shape.len() != map.len() {
                return Err(wrong(format!("a map of {} results for {}", map.len(), reader.b.ty(value))));
            }
            for (&extent, dim) in shape.iter().zip(map) {
                let Some(dim) = *dim else { continue };
                match space.get_mut(dim) {
                    None => {
                        return Err(wrong(format!("a map with the dimension d{dim} of a space of {rank}")));
                    }
                    Some(known) if known.is_some_and(|known| known != extent) => {
                        return Err(wrong(format!("the operands disagree on the extent of d{dim}"))
                            .expected(known.unwrap_or_default().to_string())
                            .found(extent.to_string()));
                    }
                    Some(known) => *known = Some(extent),
                }
            }
        }
        let space = space.into_iter().enumerate().map(|(dim, extent)| {
            extent.ok_or_else(|| wrong(format!("no operand says the extent of d{dim}")))
        });
        let space = space.collect::<Result<Vec<usize>>>()?;
        reader.limits.count(&space, "an iteration space").map_err(|error| {
            reader
                .error(op.at, "E149", "this iteration space is too large")
                .found(error.found.unwrap_or_default())
        })?;
        Ok(Structured { inputs, outputs, maps, space })
    }

    /// The results, where `body` gives the yielded values for the values of all operands over the space.
    pub fn results<'a>(
        &self,
        reader: &mut Reader<'a>,
        op: &Op<'a>,
        body: impl FnOnce(&mut Reader<'a>, Vec<ValueId>) -> Result<Vec<ValueId>>,
    ) -> Result<Vec<ValueId>> {
        let operands: Vec<ValueId> = self.inputs.iter().chain(&self.outputs).copied().collect();
        let mut over_space = Vec::new();
        for (&operand, map) in operands.iter().zip(&self.maps) {
            let spread = self.spread(&mut reader.b, operand, map);
            over_space.push(reader.placed(spread, op.at)?);
        }
        let outer = reader.space.replace(self.space.clone());
        let yielded = body(reader, over_space.clone());
        reader.space = outer;
        let yielded = yielded?;
        reader.arity(op, &yielded, self.outputs.len())?;
        let mut results = Vec::new();
        for (number, &value) in yielded.iter().enumerate() {
            let place = self.inputs.len() + number;
            let (output, map) = (self.outputs[number], &self.maps[place]);
            if map.iter().any(Option::is_none) {
                return Err(reader.error(op.at, "E144", "a result with a constant index is not read"));
            }
            let left_out: Vec<usize> =
                (0..self.space.len()).filter(|dim| !map.contains(&Some(*dim))).collect();
            let value = super::elementwise::spread(&mut reader.b, value, &self.space);
            let value = reader.placed(value, op.at)?;
            if reader.b.ty(value).dtype != reader.b.ty(output).dtype {
                return Err(reader.error(op.at, "E146", "the body yields another type than the result has"));
            }
            let result = match left_out.is_empty() {
                true => to_map(&mut reader.b, value, &(0..self.space.len()).collect::<Vec<_>>(), map),
                false => {
                    let old = over_space[place];
                    let Some((combiner, new)) = combined(&reader.b, value, old) else {
                        return Err(reader
                            .error(op.at, "E144", "this reduction is not read")
                            .expected("a body that combines the old value with a new one: `old + x`, or max, min, mul, and, or"));
                    };
                    self.reduced(&mut reader.b, combiner, new, (output, map), &left_out, &over_space)
                }
            };
            results.push(reader.placed(result, op.at)?);
        }
        Ok(results)
    }

    /// An operand over the whole space.
    fn spread(&self, b: &mut GraphBuilder, operand: ValueId, map: &Map) -> Result<ValueId> {
        if map.iter().copied().eq((0..self.space.len()).map(Some)) {
            return Ok(operand);
        }
        let mut value = operand;
        for (dim, place) in map.iter().enumerate() {
            if place.is_none() && b.shape(value)[dim] != 1 {
                value = b.slice_dim(value, dim, 0, 1)?;
            }
        }
        let kept: Vec<usize> = map.iter().flatten().copied().collect();
        let shape: Vec<usize> = kept.iter().map(|&dim| self.space[dim]).collect();
        let value = b.reshape(value, &shape)?;
        // The dimensions of a broadcast ascend.
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&at| kept[at]);
        let value = if order.is_sorted() { value } else { b.transpose(value, &order)? };
        let dims: Vec<usize> = order.iter().map(|&at| kept[at]).collect();
        b.broadcast_in_dim(value, &self.space, &dims)
    }

    /// The old value combined with the new ones along the dimensions that the result leaves out.
    fn reduced(
        &self,
        b: &mut GraphBuilder,
        combiner: Combiner,
        new: ValueId,
        (output, map): (ValueId, &Map),
        left_out: &[usize],
        over_space: &[ValueId],
    ) -> Result<ValueId> {
        let product = if combiner == Combiner::Sum { self.product(b, new, map, over_space)? } else { None };
        let sum = match product {
            Some(product) => product,
            None => {
                let dims: Vec<usize> = (0..self.space.len()).filter(|dim| !left_out.contains(dim)).collect();
                let reduced = b.reduce(combiner, new, left_out)?;
                to_map(b, reduced, &dims, map)?
            }
        };
        b.binary(binary_of(combiner), output, sum)
    }

    /// The new value as a `dot_general`, if it is the product of two operands whose maps permit that.
    fn product(
        &self,
        b: &mut GraphBuilder,
        new: ValueId,
        map: &Map,
        over_space: &[ValueId],
    ) -> Result<Option<ValueId>> {
        let Some((node, _)) = b.graph().value(new).definition else { return Ok(None) };
        let node = b.graph().node(node);
        let (IrOp::Binary(kind), &[x, y]) = (&node.op, &node.operands[..]) else { return Ok(None) };
        if kind.kind != BinaryKind::Multiply {
            return Ok(None);
        }
        // The operand that a factor is, and the type it is converted to.
        let factor = |value: ValueId| {
            let dtype = b.ty(value).dtype;
            let plain = |value: ValueId| over_space[..self.inputs.len()].iter().position(|&own| own == value);
            let converted = || {
                let node = b.graph().node(b.graph().value(value).definition?.0);
                matches!(node.op, IrOp::Convert(_)).then(|| plain(node.operands[0])).flatten()
            };
            Some((plain(value).or_else(converted)?, dtype))
        };
        let (Some((x, dtype)), Some((y, _))) = (factor(x), factor(y)) else { return Ok(None) };
        let (of_x, of_y) = (&self.maps[x], &self.maps[y]);
        if of_x.iter().chain(of_y).any(Option::is_none) {
            return Ok(None);
        }
        let at = |map: &Map, dim: usize| map.iter().position(|&own| own == Some(dim));
        let mut dims = DotGeneral::default();
        let (mut batch, mut free_x, mut free_y) = (Vec::new(), Vec::new(), Vec::new());
        for dim in 0..self.space.len() {
            match (at(of_x, dim), at(of_y, dim), map.contains(&Some(dim))) {
                (Some(x), Some(y), false) => {
                    dims.lhs_contracting.push(x);
                    dims.rhs_contracting.push(y);
                }
                (Some(x), Some(y), true) => {
                    dims.lhs_batch.push(x);
                    dims.rhs_batch.push(y);
                    batch.push(dim);
                }
                (Some(x), None, true) => free_x.push((x, dim)),
                (None, Some(y), true) => free_y.push((y, dim)),
                // A dimension of one factor alone that is summed, or of none.
                _ => return Ok(None),
            }
        }
        free_x.sort_unstable();
        free_y.sort_unstable();
        let (left, right) = (b.convert(self.inputs[x], dtype)?, b.convert(self.inputs[y], dtype)?);
        let product = b.dot_general(left, right, dims)?;
        let order: Vec<usize> =
            batch.into_iter().chain(free_x.into_iter().chain(free_y).map(|(_, dim)| dim)).collect();
        to_map(b, product, &order, map).map(Some)
    }
}

/// A tensor whose dimensions are these of the space, with them in the order of a map.
fn to_map(b: &mut GraphBuilder, value: ValueId, dims: &[usize], map: &Map) -> Result<ValueId> {
    let order: Vec<usize> =
        map.iter().filter_map(|dim| dims.iter().position(|own| Some(*own) == *dim)).collect();
    if order.is_sorted() { Ok(value) } else { b.transpose(value, &order) }
}

/// The combiner and the new value of `old + new` and its like.
fn combined(b: &GraphBuilder, value: ValueId, old: ValueId) -> Option<(Combiner, ValueId)> {
    let graph = b.graph();
    let node = graph.node(graph.value(value).definition?.0);
    let IrOp::Binary(op) = &node.op else { return None };
    let combiner = match op.kind {
        BinaryKind::Add => Combiner::Sum,
        BinaryKind::Multiply => Combiner::Prod,
        BinaryKind::Maximum => Combiner::Max,
        BinaryKind::Minimum => Combiner::Min,
        BinaryKind::And => Combiner::And,
        BinaryKind::Or => Combiner::Or,
        _ => return None,
    };
    let new = match node.operands[..] {
        [a, new] if a == old => new,
        [new, a] if a == old => new,
        _ => return None,
    };
    // The new value must not depend on the old one.
    let mut open = vec![new];
    let mut seen = BTreeSet::new();
    while let Some(value) = open.pop() {
        if value == old {
            return None;
        }
        if seen.insert(value)
            && let Some((node, _)) = graph.value(value).definition
        {
            open.extend(&graph.node(node).operands);
        }
    }
    Some((combiner, new))
}

/// The op of a combiner.
fn binary_of(combiner: Combiner) -> BinaryKind {
    match combiner {
        Combiner::Sum => BinaryKind::Add,
        Combiner::Prod => BinaryKind::Multiply,
        Combiner::Max => BinaryKind::Maximum,
        Combiner::Min => BinaryKind::Minimum,
        Combiner::And => BinaryKind::And,
        Combiner::Or => BinaryKind::Or,
    }
}
