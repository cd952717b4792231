//! Slices and updates at computed positions.

use super::checks::{movement_cost, one_per_dim, operand_count, same_dtype, same_type, shapes, sizes};
use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::traits::{Traits, ViewMap};
use crate::types::TensorType;
use partita_base::{Diagnostic, Result};

/// Operands (tensor, start_0, start_1, ...): the window of extents `sizes` at the start indices, clamped so that
/// it fits.
#[derive(Clone, PartialEq, Debug)]
pub struct DynamicSlice {
    /// Extents of the window.
    pub sizes: Vec<usize>,
}

/// Operands (tensor, update, start_0, ...): the tensor with the window replaced, start clamped as in
/// [`DynamicSlice`].
#[derive(Clone, PartialEq, Debug)]
pub struct DynamicUpdateSlice;

/// Checks the start indices: one per dimension, integer scalars of one type.
fn check_starts(name: &str, starts: &[&TensorType]) -> Result<()> {
    for start in starts {
        if !(start.rank() == 0 && start.dtype.is_integer()) {
            return Err(Diagnostic::new("E104", format!("start indices of `{name}` must be scalars"))
                .expected("integer scalars")
                .found(start.to_string()));
        }
        same_type(name, starts[0], start)?;
    }
    Ok(())
}

/// E106 unless the window fits the tensor.
fn check_window(name: &str, tensor: &TensorType, window: &[usize]) -> Result<()> {
    sizes(
        window.iter().zip(&tensor.shape).all(|(size, extent)| size <= extent),
        format!("the window of `{name}` must fit the operand"),
        format!("at most {:?}", tensor.shape),
        format!("{window:?}"),
    )
}

/// The start of the window, clamped so that it fits.
fn clamped_starts(starts: &[&Literal], shape: &[usize], window: &[usize]) -> Vec<usize> {
    let clamp = |((start, extent), size): ((&&Literal, &usize), &usize)| {
        start.to_i128()[0].clamp(0, (extent - size) as i128) as usize
    };
    starts.iter().zip(shape).zip(window).map(clamp).collect()
}

impl Operation for DynamicSlice {
    fn name(&self) -> &str {
        "stablehlo.dynamic_slice"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1 + operands.first().map_or(0, |ty| ty.rank()))?;
        one_per_dim(self.name(), "slice_sizes", &self.sizes, operands[0].rank())?;
        check_window(self.name(), operands[0], &self.sizes)?;
        check_starts(self.name(), &operands[1..])?;
        Ok(vec![operands[0].with_shape(self.sizes.clone())])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let mut rule = Rule { operands: vec![Vec::new(); operands.len()], ..Rule::default() };
        let mut result = Vec::new();
        for (&extent, &size) in operands[0].shape.iter().zip(&self.sizes) {
            let full = extent == size;
            let kind = if full { FactorKind::Pass } else { FactorKind::Whole };
            let own = rule.factor(extent, kind);
            rule.operands[0].push(vec![own]);
            result.push(vec![if full { own } else { rule.factor(size, kind) }]);
        }
        rule.results = vec![result];
        rule.transparent_in(&[0])
    }

    fn cost(&self, _operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        // Only the window is read.
        movement_cost(results, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let operands = context.operands;
        let b = &mut *context.builder;
        let mut cotangents = vec![None; operands.len()];
        let differentiable = context.wanted[0] && b.ty(operands[0]).dtype.is_float();
        if let Some(g) = context.cotangents[0].filter(|_| differentiable) {
            let zeros = b.full_like(operands[0], 0.0)?;
            cotangents[0] = Some(updated(b, zeros, g, &operands[1..])?);
        }
        Ok(cotangents)
    }

    fn evaluate(&self, operands: &[&Literal], _results: &[TensorType]) -> Result<Vec<Literal>> {
        let offset = clamped_starts(&operands[1..], &operands[0].ty.shape, &self.sizes);
        Ok(vec![operands[0].window(&offset, &self.sizes)])
    }

    /// Along dimensions taken in full the start clamps to 0 on every shard, as in the global op.
    fn traits(&self, graph: &Graph, node: &Node) -> Traits<'_> {
        let is_known = node.operands[1..].iter().all(|&start| graph.constant(start).is_some());
        if is_known { Traits::View(ViewMap::Window { sizes: &self.sizes }) } else { Traits::Opaque }
    }

    fn is_alike(&self, own: &[&TensorType], other: &Op, others: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::DynamicSlice(_)) && own.len() == others.len())
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let sizes = context.local_result(0).shape;
        localise_same(DynamicSlice { sizes }, context, 1)
    }
}

