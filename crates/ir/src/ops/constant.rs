//! Constants and iota.

use super::checks::{distinct_dims, element_type, movement_cost, operand_count};
use super::{Convert, DynamicSlice};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, Storage, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation};
use crate::rule::Rule;
use crate::traits::{ConstantOp, Traits};
use crate::types::TensorType;
use partita_base::{DType, Result};

/// A literal.
#[derive(Clone, PartialEq, Debug)]
pub struct Constant {
    /// The value.
    pub value: Literal,
}

/// `result[i] = i[dim]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Iota {
    /// Type of the result.
    pub ty: TensorType,
    /// The dimension it counts along.
    pub dim: usize,
}

impl Operation for Constant {
    fn name(&self) -> &str {
        "stablehlo.constant"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 0)?;
        Ok(vec![self.value.ty.clone()])
    }

    fn rule(&self, _operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::pointwise(&results[0].shape, 0, 1)
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, _context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(Vec::new())
    }

    fn evaluate(&self, _operands: &[&Literal], _results: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![self.value.clone()])
    }

    /// A splat only gets fewer elements; otherwise every rank holds the full constant and slices
    /// its shard.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Constant(ConstantOp::OfAll(self))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let ty = context.local_result(0);
        // Decided by the layout, not by this rank's shape: all ranks emit the same nodes.
        if !(0..ty.rank()).any(|dim| context.is_sharded(dim)) {
            return Ok(vec![context.builder().constant(self.value.clone())]);
        }
        if self.value.is_splat() {
            let count = ty.element_count();
            let data = match self.value.data.is_empty() {
                true => Storage::zeros(ty.dtype, count),
                false => self.value.data.repeated(count),
            };
            return Ok(vec![context.builder().constant(Literal { ty, data })]);
        }
        let mut operands = vec![context.builder().constant(self.value.clone())];
        for dim in 0..ty.rank() {
            operands.push(context.result_offset(0, dim)?);
        }
        let slice = DynamicSlice { sizes: ty.shape.clone() };
        Ok(context.builder().push_typed(slice, &operands, vec![ty]))
    }
}

impl Operation for Iota {
    fn name(&self) -> &str {
        "stablehlo.iota"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 0)?;
        let dtype = self.ty.dtype;
        element_type(self.name(), dtype != DType::Bool, "a number", dtype)?;
        distinct_dims(self.name(), "iota_dimension", &[self.dim], self.ty.rank())?;
        Ok(vec![self.ty.clone()])
    }

    fn rule(&self, _operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::pointwise(&results[0].shape, 0, 1)
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, _context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(Vec::new())
    }

    fn evaluate(&self, _operands: &[&Literal], _results: &[TensorType]) -> Result<Vec<Literal>> {
        let values = indices(&self.ty.shape).map(|index| index[self.dim] as i128);
        Ok(vec![Literal::from_i128(&self.ty, values)])
    }

    /// Counts from the shard's offset. The addition is done in integers, so that floats round once,
    /// as in the global op.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Iota { dim: self.dim }
    }

    fn is_alike(&self, _: &[&TensorType], other: &Op, _: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::Iota(other)
            if self.dim == other.dim && self.ty.rank() == other.ty.rank()))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let ty = context.local_result(0);
        let sharded = context.is_sharded(self.dim);
        let offset = if sharded { Some(context.result_offset(0, self.dim)?) } else { None };
        let b = context.builder();
        let Some(offset) = offset else {
            return Ok(vec![b.iota(ty, self.dim)?]);
        };
        let counted = if ty.dtype.is_integer() { ty.dtype } else { DType::I64 };
        let local = b.iota(ty.with_dtype(counted), self.dim)?;
        let offset = b.convert(offset, counted)?;
        let offset = b.broadcast_scalar(offset, &ty.shape)?;
        let shifted = b.add(local, offset)?;
        Ok(if ty.dtype == counted {
            vec![shifted]
        } else {
            b.push_typed(Convert { dtype: ty.dtype }, &[shifted], vec![ty])
        })
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{self, OpParser, OpPrinter, print_dense};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.constant", parse_constant),
    ("sdy.constant", parse_constant),
    ("stablehlo.iota", parse_iota),
    ("stablehlo.dynamic_iota", parse_iota),
    ("stablehlo.get_dimension_size", parse_get_dimension_size),
];

