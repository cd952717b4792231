//! Single-precision functions written so that the compiler can vectorise a loop over them: no branches, no
//! tables, no calls. Each reduces its argument to a short interval and evaluates a polynomial there; the
//! coefficients are Chebyshev fits for these intervals. Sums of products are fused multiply-adds, with one
//! rounding on every machine; machines without that instruction compute them slowly.

use std::ops::{Add, Div, Mul, Neg, Sub};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
const LN_2: f32 = std::f32::consts::LN_2;
/// ln 2 as a sum of two numbers; the first has so few bits that its product with an exponent is exact.
const LN2_HIGH: f32 = 0.693_145_75;
const LN2_LOW: f32 = 1.428_606_8e-6;
/// Adding 1.5 * 2^23 to a small float puts its nearest integer into the low mantissa bits.
const TO_INTEGER: f32 = 12_582_912.0;

/// The number type of the functions of chains: an f32, or a traced value whose calculation is recorded to
/// become machine code. Constants are made from a number that exists, so that they join its recording.
pub(crate) trait Single:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// A 32-bit integer of the same kind.
    type Whole: Whole;
    /// The result of a comparison.
    type Truth: Copy;
    /// A constant.
    fn of(self, value: f32) -> Self;
    /// `self * by + and`, rounded once.
    fn mul_add(self, by: Self, and: Self) -> Self;
    /// Square root.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn root(self) -> Self;
    fn to_whole_bits(self) -> Self::Whole;
    fn from_whole_bits(bits: Self::Whole) -> Self;
    fn from_whole(value: Self::Whole) -> Self;
    fn is_less(self, other: Self) -> Self::Truth;
    fn is_at_most(self, other: Self) -> Self::Truth;
    fn is_equal(self, other: Self) -> Self::Truth;
    /// Whether either is NaN.
    fn is_unordered(self, other: Self) -> Self::Truth;
    /// `yes` or `no`; both are computed.
    fn select(truth: Self::Truth, yes: Self, no: Self) -> Self;

    /// `max(self, bound)`, except that NaN stays NaN.
    fn at_least(self, bound: f32) -> Self;
    /// `min(self, bound)`, except that NaN stays NaN.
    fn at_most(self, bound: f32) -> Self;

    /// |self|
    #[inline(always)]
    fn magnitude(self) -> Self {
        let bits = self.to_whole_bits();
        Self::from_whole_bits(bits.and(bits.of(i32::MAX)))
    }

    /// |self| with the sign of `sign`.
    #[inline(always)]
    fn signed_as(self, sign: Self) -> Self {
        let (own, sign) = (self.magnitude().to_whole_bits(), sign.to_whole_bits());
        Self::from_whole_bits(own.or(sign.and(sign.of(i32::MIN))))
    }
}

