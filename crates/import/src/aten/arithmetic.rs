//! Arithmetic: elementwise functions of one, two or three tensors and numbers.
//!
//! Operands are converted to the type of the result, as ATen promotes them.

use super::{Rows, broadcast_pair, constant, convert, one, operand, operands, promoted, wide};
use crate::pt2::call::{Call, Outs, Scalar};
use partita_base::{DType, Result};
use partita_ir::ValueId;
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};

pub const ROWS: Rows = &[
    ("aten.abs.default", magnitude),
    ("aten.neg.default", |c| unary(c, UnaryKind::Negate)),
    ("aten.exp.default", |c| unary(c, UnaryKind::Exponential)),
    ("aten.expm1.default", |c| unary(c, UnaryKind::ExponentialMinusOne)),
    ("aten.log.default", |c| unary(c, UnaryKind::Log)),
    ("aten.log1p.default", |c| unary(c, UnaryKind::LogPlusOne)),
    ("aten.log2.default", |c| scaled_log(c, std::f64::consts::LOG2_E)),
    ("aten.log10.default", |c| scaled_log(c, std::f64::consts::LOG10_E)),
    ("aten.sqrt.default", |c| unary(c, UnaryKind::Sqrt)),
    ("aten.rsqrt.default", |c| unary(c, UnaryKind::Rsqrt)),
    ("aten.sin.default", |c| unary(c, UnaryKind::Sine)),
    ("aten.cos.default", |c| unary(c, UnaryKind::Cosine)),
    ("aten.tan.default", |c| unary(c, UnaryKind::Tan)),
    ("aten.tanh.default", |c| unary(c, UnaryKind::Tanh)),
    ("aten.sigmoid.default", |c| unary(c, UnaryKind::Logistic)),
    ("aten.erf.default", |c| unary(c, UnaryKind::Erf)),
    ("aten.erfc.default", |c| unary(c, UnaryKind::Erfc)),
    ("aten.erfinv.default", |c| unary(c, UnaryKind::ErfInv)),
    ("aten.square.default", |c| unary(c, UnaryKind::Square)),
    ("aten.sign.default", sign),
    ("aten.sgn.default", sign),
    ("aten.floor.default", |c| rounded(c, UnaryKind::Floor)),
    ("aten.ceil.default", |c| rounded(c, UnaryKind::Ceil)),
    ("aten.round.default", |c| rounded(c, UnaryKind::RoundNearestEven)),
    ("aten.trunc.default", trunc),
    ("aten.reciprocal.default", reciprocal),
    ("aten.bitwise_not.default", |c| unary(c, UnaryKind::Not)),
    ("aten.add.Tensor", |c| sum(c, BinaryKind::Add, ["self", "other"])),
    ("aten.add.Scalar", |c| sum(c, BinaryKind::Add, ["self", "other"])),
    ("aten.sub.Tensor", |c| sum(c, BinaryKind::Subtract, ["self", "other"])),
    ("aten.sub.Scalar", |c| sum(c, BinaryKind::Subtract, ["self", "other"])),
    ("aten.rsub.Tensor", |c| sum(c, BinaryKind::Subtract, ["other", "self"])),
    ("aten.rsub.Scalar", |c| sum(c, BinaryKind::Subtract, ["other", "self"])),
    ("aten.mul.Tensor", |c| binary(c, BinaryKind::Multiply)),
    ("aten.mul.Scalar", |c| binary(c, BinaryKind::Multiply)),
    ("aten.div.Tensor", |c| binary(c, BinaryKind::Divide)),
    ("aten.div.Scalar", |c| binary(c, BinaryKind::Divide)),
    ("aten.div.Tensor_mode", divide_by_mode),
    ("aten.div.Scalar_mode", divide_by_mode),
    ("aten.true_divide.Tensor", |c| binary(c, BinaryKind::Divide)),
    ("aten.floor_divide.default", |c| divide_floor(c)),
    ("aten.floor_divide.Scalar", |c| divide_floor(c)),
    ("aten.remainder.Tensor", remainder),
    ("aten.remainder.Scalar", remainder),
    ("aten.fmod.Tensor", |c| binary(c, BinaryKind::Remainder)),
    ("aten.fmod.Scalar", |c| binary(c, BinaryKind::Remainder)),
    ("aten.pow.Tensor_Scalar", power_of_number),
    ("aten.pow.Tensor_Tensor", power),
    ("aten.pow.Scalar", power),
    ("aten.atan2.default", |c| binary(c, BinaryKind::Atan2)),
    ("aten.maximum.default", |c| binary(c, BinaryKind::Maximum)),
    ("aten.minimum.default", |c| binary(c, BinaryKind::Minimum)),
    ("aten.max.other", |c| binary(c, BinaryKind::Maximum)),
    ("aten.min.other", |c| binary(c, BinaryKind::Minimum)),
    ("aten.bitwise_and.Tensor", |c| binary(c, BinaryKind::And)),
    ("aten.bitwise_and.Scalar", |c| binary(c, BinaryKind::And)),
    ("aten.bitwise_or.Tensor", |c| binary(c, BinaryKind::Or)),
    ("aten.bitwise_or.Scalar", |c| binary(c, BinaryKind::Or)),
    ("aten.bitwise_xor.Tensor", |c| binary(c, BinaryKind::Xor)),
    ("aten.bitwise_xor.Scalar", |c| binary(c, BinaryKind::Xor)),
    ("aten.__and__.Tensor", |c| binary(c, BinaryKind::And)),
    ("aten.__and__.Scalar", |c| binary(c, BinaryKind::And)),
    ("aten.__or__.Tensor", |c| binary(c, BinaryKind::Or)),
    ("aten.__or__.Scalar", |c| binary(c, BinaryKind::Or)),
    ("aten.__xor__.Tensor", |c| binary(c, BinaryKind::Xor)),
    ("aten.__xor__.Scalar", |c| binary(c, BinaryKind::Xor)),
    ("aten.addcmul.default", |c| add_scaled(c, BinaryKind::Multiply)),
    ("aten.addcdiv.default", |c| add_scaled(c, BinaryKind::Divide)),
    ("aten.diff.default", differences),
    ("aten.lerp.Scalar", interpolate),
    ("aten.lerp.Tensor", interpolate),
];

