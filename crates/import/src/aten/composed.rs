//! Functions of one or two numbers that are made of others, where PyTorch has one op.

use super::arithmetic::promoted_operands;
use super::{Rows, constant, convert, one, operand, operands, wide};
use crate::pt2::call::{Call, Outs, Scalar};
use partita_base::{DType, Result};
use partita_ir::ValueId;
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};

pub const ROWS: Rows = &[
    ("aten.exp2.default", |c| unary(c, exp2)),
    ("aten.sinh.default", |c| unary(c, |c, x| hyperbolic(c, x, BinaryKind::Subtract))),
    ("aten.cosh.default", |c| unary(c, |c, x| hyperbolic(c, x, BinaryKind::Add))),
    ("aten.asin.default", |c| unary(c, |c, x| angle(c, x, false))),
    ("aten.acos.default", |c| unary(c, |c, x| angle(c, x, true))),
    ("aten.atan.default", |c| unary(c, arc_tangent)),
    ("aten.logaddexp.default", log_of_sum),
    ("aten.xlogy.Tensor", times_log),
    ("aten.nan_to_num.default", nan_to_num),
];

/// A function of `self`, computed in the type of sums.
fn unary(call: &mut Call, function: fn(&mut Call, ValueId) -> Result<ValueId>) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", wide(dtype))?;
    let y = function(call, x)?;
    one(convert(call, y, dtype)?)
}

fn exp2(call: &mut Call, x: ValueId) -> Result<ValueId> {
    let base = call.b().full_like(x, 2.0)?;
    call.b().binary(BinaryKind::Power, base, x)
}

/// `(exp(x) +- exp(-x)) / 2`, halved first so that the largest results do not overflow.
fn hyperbolic(call: &mut Call, x: ValueId, kind: BinaryKind) -> Result<ValueId> {
    let half = std::f64::consts::LN_2;
    let negative = call.b().negate(x)?;
    let mut sides = Vec::with_capacity(2);
    for side in [x, negative] {
        let lower = call.b().offset(side, -half)?;
        sides.push(call.b().exponential(lower)?);
    }
    let far = call.b().binary(kind, sides[0], sides[1])?;
    // Near 0 the exponentials cancel, those of the sum in its slope: with e = exp(x) - 1 the difference is half of
    // e + e / (e + 1), and the sum is 2 + e e / (e + 1).
    let size = call.b().unary(UnaryKind::Abs, x)?;
    let ones = call.b().full_like(x, 1.0)?;
    let zero = call.b().full_like(x, 0.0)?;
    let is_far = call.b().compare(Direction::Gt, size, ones)?;
    let near = call.b().select(is_far, zero, x)?;
    let grown = call.b().unary(UnaryKind::ExponentialMinusOne, near)?;
    let above = call.b().add(grown, ones)?;
    let ratio = call.b().divide(grown, above)?;
    let near = if kind == BinaryKind::Add {
        let product = call.b().multiply(grown, ratio)?;
        let half = call.b().scale(product, 0.5)?;
        call.b().offset(half, 1.0)?
    } else {
        let sum = call.b().add(grown, ratio)?;
        call.b().scale(sum, 0.5)?
    };
    call.b().select(is_far, far, near)
}

/// The angle whose sine (or cosine) is `x`, as twice its half. The roots are apart, so that the slope at the ends is
/// infinite and not the product of 0 and an infinity.
fn angle(call: &mut Call, x: ValueId, of_cosine: bool) -> Result<ValueId> {
    let ones = call.b().full_like(x, 1.0)?;
    let (low, high) = (call.b().subtract(ones, x)?, call.b().add(ones, x)?);
    let (low, high) = (call.b().unary(UnaryKind::Sqrt, low)?, call.b().unary(UnaryKind::Sqrt, high)?);
    let half = if of_cosine {
        call.b().binary(BinaryKind::Atan2, low, high)?
    } else {
        let side = call.b().multiply(low, high)?;
        let run = call.b().add(ones, side)?;
        call.b().binary(BinaryKind::Atan2, x, run)?
    };
    call.b().scale(half, 2.0)
}

fn arc_tangent(call: &mut Call, x: ValueId) -> Result<ValueId> {
    let ones = call.b().full_like(x, 1.0)?;
    call.b().binary(BinaryKind::Atan2, x, ones)
}

/// `log(exp(a) + exp(b))` as `max(a, b) + log(1 + exp(-|a - b|))`; equal infinities are 0 apart.
fn log_of_sum(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, b] = operands(call, ["self", "other"], wide(dtype))?;
    let most = call.b().maximum(a, b)?;
    let apart = call.b().subtract(a, b)?;
    let zero = call.b().full_like(apart, 0.0)?;
    let is_equal = call.b().compare(Direction::Eq, a, b)?;
    let apart = call.b().select(is_equal, zero, apart)?;
    let size = call.b().unary(UnaryKind::Abs, apart)?;
    let negative = call.b().negate(size)?;
    let rest = call.b().exponential(negative)?;
    let rest = call.b().unary(UnaryKind::LogPlusOne, rest)?;
    let y = call.b().add(most, rest)?;
    one(convert(call, y, dtype)?)
}

/// `x log(y)`, 0 where `x` is 0 unless `y` is NaN.
fn times_log(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [x, y] = promoted_operands(call, ["self", "other"])?;
    let [x, y] = [convert(call, x, wide(dtype))?, convert(call, y, wide(dtype))?];
    let zero = call.b().full_like(x, 0.0)?;
    let ones = call.b().full_like(y, 1.0)?;
    let is_zero = call.b().compare(Direction::Eq, x, zero)?;
    let nothing = call.b().full_like(y, 0.0)?;
    let infinity = call.b().full_like(y, f64::INFINITY)?;
    let (is_low, is_most) =
        (call.b().compare(Direction::Le, y, nothing)?, call.b().compare(Direction::Eq, y, infinity)?);
    let has_no_log = call.b().binary(BinaryKind::Or, is_low, is_most)?;
    let is_fixed = call.b().binary(BinaryKind::And, is_zero, has_no_log)?;
    let safe = call.b().select(is_fixed, ones, y)?;
    let log = call.b().unary(UnaryKind::Log, safe)?;
    let product = call.b().multiply(x, log)?;
    one(convert(call, product, dtype)?)
}

/// NaN becomes 0, and infinities the ends of the type, unless other numbers are given.
fn nan_to_num(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    if !dtype.is_float() {
        return one(x);
    }
    let end = match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => 3.3895313892515355e38,
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    };
    let (fill, high, low) =
        (call.float("nan", 0.0)?, call.float("posinf", end)?, call.float("neginf", -end)?);
    let shape = call.shape(x);
    let mut y = x;
    for (value, number) in [(f64::INFINITY, high), (f64::NEG_INFINITY, low)] {
        let infinity = call.b().full_like(x, value)?;
        let is_infinite = call.b().compare(Direction::Eq, x, infinity)?;
        let number = constant(call, dtype, Scalar::Float(number));
        let number = call.spread(number, &shape)?;
        y = call.b().select(is_infinite, number, y)?;
    }
    let is_nan = call.b().compare(Direction::Ne, x, x)?;
    let number = constant(call, dtype, Scalar::Float(fill));
    let number = call.spread(number, &shape)?;
    one(call.b().select(is_nan, number, y)?)
}
