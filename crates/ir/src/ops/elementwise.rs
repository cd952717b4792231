//! Elementwise functions of one and two operands.

use super::Direction;
use super::checks::{element_type, operand_count, same_type};
use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, localise_same};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};
use std::f64::consts::{FRAC_2_SQRT_PI, PI};

/// A function of one element.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnaryKind {
    Negate,
    Abs,
    Sign,
    Exponential,
    ExponentialMinusOne,
    Log,
    LogPlusOne,
    Sqrt,
    Rsqrt,
    Cbrt,
    Tanh,
    Logistic,
    Sine,
    Cosine,
    Tan,
    Floor,
    Ceil,
    RoundNearestAfz,
    RoundNearestEven,
    Not,
    IsFinite,
    Popcnt,
    /// `chlo.erf`
    Erf,
    /// `chlo.erfc`
    Erfc,
    /// `chlo.erf_inv`
    ErfInv,
    /// `chlo.square`
    Square,
}

/// A function of two elements of one type.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinaryKind {
    Add,
    Subtract,
    Multiply,
    Divide,
    Maximum,
    Minimum,
    Remainder,
    Power,
    Atan2,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRightLogical,
    ShiftRightArithmetic,
}

/// `result[i] = f(operand[i])`. `IsFinite` yields i1.
#[derive(Clone, PartialEq, Debug)]
pub struct Unary {
    /// The function.
    pub kind: UnaryKind,
}

/// `result[i] = f(lhs[i], rhs[i])`; both operands have the same type.
#[derive(Clone, PartialEq, Debug)]
pub struct Binary {
    /// The function.
    pub kind: BinaryKind,
}

/// Work of one `exp`, `log`, `tanh` and the like, in multiplications.
const TRANSCENDENTAL_FLOPS: f64 = 8.0;

/// The default cost, with this much work per element of the result.
fn elementwise_cost(per_element: f64, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops: per_element * results[0].element_count() as f64, bytes: bytes as f64 }
}

impl UnaryKind {
    /// The op's name in text.
    fn name(self) -> &'static str {
        match self {
            UnaryKind::Negate => "stablehlo.negate",
            UnaryKind::Abs => "stablehlo.abs",
            UnaryKind::Sign => "stablehlo.sign",
            UnaryKind::Exponential => "stablehlo.exponential",
            UnaryKind::ExponentialMinusOne => "stablehlo.exponential_minus_one",
            UnaryKind::Log => "stablehlo.log",
            UnaryKind::LogPlusOne => "stablehlo.log_plus_one",
            UnaryKind::Sqrt => "stablehlo.sqrt",
            UnaryKind::Rsqrt => "stablehlo.rsqrt",
            UnaryKind::Cbrt => "stablehlo.cbrt",
            UnaryKind::Tanh => "stablehlo.tanh",
            UnaryKind::Logistic => "stablehlo.logistic",
            UnaryKind::Sine => "stablehlo.sine",
            UnaryKind::Cosine => "stablehlo.cosine",
            UnaryKind::Tan => "stablehlo.tan",
            UnaryKind::Floor => "stablehlo.floor",
            UnaryKind::Ceil => "stablehlo.ceil",
            UnaryKind::RoundNearestAfz => "stablehlo.round_nearest_afz",
            UnaryKind::RoundNearestEven => "stablehlo.round_nearest_even",
            UnaryKind::Not => "stablehlo.not",
            UnaryKind::IsFinite => "stablehlo.is_finite",
            UnaryKind::Popcnt => "stablehlo.popcnt",
            UnaryKind::Erf => "chlo.erf",
            UnaryKind::Erfc => "chlo.erfc",
            UnaryKind::ErfInv => "chlo.erf_inv",
            UnaryKind::Square => "chlo.square",
        }
    }

    /// Whether the element type is accepted, and what is.
    fn accepts(self, dtype: DType) -> (bool, &'static str) {
        match self {
            UnaryKind::Negate | UnaryKind::Square => {
                (dtype.is_float() || dtype.is_integer(), "an integer or float")
            }
            UnaryKind::Abs | UnaryKind::Sign => {
                (dtype.is_float() || dtype.is_signed_integer(), "a signed integer or float")
            }
            UnaryKind::Not => (!dtype.is_float(), "a boolean or integer"),
            UnaryKind::Popcnt => (dtype.is_integer(), "an integer"),
            _ => (dtype.is_float(), "a float"),
        }
    }

    /// Work per element.
    fn flops(self) -> f64 {
        match self {
            UnaryKind::Negate
            | UnaryKind::Abs
            | UnaryKind::Sign
            | UnaryKind::Floor
            | UnaryKind::Ceil
            | UnaryKind::RoundNearestAfz
            | UnaryKind::RoundNearestEven
            | UnaryKind::Not
            | UnaryKind::IsFinite
            | UnaryKind::Popcnt
            | UnaryKind::Square => 1.0,
            _ => TRANSCENDENTAL_FLOPS,
        }
    }

    /// The function on a float.
    fn of_float(self, x: f64) -> f64 {
        match self {
            UnaryKind::Negate => -x,
            UnaryKind::Abs => x.abs(),
            UnaryKind::Sign if x == 0.0 || x.is_nan() => x,
            UnaryKind::Sign => x.signum(),
            UnaryKind::Exponential => x.exp(),
            UnaryKind::ExponentialMinusOne => x.exp_m1(),
            UnaryKind::Log => x.ln(),
            UnaryKind::LogPlusOne => x.ln_1p(),
            UnaryKind::Sqrt => x.sqrt(),
            UnaryKind::Rsqrt => 1.0 / x.sqrt(),
            UnaryKind::Cbrt => x.cbrt(),
            UnaryKind::Tanh => x.tanh(),
            UnaryKind::Logistic => 1.0 / (1.0 + (-x).exp()),
            UnaryKind::Sine => x.sin(),
            UnaryKind::Cosine => x.cos(),
            UnaryKind::Tan => x.tan(),
            UnaryKind::Floor => x.floor(),
            UnaryKind::Ceil => x.ceil(),
            UnaryKind::RoundNearestAfz => x.round(),
            UnaryKind::RoundNearestEven => x.round_ties_even(),
            UnaryKind::IsFinite => x.is_finite() as u8 as f64,
            UnaryKind::Erf => libm::erf(x),
            UnaryKind::Erfc => libm::erfc(x),
            UnaryKind::ErfInv => erf_inv(x),
            UnaryKind::Square => x * x,
            UnaryKind::Not | UnaryKind::Popcnt => unreachable!("inference refuses floats"),
        }
    }

    /// The function on an integer; the caller wraps the result to the type.
    fn of_integer(self, x: i128, dtype: DType) -> i128 {
        match self {
            UnaryKind::Negate => -x,
            UnaryKind::Abs => x.abs(),
            UnaryKind::Sign => x.signum(),
            UnaryKind::Square => x.wrapping_mul(x),
            UnaryKind::Not if dtype == DType::Bool => 1 - x,
            UnaryKind::Not => !x,
            UnaryKind::Popcnt => (x & bit_mask(dtype)).count_ones().into(),
            _ => unreachable!("inference refuses integers"),
        }
    }
}