/// An elementwise function of `self`, in the type of the result.
fn unary(call: &mut Call, kind: UnaryKind) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    one(call.b().unary(kind, x)?)
}

/// The magnitude of `self`, which is real for a complex number too.
fn magnitude(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    one(call.b().unary(UnaryKind::Abs, x)?)
}

/// The sign; 0 of NaN.
fn sign(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let sign = call.b().unary(UnaryKind::Sign, x)?;
    if !dtype.is_float() {
        return one(sign);
    }
    let is_number = call.b().compare(Direction::Eq, x, x)?;
    let zero = call.b().full_like(x, 0.0)?;
    one(call.b().select(is_number, sign, zero)?)
}

/// A rounding function: integers are themselves, floats have the gradient 0.
fn rounded(call: &mut Call, kind: UnaryKind) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    if call.has("decimals") && call.int("decimals", 0)? != 0 {
        return Err(call.unsupported("rounding to whole numbers", "decimals"));
    }
    one(if dtype.is_float() { call.b().unary(kind, x)? } else { x })
}

fn trunc(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    one(toward_zero(call, x)?)
}

fn toward_zero(call: &mut Call, x: ValueId) -> Result<ValueId> {
    if !call.ty(x).dtype.is_float() {
        return Ok(x);
    }
    let (low, high) = (call.b().unary(UnaryKind::Floor, x)?, call.b().unary(UnaryKind::Ceil, x)?);
    let zero = call.b().full_like(x, 0.0)?;
    let is_negative = call.b().compare(Direction::Lt, x, zero)?;
    call.b().select(is_negative, high, low)
}

