//! Elementwise functions that no device has a kernel for: special functions, complex numbers, and
//! functions of the bits of a number.

use super::super::ParseOp;
use super::super::checks::{element_type, operand_count, same_type};
use super::super::reduce::refused;
use super::functions::{bessel_i1e, digamma, log_gamma, polygamma, zeta};
use super::{
    BinaryKind, TRANSCENDENTAL_FLOPS, UnaryKind, elementwise_cost, of_complex_elements, real_part, refuse_complex,
};
use crate::builder::GraphBuilder;
use crate::complex::{self, Complex};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::Rule;
use crate::text::{OpParser, OpPrinter, print_types};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use half::{bf16, f16};
use partita_base::{DType, InertType, Result};

macro_rules! kinds {
    ($($kind:ident $name:literal $arity:literal $about:literal),* $(,)?) => {
        /// A function of one or two elements.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum SpecialKind { $(#[doc = $about] $kind),* }

        impl SpecialKind {
            /// Every function.
            pub const ALL: &'static [SpecialKind] = &[$(SpecialKind::$kind),*];

            /// The op's name in text.
            fn name(self) -> &'static str {
                match self { $(SpecialKind::$kind => $name),* }
            }

            /// The number of operands.
            pub fn arity(self) -> usize {
                match self { $(SpecialKind::$kind => $arity),* }
            }
        }
    };
}
kinds! {
    Acos "chlo.acos" 1 "The angle with this cosine.",
    Acosh "chlo.acosh" 1 "The inverse of the hyperbolic cosine.",
    Asin "chlo.asin" 1 "The angle with this sine.",
    Asinh "chlo.asinh" 1 "The inverse of the hyperbolic sine.",
    Atan "chlo.atan" 1 "The angle with this tangent.",
    Atanh "chlo.atanh" 1 "The inverse of the hyperbolic tangent.",
    Sinh "chlo.sinh" 1 "The hyperbolic sine.",
    Cosh "chlo.cosh" 1 "The hyperbolic cosine.",
    BesselI1e "chlo.bessel_i1e" 1 "The scaled modified Bessel function of order 1.",
    Digamma "chlo.digamma" 1 "The derivative of the logarithm of the gamma function.",
    Lgamma "chlo.lgamma" 1 "The logarithm of the gamma function.",
    Polygamma "chlo.polygamma" 2 "The derivatives of digamma: their order, the argument.",
    Zeta "chlo.zeta" 2 "The Hurwitz zeta function.",
    NextAfter "chlo.next_after" 2 "The neighbour of the first in the direction of the second.",
    MulHi "chlo.mulhi" 2 "The upper half of the bits of a product.",
    IsInf "chlo.is_inf" 1 "Whether a float is infinite.",
    IsPosInf "chlo.is_pos_inf" 1 "Whether a float is positive infinity.",
    IsNegInf "chlo.is_neg_inf" 1 "Whether a float is negative infinity.",
    Conj "chlo.conj" 1 "The complex conjugate.",
    Real "stablehlo.real" 1 "The real part.",
    Imag "stablehlo.imag" 1 "The imaginary part.",
    Complex "stablehlo.complex" 2 "A complex number from its parts.",
    CountLeadingZeros "stablehlo.count_leading_zeros" 1 "The number of zero bits before the first one.",
}

/// `result[i] = f(operands[i]..)`.
#[derive(Clone, PartialEq, Debug)]
pub struct Special {
    /// The function.
    pub kind: SpecialKind,
}

