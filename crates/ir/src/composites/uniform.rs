//! Uniform random numbers.

use super::random_bits::{build_random_bits, random_bits_rule};
use crate::composite::{Attribute, Attributes, Template};
use crate::graph::ValueId;
use crate::ops::BinaryKind;
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Result};

/// `uniform(seed, offsets) -> [0, 1)` of attribute `dtype`; other attributes as [`RANDOM_BITS`](super::RANDOM_BITS).
pub static UNIFORM: Template = Template {
    name: "partita.uniform",
    arguments: &["seed", "offsets"],
    optional: 0,
    build: build_uniform,
    gradient: None,
    rule: Some(random_bits_rule),
    offsets_operand: Some(1),
};

/// 24 random bits as a number in (0, 1): `(bits / 2^8 + 1/2) / 2^24`, exact in f32 and never 0 or 1.
pub(super) fn unit_interval(
    a: &Attributes,
    b: &mut GraphBuilder,
    args: &[ValueId],
) -> Result<(ValueId, DType)> {
    let bits = build_random_bits(a, b, args)?[0];
    let shape = b.shape(bits);
    let dtype = match a.get("dtype") {
        Some(Attribute::DType(dtype)) => *dtype,
        _ => DType::F32,
    };
    let eight = b.full(&TensorType::new(DType::U32, shape), 8.0)?;
    let bits = b.binary(BinaryKind::ShiftRightLogical, bits, eight)?;
    // f64 throughout, so that f32 and f64 runs use the same numbers.
    let wide = b.convert(bits, DType::F64)?;
    let wide = b.offset(wide, 0.5)?;
    Ok((b.scale(wide, 1.0 / 16777216.0)?, dtype))
}

fn build_uniform(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (unit, dtype) = unit_interval(a, b, args)?;
    Ok(vec![b.convert(unit, dtype)?])
}
