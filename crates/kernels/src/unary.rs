//! Elementwise functions of one tensor.

use crate::options::KernelOptions;
use bytemuck::cast_slice;
use partita_base::DType;

use crate::element::{Bits, Float, Number, Real, dispatch};
use crate::element::{Bool, Element};
use crate::native::levels::multiversion;
use crate::tiles::map_tiles;
use crate::view::{View, ViewMut};

/// An elementwise function of one argument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Unary {
    /// `-x`; any type but bool.
    Neg,
    /// |x|; any type but bool.
    Abs,
    /// -1, 0 or 1; any type but bool.
    Sign,
    /// e^x; float types, as for all up to `IsFinite`.
    Exp,
    /// e^x - 1
    Expm1,
    /// Natural logarithm.
    Log,
    /// ln(1 + x)
    Log1p,
    /// Square root.
    Sqrt,
    /// 1 / square root.
    Rsqrt,
    /// Cube root.
    Cbrt,
    /// Hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e^-x)
    Logistic,
    /// Sine of radians.
    Sine,
    /// Cosine of radians.
    Cosine,
    /// Tangent of radians.
    Tan,
    /// The largest integer that is not above.
    Floor,
    /// The smallest integer that is not below.
    Ceil,
    /// The nearest integer, ties away from zero.
    RoundHalfAway,
    /// The nearest integer, ties to even.
    RoundHalfEven,
    /// The error function.
    Erf,
    /// 1 - erf(x)
    Erfc,
    /// The inverse of the error function.
    ErfInv,
    /// Whether the number is neither infinite nor NaN: float to bool.
    IsFinite,
    /// Complement of every bit; integers and bool.
    Not,
}

impl Unary {
    /// Every function, in declaration order.
    pub const ALL: [Unary; 24] = [
        Unary::Neg,
        Unary::Abs,
        Unary::Sign,
        Unary::Exp,
        Unary::Expm1,
        Unary::Log,
        Unary::Log1p,
        Unary::Sqrt,
        Unary::Rsqrt,
        Unary::Cbrt,
        Unary::Tanh,
        Unary::Logistic,
        Unary::Sine,
        Unary::Cosine,
        Unary::Tan,
        Unary::Floor,
        Unary::Ceil,
        Unary::RoundHalfAway,
        Unary::RoundHalfEven,
        Unary::Erf,
        Unary::Erfc,
        Unary::ErfInv,
        Unary::IsFinite,
        Unary::Not,
    ];

    /// The type of the result for an argument type; `None` if the function is not defined on it.
    pub fn result_dtype(self, dtype: DType) -> Option<DType> {
        match self {
            Unary::Neg | Unary::Abs | Unary::Sign => (dtype != DType::Bool).then_some(dtype),
            Unary::Not => (!dtype.is_float()).then_some(dtype),
            Unary::IsFinite => dtype.is_float().then_some(DType::Bool),
            _ => dtype.is_float().then_some(dtype),
        }
    }
}

/// A function of one element as a type, so that its loop is compiled for it alone.
trait Map<A, B> {
    fn apply(a: A) -> B;
}

multiversion! {
    fn map[A: Element, B: Element, F: Map<A, B>; A](x: &[u8], out: &mut [u8]) {
        let (x, out): (&[A], &mut [B]) = (cast_slice(x), bytemuck::cast_slice_mut(out));
        for (out, &x) in out.iter_mut().zip(x) {
            *out = F::apply(x);
        }
    }
}

macro_rules! functions {
    ($bound:ident: $($name:ident($x:ident) = $body:expr;)*) => {$(
        struct $name;
        impl<T: Element<Compute: $bound>> Map<T, T> for $name {
            #[inline(always)]
            fn apply(x: T) -> T {
                let $x: T::Compute = x.load();
                T::store($body)
            }
        }
    )*};
}
functions! { Number: Neg(x) = x.negated(); Abs(x) = x.abs(); Sign(x) = x.sign(); }
functions! { Bits: Not(x) = x.not(); }
functions! { Real:
    Exp(x) = x.exp();
    Expm1(x) = x.exp_m1();
    Log(x) = x.ln();
    Log1p(x) = x.ln_1p();
    Sqrt(x) = x.sqrt();
    Rsqrt(x) = T::Compute::ONE / x.sqrt();
    Cbrt(x) = x.cbrt();
    Tanh(x) = x.tanh();
    Logistic(x) = x.logistic();
    Sine(x) = x.sin();
    Cosine(x) = x.cos();
    Tan(x) = x.tan();
    Floor(x) = x.floor();
    Ceil(x) = x.ceil();
    RoundHalfAway(x) = x.round_half_away();
    RoundHalfEven(x) = x.round_half_even();
    Erf(x) = x.erf();
    Erfc(x) = x.erfc();
    ErfInv(x) = x.erf_inv();
}
struct IsFinite;
impl<T: Float> Map<T, Bool> for IsFinite {
    #[inline(always)]
    fn apply(x: T) -> Bool {
        Bool::from(x.load().is_finite())
    }
}

/// `out[i] = op(x[i])` over the bytes of one tile.
pub(crate) fn unary_tile(options: KernelOptions, op: Unary, dtype: DType, x: &[u8], out: &mut [u8]) {
    macro_rules! arms {
        ($T:ty: $($name:ident)*) => {
            match op {
                $(Unary::$name => map::<$T, $T, $name>(options, x, out),)*
                _ => unreachable!("the arms cover the family"),
            }
        };
    }
    match op {
        Unary::Neg | Unary::Abs | Unary::Sign => dispatch!(dtype, T => arms!(T: Neg Abs Sign)),
        Unary::Not => dispatch!(bits dtype, T => map::<T, T, Not>(options, x, out)),
        Unary::IsFinite => dispatch!(float dtype, T => map::<T, Bool, IsFinite>(options, x, out)),
        _ => {
            dispatch!(float dtype, T => arms!(T: Exp Expm1 Log Log1p Sqrt Rsqrt Cbrt Tanh Logistic Sine Cosine
            Tan Floor Ceil RoundHalfAway RoundHalfEven Erf Erfc ErfInv))
        }
    }
}

/// `out = op(x)`, elementwise. f16 and bf16 compute in f32 and round once.
///
/// # Panics
/// Where shapes differ or the types are not those of [`Unary::result_dtype`].
pub fn unary(options: KernelOptions, op: Unary, x: &View<'_>, out: &mut ViewMut<'_>) {
    assert_eq!(op.result_dtype(x.dtype()), Some(out.dtype()), "result type of {op:?} on {}", x.dtype());
    let dtype = x.dtype();
    map_tiles([x], out, |[x], out| unary_tile(options, op, dtype, x, out));
}