fn scaled_log(call: &mut Call, factor: f64) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let log = call.b().unary(UnaryKind::Log, x)?;
    one(call.b().scale(log, factor)?)
}

fn reciprocal(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    one(reciprocal_of(call, x)?)
}

/// An elementwise function of `self` and `other`, in the type of the result.
fn binary(call: &mut Call, kind: BinaryKind) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, b] = operands(call, ["self", "other"], dtype)?;
    one(call.b().binary(kind, a, b)?)
}

/// `a + alpha b` or `a - alpha b`.
fn sum(call: &mut Call, kind: BinaryKind, names: [&str; 2]) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, mut b] = operands(call, names, dtype)?;
    if let Some(alpha) = call.scalar("alpha")?
        && !alpha.is_one()
    {
        // `rsub` scales the tensor that it subtracts, as `sub` does.
        b = multiplied(call, alpha, b)?;
    }
    one(call.b().binary(kind, a, b)?)
}

/// A tensor times a number, in the type of the tensor.
fn multiplied(call: &mut Call, number: Scalar, x: ValueId) -> Result<ValueId> {
    let number = constant(call, call.ty(x).dtype, number);
    let [number, x] = broadcast_pair(call, number, x)?;
    call.b().multiply(number, x)
}

fn divide_by_mode(call: &mut Call) -> Outs {
    match call.text("rounding_mode", "")? {
        "floor" => divide_floor(call),
        "trunc" => {
            let dtype = call.result_dtype(0)?;
            let [a, b] = operands(call, ["self", "other"], dtype)?;
            let ratio = call.b().divide(a, b)?;
            one(toward_zero(call, ratio)?)
        }
        _ => binary(call, BinaryKind::Divide),
    }
}

/// Whether a remainder must move to the sign of the divisor: it is not 0 and has the other sign.
fn must_move(call: &mut Call, rest: ValueId, divisor: ValueId) -> Result<ValueId> {
    let zero = call.b().full_like(rest, 0.0)?;
    let is_negative = call.b().compare(Direction::Lt, rest, zero)?;
    let divides_negative = call.b().compare(Direction::Lt, divisor, zero)?;
    let differs = call.b().compare(Direction::Ne, is_negative, divides_negative)?;
    let is_rest = call.b().compare(Direction::Ne, rest, zero)?;
    call.b().binary(BinaryKind::And, differs, is_rest)
}

fn divide_floor(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, b] = operands(call, ["self", "other"], dtype)?;
    if dtype.is_float() {
        return one(floor_of_ratio(call, a, b)?);
    }
    let ratio = call.b().divide(a, b)?;
    if dtype.is_unsigned_integer() {
        return one(ratio);
    }
    // Integer division truncates.
    let rest = call.b().binary(BinaryKind::Remainder, a, b)?;
    let moves = must_move(call, rest, b)?;
    let lower = call.b().offset(ratio, -1.0)?;
    one(call.b().select(moves, lower, ratio)?)
}

/// `floor(a / b)` by the remainder, as Python and PyTorch have it: without the rounding of `a / b`, so 1 // 0.1 is 9.
/// Without a gradient.
fn floor_of_ratio(call: &mut Call, a: ValueId, b: ValueId) -> Result<ValueId> {
    let (a, b) = (call.b().stop_gradient(a)?, call.b().stop_gradient(b)?);
    let rest = call.b().binary(BinaryKind::Remainder, a, b)?;
    let whole = call.b().subtract(a, rest)?;
    let ratio = call.b().divide(whole, b)?;
    let moves = must_move(call, rest, b)?;
    let lower = call.b().offset(ratio, -1.0)?;
    let ratio = call.b().select(moves, lower, ratio)?;
    // A whole number but for the rounding of the division.
    let nearest = call.b().unary(UnaryKind::RoundNearestEven, ratio)?;
    let zero = call.b().full_like(b, 0.0)?;
    let is_zero = call.b().compare(Direction::Eq, b, zero)?;
    let plain = call.b().divide(a, b)?;
    call.b().select(is_zero, plain, nearest)
}

