//! Shared code of elementwise ops with one and two operands.

mod binary;
#[cfg(test)]
mod tests;
mod unary;

pub use binary::{Binary, BinaryKind};
pub use unary::{Unary, UnaryKind};

pub(crate) use binary::float_max;

use super::ParseOp;
use crate::op::Cost;
use crate::types::TensorType;
use partita_base::DType;

/// Work of one `exp`, `log`, `tanh` and the like, in multiplications.
const TRANSCENDENTAL_FLOPS: f64 = 8.0;

/// The default cost, with this much work per element of the result.
fn elementwise_cost(per_element: f64, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops: per_element * results[0].element_count() as f64, bytes: bytes as f64 }
}

/// Bits of one element.
fn bits(dtype: DType) -> i128 {
    8 * dtype.size_bytes() as i128
}

/// Ones in the bits of one element.
fn bit_mask(dtype: DType) -> i128 {
    (1 << bits(dtype)) - 1
}

/// The elementwise ops by name.
pub(crate) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    unary::parsers().chain(binary::parsers())
}
