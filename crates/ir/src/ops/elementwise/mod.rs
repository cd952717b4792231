//! Shared code of elementwise ops with one and two operands.

mod binary;
mod functions;
mod map;
mod special;
#[cfg(test)]
mod tests;
mod unary;

pub use binary::{Binary, BinaryKind};
pub use special::{Special, SpecialKind};
pub use unary::{Unary, UnaryKind};

pub(crate) use binary::float_max;

use super::ParseOp;
use super::reduce::refused;
use crate::complex::Complex;
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext};
use crate::types::TensorType;
use partita_base::{DType, InertType, Result};

/// Work of one `exp`, `log`, `tanh` and the like, in multiplications.
const TRANSCENDENTAL_FLOPS: f64 = 8.0;

/// The default cost, with this much work per element of the result.
fn elementwise_cost(per_element: f64, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops: per_element * results[0].element_count() as f64, bytes: bytes as f64 }
}

/// Bits of one element.
fn bits(dtype: DType) -> i128 {
    dtype.bits() as i128
}

/// Ones in the bits of one element.
fn bit_mask(dtype: DType) -> i128 {
    (1 << bits(dtype)) - 1
}

/// The element type of the parts of a complex one; others are their own.
fn real_part(dtype: DType) -> DType {
    match dtype {
        DType::Inert(InertType::Complex64) => DType::F32,
        DType::Inert(InertType::Complex128) => DType::F64,
        other => other,
    }
}

/// The complex numbers, or their real parts, as a literal.
fn of_complex_elements(ty: &TensorType, values: impl Iterator<Item = Complex>) -> Literal {
    match ty.dtype.is_complex() {
        true => Literal::from_complex(ty, values),
        false => Literal::from_f64(ty, values.map(|[re, _]| re)),
    }
}

/// E120 if a cotangent of complex operands is wanted: their gradients are not defined here.
fn refuse_complex(name: &str, context: &GradientContext) -> Result<()> {
    let is_wanted = |(&value, &wanted): (&ValueId, &bool)| wanted && context.builder.ty(value).dtype.is_complex();
    let reaches = context.cotangents.iter().any(Option::is_some);
    match reaches && context.operands.iter().zip(context.wanted).any(is_wanted) {
        true => Err(refused(name, "complex operands")),
        false => Ok(()),
    }
}

/// The elementwise ops by name.
pub(crate) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    unary::parsers().chain(binary::parsers()).chain(special::parsers()).chain(map::PARSERS)
}