/// The remainder with the sign of the divisor, as in Python.
fn remainder(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, b] = operands(call, ["self", "other"], dtype)?;
    let rest = call.b().binary(BinaryKind::Remainder, a, b)?;
    if dtype.is_unsigned_integer() {
        return one(rest);
    }
    let moves = must_move(call, rest, b)?;
    let moved = call.b().add(rest, b)?;
    one(call.b().select(moves, moved, rest)?)
}

/// In narrow types the exponent is rounded too, as in PyTorch.
fn power(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, b] = operands(call, ["self", "exponent"], dtype)?;
    one(call.b().binary(BinaryKind::Power, a, b)?)
}

/// Small exponents as products and roots, as ATen computes them.
fn power_of_number(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    if dtype.is_complex() {
        return complex_power(call, dtype);
    }
    let exponent = call.float("exponent", 1.0)?;
    let x = operand(call, "self", dtype)?;
    if exponent == 1.0 {
        return one(x);
    }
    if exponent == 2.0 || exponent == 3.0 {
        let square = call.b().multiply(x, x)?;
        return one(if exponent == 3.0 { call.b().multiply(square, x)? } else { square });
    }
    if dtype.is_float() && exponent == 0.5 {
        return one(call.b().unary(UnaryKind::Sqrt, x)?);
    }
    if dtype.is_float() && exponent == -0.5 {
        return one(call.b().unary(UnaryKind::Rsqrt, x)?);
    }
    if dtype.is_float() && exponent == -1.0 {
        return one(reciprocal_of(call, x)?);
    }
    power(call)
}

/// Whole exponents of complex numbers as products, 1/2 as a root, others as `exp(exponent log(self))`.
fn complex_power(call: &mut Call, dtype: DType) -> Outs {
    const MAX_PRODUCTS: f64 = 64.0;
    let exponent = call.number("exponent")?;
    let x = operand(call, "self", dtype)?;
    let (re, is_real) = (exponent.as_f64(), !matches!(exponent, Scalar::Complex([_, im]) if im != 0.0));
    let size = if is_real && re.fract() == 0.0 && re.abs() <= MAX_PRODUCTS {
        let mut power = call.b().full_like(x, 1.0)?;
        let (mut square, mut rest) = (x, re.abs() as u32);
        // By the binary digits of the exponent.
        while rest > 0 {
            if rest % 2 == 1 {
                power = call.b().multiply(power, square)?;
            }
            rest /= 2;
            if rest > 0 {
                square = call.b().multiply(square, square)?;
            }
        }
        power
    } else if is_real && re.abs() == 0.5 {
        call.b().unary(UnaryKind::Sqrt, x)?
    } else if is_real {
        // The logarithm of 0 times a number would be NaN.
        let magnitude = call.b().unary(UnaryKind::Abs, x)?;
        let nothing = call.b().full_like(magnitude, 0.0)?;
        let is_zero = call.b().compare(Direction::Eq, magnitude, nothing)?;
        let (zero, ones) = (call.b().full_like(x, 0.0)?, call.b().full_like(x, 1.0)?);
        let safe = call.b().select(is_zero, ones, x)?;
        let log = call.b().unary(UnaryKind::Log, safe)?;
        let scaled = call.b().scale(log, re.abs())?;
        let power = call.b().exponential(scaled)?;
        call.b().select(is_zero, zero, power)?
    } else {
        return Err(call.unsupported("a real exponent", "a complex one"));
    };
    one(if re < 0.0 { reciprocal_of(call, size)? } else { size })
}

fn reciprocal_of(call: &mut Call, x: ValueId) -> Result<ValueId> {
    let numerator = call.b().full_like(x, 1.0)?;
    call.b().divide(numerator, x)
}