impl TextForm for Constant {
    /// `stablehlo.constant dense<..> : T`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.push("stablehlo.constant");
        printer.attributes();
        printer.push(&format!(" {} : {}", print_dense(&self.value), self.value.ty));
    }
}

fn parse_constant(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let value = if op.generic()? {
        match op.attributes.get("value") {
            Some(text::Value::Dense(value)) => value.clone(),
            _ => return Err(op.error("E147", "a constant needs the attribute `value = dense<..> : T`")),
        }
    } else {
        op.dictionary()?;
        op.parser.dense()?
    };
    op.arity(0)?;
    op.result_types = vec![value.ty.clone()];
    op.finish(Constant { value })
}

impl TextForm for Iota {
    /// `stablehlo.iota dim = 0 : T`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.push(&format!("stablehlo.iota dim = {}", self.dim));
        printer.attributes();
        printer.push(&format!(" : {}", self.ty));
    }
}

fn parse_iota(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let dim = if op.generic()? {
        op.index_of("iota_dimension")?
    } else {
        // Of a dynamic one, the shape comes first.
        op.operands()?;
        if !op.operands.is_empty() {
            op.parser.mark(',')?;
        }
        op.parser.keyword("dim")?;
        op.parser.mark('=')?;
        let dim = op.index()?;
        op.types()?;
        dim
    };
    if op.name == "stablehlo.dynamic_iota" && op.operands.len() == 1 {
        op.check_operands()?;
        op.drop_operand(0);
    }
    op.arity(0)?;
    op.finish(Iota { ty: op.result_type()?, dim })
}

/// Extents are known, so it is a constant.
fn parse_get_dimension_size(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let dim = if op.generic()? {
        op.index_of("dimension")?
    } else {
        op.operands()?;
        op.clause("dim")?;
        let dim = op.index()?;
        op.types()?;
        dim
    };
    op.arity(1)?;
    op.check_operands()?;
    let ty = op.operand_type(0).clone();
    let Some(&extent) = ty.shape.get(dim) else {
        return Err(op
            .error("E147", format!("{ty} has no dimension {dim}"))
            .expected(format!("a number below {}", ty.rank())));
    };
    op.drop_operand(0);
    op.finish(Constant { value: Literal::new([], vec![extent as i32]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_rule, random, refusal};

    #[test]
    fn a_constant_is_itself_on_one_device_and_in_shards() {
        let value = random(1, &[5, 4]);
        assert_eq!(apply(Constant { value: value.clone() }, &[]), std::slice::from_ref(&value));
        check_rule(Constant { value }, &[]);
        check_rule(Constant { value: Literal::splat(&TensorType::new(DType::I32, [5, 4]), 7.0) }, &[]);
        check_rule(Constant { value: Literal::zeros(&TensorType::new(DType::F32, [0, 4])) }, &[]);
        assert!(
            refusal(Constant { value: random(1, &[]) }, &[TensorType::scalar(DType::F32)]).contains("E101")
        );
    }

    #[test]
    fn iota_counts_along_its_dimension() {
        let ty = TensorType::new(DType::I32, [2, 3]);
        let along = |dim| apply(Iota { ty: ty.clone(), dim }, &[]).remove(0);
        assert_eq!(along(0), Literal::new([2, 3], vec![0i32, 0, 0, 1, 1, 1]));
        assert_eq!(along(1), Literal::new([2, 3], vec![0i32, 1, 2, 0, 1, 2]));
    }

    #[test]
    fn iota_counts_on_in_every_shard() {
        for dtype in [DType::I32, DType::I64, DType::F32, DType::F64] {
            for dim in 0..2 {
                check_rule(Iota { ty: TensorType::new(dtype, [5, 3]), dim }, &[]);
            }
        }
        // Above 256 not every integer is a bf16, and above 127 none is an i8: shards must agree
        // with the global result all the same.
        for dtype in [DType::BF16, DType::I8, DType::U8] {
            check_rule(Iota { ty: TensorType::new(dtype, [700]), dim: 0 }, &[]);
        }
    }

    #[test]
    fn inference_refuses_a_missing_dimension_and_booleans() {
        let ty = TensorType::new(DType::I32, [2, 3]);
        assert!(refusal(Iota { ty: ty.clone(), dim: 2 }, &[]).contains("E105"));
        assert!(refusal(Iota { ty: ty.with_dtype(DType::Bool), dim: 0 }, &[]).contains("E103"));
        assert!(refusal(Iota { ty: ty.with_shape([]), dim: 0 }, &[]).contains("E105"));
    }
}
