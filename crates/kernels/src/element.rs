//! Element types: their storage types, the types they compute in, and the arithmetic of those.

use std::ops::{Add, Div, Mul, Neg, Sub};

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use partita_base::DType;

use crate::halves::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use crate::math;
use crate::total::{Pair, Total};

/// A bool of one byte. Any byte but zero reads as true; kernels write 0 or 1.
#[derive(Clone, Copy, Pod, Zeroable, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// Whether the byte is not zero.
    #[inline(always)]
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    #[inline(always)]
    fn from(value: bool) -> Self {
        Bool(u8::from(value))
    }
}

mod sealed {
    pub trait Sealed {}
}

/// An element type of tensors. Arithmetic happens in `Compute`: f32 for f16 and bf16, otherwise the type
/// itself; every result is rounded once when it is stored.
pub trait Element: Pod + Default + std::fmt::Debug + sealed::Sealed {
    /// The type's tag.
    const DTYPE: DType;
    /// Whether loops over the type are compiled for wide vectors: the types that training steps use.
    const COMMON: bool = matches!(
        Self::DTYPE,
        DType::Bool
            | DType::I32
            | DType::I64
            | DType::U32
            | DType::F16
            | DType::BF16
            | DType::F32
            | DType::F64
    );
    /// The type in which arithmetic happens.
    type Compute: Number;
    /// Converts to the compute type.
    fn load(self) -> Self::Compute;
    /// Rounds to the element type.
    fn store(value: Self::Compute) -> Self;
}

/// f16, bf16, f32 or f64.
pub trait Float: Element<Compute: Real> {}
impl<T: Element<Compute: Real>> Float for T {}

/// Arithmetic of compute types. Integers wrap; division by zero gives all ones, and its remainder is the
/// dividend. On [`Bool`], addition and maximum are *or*, multiplication and minimum are *and*.
pub trait Number: Element<Compute = Self> + PartialOrd {
    /// The type in which the sums of many runs of numbers are added up.
    type Total: Total<Self>;
    /// The neutral element of addition.
    const ZERO: Self;
    /// The neutral element of multiplication.
    const ONE: Self;
    /// The neutral element of the maximum.
    const LOWEST: Self;
    /// The neutral element of the minimum.
    const HIGHEST: Self;
    /// `self + other`
    fn plus(self, other: Self) -> Self;
    /// `self - other`
    fn minus(self, other: Self) -> Self;
    /// `self * other`
    fn times(self, other: Self) -> Self;
    /// `self / other`, truncated for integers.
    fn over(self, other: Self) -> Self;
    /// The remainder of the truncated division; it has the dividend's sign.
    fn rem(self, other: Self) -> Self;
    /// `self` to the power of `other`.
    fn pow(self, other: Self) -> Self;
    /// The larger number; NaN if either is; +0 is above -0.
    fn maximum(self, other: Self) -> Self;
    /// The smaller number; NaN if either is; -0 is below +0.
    fn minimum(self, other: Self) -> Self;
    /// `-self`
    fn negated(self) -> Self;
    /// |self|
    fn abs(self) -> Self;
    /// -1, 0 or 1; keeps NaN and the sign of zero.
    fn sign(self) -> Self;
}

