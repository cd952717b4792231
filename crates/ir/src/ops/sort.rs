//! Sorting along a dimension.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

/// Sorts all operands together along `dim` by a comparator over (a_0, b_0, a_1, b_1, ...) scalars.
#[derive(Clone, PartialEq, Debug)]
pub struct Sort {
    /// The dimension.
    pub dim: usize,
    /// Keep the order of equals.
    pub is_stable: bool,
    /// A graph to an i1 scalar: whether a comes before b.
    pub comparator: Box<Graph>,
}

impl Operation for Sort {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.sort", parse_sort)];

impl TextForm for Sort {
    /// The generic form: StableHLO has no other.
    fn print(&self, printer: &mut OpPrinter) {
        let properties =
            [("dimension", format!("{} : i64", self.dim)), ("is_stable", self.is_stable.to_string())];
        printer.generic("stablehlo.sort", &properties, &[&self.comparator]);
    }
}

fn parse_sort(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", "`stablehlo.sort` is written in the generic form"));
    }
    op.at_least(1)?;
    // A negative dimension counts from the end.
    let dim = match op.optional_integers_of("dimension")?.as_deref() {
        None | Some([]) => op.operand_type(0).rank().saturating_sub(1),
        Some(&[dim, ..]) if dim < 0 => (op.operand_type(0).rank() as i64 + dim).max(0) as usize,
        Some(&[dim, ..]) => dim as usize,
    };
    let comparator = Box::new(op.region(0)?);
    let is_stable = op.flag("is_stable");
    op.finish(Sort { dim, is_stable, comparator })
}