impl SpecialKind {
    /// Whether the element type is accepted, and a description of the accepted ones.
    fn accepts(self, dtype: DType) -> (bool, &'static str) {
        match self {
            SpecialKind::MulHi | SpecialKind::CountLeadingZeros => (dtype.is_integer(), "an integer"),
            SpecialKind::Complex => (matches!(dtype, DType::F32 | DType::F64), "f32 or f64"),
            SpecialKind::Conj | SpecialKind::Real | SpecialKind::Imag => {
                (dtype.is_complex() || dtype.is_float(), "a complex number or float")
            }
            SpecialKind::NextAfter => {
                (matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64), "f16, bf16, f32 or f64")
            }
            SpecialKind::Acos
            | SpecialKind::Acosh
            | SpecialKind::Asin
            | SpecialKind::Asinh
            | SpecialKind::Atan
            | SpecialKind::Atanh
            | SpecialKind::Sinh
            | SpecialKind::Cosh => (dtype.is_float() || dtype.is_complex(), "a float or complex number"),
            SpecialKind::BesselI1e
            | SpecialKind::Digamma
            | SpecialKind::Lgamma
            | SpecialKind::Polygamma
            | SpecialKind::Zeta
            | SpecialKind::IsInf
            | SpecialKind::IsPosInf
            | SpecialKind::IsNegInf => (dtype.is_float(), "a float"),
        }
    }

    fn of_floats(self, x: f64, y: f64, dtype: DType) -> f64 {
        let truth = |truth: bool| f64::from(u8::from(truth));
        match self {
            SpecialKind::Acos => x.acos(),
            SpecialKind::Acosh => x.acosh(),
            SpecialKind::Asin => x.asin(),
            SpecialKind::Asinh => x.asinh(),
            SpecialKind::Atan => x.atan(),
            SpecialKind::Atanh => x.atanh(),
            SpecialKind::Sinh => x.sinh(),
            SpecialKind::Cosh => x.cosh(),
            SpecialKind::BesselI1e => bessel_i1e(x),
            SpecialKind::Digamma => digamma(x),
            SpecialKind::Lgamma => log_gamma(x),
            SpecialKind::Polygamma => polygamma(x, y),
            SpecialKind::Zeta => zeta(x, y),
            SpecialKind::NextAfter => next_after(x, y, dtype),
            SpecialKind::IsInf => truth(x.is_infinite()),
            SpecialKind::IsPosInf => truth(x == f64::INFINITY),
            SpecialKind::IsNegInf => truth(x == f64::NEG_INFINITY),
            SpecialKind::Conj | SpecialKind::Real => x,
            SpecialKind::Imag => 0.0,
            SpecialKind::Complex | SpecialKind::MulHi | SpecialKind::CountLeadingZeros => {
                unreachable!("inference refuses floats")
            }
        }
    }

    fn of_complex(self, z: Complex) -> Complex {
        match self {
            SpecialKind::Acos => complex::arc_cosine(z),
            SpecialKind::Acosh => complex::arc_hyperbolic_cosine(z),
            SpecialKind::Asin => complex::arc_sine(z),
            SpecialKind::Asinh => complex::arc_hyperbolic_sine(z),
            SpecialKind::Atan => complex::arc_tangent(z),
            SpecialKind::Atanh => complex::arc_hyperbolic_tangent(z),
            SpecialKind::Sinh => complex::hyperbolic_sine(z),
            SpecialKind::Cosh => complex::hyperbolic_cosine(z),
            SpecialKind::Conj => complex::conjugate(z),
            SpecialKind::Real => [z[0], 0.0],
            SpecialKind::Imag => [z[1], 0.0],
            _ => unreachable!("inference refuses complex numbers"),
        }
    }

    fn of_integers(self, x: i128, y: i128, dtype: DType) -> i128 {
        let bits = dtype.bits() as u32;
        match self {
            // The product of two unsigned 64-bit integers needs all 128 bits.
            SpecialKind::MulHi if x >= 0 && y >= 0 => ((x as u128 * y as u128) >> bits) as i128,
            SpecialKind::MulHi => (x * y) >> bits,
            SpecialKind::CountLeadingZeros => {
                let own = x as u128 & ((1 << bits) - 1);
                i128::from(own.leading_zeros() + bits) - 128
            }
            _ => unreachable!("inference refuses integers"),
        }
    }
}

/// The float of the type next to `x` in the direction of `y`.
fn next_after(x: f64, y: f64, dtype: DType) -> f64 {
    if x.is_nan() || y.is_nan() {
        return f64::NAN;
    }
    if x == y {
        return y;
    }
    let step = |bits: u64, sign: u64| match bits & (sign - 1) {
        // Zero: the smallest number on the side of y.
        0 => 1 | if y < 0.0 { sign } else { 0 },
        _ if (x < y) == (x > 0.0) => bits + 1,
        _ => bits - 1,
    };
    match dtype {
        DType::F16 => f16::from_bits(step(f16::from_f64(x).to_bits().into(), 1 << 15) as u16).to_f64(),
        DType::BF16 => bf16::from_bits(step(bf16::from_f64(x).to_bits().into(), 1 << 15) as u16).to_f64(),
        DType::F32 => f32::from_bits(step((x as f32).to_bits().into(), 1 << 31) as u32).into(),
        _ => f64::from_bits(step(x.to_bits(), 1 << 63)),
    }
}

