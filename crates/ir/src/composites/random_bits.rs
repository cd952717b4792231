//! Random bits: a counter-based generator over global indices.

use super::sizes;
use crate::composite::AttributesExt;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::ops::BinaryKind;
use crate::rule::{FactorKind, Rule};
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Result};

/// `random_bits(seed: u64 scalar, offsets: i64[rank]) -> u32[shape]`; attributes `shape`, `global_shape`, `stream`.
/// The generator: `key = mix(seed + GAMMA (stream + 1))`, `bits(i) = mix(key + GAMMA (i + 1))`, upper half,
/// with SplitMix64's `mix` and the row-major *global* index `i`.
pub static RANDOM_BITS: Template = Template {
    name: "partita.random_bits",
    arguments: &["seed", "offsets"],
    optional: 0,
    build: build_random_bits,
    gradient: None,
    rule: Some(random_bits_rule),
    offsets_operand: Some(1),
};

/// A 64-bit constant of the generator, as a full tensor.
fn u64_full(b: &mut GraphBuilder, value: u64, shape: &[usize]) -> Result<ValueId> {
    let scalar = b.constant(Literal::splat_int(&TensorType::scalar(DType::U64), value as i128));
    b.broadcast_scalar(scalar, shape)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that flips each output bit
/// with probability 1/2 for any input bit flipped.
fn mix(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let xor_shift = |b: &mut GraphBuilder, x: ValueId, bits: u64| -> Result<ValueId> {
        let bits = u64_full(b, bits, &shape)?;
        let shifted = b.binary(BinaryKind::ShiftRightLogical, x, bits)?;
        b.binary(BinaryKind::Xor, x, shifted)
    };
    let x = xor_shift(b, x, 30)?;
    let c = u64_full(b, 0xBF58_476D_1CE4_E5B9, &shape)?;
    let x = b.multiply(x, c)?;
    let x = xor_shift(b, x, 27)?;
    let c = u64_full(b, 0x94D0_49BB_1331_11EB, &shape)?;
    let x = b.multiply(x, c)?;
    xor_shift(b, x, 31)
}

/// The golden-ratio increment of SplitMix64.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// `key = mix(seed + GAMMA (stream + 1))`, `bits(i) = mix(key + GAMMA (i + 1))`, upper half, where `i` is the
/// row-major index of the element in the *global* shape: any shard of any mesh draws the same numbers.
pub(super) fn build_random_bits(
    a: &Attributes,
    b: &mut GraphBuilder,
    args: &[ValueId],
) -> Result<Vec<ValueId>> {
    let (shape, global) = (sizes(a, "shape"), sizes(a, "global_shape"));
    let stream = a.int("stream")? as u64;
    let seed = b.convert(args[0], DType::U64)?;
    let start = u64_full(b, GAMMA.wrapping_mul(stream.wrapping_add(1)), &[])?;
    let key = b.add(seed, start)?;
    let key = mix(b, key)?;
    let ty = TensorType::new(DType::U64, shape.clone());
    let mut index = u64_full(b, 1, &shape)?;
    let strides = crate::types::row_major_strides(&global);
    for (dim, &stride) in strides.iter().enumerate() {
        let along = b.iota(ty.clone(), dim)?;
        let offset = b.slice_dim(args[1], 0, dim, dim + 1)?;
        let offset = b.reshape(offset, &[])?;
        let offset = b.convert(offset, DType::U64)?;
        let offset = b.broadcast_scalar(offset, &shape)?;
        let along = b.add(along, offset)?;
        let stride = u64_full(b, stride as u64, &shape)?;
        let along = b.multiply(along, stride)?;
        index = b.add(index, along)?;
    }
    let gamma = u64_full(b, GAMMA, &shape)?;
    let index = b.multiply(index, gamma)?;
    let key = b.broadcast_scalar(key, &shape)?;
    let word = b.add(key, index)?;
    let word = mix(b, word)?;
    let half = u64_full(b, 32, &shape)?;
    let upper = b.binary(BinaryKind::ShiftRightLogical, word, half)?;
    Ok(vec![b.convert(upper, DType::U32)?])
}

/// Elements are drawn independently; positions enter through the offsets.
pub(super) fn random_bits_rule(_: &Attributes, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
    let mut rule = Rule::default();
    let offsets = rule.factor(operands[1].shape[0], FactorKind::Whole);
    let dims = results[0].shape.iter().map(|&size| vec![rule.factor(size, FactorKind::Pass)]).collect();
    rule.operands = vec![vec![], vec![vec![offsets]]];
    rule.results = vec![dims];
    rule
}
