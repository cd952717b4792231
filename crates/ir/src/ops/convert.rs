//! Element type changes.

use super::checks::{element_type, operand_count, shapes};
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::types::TensorType;
use partita_base::{DType, Result};

/// Converts each element to another type, rounding once.
#[derive(Clone, PartialEq, Debug)]
pub struct Convert {
    /// The element type of the result.
    pub dtype: DType,
}

/// Reinterprets bits as another type. Between types of different width the last dimension appears or goes.
#[derive(Clone, PartialEq, Debug)]
pub struct BitcastConvert {
    /// The element type of the result.
    pub dtype: DType,
}

impl Operation for Convert {
    fn name(&self) -> &str {
        "stablehlo.convert"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        Ok(vec![operands[0].with_dtype(self.dtype)])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let rule = Rule::pointwise(&operands[0].shape, 1, 1);
        // Linear up to rounding, as every sum of floats is.
        if operands[0].dtype.is_float() && self.dtype.is_float() { rule.linear_in(&[0]) } else { rule }
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let b = &mut *context.builder;
        let dtype = b.ty(context.operands[0]).dtype;
        let passes = context.wanted[0] && dtype.is_float() && self.dtype.is_float();
        Ok(vec![match context.cotangents[0].filter(|_| passes) {
            Some(g) => Some(b.convert(g, dtype)?),
            None => None,
        }])
    }

    /// Floats to integers truncate and saturate, NaN is 0; integers to narrower ones wrap; anything but zero is
    /// true.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let x = operands[0];
        Ok(vec![if x.ty.dtype.is_float() {
            Literal::from_f64(&results[0], x.to_f64().into_iter())
        } else {
            Literal::from_i128(&results[0], x.to_i128().into_iter())
        }])
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

impl Operation for BitcastConvert {
    fn name(&self) -> &str {
        "stablehlo.bitcast_convert"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        let ty = operands[0];
        // A boolean is one bit to StableHLO, so no other type has its width.
        let booleans = [ty.dtype, self.dtype].iter().filter(|&&d| d == DType::Bool).count();
        element_type(self.name(), booleans != 1, "types of whole bytes", DType::Bool)?;
        let (from, to) = (ty.dtype.size_bytes(), self.dtype.size_bytes());
        let mut shape = ty.shape.clone();
        if from > to {
            shape.push(from / to);
        } else if from < to {
            shapes(
                shape.last() == Some(&(to / from)),
                format!("the last dimension of the operand of `{}` must make up one element", self.name()),
                format!("extent {} to go from {} to {}", to / from, ty.dtype, self.dtype),
                ty.to_string(),
            )?;
            shape.pop();
        }
        Ok(vec![TensorType::new(self.dtype, shape)])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let common = operands[0].rank().min(results[0].rank());
        let mut rule = Rule::pointwise(&operands[0].shape[..common], 1, 1);
        for (ty, side) in [(operands[0], 0), (results[0], 1)] {
            if ty.rank() > common {
                let parts = rule.factor(ty.shape[common], FactorKind::Whole);
                let dims = if side == 0 { &mut rule.operands[0] } else { &mut rule.results[0] };
                dims.push(vec![parts]);
            }
        }
        rule
    }

    fn gradient(&self, _context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![None])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let result = Literal::from_bytes(&results[0], &operands[0].to_bytes());
        Ok(vec![result.expect("inference keeps the number of bytes")])
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] =
    &[("stablehlo.convert", parse_convert), ("stablehlo.bitcast_convert", parse_bitcast_convert)];

impl TextForm for Convert {
    /// `stablehlo.convert %0 : (T) -> U`, or `: T`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty_same_type("stablehlo.convert", "");
    }
}

fn parse_convert(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(1)?;
    op.finish(Convert { dtype: op.result_type()?.dtype })
}

impl TextForm for BitcastConvert {
    /// `stablehlo.bitcast_convert %0 : (T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty("stablehlo.bitcast_convert", "");
    }
}

fn parse_bitcast_convert(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(1)?;
    op.finish(BitcastConvert { dtype: op.result_type()?.dtype })
}
