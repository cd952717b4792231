//! Element type changes.

use super::checks::{element_type, operand_count, shapes};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Op, Operation, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::traits::{Elementwise, Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, Result};

/// Converts each element to another type, rounding once.
#[derive(Clone, PartialEq, Debug)]
pub struct Convert {
    /// The element type of the result.
    pub dtype: DType,
}

/// Reinterprets bits as another type. Between types of different width the last dimension is added
/// or removed.
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
        // Linear up to rounding, as every float sum is.
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

    /// Floats to integers truncate and saturate, NaN is 0; integers to narrower ones wrap; nonzero
    /// is true; of complex numbers only the real part becomes a number of another kind.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let x = operands[0];
        Ok(vec![if self.dtype.is_complex() {
            Literal::from_complex(&results[0], x.to_complex().into_iter())
        } else if x.ty.dtype.is_float() || x.ty.dtype.is_complex() {
            Literal::from_f64(&results[0], x.to_f64().into_iter())
        } else {
            Literal::from_i128(&results[0], x.to_i128().into_iter())
        }])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Elementwise(Elementwise::Convert)
    }

    fn is_alike(&self, _: &[&TensorType], other: &Op, _: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::Convert(_)))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

/// The bits of elements as elements of another type; those of fewer bits than a byte are padded to
/// one.
fn regrouped(bytes: &[u8], from: DType, to: DType) -> Vec<u8> {
    let bit = |element: &[u8], at: usize| element[at / 8] >> (at % 8) & 1;
    let elements = bytes.chunks(from.size_bytes());
    let bits: Vec<u8> =
        elements.flat_map(|element| (0..from.bits()).map(move |at| bit(element, at))).collect();
    let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit);
    bits.chunks(to.bits()).flat_map(|element| element.chunks(8).map(byte)).collect()
}

impl Operation for BitcastConvert {
    fn name(&self) -> &str {
        "stablehlo.bitcast_convert"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        let ty = operands[0];
        let (from, to) = (ty.dtype.bits(), self.dtype.bits());
        let fits = from.max(to) % from.min(to) == 0 && ty.dtype.is_complex() == self.dtype.is_complex();
        element_type(self.name(), fits, format!("bits of {}", self.dtype).as_str(), ty.dtype)?;
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
        let (from, to) = (&operands[0].ty, &results[0]);
        let bytes = match from.dtype.bits() % 8 == 0 && to.dtype.bits() % 8 == 0 {
            true => operands[0].to_bytes(),
            false => regrouped(&operands[0].to_bytes(), from.dtype, to.dtype),
        };
        let result = Literal::from_bytes(to, &bytes);
        Ok(vec![result.expect("inference keeps the number of bits")])
    }

    fn precision(&self) -> Precision {
        Precision::Own
    }

