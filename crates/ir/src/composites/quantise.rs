//! Rounding to floats of 8 bits and back, with scales: what a matmul in 8 bits does to its operands.
//!
//! The result has the type of the operand, and numbers that the narrow format has, times a scale. Products of such numbers
//! are exact in f32, so a matmul of quantised operands in f32 is one in 8 bits that adds up in f32.
//!
//! Formats: OCP 8-bit floating point specification (OFP8) 1.0; blocks with scales that are powers of two: OCP microscaling
//! formats (MX) 1.0, section 6.3; blocks with scales in f32: DeepSeek-V3 technical report, 2024, section 3.3.

use super::{sizes, widened};
use crate::GraphBuilder;
use crate::TensorType;
use crate::composite::{Attribute, Attributes, Gradient, Template};
use crate::graph::ValueId;
use crate::ops::{BinaryKind, BitcastConvert, Clamp, Pad, Slice, UnaryKind};
use crate::rule::{FactorKind, Rule};
use partita_base::{DType, Diagnostic, Result};

/// `quantise(x[..], scale[]?) -> [..]`: `x` in a float format of 8 bits, in the type of `x`. Numbers beyond the largest of
/// the format become that one.
///
/// Attributes: `format`, `e4m3` or `e5m2`. With an operand `scale`, `x` times it is rounded and divided by it. Without,
/// each block has a scale of its own: `blocks` is the extent of a block along each dimension, and the last block may be
/// smaller. Its scale is the largest magnitude of the block over that of the format; if `power`, it is the power of two for
/// which the two largest magnitudes have the same exponent. The smallest scale is 2^-126, that of a block of zeros.
///
/// Its gradient is that of the identity.
pub static QUANTISE: Template = Template {
    name: "partita.quantise",
    arguments: &["x", "scale"],
    optional: 1,
    build: build_quantise,
    gradient: Some(Gradient::Composite(straight_through)),
    rule: Some(rule),
    offsets_operand: None,
};

/// A float format of 8 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Narrow {
    /// 4 bits of exponent, 3 of mantissa; no infinities.
    E4M3,
    /// 5 bits of exponent, 2 of mantissa.
    E5M2,
}

impl Narrow {
    /// `e4m3` or `e5m2`.
    pub fn name(self) -> &'static str {
        match self {
            Narrow::E4M3 => "e4m3",
            Narrow::E5M2 => "e5m2",
        }
    }

    /// The largest number.
    pub fn largest(self) -> f64 {
        match self {
            Narrow::E4M3 => 448.0,
            Narrow::E5M2 => 57344.0,
        }
    }

    /// The smallest number with a full mantissa.
    fn smallest_normal(self) -> f64 {
        match self {
            Narrow::E4M3 => 2f64.powi(-6),
            Narrow::E5M2 => 2f64.powi(-14),
        }
    }

    /// The distance from 1 to the next number.
    pub fn unit(self) -> f64 {
        match self {
            Narrow::E4M3 => 2f64.powi(-3),
            Narrow::E5M2 => 2f64.powi(-2),
        }
    }
}

/// The smallest scale. Smaller ones are no normal numbers in f32.
const SMALLEST_SCALE: f64 = 1.1754943508222875e-38;
/// The largest scale that is a power of two.
const LARGEST_POWER: f64 = 1.7014118346046923e38;

fn format(a: &Attributes) -> Result<Narrow> {
    let found = a.get("format");
    let known = |narrow: &Narrow| matches!(found, Some(Attribute::Text(name)) if name == narrow.name());
    [Narrow::E4M3, Narrow::E5M2].into_iter().find(known).ok_or_else(|| {
        Diagnostic::new("E132", format!("composite attribute `format` of `{}` is unknown", QUANTISE.name))
            .expected("e4m3 or e5m2")
            .found(found.map_or("nothing".to_string(), |found| format!("{found:?}")))
    })
}

