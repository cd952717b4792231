//! Ops that rearrange elements: broadcast, reshape, transpose, reverse.

use super::checks::{distinct_dims, movement_cost, one_per_dim, operand_count, shapes};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, localise_same};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::traits::{Traits, ViewMap};
use crate::types::TensorType;
use partita_base::Result;

/// Operand dimension `d` becomes result dimension `dims[d]`; other result dimensions, and operand dimensions of
/// extent 1, repeat.
#[derive(Clone, PartialEq, Debug)]
pub struct BroadcastInDim {
    /// Shape of the result.
    pub shape: Vec<usize>,
    /// For each operand dimension, the result dimension it becomes.
    pub dims: Vec<usize>,
}

/// The same elements in row-major order under another shape.
#[derive(Clone, PartialEq, Debug)]
pub struct Reshape {
    /// Shape of the result.
    pub shape: Vec<usize>,
}

/// Result dimension `d` is operand dimension `permutation[d]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Transpose {
    /// For each result dimension, the operand dimension it is.
    pub permutation: Vec<usize>,
}

/// Reverses the order along `dims`.
#[derive(Clone, PartialEq, Debug)]
pub struct Reverse {
    /// The dimensions.
    pub dims: Vec<usize>,
}

/// The cotangent of a result, if the operand's is wanted and the elements are floats.
fn cotangent(context: &GradientContext) -> Option<ValueId> {
    context.cotangents[0].filter(|&g| context.wanted[0] && context.builder.ty(g).dtype.is_float())
}

/// A value of shape `shape` whose element `index` is `x[source(index)]`.
pub(crate) fn rearranged(x: &Literal, shape: &[usize], source: impl Fn(&[usize], usize) -> usize) -> Literal {
    let strides = x.ty.strides();
    let position = |index: Vec<usize>| -> usize {
        strides.iter().enumerate().map(|(dim, stride)| source(&index, dim) * stride).sum()
    };
    Literal { ty: x.ty.with_shape(shape), data: x.data.pick(indices(shape).map(position)) }
}

impl Operation for BroadcastInDim {
    fn name(&self) -> &str {
        "stablehlo.broadcast_in_dim"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        let operand = operands[0];
        one_per_dim(self.name(), "broadcast_dimensions", &self.dims, operand.rank())?;
        distinct_dims(self.name(), "broadcast_dimensions", &self.dims, self.shape.len())?;
        for (dim, (&extent, &to)) in operand.shape.iter().zip(&self.dims).enumerate() {
            shapes(
                extent == 1 || extent == self.shape[to],
                format!("dimension {dim} of the operand of `{}` does not fit the result", self.name()),
                format!("extent 1 or {} (dimension {to} of {:?})", self.shape[to], self.shape),
                operand.to_string(),
            )?;
        }
        Ok(vec![operand.with_shape(self.shape.clone())])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let mut rule = Rule::pointwise(&self.shape, 0, 1);
        let own = |(&extent, &to): (&usize, &usize)| if extent == self.shape[to] { vec![to] } else { vec![] };
        rule.operands = vec![operands[0].shape.iter().zip(&self.dims).map(own).collect()];
        rule.transparent_in(&[0])
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Some(g) = cotangent(context) else { return Ok(vec![None]) };
        let b = &mut *context.builder;
        let shape = b.shape(context.operands[0]);
        // Operand dimensions that were not broadcast, in result order.
        let mut kept: Vec<usize> =
            (0..shape.len()).filter(|&d| shape[d] == self.shape[self.dims[d]]).collect();
        kept.sort_by_key(|&d| self.dims[d]);
        let repeated: Vec<usize> =
            (0..self.shape.len()).filter(|to| !kept.iter().any(|&d| self.dims[d] == *to)).collect();
        let mut sum = if repeated.is_empty() { g } else { b.reduce_sum(g, &repeated)? };
        if !kept.is_sorted() {
            let mut order: Vec<usize> = (0..kept.len()).collect();
            order.sort_by_key(|&position| kept[position]);
            sum = b.transpose(sum, &order)?;
        }
        Ok(vec![Some(b.reshape(sum, &shape)?)])
    }

