//! Reduction along dimensions.

mod reducer;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use reducer::{Numbers, check_combiner, combiner_region, element, fold, region_signature};
pub use reducer::{Reducer, combining_op};
pub(crate) use text::PARSERS;

use crate::builder::{GraphBuilder, identity};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation};
use crate::ops::{BinaryKind, Direction};
use crate::ops::checks::{distinct_dims, operand_count, same_dtype, shapes};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;

/// Operands (inputs.., initial values..), both of the same count; reduces along `dims`.
///
/// A sum over a partial input counts its initial value once per rank, so only sums that start from
/// zero may be used where layouts are chosen: [`GraphBuilder::reduce_with_init`] builds these.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduce {
    /// The reduced dimensions, ascending.
    pub dims: Vec<usize>,
    /// The combiner or body.
    pub reducer: Reducer,
}

const NAME: &str = "stablehlo.reduce";

/// Whether a value is a constant that is the combiner's identity.
fn is_identity(graph: &Graph, value: ValueId, combiner: Combiner) -> bool {
    let Some((node, _)) = graph.value(value).definition else { return false };
    match &graph.node(node).op {
        Op::Constant(constant) => constant.value == identity(combiner, constant.value.ty.dtype),
        _ => false,
    }
}

/// A reduction of one input from any initial value, rewritten to start from the combiner's identity
/// and combined with the initial value afterwards unless that is the identity.
pub fn canonical_reduce(
    builder: &mut GraphBuilder,
    combiner: Combiner,
    x: ValueId,
    initial: ValueId,
    dims: &[usize],
) -> Result<ValueId> {
    if is_identity(builder.graph(), initial, combiner) {
        let reducer = Reducer::Combiner(combiner);
        return builder.push1(Reduce { dims: dims.to_vec(), reducer }, &[x, initial]);
    }
    let reduced = builder.reduce(combiner, x, dims)?;
    let shape = builder.shape(reduced);
    let initial = builder.broadcast_scalar(initial, &shape)?;
    builder.binary(combining_op(combiner), reduced, initial)
}

impl GraphBuilder {
    /// [`GraphBuilder::reduce`] with an initial value, which is combined with the result afterwards
    /// unless it is the identity.
    pub fn reduce_with_init(
        &mut self,
        combiner: Combiner,
        x: ValueId,
        initial: ValueId,
        dims: &[usize],
    ) -> Result<ValueId> {
        canonical_reduce(self, combiner, x, initial, dims)
    }
}

impl Reduce {
    /// For a reduction across rows: the reduced dimensions and the kept ones of this shape. It
    /// requires that the leading dimensions are reduced and more than one element is kept.
    pub fn across_rows<'s>(&self, shape: &'s [usize]) -> Option<(&'s [usize], &'s [usize])> {
        let (rows, row) = shape.split_at_checked(self.dims.len())?;
        let is_first = !rows.is_empty() && self.dims.iter().copied().eq(0..rows.len());
        (is_first && row.iter().product::<usize>() != 1).then_some((rows, row))
    }

    fn kept(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|d| !self.dims.contains(d)).collect()
    }

    /// The cotangent of the input, from that of the result.
    fn input_cotangent(
        &self,
        builder: &mut GraphBuilder,
        combiner: Combiner,
        x: ValueId,
        initial: ValueId,
        result: ValueId,
        cotangent: ValueId,
    ) -> Result<Option<ValueId>> {
        let ty = builder.ty(x).clone();
        let kept = self.kept(ty.rank());
        match combiner {
            Combiner::Sum => Ok(Some(builder.broadcast_in_dim(cotangent, &ty.shape, &kept)?)),
            Combiner::Max | Combiner::Min => {
                // Tied elements share the cotangent evenly, as in JAX; so do those that are NaN.
                let chosen = builder.broadcast_in_dim(result, &ty.shape, &kept)?;
                let chosen = builder.compare(Direction::Eq, x, chosen)?;
                let is_nan = builder.compare(Direction::Ne, x, x)?;
                let chosen = builder.binary(BinaryKind::Or, chosen, is_nan)?;
                let ones = builder.convert(chosen, ty.dtype)?;
                let count = builder.reduce_sum(ones, &self.dims)?;
                let share = builder.divide(cotangent, count)?;
                let share = builder.broadcast_in_dim(share, &ty.shape, &kept)?;
                let zero = builder.full(&ty, 0.0)?;
                Ok(Some(builder.select(chosen, share, zero)?))
            }
            Combiner::Prod => {
                // The product of all others is the product of the nonzero elements divided by the
                // element, as long as no other element is zero.
                let zero = builder.full(&ty, 0.0)?;
                let one = builder.full(&ty, 1.0)?;
                let is_zero = builder.compare(Direction::Eq, x, zero)?;
                let others = builder.select(is_zero, one, x)?;
                let product = self.clone();
                let product = builder.push1(product, &[others, initial])?;
                let product = builder.multiply(product, cotangent)?;
                let product = builder.broadcast_in_dim(product, &ty.shape, &kept)?;
                let quotient = builder.divide(product, others)?;
                let ones = builder.convert(is_zero, ty.dtype)?;
                let zeros = builder.reduce_sum(ones, &self.dims)?;
                let zeros = builder.broadcast_in_dim(zeros, &ty.shape, &kept)?;
                let other_zeros = builder.subtract(zeros, ones)?;
                let none = builder.compare(Direction::Eq, other_zeros, zero)?;
                Ok(Some(builder.select(none, quotient, zero)?))
            }
            Combiner::And | Combiner::Or => Ok(None),
        }
    }
}