/// How a dimension is divided into blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// Each element for itself.
    None,
    /// The whole dimension is one block.
    One,
    /// Blocks of this extent; the dimension is filled up with this many zeros.
    Many { extent: usize, missing: usize },
}

impl Blocks {
    fn of(extent: usize, block: usize) -> Blocks {
        match block {
            0 | 1 => Blocks::None,
            // A shard without elements has no block.
            _ if extent > 0 && extent <= block => Blocks::One,
            _ => Blocks::Many { extent: block, missing: extent.next_multiple_of(block) - extent },
        }
    }
}

/// The largest power of two that is not above the magnitude of a number of normal size: its exponent alone.
fn exponent(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let ty = b.ty(x).clone();
    let (bits, mask) = match ty.dtype {
        DType::F64 => (DType::U64, f64::from(0x7ff) * 2f64.powi(52)),
        _ => (DType::U32, f64::from(0xff) * 2f64.powi(23)),
    };
    let code = b.push1(BitcastConvert { dtype: bits }, &[x])?;
    let mask = b.full_like(code, mask)?;
    let code = b.binary(BinaryKind::And, code, mask)?;
    b.push1(BitcastConvert { dtype: ty.dtype }, &[code])
}

/// Each element rounded to the nearest number of the format, ties to an even mantissa.
fn rounded(b: &mut GraphBuilder, x: ValueId, narrow: Narrow) -> Result<ValueId> {
    let dtype = b.ty(x).dtype;
    let [low, high] = [-1.0, 1.0].map(|sign| b.scalar(dtype, sign * narrow.largest()));
    let x = b.push1(Clamp, &[low, x, high])?;
    let power = exponent(b, x)?;
    let least = b.full_like(power, narrow.smallest_normal())?;
    let power = b.maximum(power, least)?;
    // All of these are exact but the rounding: scales are powers of two, and few bits remain.
    let unit = b.scale(power, narrow.unit())?;
    let steps = b.divide(x, unit)?;
    let steps = b.unary(UnaryKind::RoundNearestEven, steps)?;
    b.multiply(steps, unit)
}

fn build_quantise(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let narrow = format(a)?;
    let (x, dtype) = widened(b, args[0])?;
    if !matches!(b.ty(x).dtype, DType::F32 | DType::F64) {
        return Err(Diagnostic::new("E103", format!("`{}` rounds floats", QUANTISE.name))
            .expected("f16, bf16, f32 or f64")
            .found(dtype.name()));
    }
    let y = match args.get(1) {
        Some(&scale) => scaled(b, x, scale, narrow)?,
        None => blocked(b, x, &sizes(a, "blocks"), a.get("power") == Some(&Attribute::Bool(true)), narrow)?,
    };
    Ok(vec![b.convert(y, dtype)?])
}

fn scaled(b: &mut GraphBuilder, x: ValueId, scale: ValueId, narrow: Narrow) -> Result<ValueId> {
    let (shape, dtype) = (b.shape(x), b.ty(x).dtype);
    let scale = b.convert(scale, dtype)?;
    let one = b.full_like(scale, 1.0)?;
    let inverse = b.divide(one, scale)?;
    let [scale, inverse] = [b.broadcast_scalar(scale, &shape)?, b.broadcast_scalar(inverse, &shape)?];
    let x = b.multiply(x, scale)?;
    let x = rounded(b, x, narrow)?;
    b.multiply(x, inverse)
}