/// Bitwise arithmetic of [`Bool`] and the integers.
pub trait Bits: Number {
    /// The neutral element of *and*.
    const ALL_ONES: Self;
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(self, other: Self) -> Self;
    /// Bitwise complement.
    fn not(self) -> Self;
    /// Shifts left; a count outside `0..bits` gives zero.
    fn shift_left(self, count: Self) -> Self;
    /// Shifts right with zeros; a count outside `0..bits` gives zero.
    fn shift_right_logical(self, count: Self) -> Self;
    /// Shifts right with the sign; a count outside `0..bits` gives only copies of the sign.
    fn shift_right_arithmetic(self, count: Self) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $compute:ty, $load:expr, $store:expr) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Compute = $compute;
            #[inline(always)]
            fn load(self) -> $compute {
                ($load)(self)
            }
            #[inline(always)]
            fn store(value: $compute) -> $type {
                ($store)(value)
            }
        }
    };
    ($type:ty, $dtype:ident) => {
        element!($type, $dtype, $type, |x| x, |x| x);
    };
}
element!(Bool, Bool);
element!(i8, I8);
element!(i16, I16);
element!(i32, I32);
element!(i64, I64);
element!(u8, U8);
element!(u16, U16);
element!(u32, U32);
element!(u64, U64);
element!(f32, F32);
element!(f64, F64);
element!(f16, F16, f32, f16_to_f32, f16_from_f32);
element!(bf16, BF16, f32, bf16_to_f32, bf16_from_f32);

macro_rules! integer {
    ($type:ty, $unsigned:ty, $signed:ty, $all_ones:expr, $sign:expr, $pow:expr) => {
        impl Number for $type {
            type Total = Self;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$type>::MIN;
            const HIGHEST: Self = <$type>::MAX;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                if other == 0 { $all_ones } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            fn pow(self, other: Self) -> Self {
                let power: fn(Self, Self) -> Self = $pow;
                power(self, other)
            }
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                #[allow(unused_comparisons)]
                if self < 0 { self.wrapping_neg() } else { self }
            }
            #[inline(always)]
            fn sign(self) -> Self {
                let sign: fn(Self) -> Self = $sign;
                sign(self)
            }
        }
        impl Bits for $type {
            const ALL_ONES: Self = $all_ones;
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn not(self) -> Self {
                !self
            }
            #[inline(always)]
            fn shift_left(self, count: Self) -> Self {
                let count = count as $unsigned;
                if count < <$type>::BITS as $unsigned { self.wrapping_shl(count as u32) } else { 0 }
            }
            #[inline(always)]
            fn shift_right_logical(self, count: Self) -> Self {
                let count = count as $unsigned;
                if count < <$type>::BITS as $unsigned {
                    (self as $unsigned).wrapping_shr(count as u32) as $type
                } else {
                    0
                }
            }
            #[inline(always)]
            fn shift_right_arithmetic(self, count: Self) -> Self {
                let limit = (<$type>::BITS - 1) as $unsigned;
                let count = (count as $unsigned).min(limit);
                (self as $signed).wrapping_shr(count as u32) as $type
            }
        }
    };
}
macro_rules! signed {
    ($type:ty, $unsigned:ty) => {
        integer!($type, $unsigned, $type, -1, <$type>::signum, |base, exponent| {
            if exponent < 0 {
                return match base {
                    1 => 1,
                    -1 => {
                        if exponent & 1 == 0 {
                            1
                        } else {
                            -1
                        }
                    }
                    _ => 0,
                };
            }
            wrapping_power(base, exponent as u64)
        });
    };
}
macro_rules! unsigned {
    ($type:ty, $signed:ty) => {
        integer!($type, $type, $signed, <$type>::MAX, |x| <$type>::from(x != 0), |base, exponent| {
            wrapping_power(base, exponent as u64)
        });
    };
}
signed!(i8, u8);
signed!(i16, u16);
signed!(i32, u32);
signed!(i64, u64);
unsigned!(u8, i8);
unsigned!(u16, i16);
unsigned!(u32, i32);
unsigned!(u64, i64);

fn wrapping_power<T: Number>(mut base: T, mut exponent: u64) -> T {
    let mut product = T::ONE;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product = product.times(base);
        }
        base = base.times(base);
        exponent >>= 1;
    }
    product
}