impl Operation for Reduce {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        if operands.is_empty() || !operands.len().is_multiple_of(2) {
            operand_count(NAME, operands, (operands.len() + 1).max(2))?;
        }
        let (inputs, initial) = operands.split_at(operands.len() / 2);
        for (input, initial) in inputs.iter().zip(initial) {
            same_dtype(NAME, input, initial)?;
            shapes(
                initial.shape.is_empty(),
                format!("initial values of `{NAME}` are scalars"),
                TensorType::scalar(input.dtype).to_string(),
                initial.to_string(),
            )?;
            shapes(
                input.shape == inputs[0].shape,
                format!("inputs of `{NAME}` must have one shape"),
                format!("{:?}", inputs[0].shape),
                format!("{:?}", input.shape),
            )?;
        }
        distinct_dims(NAME, "dimensions", &self.dims, inputs[0].rank())?;
        if !self.dims.is_sorted() {
            return Err(Diagnostic::new("E105", format!("dimensions of `{NAME}` must ascend"))
                .found(format!("{:?}", self.dims)));
        }
        let dtypes: Vec<DType> = inputs.iter().map(|ty| ty.dtype).collect();
        self.reducer.check(NAME, &dtypes)?;
        let kept = self.kept(inputs[0].rank());
        let shape: Vec<usize> = kept.iter().map(|&d| inputs[0].shape[d]).collect();
        Ok(inputs.iter().map(|input| input.with_shape(shape.clone())).collect())
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let mut rule = Rule::default();
        let mut input: Vec<Vec<FactorId>> = Vec::new();
        let mut result = Vec::new();
        for (dim, &size) in operands[0].shape.iter().enumerate() {
            let kind = match (self.dims.contains(&dim), &self.reducer) {
                (false, _) => FactorKind::Pass,
                (true, Reducer::Combiner(combiner)) => FactorKind::Reduce(*combiner),
                (true, Reducer::Body(_)) => FactorKind::Whole,
            };
            let factor = rule.factor(size, kind);
            input.push(vec![factor]);
            if kind == FactorKind::Pass {
                result.push(vec![factor]);
            }
        }
        rule.operands = vec![input; results.len()];
        rule.operands.extend(vec![Vec::new(); results.len()]);
        rule.results = vec![result; results.len()];
        match self.reducer {
            Reducer::Combiner(Combiner::Sum) => rule.linear_in(&[0]),
            _ => rule,
        }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let flops = operands[0].element_count() * results.len();
        Cost { flops: flops as f64, bytes: bytes as f64 }
    }

    /// Ties in Max and Min share evenly. E120 for a general body, and for initial values unless the
    /// reduction is a sum.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let mut gradients = vec![None; context.operands.len()];
        let Reducer::Combiner(combiner) = self.reducer else {
            return Err(refused(NAME, "a general body"));
        };
        let Some(cotangent) = context.cotangents[0] else { return Ok(gradients) };
        let (x, initial, result) = (context.operands[0], context.operands[1], context.results[0]);
        if context.wanted[0] {
            gradients[0] = self.input_cotangent(context.builder, combiner, x, initial, result, cotangent)?;
        }
        if context.wanted[1] {
            if combiner != Combiner::Sum {
                return Err(refused(NAME, "a differentiated initial value"));
            }
            let all: Vec<usize> = (0..context.builder.ty(cotangent).rank()).collect();
            gradients[1] = Some(context.builder.reduce_sum(cotangent, &all)?);
        }
        Ok(gradients)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (inputs, initial) = operands.split_at(results.len());
        let kept = self.kept(inputs[0].ty.rank());
        let strides = results[0].strides();
        let position = |index: Vec<usize>| kept.iter().zip(&strides).map(|(&d, s)| index[d] * s).sum();
        let steps =
            indices(&inputs[0].ty.shape).enumerate().map(|(from, index)| (position(index), Some(from)));
        fold(&self.reducer, inputs, initial, results, steps)
    }

    fn precision(&self) -> Precision {
        match self.reducer {
            Reducer::Combiner(Combiner::Sum | Combiner::Prod) | Reducer::Body(_) => Precision::Own,
            Reducer::Combiner(_) => Precision::Operands,
        }
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    /// If a reduced dimension is sharded, only the leader starts from the initial value. (For Max,
    /// Min, And and Or, repeating the initial value changes nothing.)
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let mut operands = context.operands().to_vec();
        if let Reducer::Combiner(combiner @ (Combiner::Sum | Combiner::Prod)) = self.reducer {
            // In the rule, dimension d of the input is factor d.
            let cut: Vec<FactorId> = self.dims.iter().copied().filter(|&d| context.is_sharded(d)).collect();
            if !cut.is_empty() && !is_identity(context.builder().graph(), operands[1], combiner) {
                let leader = context.leader(&cut)?;
                let builder = context.builder();
                let neutral = builder.constant(identity(combiner, builder.ty(operands[1]).dtype));
                operands[1] = builder.select(leader, operands[1], neutral)?;
            }
        }
        let types = (0..operands.len() / 2).map(|result| context.local_result(result)).collect();
        Ok(context.builder().push_typed(self.clone(), &operands, types))
    }

    fn regions(&self) -> Vec<&Graph> {
        self.reducer.regions()
    }
}

/// E120: no gradient for `name` with this.
pub(crate) fn refused(name: &str, with: &str) -> Box<Diagnostic> {
    Diagnostic::new("E120", format!("`{name}` with {with} has no gradient"))
        .help("use ops that have a gradient, or do not differentiate through it")
}