/// `self + value * tensor1 * tensor2`, or divided, from left to right as in ATen.
fn add_scaled(call: &mut Call, kind: BinaryKind) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, b] = operands(call, ["tensor1", "tensor2"], wide(dtype))?;
    let value = call.scalar("value")?.unwrap_or(Scalar::Int(1));
    let a = if value.is_one() { a } else { multiplied(call, value, a)? };
    let product = call.b().binary(kind, a, b)?;
    let x = operand(call, "self", wide(dtype))?;
    let [x, product] = broadcast_pair(call, x, product)?;
    let y = call.b().add(x, product)?;
    one(convert(call, y, dtype)?)
}

/// The differences of neighbours along a dimension; of booleans, whether they differ.
fn differences(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let shape = call.shape(x);
    let dim = call.wrap(call.int("dim", -1)?, shape.len())?;
    if call.int("n", 1)? != 1 || shape.get(dim).is_none_or(|&extent| extent == 0) {
        return Err(call.unsupported("first differences of a dimension with elements", format!("{shape:?}")));
    }
    let mut pieces = vec![x];
    if call.has("prepend") {
        pieces.insert(0, call.tensor("prepend")?);
    }
    if call.has("append") {
        pieces.push(call.tensor("append")?);
    }
    let x = if pieces.len() == 1 { x } else { call.b().concatenate(&pieces, dim)? };
    let extent = call.shape(x)[dim];
    let low = call.b().slice_dim(x, dim, 0, extent - 1)?;
    let high = call.b().slice_dim(x, dim, 1, extent)?;
    one(match call.ty(x).dtype {
        DType::Bool => call.b().compare(Direction::Ne, high, low)?,
        _ => call.b().subtract(high, low)?,
    })
}

/// `self + weight (end - self)`, or counted from `end` for weights from one half, as in ATen.
fn interpolate(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [start, end] = operands(call, ["self", "end"], wide(dtype))?;
    let difference = call.b().subtract(end, start)?;
    let weight = operand(call, "weight", wide(dtype))?;
    let [weight, difference] = broadcast_pair(call, weight, difference)?;
    let [start, end] = [broadcast_pair(call, start, weight)?[0], broadcast_pair(call, end, weight)?[0]];
    let early = |call: &mut Call, weight: ValueId| -> Result<ValueId> {
        let step = call.b().multiply(weight, difference)?;
        call.b().add(start, step)
    };
    let late = |call: &mut Call, weight: ValueId| -> Result<ValueId> {
        let ones = call.b().full_like(weight, 1.0)?;
        let rest = call.b().subtract(ones, weight)?;
        let step = call.b().multiply(difference, rest)?;
        call.b().subtract(end, step)
    };
    let y = if !call.is_tensor("weight") {
        match call.number("weight")?.as_f64().abs() < 0.5 {
            true => early(call, weight)?,
            false => late(call, weight)?,
        }
    } else {
        // The formula that is not taken gets a weight without a gradient: its own would be NaN beside an infinity.
        let size = call.b().unary(UnaryKind::Abs, weight)?;
        let half = call.b().full_like(weight, 0.5)?;
        let is_early = call.b().compare(Direction::Lt, size, half)?;
        let (zero, ones) = (call.b().full_like(weight, 0.0)?, call.b().full_like(weight, 1.0)?);
        let (low, high) =
            (call.b().select(is_early, weight, zero)?, call.b().select(is_early, ones, weight)?);
        let (low, high) = (early(call, low)?, late(call, high)?);
        call.b().select(is_early, low, high)?
    };
    one(convert(call, y, dtype)?)
}

/// Both operands in their promoted type, broadcast to one shape.
pub(super) fn promoted_operands(call: &mut Call, names: [&str; 2]) -> Result<[ValueId; 2]> {
    let dtype = promoted(call, names)?;
    let [a, b] = operands(call, names, dtype)?;
    Ok([convert(call, a, dtype)?, convert(call, b, dtype)?])
}