macro_rules! truth {
    ($(fn $name:ident($a:ident, $b:ident) = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            let ($a, $b) = (self.get(), other.get());
            Bool::from($body)
        }
    )*};
}
impl Number for Bool {
    type Total = Self;
    const ZERO: Self = Bool(0);
    const ONE: Self = Bool(1);
    const LOWEST: Self = Bool(0);
    const HIGHEST: Self = Bool(1);
    truth! {
        fn plus(a, b) = a | b;
        fn minus(a, b) = a & !b;
        fn times(a, b) = a & b;
        fn over(a, b) = a | !b;
        fn rem(a, b) = a & !b;
        fn pow(a, b) = a | !b;
        fn maximum(a, b) = a | b;
        fn minimum(a, b) = a & b;
    }
    #[inline(always)]
    fn negated(self) -> Self {
        self
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self
    }
    #[inline(always)]
    fn sign(self) -> Self {
        self
    }
}
impl Bits for Bool {
    const ALL_ONES: Self = Bool(1);
    truth! {
        fn and(a, b) = a & b;
        fn or(a, b) = a | b;
        fn xor(a, b) = a ^ b;
        fn shift_left(a, b) = a & !b;
        fn shift_right_logical(a, b) = a & !b;
        fn shift_right_arithmetic(a, b) = a & !b;
    }
    #[inline(always)]
    fn not(self) -> Self {
        Bool::from(!self.get())
    }
}

/// Functions of f32 and f64.
pub trait Real:
    Number
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The nearest value.
    fn from_f64(x: f64) -> Self;
    /// The same value, exactly.
    fn to_f64(self) -> f64;
    /// e^x
    fn exp(self) -> Self;
    /// e^x for x <= 88.
    fn exp_below_88(self) -> Self;
    /// self + e^x for x <= 88.
    fn plus_exp_below_88(self, x: Self) -> Self;
    /// e^x - 1
    fn exp_m1(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// ln(1 + x)
    fn ln_1p(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Cube root.
    fn cbrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// 1 / (1 + e^-x)
    fn logistic(self) -> Self;
    /// Sine of radians.
    fn sin(self) -> Self;
    /// Cosine of radians.
    fn cos(self) -> Self;
    /// Tangent of radians.
    fn tan(self) -> Self;
    /// Towards minus infinity.
    fn floor(self) -> Self;
    /// Towards plus infinity.
    fn ceil(self) -> Self;
    /// To the nearest integer, ties away from zero.
    fn round_half_away(self) -> Self;
    /// To the nearest integer, ties to even.
    fn round_half_even(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// 1 - erf(x)
    fn erfc(self) -> Self;
    /// The inverse of the error function.
    fn erf_inv(self) -> Self;
    /// The angle of the point (other, self).
    fn atan2(self, other: Self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// An integer whose order is the total order of IEEE 754.
    fn total_order_key(self) -> i64;
}

macro_rules! real {
    ($type:ident, $total:ident, $bits:ident, $signed:ident, $plus_exp:expr, { $($name:ident = $function:expr;)* }) => {
        impl Number for $type {
            type Total = $total;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $type::NEG_INFINITY;
            const HIGHEST: Self = $type::INFINITY;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                self % other
            }
            #[inline(always)]
            fn pow(self, other: Self) -> Self {
                self.powf(other)
            }
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                // Equal numbers have equal bits, except the two zeros, whose common bits are those of +0.
                let tie = $type::from_bits(self.to_bits() & other.to_bits());
                let larger = if self > other { self } else { other };
                let larger = if self == other { tie } else { larger };
                if self.is_nan() | other.is_nan() { self + other } else { larger }
            }
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                let tie = $type::from_bits(self.to_bits() | other.to_bits());
                let smaller = if self < other { self } else { other };
                let smaller = if self == other { tie } else { smaller };
                if self.is_nan() | other.is_nan() { self + other } else { smaller }
            }
            #[inline(always)]
            fn negated(self) -> Self {
                -self
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $type::abs(self)
            }
            #[inline(always)]
            fn sign(self) -> Self {
                if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { self }
            }
        }
        impl Real for $type {
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn plus_exp_below_88(self, x: Self) -> Self {
                ($plus_exp)(self, x)
            }
            #[inline(always)]
            fn atan2(self, other: Self) -> Self {
                $type::atan2(self, other)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                $type::is_finite(self)
            }
            #[inline(always)]
            fn total_order_key(self) -> i64 {
                // Negative floats have decreasing bits: flip all but the sign.
                let bits = self.to_bits() as $signed;
                i64::from(bits ^ (((bits >> ($signed::BITS - 1)) as $bits) >> 1) as $signed)
            }
            $(
                #[inline(always)]
                fn $name(self) -> Self {
                    ($function)(self)
                }
            )*
        }
    };
}
real!(f32, f64, u32, i32, math::plus_exp_below_88, {
    exp = math::exp;
    exp_below_88 = math::exp_below_88;
    exp_m1 = math::exp_m1;
    ln = math::ln;
    ln_1p = math::ln_1p;
    sqrt = f32::sqrt;
    cbrt = f32::cbrt;
    tanh = math::tanh;
    logistic = math::logistic;
    sin = f32::sin;
    cos = f32::cos;
    tan = f32::tan;
    floor = f32::floor;
    ceil = f32::ceil;
    round_half_away = f32::round;
    round_half_even = f32::round_ties_even;
    erf = math::erf;
    erfc = |x| libm::erfc(f64::from(x)) as f32;
    erf_inv = |x| math::erf_inv(f64::from(x)) as f32;
});
real!(f64, Pair, u64, i64, |sum, x: f64| sum + x.exp(), {
    exp = f64::exp;
    exp_below_88 = f64::exp;
    exp_m1 = f64::exp_m1;
    ln = f64::ln;
    ln_1p = f64::ln_1p;
    sqrt = f64::sqrt;
    cbrt = f64::cbrt;
    tanh = f64::tanh;
    logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    sin = f64::sin;
    cos = f64::cos;
    tan = f64::tan;
    floor = f64::floor;
    ceil = f64::ceil;
    round_half_away = f64::round;
    round_half_even = f64::round_ties_even;
    erf = libm::erf;
    erfc = libm::erfc;
    erf_inv = math::erf_inv;
});