/// 32-bit integers with wrapping arithmetic.
pub(crate) trait Whole: Copy {
    /// A constant.
    fn of(self, value: i32) -> Self;
    fn minus(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// Shifts left.
    fn left<const BITS: u32>(self) -> Self;
    /// Shifts right, keeping the sign.
    fn right<const BITS: u32>(self) -> Self;
}

impl Single for f32 {
    type Whole = i32;
    type Truth = bool;
    #[inline(always)]
    fn of(self, value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn mul_add(self, by: f32, and: f32) -> f32 {
        f32::mul_add(self, by, and)
    }
    #[inline(always)]
    fn root(self) -> f32 {
        self.sqrt()
    }
    #[inline(always)]
    fn to_whole_bits(self) -> i32 {
        self.to_bits() as i32
    }
    #[inline(always)]
    fn from_whole_bits(bits: i32) -> f32 {
        f32::from_bits(bits as u32)
    }
    #[inline(always)]
    fn from_whole(value: i32) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn is_less(self, other: f32) -> bool {
        self < other
    }
    #[inline(always)]
    fn is_at_most(self, other: f32) -> bool {
        self <= other
    }
    #[inline(always)]
    fn is_equal(self, other: f32) -> bool {
        self == other
    }
    #[inline(always)]
    fn is_unordered(self, other: f32) -> bool {
        self.is_nan() | other.is_nan()
    }
    #[inline(always)]
    fn select(truth: bool, yes: f32, no: f32) -> f32 {
        if truth { yes } else { no }
    }
    #[inline(always)]
    fn at_least(self, bound: f32) -> f32 {
        if self < bound { bound } else { self }
    }
    #[inline(always)]
    fn at_most(self, bound: f32) -> f32 {
        if self > bound { bound } else { self }
    }
    #[inline(always)]
    fn magnitude(self) -> f32 {
        self.abs()
    }
    #[inline(always)]
    fn signed_as(self, sign: f32) -> f32 {
        self.copysign(sign)
    }
}

impl Whole for i32 {
    #[inline(always)]
    fn of(self, value: i32) -> i32 {
        value
    }
    #[inline(always)]
    fn minus(self, other: i32) -> i32 {
        self.wrapping_sub(other)
    }
    #[inline(always)]
    fn and(self, other: i32) -> i32 {
        self & other
    }
    #[inline(always)]
    fn or(self, other: i32) -> i32 {
        self | other
    }
    #[inline(always)]
    fn left<const BITS: u32>(self) -> i32 {
        self << BITS
    }
    #[inline(always)]
    fn right<const BITS: u32>(self) -> i32 {
        self >> BITS
    }
}

/// `c[0] + c[1] x + c[2] x^2 + ...`
#[inline(always)]
fn polynomial<F: Single, const N: usize>(x: F, c: [f32; N]) -> F {
    let mut sum = x.of(c[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = sum.mul_add(x, x.of(c[i]));
    }
    sum
}

/// `(e^r - 1 - r) / r^2` for |r| <= ln 2 / 2.
const EXP_TAIL: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_266, 0.008_368_677, 0.001_382_073_4];

/// Splits `x` into `n ln 2 + r` with |r| <= ln 2 / 2, and returns an integer whose lowest bits are
/// `n + BIAS`, and `e^r - 1`. `x` must be in (-110, 110) or NaN, for which the second result is NaN.
#[inline(always)]
fn reduce_exp<F: Single, const BIAS: i32>(x: F) -> (F::Whole, F) {
    let shift = x.of(TO_INTEGER + BIAS as f32);
    let shifted = x.mul_add(x.of(LOG2_E), shift);
    let n = shifted - shift;
    let r = n.mul_add(x.of(-LN2_LOW), n.mul_add(x.of(-LN2_HIGH), x));
    (shifted.to_whole_bits(), (r * r).mul_add(polynomial(r, EXP_TAIL), r))
}

/// The exponent bias of f32.
const ONE: i32 = 127;

/// 2^n from an integer whose lowest bits are `n + ONE`, for n in -126..=127; zero for n = -127.
#[inline(always)]
fn power_of_two<F: Single>(biased: F::Whole) -> F {
    F::from_whole_bits(biased.left::<23>())
}

/// e^x, within 1.1 ulp; subnormal results included.
#[inline(always)]
pub(crate) fn exp<F: Single>(x: F) -> F {
    let (n, q) = reduce_exp::<F, { 2 * ONE }>(x.at_least(-105.0).at_most(89.0));
    // Two factors, so that neither leaves the normal range if the result is in it. The first product is
    // exact, so `q` may be added to it.
    let half = n.right::<1>();
    let first: F = power_of_two(half);
    q.mul_add(first, first) * power_of_two(n.minus(half))
}

/// e^x for x <= 88, cheaper than [`exp`]: within 1 ulp, and zero from -88 down, which omits all subnormal
/// results.
#[inline(always)]
pub(crate) fn exp_below_88(x: f32) -> f32 {
    // From -88 down n is -127.
    let (n, q) = reduce_exp::<f32, ONE>(x.at_least(-88.0));
    let power: f32 = power_of_two(n);
    q.mul_add(power, power)
}

/// self + e^x for x <= 88, rounded once and cheaper than [`exp_below_88`]. It reduces with a single f32 for
/// ln 2, which is right to 28 bits, so e^x is within 1 ulp near zero, with 2.8e-9 more relative error per
/// unit of distance from zero. Terms far below zero add little to a sum.
#[inline(always)]
pub(crate) fn plus_exp_below_88(sum: f32, x: f32) -> f32 {
    const SHIFT: f32 = TO_INTEGER + ONE as f32;
    // From -88 down n is -127.
    let x = x.at_least(-88.0);
    let shifted = x.mul_add(LOG2_E, SHIFT);
    let r = (shifted - SHIFT).mul_add(-LN_2, x);
    let power: f32 = power_of_two(shifted.to_whole_bits());
    let [a, b, c, d, e] = EXP_TAIL;
    polynomial(r, [1.0, 1.0, a, b, c, d, e]).mul_add(power, sum)
}

/// e^x - 1, accurate near zero.
#[inline(always)]
pub(crate) fn exp_m1(x: f32) -> f32 {
    let (n, q) = reduce_exp::<f32, { ONE - 1 }>(x.clamp(-30.0, 89.0));
    let half: f32 = power_of_two(n);
    let value = 2.0 * half.mul_add(q, half - 0.5);
    // This also restores the sign of zero.
    value.copysign(x)
}

/// Natural logarithm.
#[inline(always)]
pub(crate) fn ln<F: Single>(x: F) -> F {
    let (zero, infinity) = (x.of(0.0), x.of(f32::INFINITY));
    let is_subnormal = x.is_less(x.of(f32::MIN_POSITIVE));
    let bits = F::select(is_subnormal, x * x.of(8_388_608.0), x).to_whole_bits();
    // The exponent that leaves a mantissa in [sqrt(1/2), sqrt(2)).
    let exponent = bits.minus(bits.of(0x3f35_04f3)).right::<23>();
    let f = F::from_whole_bits(bits.minus(exponent.left::<23>())) - x.of(1.0);
    let e = F::from_whole(exponent) - F::select(is_subnormal, x.of(23.0), zero);
    let tail = polynomial(
        f,
        [
            0.333_333_3,
            -0.249_999_97,
            0.200_007_16,
            -0.166_678_02,
            0.142_490_58,
            -0.124_256_87,
            0.116_854_2,
            -0.114_797_34,
            0.069_716_12,
        ],
    );
    let square = f * f;
    let y = square.mul_add(x.of(-0.5), (f * square).mul_add(tail, e * x.of(LN2_LOW)));
    let value = e.mul_add(x.of(LN2_HIGH), f + y);
    let value = F::select(x.is_equal(infinity), x, value);
    let value = F::select(x.is_equal(zero), x.of(f32::NEG_INFINITY), value);
    F::select(zero.is_at_most(x), value, x.of(f32::NAN))
}

/// ln(1 + x), accurate near zero.
#[inline(always)]
pub(crate) fn ln_1p(x: f32) -> f32 {
    let u = 1.0 + x;
    // The part of x that the addition rounded away, to first order.
    let lost = ((u - 1.0) - x) / u;
    let lost = if u > 0.0 && u < f32::INFINITY { lost } else { 0.0 };
    let value = ln(u) - lost;
    if x == 0.0 { x } else { value }
}

/// Hyperbolic tangent: `q / (q + 2)` with `q = e^2|x| - 1`, never above one. Within 2.2 ulp.
#[inline(always)]
pub(crate) fn tanh<F: Single>(x: F) -> F {
    let (z, two) = (x.magnitude(), x.of(2.0));
    // Above 9.5 the result is one.
    let (n, r) = reduce_exp::<F, ONE>(two * z.at_most(9.5));
    let power: F = power_of_two(n);
    let q = r.mul_add(power, power - x.of(1.0));
    (q / (q + two)).signed_as(x)
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(crate) fn logistic<F: Single>(x: F) -> F {
    // Above 80 the sum rounds to one. Half of the power is in range whenever the power is, and doubling is
    // exact.
    let (n, q) = reduce_exp::<F, { ONE - 1 }>(-x.at_least(-89.0).at_most(80.0));
    let half: F = power_of_two(n);
    let one = x.of(1.0);
    one / q.mul_add(half, half).mul_add(x.of(2.0), one)
}

/// The larger number; NaN if either is; +0 is above -0.
#[inline(always)]
pub(crate) fn maximum<F: Single>(x: F, y: F) -> F {
    // Equal numbers have equal bits, except the two zeros, whose common bits are those of +0.
    let tie = F::from_whole_bits(x.to_whole_bits().and(y.to_whole_bits()));
    let larger = F::select(x.is_equal(y), tie, F::select(y.is_less(x), x, y));
    F::select(x.is_unordered(y), x + y, larger)
}

/// The smaller number; NaN if either is; -0 is below +0.
#[inline(always)]
pub(crate) fn minimum<F: Single>(x: F, y: F) -> F {
    let tie = F::from_whole_bits(x.to_whole_bits().or(y.to_whole_bits()));
    let smaller = F::select(x.is_equal(y), tie, F::select(x.is_less(y), x, y));
    F::select(x.is_unordered(y), x + y, smaller)
}

/// The error function.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let z = x.abs();
    let t = z * z;
    // The coefficient of z is 1.128..: its integer part is added separately, so that the rest rounds finely.
    let series = polynomial(
        t,
        [
            0.128_379_17,
            -0.376_126_38,
            0.112_837_83,
            -0.026_865_43,
            0.005_221_032,
            -0.000_848_408_04,
            0.000_112_659_59,
            -9.667_045e-6,
        ],
    );
    let small = z.mul_add(series, z);
    // Above 4 the result rounds to one; `min` would lose a NaN, the comparison keeps it.
    let w = if z > 4.0 { 4.0 } else { z };
    let u = 1.0 / w.mul_add(0.5, 1.0);
    let scaled = polynomial(
        u,
        [
            0.000_605_118_4,
            0.273_634_34,
            0.330_757_13,
            0.101_495_41,
            0.403_495_05,
            -0.057_065_2,
            -0.053_630_428,
        ],
    );
    let large = exp(-w * w).mul_add(-scaled, 1.0);
    (if z < 1.0 { small } else { large }).copysign(x)
}

/// The inverse of the error function on (-1, 1), in double precision: Winitzki's approximation, then Halley
/// steps on `erf(x) - y`.
pub(crate) fn erf_inv(y: f64) -> f64 {
    let magnitude = y.abs();
    if magnitude == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    if magnitude == 0.0 || magnitude.is_nan() || magnitude > 1.0 {
        return if magnitude == 0.0 { y } else { f64::NAN };
    }
    let a = 0.147;
    let log = ((1.0 - magnitude) * (1.0 + magnitude)).ln();
    let t = 2.0 / (std::f64::consts::PI * a) + 0.5 * log;
    let mut x = ((t * t - log / a).sqrt() - t).sqrt();
    for _ in 0..4 {
        x = nearer_erf_inv(x, magnitude);
    }
    x.copysign(y)
}

/// One Halley step on `erf(x) - y` for y in (0, 1): cubes the relative error, roughly.
pub(crate) fn nearer_erf_inv(x: f64, y: f64) -> f64 {
    // Near one the difference is taken between the complements, which are exact there.
    let error = if y > 0.5 { (1.0 - y) - libm::erfc(x) } else { libm::erf(x) - y };
    let step = error / (std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp());
    if step.is_finite() { x - step / (1.0 + x * step) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::KernelOptions;

    /// The error in ulps of the exact value.
    fn ulp(found: f32, right: f64) -> f64 {
        let rounded = right as f32;
        if found == rounded || (found.is_nan() && rounded.is_nan()) {
            return 0.0;
        }
        let spacing =
            f64::from(rounded.abs().max(f32::MIN_POSITIVE).next_up() - rounded.abs().max(f32::MIN_POSITIVE));
        (f64::from(found) - right).abs() / spacing
    }

    /// Floats of all magnitudes and both signs, denser near one, plus the special ones.
    fn arguments() -> impl Iterator<Item = f32> {
        let patterns = (0..u32::MAX).step_by(60_013).map(f32::from_bits);
        let line = (-200_000..200_000).map(|i| i as f32 * 0.001_03);
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, -1.0, 89.0, -105.0, 88.72284];
        patterns.chain(line).chain(special)
    }

    fn worst(name: &str, ours: fn(f32) -> f32, right: fn(f64) -> f64, bound: f64) {
        worst_of(name, ours, right, |_| bound);
    }

    /// The worst error relative to a bound for each argument.
    fn worst_of(name: &str, ours: fn(f32) -> f32, right: fn(f64) -> f64, bound: impl Fn(f32) -> f64) {
        let mut worst = (0.0, 0.0);
        for x in arguments() {
            let error = ulp(ours(x), right(f64::from(x)));
            assert!(!error.is_nan(), "{name}({x:e}) = {:e}, not {:e}", ours(x), right(f64::from(x)));
            assert!(error <= bound(x), "{name}: {error} ulp at {x:e}");
            if error > worst.0 {
                worst = (error, x);
            }
        }
        println!("{name}: {:.2} ulp at {:e}", worst.0, worst.1);
    }

    #[test]
    fn single_precision_functions_stay_within_a_few_ulp() {
        worst("exp", exp, f64::exp, 1.5);
        worst("exp_m1", exp_m1, f64::exp_m1, 2.0);
        worst("ln", ln, f64::ln, 1.5);
        worst("ln_1p", ln_1p, f64::ln_1p, 2.0);
        worst("tanh", tanh, f64::tanh, 2.2);
        worst("erf", erf, libm::erf, 2.0);
    }

    #[test]
    fn exponentials_below_88_are_right_until_they_vanish() {
        let ours = |x: f32| exp_below_88(x.clamp(-87.0, 88.0));
        worst("exp_below_88", ours, |x| x.clamp(-87.0, 88.0).exp(), 1.0);
        for x in (0..1_000_000).map(|i| -87.0 - i as f32 * 1e-5).chain([f32::MIN, f32::NEG_INFINITY]) {
            let error = f64::from(exp_below_88(x)) - f64::exp(f64::from(x));
            assert!(error.abs() < f64::from(f32::MIN_POSITIVE), "{x:e}");
            assert!(x > -88.0 || exp_below_88(x).to_bits() == 0, "{x:e}");
        }
    }

    #[test]
    fn exponentials_that_are_summed_are_right_until_they_vanish() {
        let ours = |x: f32| plus_exp_below_88(0.0, x.clamp(-87.0, 88.0));
        // One ulp is a relative error of at least 2^-24.
        let bound = |x: f32| 1.0 + f64::from(x.abs()).min(88.0) * 2.8e-9 * 2f64.powi(24);
        worst_of("plus_exp_below_88", ours, |x| x.clamp(-87.0, 88.0).exp(), bound);
        for x in (0..1_000_000).map(|i| 3.0 - i as f32 * 1e-4).chain([f32::MIN, f32::NEG_INFINITY]) {
            let sum = plus_exp_below_88(0.25, x);
            assert!(ulp(sum, 0.25 + f64::from(x).exp()) <= 2.0, "{x:e}");
            assert!(x > -88.0 || plus_exp_below_88(0.0, x).to_bits() == 0, "{x:e}");
        }
    }

    #[test]
    fn the_logistic_function_has_the_bits_of_its_definition() {
        for x in arguments().chain((0..400_000).map(|i| i as f32 * 1e-3 - 200.0)) {
            let (found, right) = (logistic(x), 1.0 / (1.0 + exp(-x)));
            assert!(
                found.to_bits() == right.to_bits() || (found.is_nan() && right.is_nan()),
                "{x:e}: {found:e}, not {right:e}"
            );
        }
    }

    #[test]
    fn tanh_stays_within_one() {
        assert!(arguments().all(|x| x.is_nan() || tanh(x).abs() <= 1.0));
    }

    #[test]
    fn wide_vectors_give_the_bits_of_single_numbers() {
        use crate::unary::{Unary, unary};
        use crate::view::{View, ViewMut};
        let x: Vec<f32> = arguments().collect();
        let mut y = vec![0f32; x.len()];
        let functions: [(Unary, fn(f32) -> f32); 7] = [
            (Unary::Exp, exp),
            (Unary::Expm1, exp_m1),
            (Unary::Log, ln),
            (Unary::Log1p, ln_1p),
            (Unary::Tanh, tanh),
            (Unary::Logistic, logistic),
            (Unary::Erf, erf),
        ];
        for (op, one) in functions {
            unary(
                KernelOptions::native(),
                op,
                &View::of(&x, &[x.len()]),
                &mut ViewMut::of(&mut y, &[x.len()]),
            );
            for (&x, &y) in x.iter().zip(&y) {
                // NaNs may differ in their payload.
                assert!(y.to_bits() == one(x).to_bits() || (y.is_nan() && one(x).is_nan()), "{op:?}({x:e})");
            }
        }
    }

    #[test]
    fn signs_of_zero_are_kept() {
        for f in [exp_m1, ln_1p, tanh, erf] {
            assert_eq!(f(-0.0).to_bits(), (-0.0f32).to_bits());
            assert_eq!(f(0.0).to_bits(), 0);
        }
    }

    #[test]
    fn erf_inv_undoes_erf() {
        for i in 1..400 {
            let x = f64::from(i) * 0.012;
            let y = libm::erf(x);
            // The argument itself is only known to half an ulp, which near one is a large difference in x.
            let tolerance = 1e-14 + 2e-16 / (std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp());
            assert!((erf_inv(y) - x).abs() <= tolerance * (1.0 + x), "{x}: {}", erf_inv(y));
            assert_eq!(erf_inv(-y), -erf_inv(y));
        }
        assert_eq!(erf_inv(1.0), f64::INFINITY);
        assert!(erf_inv(1.5).is_nan());
    }
}