impl Operation for Special {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, self.kind.arity())?;
        operands.iter().try_for_each(|ty| same_type(self.name(), operands[0], ty))?;
        let dtype = operands[0].dtype;
        let (allowed, expected) = self.kind.accepts(dtype);
        element_type(self.name(), allowed, expected, dtype)?;
        Ok(vec![operands[0].with_dtype(match self.kind {
            SpecialKind::IsInf | SpecialKind::IsPosInf | SpecialKind::IsNegInf => DType::Bool,
            SpecialKind::Real | SpecialKind::Imag => real_part(dtype),
            SpecialKind::Complex if dtype == DType::F32 => DType::Inert(InertType::Complex64),
            SpecialKind::Complex => DType::Inert(InertType::Complex128),
            _ => dtype,
        })])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let rule = Rule::pointwise(&operands[0].shape, self.kind.arity(), 1);
        match self.kind {
            SpecialKind::Conj | SpecialKind::Real | SpecialKind::Imag => rule.linear_in(&[0]),
            SpecialKind::Complex => rule.linear_in(&[0, 1]),
            _ => rule,
        }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        elementwise_cost(TRANSCENDENTAL_FLOPS, operands, results)
    }

    /// E120 for functions whose derivative is not one of these ops, and for complex operands.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let arity = self.kind.arity();
        refuse_complex(self.name(), context)?;
        let (x, y) = (context.operands[0], context.results[0]);
        let last = context.operands[arity - 1];
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0] else { return Ok(vec![None; arity]) };
        // Of complex numbers made of wanted parts, cotangents are not defined either.
        if !b.ty(g).dtype.is_float() {
            return match self.kind == SpecialKind::Complex {
                true => Err(refused(self.name(), "complex results")),
                false => Ok(vec![None; arity]),
            };
        }
        let square = |b: &mut GraphBuilder, v| b.unary(UnaryKind::Square, v);
        let quotient = |b: &mut GraphBuilder, under_root: ValueId, sign: f64| {
            let root = b.unary(UnaryKind::Rsqrt, under_root)?;
            b.scale(root, sign)
        };
        let slope = match self.kind {
            SpecialKind::Acos | SpecialKind::Asin => {
                let (one, square) = (b.full_like(x, 1.0)?, square(b, x)?);
                let rest = b.subtract(one, square)?;
                quotient(b, rest, if self.kind == SpecialKind::Asin { 1.0 } else { -1.0 })?
            }
            SpecialKind::Acosh | SpecialKind::Asinh => {
                let square = square(b, x)?;
                let rest = b.offset(square, if self.kind == SpecialKind::Asinh { 1.0 } else { -1.0 })?;
                quotient(b, rest, 1.0)?
            }
            SpecialKind::Atan => {
                let square = square(b, x)?;
                let rest = b.offset(square, 1.0)?;
                return Ok(vec![context.wanted[0].then(|| b.divide(g, rest)).transpose()?]);
            }
            SpecialKind::Atanh => {
                let (one, square) = (b.full_like(x, 1.0)?, square(b, x)?);
                let rest = b.subtract(one, square)?;
                return Ok(vec![context.wanted[0].then(|| b.divide(g, rest)).transpose()?]);
            }
            SpecialKind::Sinh => b.push1(Special { kind: SpecialKind::Cosh }, &[x])?,
            SpecialKind::Cosh => b.push1(Special { kind: SpecialKind::Sinh }, &[x])?,
            SpecialKind::Lgamma => b.push1(Special { kind: SpecialKind::Digamma }, &[x])?,
            SpecialKind::Digamma => {
                let one = b.full_like(x, 1.0)?;
                b.push1(Special { kind: SpecialKind::Polygamma }, &[one, x])?
            }
            SpecialKind::Polygamma => {
                let next = b.offset(x, 1.0)?;
                b.push1(Special { kind: SpecialKind::Polygamma }, &[next, last])?
            }
            SpecialKind::Zeta => {
                let next = b.offset(x, 1.0)?;
                let zeta = b.push1(Special { kind: SpecialKind::Zeta }, &[next, last])?;
                let product = b.multiply(x, zeta)?;
                b.negate(product)?
            }
            SpecialKind::NextAfter => b.full_like(y, 1.0)?,
            SpecialKind::Conj | SpecialKind::Real => b.full_like(y, 1.0)?,
            SpecialKind::Imag => b.full_like(y, 0.0)?,
            SpecialKind::BesselI1e => return Err(refused(self.name(), "a differentiated operand")),
            SpecialKind::IsInf
            | SpecialKind::IsPosInf
            | SpecialKind::IsNegInf
            | SpecialKind::MulHi
            | SpecialKind::Complex
            | SpecialKind::CountLeadingZeros => return Ok(vec![None; arity]),
        };
        // The slope is that in the last operand, but for the neighbour that in the first.
        let of = if self.kind == SpecialKind::NextAfter { 0 } else { arity - 1 };
        let by_order = matches!(self.kind, SpecialKind::Polygamma | SpecialKind::Zeta) && context.wanted[0];
        if by_order {
            return Err(refused(self.name(), "a differentiated order"));
        }
        let mut gradients = vec![None; arity];
        if context.wanted[of] {
            gradients[of] = Some(b.binary(BinaryKind::Multiply, g, slope)?);
        }
        Ok(gradients)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (x, y) = (operands[0], operands[operands.len() - 1]);
        let (dtype, kind) = (x.ty.dtype, self.kind);
        Ok(vec![if kind == SpecialKind::Complex {
            let pairs = x.to_f64().into_iter().zip(y.to_f64());
            Literal::from_complex(&results[0], pairs.map(|(re, im)| [re, im]))
        } else if dtype.is_complex() {
            of_complex_elements(&results[0], x.to_complex().into_iter().map(|z| kind.of_complex(z)))
        } else if dtype.is_float() {
            let pairs = x.to_f64().into_iter().zip(y.to_f64());
            Literal::from_f64(&results[0], pairs.map(|(x, y)| kind.of_floats(x, y, dtype)))
        } else {
            let pairs = x.to_i128().into_iter().zip(y.to_i128());
            Literal::from_i128(&results[0], pairs.map(|(x, y)| kind.of_integers(x, y, dtype)))
        }])
    }

    fn precision(&self) -> Precision {
        Precision::Own
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

/// The ops of this file by name.
pub(super) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    let named = SpecialKind::ALL.iter().map(|kind| (kind.name(), parse_special as ParseOp));
    named.chain([("chlo.tan", parse_tan as ParseOp)])
}