/// The inverse of the error function: a closed-form guess (Winitzki's, good to a few thousandths) refined by
/// Halley steps, on `erfc` where the tail would lose the digits of `erf`.
fn erf_inv(x: f64) -> f64 {
    let tail = 1.0 - x.abs();
    if tail.is_nan() || tail < 0.0 {
        return f64::NAN;
    }
    if tail == 0.0 {
        return x * f64::INFINITY;
    }
    const A: f64 = 0.147;
    let log = (tail * (1.0 + x.abs())).ln();
    let half = 2.0 / (PI * A) + log / 2.0;
    let mut y = ((half * half - log / A).sqrt() - half).max(0.0).sqrt();
    for _ in 0..4 {
        let error = if tail < 0.5 { tail - libm::erfc(y) } else { libm::erf(y) - x.abs() };
        let newton = error / (FRAC_2_SQRT_PI * (-y * y).exp());
        y -= newton / (1.0 + y * newton);
    }
    y.copysign(x)
}

/// Bits of one element.
fn bits(dtype: DType) -> i128 {
    8 * dtype.size_bytes() as i128
}

/// Ones in the bits of one element.
fn bit_mask(dtype: DType) -> i128 {
    (1 << bits(dtype)) - 1
}

impl BinaryKind {
    /// The op's name in text.
    fn name(self) -> &'static str {
        match self {
            BinaryKind::Add => "stablehlo.add",
            BinaryKind::Subtract => "stablehlo.subtract",
            BinaryKind::Multiply => "stablehlo.multiply",
            BinaryKind::Divide => "stablehlo.divide",
            BinaryKind::Maximum => "stablehlo.maximum",
            BinaryKind::Minimum => "stablehlo.minimum",
            BinaryKind::Remainder => "stablehlo.remainder",
            BinaryKind::Power => "stablehlo.power",
            BinaryKind::Atan2 => "stablehlo.atan2",
            BinaryKind::And => "stablehlo.and",
            BinaryKind::Or => "stablehlo.or",
            BinaryKind::Xor => "stablehlo.xor",
            BinaryKind::ShiftLeft => "stablehlo.shift_left",
            BinaryKind::ShiftRightLogical => "stablehlo.shift_right_logical",
            BinaryKind::ShiftRightArithmetic => "stablehlo.shift_right_arithmetic",
        }
    }

    /// Whether the element type is accepted, and what is.
    fn accepts(self, dtype: DType) -> (bool, &'static str) {
        match self {
            BinaryKind::Add | BinaryKind::Multiply | BinaryKind::Maximum | BinaryKind::Minimum => {
                (true, "any")
            }
            BinaryKind::Subtract | BinaryKind::Divide | BinaryKind::Remainder | BinaryKind::Power => {
                (dtype.is_float() || dtype.is_integer(), "an integer or float")
            }
            BinaryKind::Atan2 => (dtype.is_float(), "a float"),
            BinaryKind::And | BinaryKind::Or | BinaryKind::Xor => (!dtype.is_float(), "a boolean or integer"),
            BinaryKind::ShiftLeft | BinaryKind::ShiftRightLogical | BinaryKind::ShiftRightArithmetic => {
                (dtype.is_integer(), "an integer")
            }
        }
    }

    /// The function on floats.
    fn of_floats(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryKind::Add => a + b,
            BinaryKind::Subtract => a - b,
            BinaryKind::Multiply => a * b,
            BinaryKind::Divide => a / b,
            BinaryKind::Maximum => float_max(a, b),
            BinaryKind::Minimum => -float_max(-a, -b),
            BinaryKind::Remainder => a % b,
            BinaryKind::Power => a.powf(b),
            BinaryKind::Atan2 => a.atan2(b),
            _ => unreachable!("inference refuses floats"),
        }
    }

    /// The function on integers; the caller wraps the result to the type. Booleans add as `or`, multiply as
    /// `and`.
    fn of_integers(self, a: i128, b: i128, dtype: DType) -> i128 {
        let out_of_range = b < 0 || b >= bits(dtype);
        match self {
            BinaryKind::Add => a + b,
            BinaryKind::Subtract => a - b,
            BinaryKind::Multiply => a.wrapping_mul(b),
            BinaryKind::Divide if b == 0 => -1,
            BinaryKind::Divide => a / b,
            BinaryKind::Maximum => a.max(b),
            BinaryKind::Minimum => a.min(b),
            BinaryKind::Remainder if b == 0 => a,
            BinaryKind::Remainder => a % b,
            BinaryKind::Power => integer_power(a, b),
            BinaryKind::And => a & b,
            BinaryKind::Or => a | b,
            BinaryKind::Xor => a ^ b,
            BinaryKind::ShiftLeft | BinaryKind::ShiftRightLogical if out_of_range => 0,
            BinaryKind::ShiftRightArithmetic if out_of_range => -sign_bit(a, dtype),
            BinaryKind::ShiftLeft => a << b,
            BinaryKind::ShiftRightLogical => (a & bit_mask(dtype)) >> b,
            // Unsigned elements also shift in copies of their top bit.
            BinaryKind::ShiftRightArithmetic => (a | (-sign_bit(a, dtype) << bits(dtype))) >> b,
            BinaryKind::Atan2 => unreachable!("inference refuses integers"),
        }
    }
}

