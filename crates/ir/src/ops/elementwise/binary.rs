//! Elementwise functions of two operands.

use super::super::checks::{element_type, operand_count, same_type};
use super::super::{Direction, ParseOp};
use super::{TRANSCENDENTAL_FLOPS, UnaryKind, bit_mask, bits, elementwise_cost, refuse_complex};
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

/// `result[i] = f(lhs[i], rhs[i])`; both operands have the same type.
#[derive(Clone, PartialEq, Debug)]
pub struct Binary {
    /// The function.
    pub kind: BinaryKind,
}

impl BinaryKind {
    /// Whether the operands may be swapped.
    pub fn commutes(self) -> bool {
        match self {
            BinaryKind::Add
            | BinaryKind::Multiply
            | BinaryKind::Maximum
            | BinaryKind::Minimum
            | BinaryKind::And
            | BinaryKind::Or
            | BinaryKind::Xor => true,
            BinaryKind::Subtract
            | BinaryKind::Divide
            | BinaryKind::Remainder
            | BinaryKind::Power
            | BinaryKind::Atan2
            | BinaryKind::ShiftLeft
            | BinaryKind::ShiftRightLogical
            | BinaryKind::ShiftRightArithmetic => false,
        }
    }

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

    /// Whether the element type is accepted, and a description of the accepted ones.
    pub(super) fn accepts(self, dtype: DType) -> (bool, &'static str) {
        match self {
            BinaryKind::Add | BinaryKind::Multiply | BinaryKind::Maximum | BinaryKind::Minimum => {
                (true, "any")
            }
            BinaryKind::Subtract | BinaryKind::Divide | BinaryKind::Power => (dtype != DType::Bool, "a number"),
            BinaryKind::Remainder => (dtype.is_float() || dtype.is_integer(), "an integer or float"),
            BinaryKind::Atan2 => (dtype.is_float() || dtype.is_complex(), "a float or complex number"),
            BinaryKind::And | BinaryKind::Or | BinaryKind::Xor => {
                (dtype == DType::Bool || dtype.is_integer(), "a boolean or integer")
            }
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

    /// The function on complex numbers. The larger of two has the larger real part, then the larger
    /// imaginary part.
    pub(crate) fn of_complex(self, a: Complex, b: Complex) -> Complex {
        match self {
            BinaryKind::Add => complex::add(a, b),
            BinaryKind::Subtract => complex::subtract(a, b),
            BinaryKind::Multiply => complex::multiply(a, b),
            BinaryKind::Divide => complex::divide(a, b),
            BinaryKind::Power => complex::power(a, b),
            BinaryKind::Maximum => if a >= b { a } else { b },
            BinaryKind::Minimum => if a <= b { a } else { b },
            // The angle of b + ia: -i log((b + ia) / sqrt(b^2 + a^2)).
            BinaryKind::Atan2 => {
                let squares = complex::add(complex::multiply(a, a), complex::multiply(b, b));
                let unit = complex::divide(complex::add(b, [-a[1], a[0]]), complex::square_root(squares));
                let [re, im] = complex::log(unit);
                [im, -re]
            }
            _ => unreachable!("inference refuses complex numbers"),
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
            // `or` and `and` are not sums.
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
        refuse_complex(self.name(), context)?;
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
                    // 0 to a power of at least 0 stays what it is; a negative base has no logarithm.
                    let zero = b.full_like(x, 0.0)?;
                    let (of_zero, grows) =
                        (b.compare(Direction::Eq, x, zero)?, b.compare(Direction::Ge, y, zero)?);
                    let fixed = b.binary(BinaryKind::And, of_zero, grows)?;
                    let one = b.full_like(x, 1.0)?;
                    let safe = b.select(fixed, one, x)?;
                    let log = b.unary(UnaryKind::Log, safe)?;
                    let slope = b.multiply(z, log)?;
                    Some(b.multiply(g, slope)?)
                }
                (BinaryKind::Atan2, _) => {
                    let (xx, yy) = (b.multiply(x, x)?, b.multiply(y, y)?);
                    let norm = b.add(xx, yy)?;
                    // The origin has no angle: the gradient is 0 there.
                    let (zero, one) = (b.full_like(norm, 0.0)?, b.full_like(norm, 1.0)?);
                    let inverse = b.divide(one, norm)?;
                    let is_origin = b.compare(Direction::Eq, norm, zero)?;
                    let inverse = b.select(is_origin, zero, inverse)?;
                    let product = b.multiply(g, if side == 0 { y } else { x })?;
                    let product = b.multiply(product, inverse)?;
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
        } else if dtype.is_complex() {
            let pairs = x.to_complex().into_iter().zip(y.to_complex());
            Literal::from_complex(&results[0], pairs.map(|(x, y)| kind.of_complex(x, y)))
        } else {
            let pairs = x.to_i128().into_iter().zip(y.to_i128());
            Literal::from_i128(&results[0], pairs.map(|(x, y)| kind.of_integers(x, y, dtype)))
        }])
    }

    fn precision(&self) -> Precision {
        match self.kind {
            BinaryKind::Power | BinaryKind::Remainder | BinaryKind::Atan2 => Precision::Own,
            _ => Precision::Operands,
        }
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Elementwise(Elementwise::Binary(self.kind))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

/// The cotangent goes to the chosen operand, half to each on a tie, and all of it to both if one is NaN.
fn extremum_gradient(
    b: &mut GraphBuilder,
    kind: BinaryKind,
    g: ValueId,
    own: ValueId,
    other: ValueId,
) -> Result<ValueId> {
    let direction = if kind == BinaryKind::Maximum { Direction::Lt } else { Direction::Gt };
    let (lost, tied) = (b.compare(direction, own, other)?, b.compare(Direction::Eq, own, other)?);
    let (half, zero) = (b.scale(g, 0.5)?, b.full_like(g, 0.0)?);
    let untied = b.select(lost, zero, g)?;
    b.select(tied, half, untied)
}

/// `y x^(y-1)`, and zero for `y = 0` even if `x^-1` is undefined.
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

pub(super) const BINARY_KINDS: [BinaryKind; 15] = [
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

/// The ops of this file by name.
pub(super) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    BINARY_KINDS.into_iter().map(|kind| (kind.name(), parse_binary as ParseOp))
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