impl TextForm for Special {
    /// `chlo.zeta %0, %1 : T, T -> T`; `stablehlo.complex %0, %1 : T`, with the result's type;
    /// `stablehlo.real %0 : (T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        let (name, operands) = (self.kind.name(), printer.operands());
        if name.starts_with("chlo.") {
            printer.push(&format!("{name} {operands}"));
            printer.attributes();
            let (operands, results) = (printer.operand_types(), printer.result_types());
            printer.push(&format!(" : {} -> {}", print_types(&operands), results[0]));
        } else if self.kind == SpecialKind::Complex {
            printer.push(&format!("{name} {operands}"));
            printer.attributes();
            let result = printer.result_types().remove(0);
            printer.push(&format!(" : {result}"));
        } else {
            printer.pretty_same_type(name, "");
        }
    }
}

fn parse_special(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let kind = SpecialKind::ALL.iter().copied().find(|kind| kind.name() == op.name);
    let kind = kind.expect("the table has the names of all kinds");
    if !op.generic()? {
        op.operands()?;
        op.types()?;
        // A single type is that of the result.
        if kind == SpecialKind::Complex && op.operand_types.as_deref().is_some_and(|t| t[..] == [op.result_types[0].clone(), op.result_types[0].clone()]) {
            op.operand_types = None;
        }
    }
    op.arity(kind.arity())?;
    op.finish(Special { kind })
}

