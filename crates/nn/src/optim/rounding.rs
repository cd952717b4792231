//! Stochastic rounding of parameters in bf16: up or down at random, in proportion to how near each neighbour is.
//!
//! An update of less than half a unit would be lost each time it is rounded to the nearest; rounded at random, it survives
//! in expectation. Random bits come from the seed, the step, the parameter's name and the element's index in the whole
//! tensor, so every mesh rounds alike.
//!
//! Source: S. Gupta et al., "Deep Learning with Limited Numerical Precision", 2015.

use crate::init::stream_of;
use partita_base::{DType, Result};
use partita_ir::composites::RANDOM_BITS;
use partita_ir::ops::{BinaryKind, BitcastConvert, UnaryKind};
use partita_ir::{GraphBuilder, Literal, TensorType, ValueId};

/// Sets the random numbers of parameters apart from those of other draws with the same seed.
const ROUNDING: u64 = 0x5DEE_CE66_D1CE_4E5B;

/// The seed of a step's rounding, a u64 scalar, from the inputs `seed` (u64) and `step` (i64).
pub(crate) fn seed_of(b: &mut GraphBuilder, seed: ValueId, step: ValueId) -> Result<ValueId> {
    let ty = TensorType::scalar(DType::U64);
    let factor = b.constant(Literal::splat_int(&ty, ROUNDING as i128));
    let step = b.convert(step, DType::U64)?;
    let moved = b.multiply(step, factor)?;
    b.binary(BinaryKind::Add, seed, moved)
}

/// An f32 value in bf16: the bits that bf16 lacks carry into the others with the probability of their share of a unit.
/// Infinities and NaN stay what they are.
pub(super) fn to_bf16(b: &mut GraphBuilder, value: ValueId, seed: ValueId, name: &str) -> Result<ValueId> {
    let shape = b.shape(value);
    let word = TensorType::new(DType::U32, shape.clone());
    let full = |b: &mut GraphBuilder, bits: u32| {
        let bits = b.constant(Literal::splat_int(&TensorType::scalar(DType::U32), i128::from(bits)));
        b.broadcast_scalar(bits, &word.shape)
    };
    let bits = b.random(&RANDOM_BITS, seed, stream_of(name), &shape, DType::U32)?;
    let lower = full(b, 0xFFFF)?;
    let bits = b.binary(BinaryKind::And, bits, lower)?;
    let own = b.push1(BitcastConvert { dtype: DType::U32 }, &[value])?;
    let carried = b.binary(BinaryKind::Add, own, bits)?;
    let upper = full(b, 0xFFFF_0000)?;
    let cut = b.binary(BinaryKind::And, carried, upper)?;
    let rounded = b.push1(BitcastConvert { dtype: DType::F32 }, &[cut])?;
    let is_finite = b.unary(UnaryKind::IsFinite, value)?;
    let rounded = b.select(is_finite, rounded, value)?;
    b.convert(rounded, DType::BF16)
}