/// 1 when the top bit of the element is set.
fn sign_bit(x: i128, dtype: DType) -> i128 {
    (x >> (bits(dtype) - 1)) & 1
}

/// The larger, NaN if either is, and +0 above -0.
pub(crate) fn float_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == 0.0 && b == 0.0 {
        a + b
    } else {
        a.max(b)
    }
}

/// `base ^ exponent`, wrapping; the reciprocal rounds toward zero.
fn integer_power(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => 1 - 2 * (exponent & 1),
            _ => 0,
        };
    }
    let (mut power, mut square, mut rest) = (1i128, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    power
}

impl Operation for Unary {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        let (allowed, expected) = self.kind.accepts(operands[0].dtype);
        element_type(self.name(), allowed, expected, operands[0].dtype)?;
        Ok(vec![match self.kind {
            UnaryKind::IsFinite => operands[0].with_dtype(DType::Bool),
            _ => operands[0].clone(),
        }])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let rule = Rule::pointwise(&operands[0].shape, 1, 1);
        if self.kind == UnaryKind::Negate { rule.linear_in(&[0]) } else { rule }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        elementwise_cost(self.kind.flops(), operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let (x, y) = (context.operands[0], context.results[0]);
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|_| context.wanted[0] && b.ty(y).dtype.is_float()) else {
            return Ok(vec![None]);
        };
        let slope = match self.kind {
            UnaryKind::Negate => return Ok(vec![Some(b.negate(g)?)]),
            UnaryKind::Log => return Ok(vec![Some(b.divide(g, x)?)]),
            UnaryKind::Exponential => y,
            UnaryKind::Abs => b.unary(UnaryKind::Sign, x)?,
            UnaryKind::ExponentialMinusOne => b.offset(y, 1.0)?,
            UnaryKind::LogPlusOne => {
                let shifted = b.offset(x, 1.0)?;
                return Ok(vec![Some(b.divide(g, shifted)?)]);
            }
            UnaryKind::Sqrt => {
                let half = b.full_like(y, 0.5)?;
                b.divide(half, y)?
            }
            UnaryKind::Rsqrt => {
                let ratio = b.divide(y, x)?;
                b.scale(ratio, -0.5)?
            }
            UnaryKind::Cbrt => {
                let ratio = b.divide(y, x)?;
                b.scale(ratio, 1.0 / 3.0)?
            }
            UnaryKind::Tanh => {
                let square = b.multiply(y, y)?;
                one_minus(b, square)?
            }
            UnaryKind::Logistic => {
                let rest = one_minus(b, y)?;
                b.multiply(y, rest)?
            }
            UnaryKind::Sine => b.unary(UnaryKind::Cosine, x)?,
            UnaryKind::Cosine => {
                let sine = b.unary(UnaryKind::Sine, x)?;
                b.negate(sine)?
            }
            UnaryKind::Tan => {
                let square = b.multiply(y, y)?;
                b.offset(square, 1.0)?
            }
            UnaryKind::Erf => bell(b, x, -1.0, FRAC_2_SQRT_PI)?,
            UnaryKind::Erfc => bell(b, x, -1.0, -FRAC_2_SQRT_PI)?,
            UnaryKind::ErfInv => bell(b, y, 1.0, 1.0 / FRAC_2_SQRT_PI)?,
            UnaryKind::Square => b.scale(x, 2.0)?,
            UnaryKind::Sign
            | UnaryKind::Floor
            | UnaryKind::Ceil
            | UnaryKind::RoundNearestAfz
            | UnaryKind::RoundNearestEven
            | UnaryKind::Not
            | UnaryKind::IsFinite
            | UnaryKind::Popcnt => return Ok(vec![None]),
        };
        Ok(vec![Some(b.multiply(g, slope)?)])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let x = operands[0];
        let dtype = x.ty.dtype;
        Ok(vec![if dtype.is_float() {
            Literal::from_f64(&results[0], x.to_f64().into_iter().map(|x| self.kind.of_float(x)))
        } else {
            Literal::from_i128(&results[0], x.to_i128().into_iter().map(|x| self.kind.of_integer(x, dtype)))
        }])
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

/// `1 - x`.
fn one_minus(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let one = b.full_like(x, 1.0)?;
    b.subtract(one, x)
}

/// `scale * e^(sign x^2)`.
fn bell(b: &mut GraphBuilder, x: ValueId, sign: f64, scale: f64) -> Result<ValueId> {
    let square = b.multiply(x, x)?;
    let exponent = if sign < 0.0 { b.negate(square)? } else { square };
    let bell = b.exponential(exponent)?;
    b.scale(bell, scale)
}

impl Operation for Binary {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 2)?;
        same_type(self.name(), operands[0], operands[1])?;
        let (allowed, expected) = self.kind.accepts(operands[0].dtype);
        element_type(self.name(), allowed, expected, operands[0].dtype)?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], _results: &[&TensorType]) -> Rule {
        let rule = Rule::pointwise(&operands[0].shape, 2, 1);
        let dtype = operands[0].dtype;
        match self.kind {
            // `or` and `and` are no sums.
            _ if dtype == DType::Bool => rule,
            BinaryKind::Add | BinaryKind::Subtract => rule.linear_in(&[0, 1]),
            BinaryKind::Multiply => rule.linear_in(&[0]).linear_in(&[1]),
            BinaryKind::Divide if dtype.is_float() => rule.linear_in(&[0]),
            _ => rule,
        }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let flops = match self.kind {
            BinaryKind::Power | BinaryKind::Atan2 => TRANSCENDENTAL_FLOPS,
            _ => 1.0,
        };
        elementwise_cost(flops, operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let (x, y, z) = (context.operands[0], context.operands[1], context.results[0]);
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|_| b.ty(z).dtype.is_float()) else {
            return Ok(vec![None, None]);
        };
        let mut cotangents = vec![None, None];
        for side in (0..2).filter(|&side| context.wanted[side]) {
            cotangents[side] = match (self.kind, side) {
                (BinaryKind::Add, _) | (BinaryKind::Subtract, 0) => Some(g),
                (BinaryKind::Subtract, _) => Some(b.negate(g)?),
                (BinaryKind::Multiply, _) => Some(b.multiply(g, if side == 0 { y } else { x })?),
                (BinaryKind::Divide, 0) => Some(b.divide(g, y)?),
                (BinaryKind::Divide, _) => {
                    let ratio = b.divide(g, y)?;
                    let product = b.multiply(ratio, z)?;
                    Some(b.negate(product)?)
                }
                (BinaryKind::Maximum | BinaryKind::Minimum, _) => {
                    let (own, other) = if side == 0 { (x, y) } else { (y, x) };
                    Some(extremum_gradient(b, self.kind, g, own, other)?)
                }
                (BinaryKind::Remainder, 0) => Some(g),
                (BinaryKind::Remainder, _) => {
                    let ratio = b.divide(x, y)?;
                    let (sign, size) = (b.unary(UnaryKind::Sign, ratio)?, b.unary(UnaryKind::Abs, ratio)?);
                    let floor = b.unary(UnaryKind::Floor, size)?;
                    let count = b.multiply(sign, floor)?;
                    let product = b.multiply(g, count)?;
                    Some(b.negate(product)?)
                }
                (BinaryKind::Power, 0) => Some(power_base_gradient(b, g, x, y)?),
                (BinaryKind::Power, _) => {
                    // log(1) = 0 stands in where the logarithm does not exist.
                    let (zero, one) = (b.full_like(x, 0.0)?, b.full_like(x, 1.0)?);
                    let positive = b.compare(Direction::Gt, x, zero)?;
                    let safe = b.select(positive, x, one)?;
                    let log = b.unary(UnaryKind::Log, safe)?;
                    let slope = b.multiply(z, log)?;
                    Some(b.multiply(g, slope)?)
                }
                (BinaryKind::Atan2, _) => {
                    let (xx, yy) = (b.multiply(x, x)?, b.multiply(y, y)?);
                    let norm = b.add(xx, yy)?;
                    let ratio = b.divide(g, norm)?;
                    let product = b.multiply(ratio, if side == 0 { y } else { x })?;
                    Some(if side == 0 { product } else { b.negate(product)? })
                }
                (
                    BinaryKind::And
                    | BinaryKind::Or
                    | BinaryKind::Xor
                    | BinaryKind::ShiftLeft
                    | BinaryKind::ShiftRightLogical
                    | BinaryKind::ShiftRightArithmetic,
                    _,
                ) => None,
            };
        }
        Ok(cotangents)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (x, y) = (operands[0], operands[1]);
        let (dtype, kind) = (x.ty.dtype, self.kind);
        Ok(vec![if dtype.is_float() {
            let pairs = x.to_f64().into_iter().zip(y.to_f64());
            Literal::from_f64(&results[0], pairs.map(|(x, y)| kind.of_floats(x, y)))
        } else {
            let pairs = x.to_i128().into_iter().zip(y.to_i128());
            Literal::from_i128(&results[0], pairs.map(|(x, y)| kind.of_integers(x, y, dtype)))
        }])
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

/// The cotangent goes to the operand that was chosen, half to each of a tie.
fn extremum_gradient(
    b: &mut GraphBuilder,
    kind: BinaryKind,
    g: ValueId,
    own: ValueId,
    other: ValueId,
) -> Result<ValueId> {
    let direction = if kind == BinaryKind::Maximum { Direction::Gt } else { Direction::Lt };
    let (chosen, tied) = (b.compare(direction, own, other)?, b.compare(Direction::Eq, own, other)?);
    let (half, zero) = (b.scale(g, 0.5)?, b.full_like(g, 0.0)?);
    let untied = b.select(chosen, g, zero)?;
    b.select(tied, half, untied)
}

/// `y x^(y-1)`, zero for `y = 0` even where `x^-1` does not exist.
fn power_base_gradient(b: &mut GraphBuilder, g: ValueId, x: ValueId, y: ValueId) -> Result<ValueId> {
    let (zero, one) = (b.full_like(y, 0.0)?, b.full_like(y, 1.0)?);
    let constant = b.compare(Direction::Eq, y, zero)?;
    let safe = b.select(constant, one, y)?;
    let exponent = b.subtract(safe, one)?;
    let power = b.binary(BinaryKind::Power, x, exponent)?;
    let slope = b.multiply(y, power)?;
    b.multiply(g, slope)
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter};

const UNARY_KINDS: [UnaryKind; 26] = [
    UnaryKind::Negate,
    UnaryKind::Abs,
    UnaryKind::Sign,
    UnaryKind::Exponential,
    UnaryKind::ExponentialMinusOne,
    UnaryKind::Log,
    UnaryKind::LogPlusOne,
    UnaryKind::Sqrt,
    UnaryKind::Rsqrt,
    UnaryKind::Cbrt,
    UnaryKind::Tanh,
    UnaryKind::Logistic,
    UnaryKind::Sine,
    UnaryKind::Cosine,
    UnaryKind::Tan,
    UnaryKind::Floor,
    UnaryKind::Ceil,
    UnaryKind::RoundNearestAfz,
    UnaryKind::RoundNearestEven,
    UnaryKind::Not,
    UnaryKind::IsFinite,
    UnaryKind::Popcnt,
    UnaryKind::Erf,
    UnaryKind::Erfc,
    UnaryKind::ErfInv,
    UnaryKind::Square,
];

const BINARY_KINDS: [BinaryKind; 15] = [
    BinaryKind::Add,
    BinaryKind::Subtract,
    BinaryKind::Multiply,
    BinaryKind::Divide,
    BinaryKind::Maximum,
    BinaryKind::Minimum,
    BinaryKind::Remainder,
    BinaryKind::Power,
    BinaryKind::Atan2,
    BinaryKind::And,
    BinaryKind::Or,
    BinaryKind::Xor,
    BinaryKind::ShiftLeft,
    BinaryKind::ShiftRightLogical,
    BinaryKind::ShiftRightArithmetic,
];

/// The elementwise ops by name.
pub(crate) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    let unary = UNARY_KINDS.into_iter().map(|kind| (kind.name(), parse_unary as ParseOp));
    let binary = BINARY_KINDS.into_iter().map(|kind| (kind.name(), parse_binary as ParseOp));
    unary.chain(binary)
}