/// CHLO has its own name for the tangent.
fn parse_tan(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(1)?;
    op.finish(super::Unary { kind: UnaryKind::Tan })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, random, refusal};
    use std::f64::consts::PI;

    fn special(kind: SpecialKind) -> Special {
        Special { kind }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let one = Literal::new([3], vec![1f64, 2.0, 3.0]);
        let within = Literal::new([3], vec![-0.6f64, 0.1, 0.8]);
        let above = Literal::new([3], vec![1.4f64, 2.5, 6.0]);
        for kind in [
            SpecialKind::Acos,
            SpecialKind::Asin,
            SpecialKind::Asinh,
            SpecialKind::Atan,
            SpecialKind::Atanh,
            SpecialKind::Sinh,
            SpecialKind::Cosh,
        ] {
            check_gradient(special(kind), vec![within.clone()], &[true]);
        }
        for kind in [SpecialKind::Acosh, SpecialKind::Digamma, SpecialKind::Lgamma] {
            check_gradient(special(kind), vec![above.clone()], &[true]);
        }
        check_gradient(special(SpecialKind::Polygamma), vec![one, above.clone()], &[false, true]);
        check_gradient(special(SpecialKind::Zeta), vec![above.clone(), above], &[false, true]);
    }

    #[test]
    fn every_function_acts_on_shards() {
        for &kind in SpecialKind::ALL {
            let x = match kind.accepts(DType::F64).0 {
                true => random(3, &[4, 3]),
                false => Literal::new([4, 3], (0..12).map(|i| i * 77 - 300).collect::<Vec<i32>>()),
            };
            check_rule(special(kind), &vec![x; kind.arity()]);
        }
    }

    #[test]
    fn neighbours_are_those_of_the_type() {
        let next = |x: Literal, y: Literal| apply(special(SpecialKind::NextAfter), &[x, y]).remove(0);
        let f32s = |v: [f32; 5]| Literal::new([5], v.to_vec());
        let smallest = f32::from_bits(1);
        assert_eq!(
            next(f32s([1.0, 1.0, 0.0, 0.0, -1.0]), f32s([2.0, -2.0, -1.0, 1.0, 0.0])),
            f32s([1.0 + f32::EPSILON, 1.0 - f32::EPSILON / 2.0, -smallest, smallest, -1.0 + f32::EPSILON / 2.0])
        );
        let halves = |v: f32| Literal::new([1], vec![f16::from_f32(v)]);
        assert_eq!(next(halves(1.0), halves(9.0)), halves(1.0 + 2f32.powi(-10)));
        assert!(next(f32s([f32::NAN; 5]), f32s([0.0; 5])).to_f64().iter().all(|v| v.is_nan()));
    }

    #[test]
    fn bits_of_integers_are_counted_and_multiplied() {
        let high = |x: Literal, y: Literal| apply(special(SpecialKind::MulHi), &[x, y]).remove(0).to_i128();
        let u64s = |v: u64| Literal::new([1], vec![v]);
        assert_eq!(high(u64s(u64::MAX), u64s(u64::MAX)), [u64::MAX as i128 - 1]);
        let i8s = |v: Vec<i8>| Literal::new([3], v);
        assert_eq!(high(i8s(vec![-128, 127, -1]), i8s(vec![-128, 127, 1])), [64, 63, -1]);
        let zeros = apply(special(SpecialKind::CountLeadingZeros), &[i8s(vec![0, 1, -1])]);
        assert_eq!(zeros[0].to_i64(), [8, 7, 0]);
    }

    #[test]
    fn complex_numbers_are_made_of_parts() {
        let (re, im) = (random(1, &[2, 3]), random(2, &[2, 3]));
        let z = apply(special(SpecialKind::Complex), &[re.clone(), im.clone()]).remove(0);
        assert_eq!(z.ty.to_string(), "tensor<2x3xcomplex<f64>>");
        assert_eq!(apply(special(SpecialKind::Real), std::slice::from_ref(&z)), [re]);
        assert_eq!(apply(special(SpecialKind::Imag), std::slice::from_ref(&z))[0], im);
        let conjugate = apply(special(SpecialKind::Conj), &[z]).remove(0);
        let negated = im.to_f64().into_iter().map(|v| -v).collect::<Vec<_>>();
        assert_eq!(apply(special(SpecialKind::Imag), &[conjugate])[0].to_f64(), negated);
    }

    #[test]
    fn other_element_types_are_refused() {
        let ty = |dtype| TensorType::new(dtype, [2]);
        assert!(refusal(special(SpecialKind::MulHi), &[ty(DType::F32), ty(DType::F32)]).contains("E103"));
        assert!(refusal(special(SpecialKind::Lgamma), &[ty(DType::I32)]).contains("E103"));
        assert!(refusal(special(SpecialKind::Complex), &[ty(DType::F16), ty(DType::F16)]).contains("E103"));
        assert!(refusal(special(SpecialKind::Zeta), &[ty(DType::F32), ty(DType::F64)]).contains("E102"));
        assert!(refusal(special(SpecialKind::Zeta), &[ty(DType::F32)]).contains("E101"));
    }

    #[test]
    fn gamma_values_follow_from_pi() {
        let x = Literal::new([2], vec![0.5f64, 1.5]);
        let found = apply(special(SpecialKind::Lgamma), &[x]).remove(0).to_f64();
        assert!((found[0] - PI.sqrt().ln()).abs() < 1e-15 && (found[1] - (PI.sqrt() / 2.0).ln()).abs() < 1e-15);
    }
}
