//! The dialect `math`: functions of floats and a few of integers.

use super::elementwise::Action::{self, Binary, Function, Function2, Own, Unary};
use super::reader::{Op, Reader};
use partita_base::{DType, Result};
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};
use partita_ir::{GraphBuilder, ValueId};
use std::f64::consts::{LN_2, LN_10};

pub(super) const OPS: &[(&str, Action)] = &[
    ("math.absf", Unary(UnaryKind::Abs)),
    ("math.absi", Unary(UnaryKind::Abs)),
    ("math.exp", Unary(UnaryKind::Exponential)),
    ("math.expm1", Unary(UnaryKind::ExponentialMinusOne)),
    ("math.log", Unary(UnaryKind::Log)),
    ("math.log1p", Unary(UnaryKind::LogPlusOne)),
    ("math.sqrt", Unary(UnaryKind::Sqrt)),
    ("math.rsqrt", Unary(UnaryKind::Rsqrt)),
    ("math.cbrt", Unary(UnaryKind::Cbrt)),
    ("math.sin", Unary(UnaryKind::Sine)),
    ("math.cos", Unary(UnaryKind::Cosine)),
    ("math.tan", Unary(UnaryKind::Tan)),
    ("math.tanh", Unary(UnaryKind::Tanh)),
    ("math.erf", Unary(UnaryKind::Erf)),
    ("math.erfc", Unary(UnaryKind::Erfc)),
    ("math.ceil", Unary(UnaryKind::Ceil)),
    ("math.floor", Unary(UnaryKind::Floor)),
    ("math.round", Unary(UnaryKind::RoundNearestAfz)),
    ("math.roundeven", Unary(UnaryKind::RoundNearestEven)),
    ("math.isfinite", Unary(UnaryKind::IsFinite)),
    ("math.ctpop", Unary(UnaryKind::Popcnt)),
    ("math.powf", Binary(BinaryKind::Power)),
    ("math.atan2", Binary(BinaryKind::Atan2)),
    (
        "math.exp2",
        Function(|b, x| {
            let y = b.scale(x, LN_2)?;
            b.exponential(y)
        }),
    ),
    (
        "math.log2",
        Function(|b, x| {
            let y = b.unary(UnaryKind::Log, x)?;
            b.scale(y, 1.0 / LN_2)
        }),
    ),
    (
        "math.log10",
        Function(|b, x| {
            let y = b.unary(UnaryKind::Log, x)?;
            b.scale(y, 1.0 / LN_10)
        }),
    ),
    (
        "math.atan",
        Function(|b, x| {
            let one = b.full_like(x, 1.0)?;
            b.binary(BinaryKind::Atan2, x, one)
        }),
    ),
    (
        "math.sinh",
        Function(|b, x| {
            let (up, down) = both(b, x)?;
            let y = b.subtract(up, down)?;
            b.scale(y, 0.5)
        }),
    ),
    (
        "math.cosh",
        Function(|b, x| {
            let (up, down) = both(b, x)?;
            let y = b.add(up, down)?;
            b.scale(y, 0.5)
        }),
    ),
    ("math.trunc", Function(truncate)),
    ("math.isnan", Function(|b, x| b.compare(Direction::Ne, x, x))),
    ("math.copysign", Function2(copy_sign)),
    ("math.fma", Own(multiply_add)),
    ("math.fpowi", Own(integer_power)),
];

/// `exp(x)` and `exp(-x)`.
fn both(b: &mut GraphBuilder, x: ValueId) -> Result<(ValueId, ValueId)> {
    let negated = b.negate(x)?;
    Ok((b.exponential(x)?, b.exponential(negated)?))
}

/// The integer part.
fn truncate(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let zero = b.full_like(x, 0.0)?;
    let is_below = b.compare(Direction::Lt, x, zero)?;
    let (up, down) = (b.unary(UnaryKind::Ceil, x)?, b.unary(UnaryKind::Floor, x)?);
    b.select(is_below, up, down)
}

/// The magnitude of `x` with the sign of `y`. The reciprocal tells the sign of a zero.
fn copy_sign(b: &mut GraphBuilder, x: ValueId, y: ValueId) -> Result<ValueId> {
    let (zero, one) = (b.full_like(y, 0.0)?, b.full_like(y, 1.0)?);
    let reciprocal = b.divide(one, y)?;
    let is_zero = b.compare(Direction::Eq, y, zero)?;
    let sign = b.select(is_zero, reciprocal, y)?;
    let is_negative = b.compare(Direction::Lt, sign, zero)?;
    let magnitude = b.unary(UnaryKind::Abs, x)?;
    let negated = b.negate(magnitude)?;
    b.select(is_negative, negated, magnitude)
}

/// `a * b + c`, rounded twice.
fn multiply_add<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let simple = reader.simple(op)?;
    reader.arity(op, &simple.operands, 3)?;
    let operands = reader.alike(&simple.operands)?;
    let product = reader.b.multiply(operands[0], operands[1]);
    let product = reader.placed(product, op.at)?;
    let sum = reader.b.add(product, operands[2]);
    Ok(vec![reader.placed(sum, op.at)?])
}

/// A float to the power of an integer.
fn integer_power<'a>(reader: &mut Reader<'a>, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
    let simple = reader.simple(op)?;
    reader.arity(op, &simple.operands, 2)?;
    let operands = reader.alike(&simple.operands)?;
    let dtype: DType = reader.b.ty(operands[0]).dtype;
    let power = reader.b.convert(operands[1], dtype);
    let power = reader.placed(power, op.at)?;
    let result = reader.b.binary(BinaryKind::Power, operands[0], power);
    Ok(vec![reader.placed(result, op.at)?])
}
