//! Elementwise functions of one operand.

use super::super::ParseOp;
use super::super::compare::Direction;
use super::super::checks::{element_type, operand_count};
use super::{TRANSCENDENTAL_FLOPS, bit_mask, elementwise_cost, of_complex_elements, real_part, refuse_complex};
use crate::builder::GraphBuilder;
use crate::complex::{self, Complex};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::Rule;
use crate::text::{OpParser, OpPrinter};
use crate::traits::{Elementwise, Precision, Traits};
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

/// `result[i] = f(operand[i])`. `IsFinite` yields i1.
#[derive(Clone, PartialEq, Debug)]
pub struct Unary {
    /// The function.
    pub kind: UnaryKind,
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

    /// Whether the element type is accepted, and a description of the accepted ones.
    pub(super) fn accepts(self, dtype: DType) -> (bool, &'static str) {
        match self {
            UnaryKind::Negate | UnaryKind::Square => (dtype != DType::Bool, "a number"),
            UnaryKind::Abs | UnaryKind::Sign => {
                let fits = dtype.is_float() || dtype.is_signed_integer() || dtype.is_complex();
                (fits, "a signed integer, float or complex number")
            }
            UnaryKind::Not => (dtype == DType::Bool || dtype.is_integer(), "a boolean or integer"),
            UnaryKind::Popcnt => (dtype.is_integer(), "an integer"),
            _ if self.of_complex([0.0, 0.0]).is_some() => {
                (dtype.is_float() || dtype.is_complex(), "a float or complex number")
            }
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
    ///
    /// # Panics
    /// For `Not` and `Popcnt`, which floats do not have.
    pub fn of_float(self, x: f64) -> f64 {
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

    /// The function on a complex number; `None` if there is none.
    fn of_complex(self, z: Complex) -> Option<Complex> {
        Some(match self {
            UnaryKind::Negate => [-z[0], -z[1]],
            UnaryKind::Abs => [complex::absolute(z), 0.0],
            UnaryKind::Sign => complex::sign(z),
            UnaryKind::Exponential => complex::exponential(z),
            UnaryKind::ExponentialMinusOne => complex::exponential_minus_one(z),
            UnaryKind::Log => complex::log(z),
            UnaryKind::LogPlusOne => complex::log_plus_one(z),
            UnaryKind::Sqrt => complex::square_root(z),
            UnaryKind::Rsqrt => complex::reciprocal_root(z),
            UnaryKind::Cbrt => complex::cube_root(z),
            UnaryKind::Tanh => complex::hyperbolic_tangent(z),
            UnaryKind::Logistic => complex::logistic(z),
            UnaryKind::Sine => complex::sine(z),
            UnaryKind::Cosine => complex::cosine(z),
            UnaryKind::Tan => complex::tangent(z),
            UnaryKind::Square => complex::multiply(z, z),
            UnaryKind::Floor
            | UnaryKind::Ceil
            | UnaryKind::RoundNearestAfz
            | UnaryKind::RoundNearestEven
            | UnaryKind::Not
            | UnaryKind::IsFinite
            | UnaryKind::Popcnt
            | UnaryKind::Erf
            | UnaryKind::Erfc
            | UnaryKind::ErfInv => return None,
        })
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

/// The inverse error function: a closed-form guess (Winitzki's, accurate to a few thousandths)
/// refined by Halley steps, on `erfc` in the tail, where `erf` loses digits.
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
            UnaryKind::Abs => operands[0].with_dtype(real_part(operands[0].dtype)),
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
        refuse_complex(self.name(), context)?;
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|_| context.wanted[0] && b.ty(y).dtype.is_float()) else {
            return Ok(vec![None]);
        };
        let slope = match self.kind {
            UnaryKind::Negate => return Ok(vec![Some(b.negate(g)?)]),
            UnaryKind::Log => return Ok(vec![Some(b.divide(g, x)?)]),
            UnaryKind::Exponential => y,
            UnaryKind::Abs => {
                // 0 where `x` is NaN, so that one bad element does not spoil the sums of others.
                let sign = b.unary(UnaryKind::Sign, x)?;
                let is_number = b.compare(Direction::Eq, x, x)?;
                let zero = b.full_like(x, 0.0)?;
                b.select(is_number, sign, zero)?
            }
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
        } else if dtype.is_complex() {
            let of = |z| self.kind.of_complex(z).expect("inference asks for a function of complex numbers");
            of_complex_elements(&results[0], x.to_complex().into_iter().map(of))
        } else {
            Literal::from_i128(&results[0], x.to_i128().into_iter().map(|x| self.kind.of_integer(x, dtype)))
        }])
    }

    fn precision(&self) -> Precision {
        match self.kind {
            UnaryKind::Exponential
            | UnaryKind::ExponentialMinusOne
            | UnaryKind::Log
            | UnaryKind::LogPlusOne
            | UnaryKind::Rsqrt
            | UnaryKind::Cbrt
            | UnaryKind::Sine
            | UnaryKind::Cosine
            | UnaryKind::Tan
            | UnaryKind::Erfc
            | UnaryKind::ErfInv => Precision::Own,
            UnaryKind::Negate
            | UnaryKind::Abs
            | UnaryKind::Sign
            | UnaryKind::Sqrt
            | UnaryKind::Tanh
            | UnaryKind::Logistic
            | UnaryKind::Floor
            | UnaryKind::Ceil
            | UnaryKind::RoundNearestAfz
            | UnaryKind::RoundNearestEven
            | UnaryKind::Not
            | UnaryKind::IsFinite
            | UnaryKind::Popcnt
            | UnaryKind::Erf
            | UnaryKind::Square => Precision::Operands,
        }
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Elementwise(Elementwise::Unary(self.kind))
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

// ---- text ----

pub(super) const UNARY_KINDS: [UnaryKind; 26] = [
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

/// The ops of this file by name.
pub(super) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    UNARY_KINDS.into_iter().map(|kind| (kind.name(), parse_unary as ParseOp))
}

impl TextForm for Unary {
    /// `stablehlo.tanh %0 : T`; `chlo.erf %0 : T -> T`; if the result type differs, the function
    /// type is written.
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