impl TextForm for Unary {
    /// `stablehlo.tanh %0 : T`; `chlo.erf %0 : T -> T`; a result of another type makes a function type.
    fn print(&self, printer: &mut OpPrinter) {
        let name = self.kind.name();
        if name.starts_with("chlo.") {
            printer.push(&format!("{name} {}", printer.operands()));
            printer.attributes();
            let (operands, results) = (printer.operand_types(), printer.result_types());
            printer.push(&format!(" : {} -> {}", operands[0], results[0]));
        } else {
            printer.pretty_same_type(name, "");
        }
    }
}

fn parse_unary(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(1)?;
    let kind = UNARY_KINDS.into_iter().find(|kind| kind.name() == op.name);
    op.finish(Unary { kind: kind.expect("the table has the names of all kinds") })
}

impl TextForm for Binary {
    /// `stablehlo.add %0, %1 : T`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty_same_type(self.kind.name(), "");
    }
}

fn parse_binary(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(2)?;
    let kind = BINARY_KINDS.into_iter().find(|kind| kind.name() == op.name);
    op.finish(Binary { kind: kind.expect("the table has the names of all kinds") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, gradients, random, refusal};
    use half::{bf16, f16};

    const UNARY: [UnaryKind; 26] = [
        UnaryKind::Negate,
        UnaryKind::Abs,
        UnaryKind::Sign,
        UnaryKind::Exponential,
        UnaryKind::ExponentialMinusOne,
        UnaryKind::Log,
        UnaryKind::LogPlusOne,
        UnaryKind::Sqrt,
        UnaryKind::Rsqrt,
        UnaryKind::Cbrt,
        UnaryKind::Tanh,
        UnaryKind::Logistic,
        UnaryKind::Sine,
        UnaryKind::Cosine,
        UnaryKind::Tan,
        UnaryKind::Floor,
        UnaryKind::Ceil,
        UnaryKind::RoundNearestAfz,
        UnaryKind::RoundNearestEven,
        UnaryKind::Not,
        UnaryKind::IsFinite,
        UnaryKind::Popcnt,
        UnaryKind::Erf,
        UnaryKind::Erfc,
        UnaryKind::ErfInv,
        UnaryKind::Square,
    ];
    const BINARY: [BinaryKind; 15] = [
        BinaryKind::Add,
        BinaryKind::Subtract,
        BinaryKind::Multiply,
        BinaryKind::Divide,
        BinaryKind::Maximum,
        BinaryKind::Minimum,
        BinaryKind::Remainder,
        BinaryKind::Power,
        BinaryKind::Atan2,
        BinaryKind::And,
        BinaryKind::Or,
        BinaryKind::Xor,
        BinaryKind::ShiftLeft,
        BinaryKind::ShiftRightLogical,
        BinaryKind::ShiftRightArithmetic,
    ];

    fn vector(values: &[f64]) -> Literal {
        Literal::new([values.len()], values.to_vec())
    }

    fn unary(kind: UnaryKind, x: Literal) -> Literal {
        apply(Unary { kind }, &[x]).remove(0)
    }

    fn binary(kind: BinaryKind, x: Literal, y: Literal) -> Literal {
        apply(Binary { kind }, &[x, y]).remove(0)
    }

    /// Random numbers moved into the open interval where the function and its derivative exist.
    fn in_domain(kind: UnaryKind, shape: &[usize]) -> Literal {
        let x = random(3, shape);
        let moved = x.to_f64().into_iter().map(|x| match kind {
            UnaryKind::Log | UnaryKind::Sqrt | UnaryKind::Rsqrt | UnaryKind::Cbrt => x + 1.5,
            UnaryKind::ErfInv | UnaryKind::LogPlusOne => 0.8 * x,
            _ => 2.0 * x,
        });
        Literal::from_f64(&x.ty, moved)
    }

    #[test]
    fn inference_keeps_the_type_and_names_what_it_refuses() {
        let ty = TensorType::new(DType::F32, [2, 3]);
        assert_eq!(
            Unary { kind: UnaryKind::IsFinite }.infer(&[&ty]).unwrap()[0].to_string(),
            "tensor<2x3xi1>"
        );
        let text = refusal(Unary { kind: UnaryKind::Exponential }, &[ty.with_dtype(DType::I32)]);
        assert!(text.contains("E103") && text.contains("`stablehlo.exponential`") && text.contains("i32"));
        assert!(refusal(Unary { kind: UnaryKind::Not }, std::slice::from_ref(&ty)).contains("E103"));
        assert!(refusal(Unary { kind: UnaryKind::Abs }, &[ty.with_dtype(DType::U8)]).contains("E103"));
        assert!(refusal(Unary { kind: UnaryKind::Abs }, &[]).contains("E101"));
        let add = Binary { kind: BinaryKind::Add };
        let text = refusal(add.clone(), &[ty.clone(), ty.with_shape([3, 2])]);
        assert!(
            text.contains("E102") && text.contains("tensor<2x3xf32>") && text.contains("tensor<3x2xf32>")
        );
        assert!(refusal(add.clone(), &[ty.clone(), ty.with_dtype(DType::F64)]).contains("E102"));
        assert!(refusal(add, std::slice::from_ref(&ty)).contains("E101"));
        let shift = Binary { kind: BinaryKind::ShiftLeft };
        assert!(refusal(shift, &[ty.clone(), ty.clone()]).contains("E103"));
        let booleans = ty.with_dtype(DType::Bool);
        let subtract = Binary { kind: BinaryKind::Subtract };
        assert!(refusal(subtract, &[booleans.clone(), booleans]).contains("E103"));
    }

    #[test]
    fn singles_agree_with_the_processor() {
        let values = |literal: &Literal| match &literal.data {
            crate::Storage::F32(v) => v.clone(),
            other => panic!("{other:?}"),
        };
        let ty = TensorType::new(DType::F32, [200]);
        let x = Literal::from_f64(&ty, random(1, &[200]).to_f64().into_iter().map(|x| x * 30.0));
        let y = Literal::from_f64(&ty, random(2, &[200]).to_f64().into_iter().map(|x| x * 7.0));
        let exact: [(BinaryKind, fn(f32, f32) -> f32); 5] = [
            (BinaryKind::Add, |x, y| x + y),
            (BinaryKind::Subtract, |x, y| x - y),
            (BinaryKind::Multiply, |x, y| x * y),
            (BinaryKind::Divide, |x, y| x / y),
            (BinaryKind::Remainder, |x, y| x % y),
        ];
        for (kind, function) in exact {
            let expected: Vec<f32> =
                values(&x).into_iter().zip(values(&y)).map(|(x, y)| function(x, y)).collect();
            assert_eq!(values(&binary(kind, x.clone(), y.clone())), expected, "{kind:?}");
        }
        let near: [(UnaryKind, fn(f32) -> f32); 4] = [
            (UnaryKind::Exponential, f32::exp),
            (UnaryKind::Tanh, f32::tanh),
            (UnaryKind::Sine, f32::sin),
            (UnaryKind::Cbrt, f32::cbrt),
        ];
        for (kind, function) in near {
            for (found, x) in values(&unary(kind, x.clone())).into_iter().zip(values(&x)) {
                let expected = function(x);
                assert!((found - expected).abs() <= 2.5e-7 * expected.abs(), "{kind:?}({x})");
            }
        }
    }

    #[test]
    fn halves_round_once_per_op() {
        let (a, b) = (f16::from_f32(1.0009766), f16::from_f32(3.001953));
        let product = binary(BinaryKind::Multiply, Literal::new([1], vec![a]), Literal::new([1], vec![b]));
        assert_eq!(product, Literal::new([1], vec![f16::from_f32(a.to_f32() * b.to_f32())]));
        let big = binary(
            BinaryKind::Add,
            Literal::new([1], vec![bf16::from_f32(256.0)]),
            Literal::new([1], vec![bf16::from_f32(1.0)]),
        );
        assert_eq!(big, Literal::new([1], vec![bf16::from_f32(256.0)]));
    }

    #[test]
    fn unary_functions_have_their_values() {
        let cases: [(UnaryKind, f64, f64); 27] = [
            (UnaryKind::Negate, 2.0, -2.0),
            (UnaryKind::Abs, -2.5, 2.5),
            (UnaryKind::Sign, -3.0, -1.0),
            (UnaryKind::Sign, 0.0, 0.0),
            (UnaryKind::ExponentialMinusOne, 1e-12, 1.0000000000005e-12),
            (UnaryKind::Log, 10.0, std::f64::consts::LN_10),
            (UnaryKind::LogPlusOne, 1e-12, 9.999999999995e-13),
            (UnaryKind::Sqrt, 9.0, 3.0),
            (UnaryKind::Rsqrt, 4.0, 0.5),
            (UnaryKind::Cbrt, -27.0, -3.0),
            (UnaryKind::Logistic, 2.0, 0.8807970779778823),
            (UnaryKind::Logistic, -800.0, 0.0),
            (UnaryKind::Cosine, 0.0, 1.0),
            (UnaryKind::Tan, 1.0, 1.557407724654902),
            (UnaryKind::Floor, -1.5, -2.0),
            (UnaryKind::Ceil, -1.5, -1.0),
            (UnaryKind::RoundNearestAfz, 2.5, 3.0),
            (UnaryKind::RoundNearestAfz, -2.5, -3.0),
            (UnaryKind::RoundNearestEven, 2.5, 2.0),
            (UnaryKind::RoundNearestEven, -3.5, -4.0),
            (UnaryKind::Erf, 0.5, 0.5204998778130465),
            (UnaryKind::Erfc, 3.0, 2.209049699858544e-5),
            (UnaryKind::ErfInv, 0.5, 0.4769362762044699),
            (UnaryKind::ErfInv, 1.0, f64::INFINITY),
            (UnaryKind::ErfInv, -1.0, f64::NEG_INFINITY),
            (UnaryKind::Square, -3.0, 9.0),
            (UnaryKind::Exponential, 1.0, std::f64::consts::E),
        ];
        for (kind, x, expected) in cases {
            let found = unary(kind, vector(&[x])).to_f64()[0];
            assert!(found == expected || (found / expected - 1.0).abs() < 1e-14, "{kind:?}({x}) = {found}");
        }
        let finite = unary(UnaryKind::IsFinite, vector(&[1.0, f64::NAN, f64::INFINITY]));
        assert_eq!(finite, Literal::new([3], vec![true, false, false]));
        let nan = |kind, x| unary(kind, vector(&[x])).to_f64()[0].is_nan();
        assert!(nan(UnaryKind::Sign, f64::NAN) && nan(UnaryKind::ErfInv, 1.5) && nan(UnaryKind::Log, -1.0));
    }

    #[test]
    fn the_inverse_error_function_inverts_in_the_tails_too() {
        for exponent in 1..50 {
            let tail = 2f64.powi(-exponent);
            for x in [1.0 - tail, tail - 1.0, tail, -tail] {
                let y = unary(UnaryKind::ErfInv, vector(&[x])).to_f64()[0];
                let (found, expected) =
                    if x.abs() > 0.5 { (libm::erfc(y.abs()), 1.0 - x.abs()) } else { (libm::erf(y), x) };
                assert!((found / expected - 1.0).abs() < 1e-13, "erf_inv({x}) = {y}");
                assert_eq!(y < 0.0, x < 0.0);
            }
        }
    }

    #[test]
    fn integers_wrap_and_never_trap() {
        let bytes = |values: &[i8]| Literal::new([values.len()], values.to_vec());
        let check = |kind, x: &[i8], y: &[i8], expected: &[i8]| {
            assert_eq!(binary(kind, bytes(x), bytes(y)), bytes(expected), "{kind:?}");
        };
        check(BinaryKind::Add, &[127, -128], &[1, -1], &[-128, 127]);
        check(BinaryKind::Subtract, &[-128], &[1], &[127]);
        check(BinaryKind::Multiply, &[100], &[3], &[44]);
        check(BinaryKind::Divide, &[7, -7, 5, -128], &[2, 2, 0, -1], &[3, -3, -1, -128]);
        check(BinaryKind::Remainder, &[7, -7, 5, -128], &[4, 4, 0, -1], &[3, -3, 5, 0]);
        check(BinaryKind::Power, &[3, 2, -1, -1, 5, 0], &[4, 9, -3, -2, -1, 0], &[81, 0, -1, 1, 0, 1]);
        check(BinaryKind::ShiftLeft, &[1, 1, 1, 3], &[7, 8, -1, 7], &[-128, 0, 0, -128]);
        check(BinaryKind::ShiftRightLogical, &[-128, -1, -1], &[7, 4, 8], &[1, 15, 0]);
        check(BinaryKind::ShiftRightArithmetic, &[-128, 64, -5, 5], &[7, 5, 100, -1], &[-1, 2, -1, 0]);
        check(BinaryKind::And, &[12], &[10], &[8]);
        check(BinaryKind::Or, &[12], &[10], &[14]);
        check(BinaryKind::Xor, &[12, -1], &[10, 1], &[6, -2]);
        check(BinaryKind::Maximum, &[3, -3], &[-4, 4], &[3, 4]);
        assert_eq!(unary(UnaryKind::Popcnt, bytes(&[-1, 5, 0])), bytes(&[8, 2, 0]));
        assert_eq!(unary(UnaryKind::Not, bytes(&[0, 5])), bytes(&[-1, -6]));
        assert_eq!(unary(UnaryKind::Abs, bytes(&[-128, -3])), bytes(&[-128, 3]));

        let words = |values: &[u64]| Literal::new([values.len()], values.to_vec());
        let big = u64::MAX;
        assert_eq!(binary(BinaryKind::Multiply, words(&[big]), words(&[big])), words(&[1]));
        assert_eq!(binary(BinaryKind::Divide, words(&[9]), words(&[0])), words(&[big]));
        assert_eq!(binary(BinaryKind::ShiftRightLogical, words(&[big]), words(&[63])), words(&[1]));
        assert_eq!(binary(BinaryKind::ShiftRightArithmetic, words(&[big - 1]), words(&[1])), words(&[big]));
        assert_eq!(binary(BinaryKind::Add, words(&[big]), words(&[2])), words(&[1]));
    }

    #[test]
    fn booleans_add_as_or_and_multiply_as_and() {
        let (x, y) = (
            Literal::new([4], vec![false, false, true, true]),
            Literal::new([4], vec![false, true, false, true]),
        );
        let or = Literal::new([4], vec![false, true, true, true]);
        let and = Literal::new([4], vec![false, false, false, true]);
        for kind in [BinaryKind::Add, BinaryKind::Maximum, BinaryKind::Or] {
            assert_eq!(binary(kind, x.clone(), y.clone()), or, "{kind:?}");
        }
        for kind in [BinaryKind::Multiply, BinaryKind::Minimum, BinaryKind::And] {
            assert_eq!(binary(kind, x.clone(), y.clone()), and, "{kind:?}");
        }
        assert_eq!(unary(UnaryKind::Not, and), Literal::new([4], vec![true, true, true, false]));
    }

    #[test]
    fn extrema_spread_nan_and_order_zeros() {
        let (x, y) = (vector(&[f64::NAN, 1.0, -0.0, 3.0]), vector(&[1.0, f64::NAN, 0.0, 4.0]));
        let largest = binary(BinaryKind::Maximum, x.clone(), y.clone()).to_f64();
        let smallest = binary(BinaryKind::Minimum, x, y).to_f64();
        for values in [&largest, &smallest] {
            assert!(values[0].is_nan() && values[1].is_nan());
        }
        assert!(largest[2].is_sign_positive() && smallest[2].is_sign_negative());
        assert_eq!((largest[3], smallest[3]), (4.0, 3.0));
    }

    #[test]
    fn unary_gradients_are_the_slopes() {
        for kind in UNARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
            check_gradient(Unary { kind }, vec![in_domain(kind, &[2, 5])], &[true]);
        }
    }

    #[test]
    fn binary_gradients_are_the_slopes() {
        let positive = |seed, by| {
            let x = random(seed, &[3, 4]);
            Literal::from_f64(&x.ty, x.to_f64().into_iter().map(|x| x + by))
        };
        for kind in BINARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
            for wanted in [[true, true], [true, false], [false, true]] {
                check_gradient(Binary { kind }, vec![positive(5, 1.5), positive(6, 1.4)], &wanted);
            }
        }
        check_gradient(
            Binary { kind: BinaryKind::Remainder },
            vec![vector(&[7.3, -7.3, 7.3]), vector(&[2.0, 2.0, -3.0])],
            &[true, true],
        );
    }

    #[test]
    fn gradients_at_corners_follow_convention() {
        let one = Some(vector(&[1.0]));
        let tie = gradients(
            Binary { kind: BinaryKind::Maximum },
            &[vector(&[2.0]), vector(&[2.0])],
            std::slice::from_ref(&one),
            &[true, true],
        );
        assert_eq!(tie, [Some(vector(&[0.5])), Some(vector(&[0.5]))]);
        let power = |x, y| {
            let inputs = [vector(&[x]), vector(&[y])];
            let found = gradients(
                Binary { kind: BinaryKind::Power },
                &inputs,
                std::slice::from_ref(&one),
                &[true, true],
            );
            found.into_iter().map(|g| g.unwrap().to_f64()[0]).collect::<Vec<_>>()
        };
        assert_eq!(power(0.0, 2.0), [0.0, 0.0]);
        assert_eq!(power(0.0, 0.0), [0.0, 0.0]);
        assert_eq!(power(-2.0, 3.0), [12.0, 0.0]);
        let abs = gradients(Unary { kind: UnaryKind::Abs }, &[vector(&[0.0])], &[one], &[true]);
        assert_eq!(abs, [Some(vector(&[0.0]))]);
    }

    #[test]
    fn integers_have_no_gradient() {
        let x = Literal::new([2], vec![1i32, 2]);
        let add = Binary { kind: BinaryKind::Add };
        assert_eq!(gradients(add, &[x.clone(), x.clone()], &[Some(x.clone())], &[true, true]), [None, None]);
        let negate = Unary { kind: UnaryKind::Negate };
        assert_eq!(gradients(negate, std::slice::from_ref(&x), &[Some(x.clone())], &[true]), [None]);
    }

    #[test]
    fn rules_hold_on_shards_and_partial_operands() {
        for kind in UNARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
            check_rule(Unary { kind }, &[in_domain(kind, &[5, 2])]);
        }
        for kind in BINARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
            check_rule(Binary { kind }, &[random(8, &[5, 2]), random(9, &[5, 2])]);
        }
        let rule = |dtype| {
            let ty = TensorType::new(dtype, [2]);
            Binary { kind: BinaryKind::Divide }.rule(&[&ty, &ty], &[&ty])
        };
        assert_eq!((rule(DType::F32).linear.len(), rule(DType::I32).linear.len()), (1, 0));
    }

    #[test]
    fn transcendental_functions_cost_more() {
        let ty = TensorType::new(DType::F32, [10]);
        let cost = |kind| Unary { kind }.cost(&[&ty], &[&ty]);
        assert_eq!(cost(UnaryKind::Negate), Cost { flops: 10.0, bytes: 80.0 });
        assert_eq!(cost(UnaryKind::Tanh), Cost { flops: 80.0, bytes: 80.0 });
    }
}