/// `tensor` with the window at `starts` replaced.
fn updated(b: &mut GraphBuilder, tensor: ValueId, window: ValueId, starts: &[ValueId]) -> Result<ValueId> {
    let operands: Vec<ValueId> = [tensor, window].iter().chain(starts).copied().collect();
    b.push1(DynamicUpdateSlice, &operands)
}

impl Operation for DynamicUpdateSlice {
    fn name(&self) -> &str {
        "stablehlo.dynamic_update_slice"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 2 + operands.first().map_or(0, |ty| ty.rank()))?;
        let (tensor, update) = (operands[0], operands[1]);
        same_dtype(self.name(), tensor, update)?;
        shapes(
            tensor.rank() == update.rank(),
            format!("the update of `{}` must have as many dimensions as the operand", self.name()),
            tensor.rank().to_string(),
            update.to_string(),
        )?;
        check_window(self.name(), tensor, &update.shape)?;
        check_starts(self.name(), &operands[2..])?;
        Ok(vec![tensor.clone()])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let mut rule = Rule { operands: vec![Vec::new(); operands.len()], ..Rule::default() };
        for (&extent, &size) in operands[0].shape.iter().zip(&operands[1].shape) {
            let full = extent == size;
            let kind = if full { FactorKind::Pass } else { FactorKind::Whole };
            let own = rule.factor(extent, kind);
            let of_update = if full { own } else { rule.factor(size, kind) };
            rule.operands[0].push(vec![own]);
            rule.operands[1].push(vec![of_update]);
        }
        rule.results = vec![rule.operands[0].clone()];
        rule.transparent_in(&[0, 1])
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let operands = context.operands;
        let b = &mut *context.builder;
        let mut cotangents = vec![None; operands.len()];
        let Some(g) = context.cotangents[0].filter(|&g| b.ty(g).dtype.is_float()) else {
            return Ok(cotangents);
        };
        if context.wanted[0] {
            let zeros = b.full_like(operands[1], 0.0)?;
            cotangents[0] = Some(updated(b, g, zeros, &operands[2..])?);
        }
        if context.wanted[1] {
            let window: Vec<ValueId> = [g].iter().chain(&operands[2..]).copied().collect();
            let sizes = b.shape(operands[1]);
            cotangents[1] = Some(b.push1(DynamicSlice { sizes }, &window)?);
        }
        Ok(cotangents)
    }

    fn evaluate(&self, operands: &[&Literal], _results: &[TensorType]) -> Result<Vec<Literal>> {
        let offset = clamped_starts(&operands[2..], &operands[0].ty.shape, &operands[1].ty.shape);
        let mut result = operands[0].clone();
        result.set_window(&offset, operands[1]);
        Ok(vec![result])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn overwrites(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
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
    ("stablehlo.dynamic_slice", parse_dynamic_slice),
    ("stablehlo.dynamic_update_slice", parse_dynamic_update_slice),
];

impl TextForm for DynamicSlice {
    /// `stablehlo.dynamic_slice %0, %1, %2, sizes = [1, 4] : (T, I, I) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty("stablehlo.dynamic_slice", &format!(", sizes = [{}]", join(&self.sizes)));
    }
}

fn parse_dynamic_slice(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let sizes = if op.generic()? {
        op.indices_of("slice_sizes")?
    } else {
        op.operands()?;
        op.clause("sizes")?;
        let sizes = op.index_list()?;
        op.types()?;
        sizes
    };
    op.at_least(1)?;
    op.finish(DynamicSlice { sizes })
}

impl TextForm for DynamicUpdateSlice {
    /// `stablehlo.dynamic_update_slice %0, %1, %2, %3 : (T, U, I, I) -> T`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty("stablehlo.dynamic_update_slice", "");
    }
}