    fn evaluate(&self, operands: &[&Literal], _results: &[TensorType]) -> Result<Vec<Literal>> {
        let x = operands[0];
        let extents = &x.ty.shape;
        let source = |index: &[usize], dim: usize| if extents[dim] == 1 { 0 } else { index[self.dims[dim]] };
        Ok(vec![rearranged(x, &self.shape, source)])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Broadcast { dims: &self.dims })
    }

    fn onto_shape(&self, shape: &[usize]) -> Option<Op> {
        Some(BroadcastInDim { shape: shape.to_vec(), dims: self.dims.clone() }.into())
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let shape = context.local_result(0).shape;
        localise_same(BroadcastInDim { shape, dims: self.dims.clone() }, context, 1)
    }
}

/// The factors of the dimensions of two row-major views of the same elements.
///
/// Dimensions of extent 1 have none. The others fall into the smallest blocks with the same number
/// of elements on both sides. Within a block both sides are walked from the major end: the smaller
/// remainder becomes a common factor if it divides the larger (`[2, 6] -> [4, 3]` has 2, 2, 3). If
/// it does not, no split of one side is a split of the other, and the block cannot be sharded.
fn reshape_factors(rule: &mut Rule, from: &[usize], to: &[usize]) -> [Vec<Vec<FactorId>>; 2] {
    let mut dims = [vec![Vec::new(); from.len()], vec![Vec::new(); to.len()]];
    if from.contains(&0) || to.contains(&0) {
        for dim in 0..from.len().max(to.len()) {
            if from.get(dim) == to.get(dim) {
                let shared = rule.factor(from[dim], FactorKind::Pass);
                dims[0][dim].push(shared);
                dims[1][dim].push(shared);
                continue;
            }
            for (side, shape) in [from, to].into_iter().enumerate() {
                if let Some(&extent) = shape.get(dim) {
                    dims[side][dim].push(rule.factor(extent, FactorKind::Whole));
                }
            }
        }
        return dims;
    }
    let long = |shape: &[usize]| -> Vec<(usize, usize)> {
        shape.iter().copied().enumerate().filter(|&(_, extent)| extent > 1).collect()
    };
    let (from, to) = (long(from), long(to));
    let (mut start, mut other_start) = (0, 0);
    while start < from.len() {
        let (mut end, mut other_end) = (start + 1, other_start + 1);
        let (mut count, mut other_count) = (from[start].1, to[other_start].1);
        while count != other_count {
            if count < other_count {
                count *= from[end].1;
                end += 1;
            } else {
                other_count *= to[other_end].1;
                other_end += 1;
            }
        }
        add_block(rule, &mut dims, &from[start..end], &to[other_start..other_end]);
        (start, other_start) = (end, other_end);
    }
    dims
}

/// Adds the factors of one block of (dimension, extent) pairs with equal element counts.
fn add_block(
    rule: &mut Rule,
    dims: &mut [Vec<Vec<FactorId>>; 2],
    from: &[(usize, usize)],
    to: &[(usize, usize)],
) {
    // (size, dimension on one side, dimension on the other) of each common factor.
    let mut common = Vec::new();
    let (mut i, mut j) = (0, 0);
    let (mut rest, mut other_rest) = (from[0].1, to[0].1);
    let divides = loop {
        let size = rest.min(other_rest);
        if rest % size != 0 || other_rest % size != 0 {
            break false;
        }
        common.push((size, from[i].0, to[j].0));
        (rest, other_rest) = (rest / size, other_rest / size);
        if rest == 1 {
            i += 1;
            rest = from.get(i).map_or(1, |&(_, extent)| extent);
        }
        if other_rest == 1 {
            j += 1;
            other_rest = to.get(j).map_or(1, |&(_, extent)| extent);
        }
        if i == from.len() {
            break true;
        }
    };
    if divides {
        for (size, dim, other_dim) in common {
            let shared = rule.factor(size, FactorKind::Pass);
            dims[0][dim].push(shared);
            dims[1][other_dim].push(shared);
        }
    } else {
        for (side, block) in [from, to].into_iter().enumerate() {
            for &(dim, extent) in block {
                dims[side][dim].push(rule.factor(extent, FactorKind::Whole));
            }
        }
    }
}