    fn traits(&self, graph: &Graph, node: &Node) -> Traits<'_> {
        let width = |value: ValueId| graph.ty(value).dtype.bits();
        let is_same = width(node.operands[0]) == width(node.results[0]);
        if is_same { Traits::Elementwise(Elementwise::Bitcast) } else { Traits::Opaque }
    }

    fn is_alike(&self, _: &[&TensorType], other: &Op, _: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::BitcastConvert(_)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::InertType;
    use crate::testing::{apply, check_gradient, check_rule, gradients, random, refusal};
    use half::bf16;

    fn convert(x: Literal, dtype: DType) -> Literal {
        apply(Convert { dtype }, &[x]).remove(0)
    }

    fn bitcast(x: Literal, dtype: DType) -> Literal {
        apply(BitcastConvert { dtype }, &[x]).remove(0)
    }

    #[test]
    fn floats_truncate_and_saturate_to_integers() {
        let x = Literal::new([6], vec![1.9f32, -1.9, 300.0, -300.0, f32::NAN, f32::INFINITY]);
        assert_eq!(convert(x.clone(), DType::I8), Literal::new([6], vec![1i8, -1, 127, -128, 0, 127]));
        assert_eq!(convert(x, DType::U8), Literal::new([6], vec![1u8, 0, 255, 0, 0, 255]));
        let big = Literal::new([2], vec![1e30, -1e30]);
        assert_eq!(convert(big, DType::I64), Literal::new([2], vec![i64::MAX, i64::MIN]));
    }

    #[test]
    fn integers_wrap_to_narrower_ones_and_round_once_to_floats() {
        let x = Literal::new([3], vec![300i32, -1, 128]);
        assert_eq!(convert(x, DType::I8), Literal::new([3], vec![44i8, -1, -128]));
        assert_eq!(convert(Literal::new([1], vec![-1i64]), DType::U64), Literal::new([1], vec![u64::MAX]));
        let exact = (1i64 << 53) + 1;
        assert_eq!(convert(Literal::new([1], vec![exact]), DType::I64), Literal::new([1], vec![exact]));
        let tie = Literal::new([1], vec![(1i64 << 30) + (1 << 22) + 1]);
        assert_eq!(convert(tie, DType::BF16).to_f64(), [(1i64 << 30) as f64 + (1i64 << 23) as f64]);
    }

    #[test]
    fn anything_but_zero_is_true() {
        let x = Literal::new([4], vec![0.0f32, -0.0, 0.1, f32::NAN]);
        assert_eq!(convert(x, DType::Bool), Literal::new([4], vec![false, false, true, true]));
        let x = Literal::new([2], vec![256i32, 0]);
        assert_eq!(convert(x, DType::Bool), Literal::new([2], vec![true, false]));
        assert_eq!(convert(Literal::new([1], vec![true]), DType::F32), Literal::new([1], vec![1.0f32]));
    }

    #[test]
    fn conversion_gradients_return_to_the_operand_type() {
        check_gradient(Convert { dtype: DType::F64 }, vec![random(1, &[3])], &[true]);
        let x = Literal::new([2], vec![bf16::from_f32(1.0), bf16::from_f32(2.0)]);
        let g = Literal::new([2], vec![0.5f32, 0.25]);
        let found = gradients(Convert { dtype: DType::F32 }, &[x], &[Some(g)], &[true]);
        assert_eq!(found, [Some(Literal::new([2], vec![bf16::from_f32(0.5), bf16::from_f32(0.25)]))]);
        let ints = Literal::new([2], vec![1i32, 2]);
        let g = Literal::new([2], vec![1.0, 1.0]);
        assert_eq!(gradients(Convert { dtype: DType::F64 }, &[ints], &[Some(g)], &[true]), [None]);
    }

    #[test]
    fn bits_are_kept_whatever_they_are_called() {
        let one = Literal::new([1], vec![1.0f32]);
        assert_eq!(bitcast(one.clone(), DType::U32), Literal::new([1], vec![0x3f80_0000u32]));
        let halves = Literal::new([1, 2], vec![0u16, 0x3f80]);
        assert_eq!(bitcast(one.clone(), DType::U16), halves);
        assert_eq!(bitcast(halves, DType::F32), one);
    }

    #[test]
    fn inference_refuses_bits_that_do_not_fill_elements() {
        let ty = TensorType::new(DType::U16, [4, 3]);
        let text = refusal(BitcastConvert { dtype: DType::F32 }, std::slice::from_ref(&ty));
        assert!(text.contains("E104") && text.contains("extent 2"), "{text}");
        assert!(refusal(BitcastConvert { dtype: DType::F32 }, &[ty.with_shape([])]).contains("E104"));
        let bits = BitcastConvert { dtype: DType::Bool }.infer(&[&ty.with_dtype(DType::U8)]);
        assert_eq!(bits.unwrap()[0].shape, [4, 3, 8]);
        let pair = DType::Inert(InertType::Complex64);
        assert!(refusal(BitcastConvert { dtype: pair }, &[ty.with_dtype(DType::F64)]).contains("E103"));
        assert!(refusal(Convert { dtype: DType::F32 }, &[]).contains("E101"));
    }

    #[test]
    fn rules_hold_on_shards_and_partial_operands() {
        check_rule(Convert { dtype: DType::F64 }, &[random(2, &[5, 2])]);
        check_rule(Convert { dtype: DType::I32 }, &[random(2, &[5, 2])]);
        for dtype in [DType::U64, DType::U32, DType::I8] {
            check_rule(BitcastConvert { dtype }, &[random(3, &[5, 2])]);
        }
        check_rule(BitcastConvert { dtype: DType::F64 }, &[Literal::new([3, 2], vec![1u32, 2, 3, 4, 5, 6])]);
    }
}