fn parse_dynamic_update_slice(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.at_least(2)?;
    op.finish(DynamicUpdateSlice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, random, refusal};
    use partita_base::DType;

    fn at(starts: &[i64]) -> Vec<Literal> {
        starts.iter().map(|&start| Literal::new([], vec![start])).collect()
    }

    fn with(tensors: &[Literal], starts: &[i64]) -> Vec<Literal> {
        tensors.iter().cloned().chain(at(starts)).collect()
    }

    fn numbers() -> Literal {
        Literal::new([3, 4], (0..12).map(f64::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_window_stays_inside() {
        let slice = DynamicSlice { sizes: vec![2, 2] };
        let window = |starts: &[i64]| apply(slice.clone(), &with(&[numbers()], starts)).remove(0).to_f64();
        assert_eq!(window(&[1, 1]), [5.0, 6.0, 9.0, 10.0]);
        assert_eq!(window(&[-7, 1]), [1.0, 2.0, 5.0, 6.0]);
        assert_eq!(window(&[9, 9]), [6.0, 7.0, 10.0, 11.0]);
    }

    #[test]
    fn an_update_stays_inside() {
        let update = Literal::new([1, 3], vec![-1.0, -2.0, -3.0]);
        let found = apply(DynamicUpdateSlice, &with(&[numbers(), update], &[5, 3])).remove(0).to_f64();
        assert_eq!(found[..9], (0..9).map(f64::from).collect::<Vec<_>>());
        assert_eq!(found[9..], [-1.0, -2.0, -3.0]);
    }

    #[test]
    fn inference_refuses_windows_and_starts_that_do_not_fit() {
        let (ty, start) = (TensorType::new(DType::F32, [3, 4]), TensorType::scalar(DType::I32));
        let slice = |sizes: &[usize]| DynamicSlice { sizes: sizes.to_vec() };
        let operands = [ty.clone(), start.clone(), start.clone()];
        assert!(refusal(slice(&[4, 4]), &operands).contains("E106"));
        assert!(refusal(slice(&[3]), &operands).contains("E105"));
        assert!(refusal(slice(&[3, 4]), &operands[..2]).contains("E101"));
        assert!(refusal(slice(&[3, 4]), &[]).contains("E101"));
        let mixed = [ty.clone(), start.clone(), start.with_dtype(DType::I64)];
        assert!(refusal(slice(&[3, 4]), &mixed).contains("E102"));
        let floats = [ty.clone(), start.with_dtype(DType::F32), start.with_dtype(DType::F32)];
        assert!(refusal(slice(&[3, 4]), &floats).contains("E104"));
        let update = |update: TensorType| [ty.clone(), update, start.clone(), start.clone()];
        assert!(refusal(DynamicUpdateSlice, &update(ty.with_shape([4, 1]))).contains("E106"));
        assert!(refusal(DynamicUpdateSlice, &update(ty.with_shape([3]))).contains("E104"));
        assert!(refusal(DynamicUpdateSlice, &update(ty.with_dtype(DType::F64))).contains("E102"));
    }

    #[test]
    fn gradients_follow_the_window() {
        for starts in [[1, 1], [-2, 9]] {
            let slice = DynamicSlice { sizes: vec![2, 3] };
            check_gradient(slice, with(&[random(1, &[3, 4])], &starts), &[true, false, false]);
            for wanted in [[true, true, false, false], [false, true, false, false]] {
                let inputs = with(&[random(2, &[3, 4]), random(3, &[2, 3])], &starts);
                check_gradient(DynamicUpdateSlice, inputs, &wanted);
            }
        }
    }

    #[test]
    fn rules_hold_on_shards_and_partial_operands() {
        let x = random(4, &[5, 4]);
        for sizes in [[5, 2], [5, 4], [2, 2]] {
            check_rule(DynamicSlice { sizes: sizes.to_vec() }, &with(std::slice::from_ref(&x), &[1, 1]));
            check_rule(DynamicUpdateSlice, &with(&[x.clone(), random(5, &sizes)], &[1, 1]));
        }
    }
}