impl Operation for Reshape {
    fn name(&self) -> &str {
        "stablehlo.reshape"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        let result = operands[0].with_shape(self.shape.clone());
        shapes(
            result.element_count() == operands[0].element_count(),
            format!("`{}` must keep the number of elements", self.name()),
            format!("{} elements, as {} has", operands[0].element_count(), operands[0]),
            format!("{} elements in {result}", result.element_count()),
        )?;
        Ok(vec![result])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let mut rule = Rule::default();
        let [operand, result] = reshape_factors(&mut rule, &operands[0].shape, &self.shape);
        (rule.operands, rule.results) = (vec![operand], vec![result]);
        rule.transparent_in(&[0])
    }

    fn cost(&self, _operands: &[&TensorType], _results: &[&TensorType]) -> Cost {
        // A view: no data moves.
        Cost::default()
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Some(g) = cotangent(context) else { return Ok(vec![None]) };
        let shape = context.builder.shape(context.operands[0]);
        Ok(vec![Some(context.builder.reshape(g, &shape)?)])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![Literal { ty: results[0].clone(), data: operands[0].data.clone() }])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Reshape)
    }

    fn onto_shape(&self, shape: &[usize]) -> Option<Op> {
        Some(Reshape { shape: shape.to_vec() }.into())
    }

    fn is_alike(&self, own: &[&TensorType], other: &Op, others: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::Reshape(other)
            if own[0].rank() == others[0].rank() && self.shape.len() == other.shape.len()))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let shape = context.local_result(0).shape;
        localise_same(Reshape { shape }, context, 1)
    }
}

impl Operation for Transpose {
    fn name(&self) -> &str {
        "stablehlo.transpose"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        one_per_dim(self.name(), "permutation", &self.permutation, operands[0].rank())?;
        distinct_dims(self.name(), "permutation", &self.permutation, operands[0].rank())?;
        let shape: Vec<usize> = self.permutation.iter().map(|&dim| operands[0].shape[dim]).collect();
        Ok(vec![operands[0].with_shape(shape)])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let mut rule = Rule::pointwise(&operands[0].shape, 1, 0);
        rule.results = vec![self.permutation.iter().map(|&dim| vec![dim]).collect()];
        rule.transparent_in(&[0])
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Some(g) = cotangent(context) else { return Ok(vec![None]) };
        let mut inverse = vec![0; self.permutation.len()];
        for (to, &from) in self.permutation.iter().enumerate() {
            inverse[from] = to;
        }
        Ok(vec![Some(context.builder.transpose(g, &inverse)?)])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let x = operands[0];
        let strides: Vec<usize> = self.permutation.iter().map(|&dim| x.ty.strides()[dim]).collect();
        let position = |index: Vec<usize>| index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let data = x.data.pick(indices(&results[0].shape).map(position));
        Ok(vec![Literal { ty: results[0].clone(), data }])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Transpose { permutation: &self.permutation })
    }

    fn onto_shape(&self, _: &[usize]) -> Option<Op> {
        Some(self.clone().into())
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

impl Operation for Reverse {
    fn name(&self) -> &str {
        "stablehlo.reverse"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        distinct_dims(self.name(), "dimensions", &self.dims, operands[0].rank())?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let mut rule = Rule::pointwise(&operands[0].shape, 1, 1);
        for &dim in &self.dims {
            rule.factors[dim].kind = FactorKind::Shift;
        }
        rule.transparent_in(&[0])
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Some(g) = cotangent(context) else { return Ok(vec![None]) };
        Ok(vec![Some(context.builder.push1(self.clone(), &[g])?)])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let shape = &results[0].shape;
        let source = |index: &[usize], dim: usize| {
            if self.dims.contains(&dim) { shape[dim] - 1 - index[dim] } else { index[dim] }
        };
        Ok(vec![rearranged(operands[0], shape, source)])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Reverse { dims: &self.dims })
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter, join};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.broadcast_in_dim", parse_broadcast_in_dim),
    ("stablehlo.broadcast", parse_broadcast),
    ("stablehlo.dynamic_broadcast_in_dim", parse_dynamic_broadcast_in_dim),
    ("stablehlo.dynamic_reshape", parse_reshape),
    ("stablehlo.reshape", parse_reshape),
    ("stablehlo.transpose", parse_transpose),
    ("stablehlo.reverse", parse_reverse),
];