/// Runs `$body` with `$T` as the element type that `$dtype` names; the short forms panic on other types.
macro_rules! dispatch {
    (@arms $dtype:expr, $T:ident, $body:expr, [$($tag:ident $type:ty),*] $(, $what:literal)?) => {
        match $dtype {
            $(partita_base::DType::$tag => { type $T = $type; $body })*
            $(other => panic!(concat!($what, ", not {}"), other),)?
        }
    };
    ($dtype:expr, $T:ident => $body:expr) => {
        crate::element::dispatch!(@arms $dtype, $T, $body, [Bool crate::Bool, I8 i8, I16 i16, I32 i32, I64 i64,
            U8 u8, U16 u16, U32 u32, U64 u64, F16 half::f16, BF16 half::bf16, F32 f32, F64 f64],
            "needs a type that is computed with")
    };
    (float $dtype:expr, $T:ident => $body:expr) => {
        crate::element::dispatch!(@arms $dtype, $T, $body,
            [F16 half::f16, BF16 half::bf16, F32 f32, F64 f64], "needs a float type")
    };
    (bits $dtype:expr, $T:ident => $body:expr) => {
        crate::element::dispatch!(@arms $dtype, $T, $body, [Bool crate::Bool, I8 i8, I16 i16, I32 i32, I64 i64,
            U8 u8, U16 u16, U32 u32, U64 u64], "needs a boolean or integer type")
    };
    (index $dtype:expr, $T:ident => $body:expr) => {
        crate::element::dispatch!(@arms $dtype, $T, $body, [I32 i32, I64 i64, U32 u32, U64 u64],
            "needs an index type (i32, i64, u32, u64)")
    };
}
pub(crate) use dispatch;
