//! Rounding to a float format of fewer bits.

use super::ParseOp;
use super::checks::{element_type, operand_count, sizes};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::Rule;
use crate::text::{OpParser, OpPrinter};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::Result;

/// Rounds each float to the nearest one that a format with these bits has, ties to even. Numbers too
/// large for it become infinite, those too small for its normal numbers zero.
#[derive(Clone, PartialEq, Debug)]
pub struct ReducePrecision {
    /// Bits of the exponent.
    pub exponent_bits: usize,
    /// Bits of the mantissa.
    pub mantissa_bits: usize,
}

const NAME: &str = "stablehlo.reduce_precision";

impl ReducePrecision {
    fn of(&self, x: f64) -> f64 {
        // A format without mantissa has no NaN: its codes are infinities.
        if x.is_nan() {
            return if self.mantissa_bits == 0 { f64::INFINITY.copysign(x) } else { x };
        }
        let rounded = match self.mantissa_bits {
            bits if bits < 52 && x.is_finite() => {
                let drop = 52 - bits;
                let code = x.to_bits();
                let even = (code >> drop) & 1;
                f64::from_bits((code + (1 << (drop - 1)) - 1 + even) >> drop << drop)
            }
            _ => x,
        };
        if self.exponent_bits >= 11 {
            return rounded;
        }
        let limit = 1i32 << (self.exponent_bits - 1);
        if rounded.abs() >= 2f64.powi(limit) {
            f64::INFINITY.copysign(x)
        } else if rounded.abs() < 2f64.powi(2 - limit) {
            0f64.copysign(x)
        } else {
            rounded
        }
    }
}

impl Operation for ReducePrecision {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 1)?;
        element_type(NAME, operands[0].dtype.is_float(), "a float", operands[0].dtype)?;
        sizes(
            self.exponent_bits > 0,
            format!("a float format of `{NAME}` has an exponent"),
            "1 bit or more",
            self.exponent_bits.to_string(),
        )?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        Rule::pointwise(&operands[0].shape, 1, 1)
    }

    /// Rounds the cotangent too, as a conversion to the format and back would.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let (Some(cotangent), true) = (context.cotangents[0], context.wanted[0]) else { return Ok(vec![None]) };
        Ok(vec![Some(context.builder.push1(self.clone(), &[cotangent])?)])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![Literal::from_f64(&results[0], operands[0].to_f64().into_iter().map(|x| self.of(x)))])
    }

    fn precision(&self) -> Precision {
        Precision::Own
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_reduce_precision)];

impl TextForm for ReducePrecision {
    /// `stablehlo.reduce_precision %0, format = e5m10 : T`.
    fn print(&self, printer: &mut OpPrinter) {
        let format = format!(", format = e{}m{}", self.exponent_bits, self.mantissa_bits);
        printer.pretty_same_type(NAME, &format);
    }
}

fn parse_reduce_precision(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let (exponent_bits, mantissa_bits) = if op.generic()? {
        (op.index_of("exponent_bits")?, op.index_of("mantissa_bits")?)
    } else {
        op.operands()?;
        op.clause("format")?;
        let bits = op.parser.text().strip_prefix('e').and_then(|text| text.split_once('m'));
        let bits = bits.and_then(|(e, m)| Some((e.parse().ok()?, m.parse().ok()?)));
        let bits = bits.ok_or_else(|| op.parser.unexpected("a format such as `e5m10`"))?;
        op.parser.advance();
        op.types()?;
        bits
    };
    op.arity(1)?;
    op.finish(ReducePrecision { exponent_bits, mantissa_bits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_rule, gradients, random, refusal};
    use half::{bf16, f16};
    use partita_base::DType;

    fn reduced(exponent_bits: usize, mantissa_bits: usize, x: Literal) -> Vec<f64> {
        apply(ReducePrecision { exponent_bits, mantissa_bits }, &[x])[0].to_f64()
    }

    #[test]
    fn formats_of_known_types_agree_with_conversions() {
        let scales = [1.0, 1e-3, 1e4, 7e4, 1e-6, 1e30];
        let values: Vec<f64> =
            scales.iter().flat_map(|scale| random(5, &[40]).to_f64().into_iter().map(move |x| x * scale)).collect();
        let x = Literal::new([values.len()], values.clone());
        for (value, found) in values.iter().zip(reduced(8, 7, x.clone())) {
            assert_eq!(found, bf16::from_f64(*value).to_f64());
        }
        for (value, found) in values.iter().zip(reduced(5, 10, x.clone())) {
            let half = f16::from_f64(*value).to_f64();
            let is_normal = half.abs() >= 2f64.powi(-14);
            assert_eq!(found, if is_normal { half } else { 0.0 * value }, "{value}");
        }
        assert_eq!(reduced(11, 52, x), values);
    }

    #[test]
    fn numbers_without_elements_of_the_format_are_kept_apart() {
        let x = Literal::new([4], vec![f64::NAN, f64::NEG_INFINITY, -0.0, 1.5]);
        let found = reduced(5, 2, x.clone());
        assert!(found[0].is_nan() && found[2].is_sign_negative());
        assert_eq!(found[1..], [f64::NEG_INFINITY, -0.0, 1.5]);
        assert_eq!(reduced(5, 0, x), [f64::INFINITY, f64::NEG_INFINITY, -0.0, 2.0]);
    }

    #[test]
    fn cotangents_are_rounded_and_shards_are_alike() {
        let op = ReducePrecision { exponent_bits: 5, mantissa_bits: 2 };
        check_rule(op.clone(), &[random(1, &[4, 3])]);
        let weight = Literal::new([1], vec![1.3f64]);
        let found = gradients(op.clone(), std::slice::from_ref(&weight), &[Some(weight.clone())], &[true]);
        assert_eq!(found[0].as_ref().unwrap().to_f64(), [1.25]);
        assert!(refusal(op, &[TensorType::scalar(DType::I32)]).contains("E103"));
        let none = ReducePrecision { exponent_bits: 0, mantissa_bits: 2 };
        assert!(refusal(none, &[TensorType::scalar(DType::F32)]).contains("E106"));
    }
}