/// `%0, dims = [..] : types`, or the attribute of the generic form.
fn parse_dims(op: &mut OpParser, attribute: &str) -> Result<Vec<usize>> {
    let dims = if op.generic()? {
        op.indices_of(attribute)?
    } else {
        op.operands()?;
        op.clause("dims")?;
        let dims = op.index_list()?;
        op.types()?;
        dims
    };
    Ok(dims)
}

/// The result type says the shape that the second operand gives.
fn parse_dynamic_broadcast_in_dim(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let dims = parse_dims(op, "broadcast_dimensions")?;
    without_shape(op)?;
    op.finish(BroadcastInDim { shape: op.result_type()?.shape, dims })
}

/// Removes the second operand.
fn without_shape(op: &mut OpParser) -> Result<()> {
    op.arity(2)?;
    op.check_operands()?;
    op.drop_operand(1);
    Ok(())
}

/// New dimensions in front.
fn parse_broadcast(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let sizes = match op.generic()? {
        true => op.indices_of("broadcast_sizes")?,
        false => {
            op.operands()?;
            op.clause("sizes")?;
            let sizes = op.index_list()?;
            op.types()?;
            sizes
        }
    };
    op.arity(1)?;
    let shape = [&sizes[..], &op.operand_type(0).shape].concat();
    let dims = (sizes.len()..shape.len()).collect();
    op.finish(BroadcastInDim { shape, dims })
}

impl TextForm for BroadcastInDim {
    /// `stablehlo.broadcast_in_dim %0, dims = [0] : (T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty("stablehlo.broadcast_in_dim", &format!(", dims = [{}]", join(&self.dims)));
    }
}

fn parse_broadcast_in_dim(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let dims = parse_dims(op, "broadcast_dimensions")?;
    op.arity(1)?;
    op.finish(BroadcastInDim { shape: op.result_type()?.shape, dims })
}

impl TextForm for Reshape {
    /// `stablehlo.reshape %0 : (T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty("stablehlo.reshape", "");
    }
}

fn parse_reshape(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    match op.name == "stablehlo.dynamic_reshape" {
        true => without_shape(op)?,
        false => op.arity(1)?,
    }
    op.finish(Reshape { shape: op.result_type()?.shape })
}

impl TextForm for Transpose {
    /// `stablehlo.transpose %0, dims = [1, 0] : (T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty("stablehlo.transpose", &format!(", dims = [{}]", join(&self.permutation)));
    }
}

fn parse_transpose(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let permutation = parse_dims(op, "permutation")?;
    op.arity(1)?;
    op.finish(Transpose { permutation })
}

impl TextForm for Reverse {
    /// `stablehlo.reverse %0, dims = [1] : T`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty_same_type("stablehlo.reverse", &format!(", dims = [{}]", join(&self.dims)));
    }
}

fn parse_reverse(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let dims = parse_dims(op, "dimensions")?;
    op.arity(1)?;
    op.finish(Reverse { dims })
}

#[cfg(test)]
mod tests;
