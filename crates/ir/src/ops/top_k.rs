//! The largest elements of each row.

use super::ParseOp;
use super::checks::{element_type, operand_count, sizes};
use super::Direction;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::text::{OpParser, OpPrinter};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Result};
use std::cmp::Ordering;

/// The `k` largest elements along the last dimension, largest first, and their positions as i32. Of
/// equal elements the first counts as the largest; floats are in their total order, NaN above all.
#[derive(Clone, PartialEq, Debug)]
pub struct TopK {
    /// How many.
    pub k: usize,
}

const NAME: &str = "chlo.top_k";

impl Operation for TopK {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 1)?;
        let ty = operands[0];
        element_type(NAME, !ty.dtype.is_complex(), "a type with an order", ty.dtype)?;
        sizes(
            ty.shape.last().is_some_and(|&extent| self.k <= extent),
            format!("`{NAME}` wants more elements than the last dimension has"),
            format!("at most the last extent of {ty}"),
            self.k.to_string(),
        )?;
        let mut shape = ty.shape.clone();
        *shape.last_mut().expect("a last dimension") = self.k;
        Ok(vec![ty.with_shape(shape.clone()), TensorType::new(DType::I32, shape)])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let rows = &operands[0].shape[..operands[0].rank() - 1];
        let mut rule = Rule::pointwise(rows, 1, 2);
        let row = rule.factor(operands[0].shape[rows.len()], FactorKind::Whole);
        let chosen = rule.factor(self.k, FactorKind::Whole);
        rule.operands[0].push(vec![row]);
        rule.results.iter_mut().for_each(|dims| dims.push(vec![chosen]));
        rule
    }

    /// Comparisons with the smallest of the elements kept so far.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let rounds = (self.k.max(2) as f64).log2();
        Cost { flops: operands[0].element_count() as f64 * rounds, bytes: bytes as f64 }
    }

    /// Each cotangent goes to the element that was chosen: a sum over the chosen ones.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let positions = context.results[1];
        let b = &mut *context.builder;
        let ty = b.ty(context.operands[0]).clone();
        let Some(g) = context.cotangents[0].filter(|_| context.wanted[0] && ty.dtype.is_float()) else {
            return Ok(vec![None]);
        };
        let rank = ty.rank();
        let mut shape = b.shape(g);
        shape.push(ty.shape[rank - 1]);
        let kept: Vec<usize> = (0..rank).collect();
        let places = b.iota(TensorType::new(DType::I32, shape.clone()), rank)?;
        let chosen = b.broadcast_in_dim(positions, &shape, &kept)?;
        let is_chosen = b.compare(Direction::Eq, places, chosen)?;
        let spread = b.broadcast_in_dim(g, &shape, &kept)?;
        let zero = b.full_like(spread, 0.0)?;
        let parts = b.select(is_chosen, spread, zero)?;
        Ok(vec![Some(b.reduce_sum(parts, &[rank - 1])?)])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let x = operands[0];
        let extent = *x.ty.shape.last().expect("a last dimension");
        let (floats, integers) = match x.ty.dtype.is_float() {
            true => (x.to_f64(), Vec::new()),
            false => (Vec::new(), x.to_i128()),
        };
        let order = |a: usize, b: usize| -> Ordering {
            if integers.is_empty() { floats[a].total_cmp(&floats[b]) } else { integers[a].cmp(&integers[b]) }
        };
        let mut chosen = Vec::new();
        for row in (0..x.ty.element_count()).step_by(extent.max(1)) {
            let mut places: Vec<usize> = (row..row + extent).collect();
            places.sort_by(|&a, &b| order(b, a));
            chosen.extend_from_slice(&places[..self.k]);
        }
        let positions: Vec<i32> = chosen.iter().map(|place| (place % extent.max(1)) as i32).collect();
        let values = Literal { ty: results[0].clone(), data: x.data.pick(chosen.into_iter()) };
        Ok(vec![values, Literal::new(results[1].shape.clone(), positions)])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 2)
    }
}

// ---- text ----

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_top_k)];

impl TextForm for TopK {
    /// `chlo.top_k(%0, k = 2) : T -> (T, U)`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.push(&format!("{NAME}({}, k = {})", printer.operand(0), self.k));
        printer.attributes();
        let (operands, results) = (printer.operand_types(), printer.result_types());
        printer.push(&format!(" : {} -> ({}, {})", operands[0], results[0], results[1]));
    }
}

fn parse_top_k(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let k = if op.generic()? {
        op.index_of("k")?
    } else {
        op.parser.mark('(')?;
        op.operands()?;
        op.clause("k")?;
        let k = op.index()?;
        op.parser.mark(')')?;
        op.types()?;
        k
    };
    op.arity(1)?;
    op.finish(TopK { k })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, random, refusal};

    #[test]
    fn the_largest_come_first_and_equals_in_order() {
        let x = Literal::new([2, 4], vec![1i32, 7, 7, 3, -5, -2, -9, -2]);
        let found = apply(TopK { k: 3 }, &[x]);
        assert_eq!(found[0].to_i64(), [7, 7, 3, -2, -2, -5]);
        assert_eq!(found[1].to_i64(), [1, 2, 3, 1, 3, 0]);
        let x = Literal::new([5], vec![-0.0f32, f32::NAN, f32::INFINITY, 0.0, -1.0]);
        let found = apply(TopK { k: 5 }, &[x]);
        assert_eq!(found[1].to_i64(), [1, 2, 3, 0, 4]);
        let none = apply(TopK { k: 0 }, &[Literal::new([2, 0], Vec::<f32>::new())]);
        assert_eq!(none[1].ty.shape, [2, 0]);
    }

    #[test]
    fn gradients_go_to_the_chosen_elements() {
        check_gradient(TopK { k: 2 }, vec![random(1, &[3, 5])], &[true]);
        check_gradient(TopK { k: 4 }, vec![random(2, &[4])], &[true]);
    }

    #[test]
    fn rows_may_be_cut() {
        check_rule(TopK { k: 2 }, &[random(3, &[4, 2, 5])]);
        let ty = TensorType::new(DType::F32, [4, 5]);
        assert!(refusal(TopK { k: 6 }, std::slice::from_ref(&ty)).contains("E106"));
        assert!(refusal(TopK { k: 0 }, &[ty.with_shape([])]).contains("E106"));
    }
}
