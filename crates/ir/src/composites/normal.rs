//! Normal random numbers.

use super::random_bits::random_bits_rule;
use super::uniform::unit_interval;
use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::UnaryKind;
use partita_base::Result;

/// `normal(seed, offsets)`: standard normal of attribute `dtype` by inverse error function.
pub static NORMAL: Template = Template {
    name: "partita.normal",
    arguments: &["seed", "offsets"],
    optional: 0,
    build: build_normal,
    gradient: None,
    rule: Some(random_bits_rule),
    offsets_operand: Some(1),
};

fn build_normal(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (unit, dtype) = unit_interval(a, b, args)?;
    // sqrt(2) erf_inv(2 u - 1)
    let two = b.scale(unit, 2.0)?;
    let symmetric = b.offset(two, -1.0)?;
    let inverse = b.unary(UnaryKind::ErfInv, symmetric)?;
    let normal = b.scale(inverse, std::f64::consts::SQRT_2)?;
    Ok(vec![b.convert(normal, dtype)?])
}