fn blocked(
    b: &mut GraphBuilder,
    x: ValueId,
    blocks: &[usize],
    power: bool,
    narrow: Narrow,
) -> Result<ValueId> {
    let shape = b.shape(x);
    if blocks.len() != shape.len() {
        return Err(Diagnostic::new(
            "E132",
            format!("composite attribute `blocks` of `{}` does not fit", QUANTISE.name),
        )
        .expected(format!("an extent for each of {} dimensions", shape.len()))
        .found(format!("{blocks:?}")));
    }
    let blocks: Vec<Blocks> =
        shape.iter().zip(blocks).map(|(&extent, &block)| Blocks::of(extent, block)).collect();
    let missing =
        |blocks: &Blocks| if let Blocks::Many { missing, .. } = blocks { *missing as i64 } else { 0 };
    let high: Vec<i64> = blocks.iter().map(missing).collect();
    let is_ragged = high.iter().any(|&missing| missing > 0);
    // In this form each block is a range of whole dimensions. Shards of one, several and no blocks differ in the number of
    // blocks alone.
    let mut form = Vec::new();
    let mut inner = Vec::new();
    for (&extent, blocks) in shape.iter().zip(&blocks) {
        match *blocks {
            Blocks::None => form.push(extent),
            Blocks::One => {
                form.push(1);
                inner.push(form.len());
                form.push(extent);
            }
            Blocks::Many { extent: block, missing } => {
                form.push((extent + missing) / block);
                inner.push(form.len());
                form.push(block);
            }
        }
    }
    let mut y = x;
    if is_ragged {
        let zero = b.scalar(b.ty(x).dtype, 0.0);
        let (low, interior) = (vec![0; shape.len()], vec![0; shape.len()]);
        y = b.push1(Pad { low, high, interior }, &[x, zero])?;
    }
    let filled = b.shape(y);
    y = b.reshape(y, &form)?;
    let magnitude = b.unary(UnaryKind::Abs, y)?;
    let largest = if inner.is_empty() { magnitude } else { b.reduce_max(magnitude, &inner)? };
    let scale = match power {
        true => {
            let power = exponent(b, largest)?;
            let of_largest = 2f64.powi(narrow.largest().log2().floor() as i32);
            b.scale(power, 1.0 / of_largest)?
        }
        false => {
            let of_format = b.full_like(largest, narrow.largest())?;
            b.divide(largest, of_format)?
        }
    };
    let least = b.full_like(scale, SMALLEST_SCALE)?;
    let mut scale = b.maximum(scale, least)?;
    if power {
        let most = b.full_like(scale, LARGEST_POWER)?;
        scale = b.minimum(scale, most)?;
    }
    let outer: Vec<usize> = (0..form.len()).filter(|dim| !inner.contains(dim)).collect();
    let scale = b.broadcast_in_dim(scale, &form, &outer)?;
    y = b.divide(y, scale)?;
    y = rounded(b, y, narrow)?;
    y = b.multiply(y, scale)?;
    y = b.reshape(y, &filled)?;
    if is_ragged {
        let (start, stride) = (vec![0; shape.len()], vec![1; shape.len()]);
        y = b.push1(Slice { start, limit: shape, stride }, &[y])?;
    }
    Ok(y)
}

/// A dimension may be cut between blocks. One that is a single block is a factor that the op needs in full, and so is one
/// whose last block is smaller.
fn rule(a: &Attributes, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
    let mut rule = Rule::default();
    let blocks = if operands.len() == 1 { sizes(a, "blocks") } else { vec![1; operands[0].rank()] };
    let mut dims = Vec::new();
    for (&extent, &block) in operands[0].shape.iter().zip(&blocks) {
        dims.push(match Blocks::of(extent, block) {
            _ if extent == 0 => vec![rule.factor(0, FactorKind::Pass)],
            Blocks::None => vec![rule.factor(extent, FactorKind::Pass)],
            Blocks::Many { extent: block, missing: 0 } => {
                vec![rule.factor(extent / block, FactorKind::Pass), rule.factor(block, FactorKind::Whole)]
            }
            Blocks::One | Blocks::Many { .. } => vec![rule.factor(extent, FactorKind::Whole)],
        });
    }
    rule.operands = vec![dims.clone()];
    rule.operands.extend(operands[1..].iter().map(|scale| vec![Vec::new(); scale.rank()]));
    rule.results = vec![dims];
    rule
}

fn straight_through(
    _: &Attributes,
    _: &mut GraphBuilder,
    operands: &[ValueId],
    cotangents: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>> {
    let mut gradients = vec![None; operands.len()];
    gradients[0] = cotangents[0];
    Ok(gradients)
}
