//! Functions of complex numbers, as pairs of a real and an imaginary part, for the interpreter.
//!
//! Branch cuts and the values at infinities follow C99 (annex G) and Kahan, "Branch cuts for complex
//! elementary functions" (1987).

use std::f64::consts::{FRAC_PI_2, LN_2, PI};

/// Real and imaginary part.
pub(crate) type Complex = [f64; 2];

pub(crate) fn add([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a + c, b + d]
}

pub(crate) fn subtract([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a - c, b - d]
}

pub(crate) fn multiply([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

fn scale([a, b]: Complex, factor: f64) -> Complex {
    [a * factor, b * factor]
}

/// `i z`.
fn times_i([a, b]: Complex) -> Complex {
    [-b, a]
}

/// `-i z`.
fn times_minus_i([a, b]: Complex) -> Complex {
    [b, -a]
}

pub(crate) fn conjugate([a, b]: Complex) -> Complex {
    [a, -b]
}

/// By Smith's method, which neither overflows nor underflows in between.
pub(crate) fn divide([a, b]: Complex, [c, d]: Complex) -> Complex {
    if (c, d) == (0.0, 0.0) {
        return [a / c.abs(), b / c.abs()];
    }
    if c.is_infinite() && d.is_finite() || d.is_infinite() && c.is_finite() {
        let (c, d) = if c.is_infinite() { (c.signum(), 0.0 * d) } else { (0.0 * c, d.signum()) };
        return [0.0 * (a * c + b * d), 0.0 * (b * c - a * d)];
    }
    if c.abs() >= d.abs() {
        let ratio = d / c;
        let whole = c + d * ratio;
        [(a + b * ratio) / whole, (b - a * ratio) / whole]
    } else {
        let ratio = c / d;
        let whole = c * ratio + d;
        [(a * ratio + b) / whole, (b * ratio - a) / whole]
    }
}

pub(crate) fn absolute([a, b]: Complex) -> f64 {
    a.hypot(b)
}

/// `z / |z|`, and 0 for 0.
pub(crate) fn sign(z: Complex) -> Complex {
    if z[0].is_nan() || z[1].is_nan() {
        return [f64::NAN, f64::NAN];
    }
    let size = absolute(z);
    if size == 0.0 { [0.0, 0.0] } else { [z[0] / size, z[1] / size] }
}

pub(crate) fn exponential([a, b]: Complex) -> Complex {
    if b == 0.0 {
        return [a.exp(), b];
    }
    if a == f64::NEG_INFINITY && !b.is_finite() {
        return [0.0, 0.0];
    }
    if a == f64::INFINITY && !b.is_finite() {
        return [a, f64::NAN];
    }
    // In two steps: the product may be finite where the exponential is not.
    let (half, (sine, cosine)) = ((a / 2.0).exp(), b.sin_cos());
    [half * cosine * half, half * sine * half]
}

pub(crate) fn exponential_minus_one([a, b]: Complex) -> Complex {
    let half = (b / 2.0).sin();
    let re = a.exp_m1() * b.cos() - 2.0 * half * half;
    [re, if b == 0.0 { b } else { exponential([a, b])[1] }]
}

pub(crate) fn log(z: Complex) -> Complex {
    let (large, small) = (z[0].abs().max(z[1].abs()), z[0].abs().min(z[1].abs()));
    // Near the unit circle the logarithm of the size would lose digits.
    let re = match large {
        _ if (0.5..2.0).contains(&large) => (((large - 1.0) * (large + 1.0)) + small * small).ln_1p() / 2.0,
        _ if large > 1e300 && large.is_finite() => absolute(scale(z, 0.25)).ln() + 2.0 * LN_2,
        _ => absolute(z).ln(),
    };
    [re, z[1].atan2(z[0])]
}

pub(crate) fn log_plus_one([a, b]: Complex) -> Complex {
    if a.abs() > 0.5 || b.abs() > 0.5 {
        return log([1.0 + a, b]);
    }
    [(a * (2.0 + a) + b * b).ln_1p() / 2.0, b.atan2(1.0 + a)]
}

pub(crate) fn square_root([a, b]: Complex) -> Complex {
    if b.is_infinite() {
        return [f64::INFINITY, b];
    }
    if a.is_infinite() {
        let rest = if b.is_nan() { b } else { 0.0f64.copysign(b) };
        return if a > 0.0 { [a, rest] } else { [rest.abs(), f64::INFINITY.copysign(b)] };
    }
    if (a, b) == (0.0, 0.0) {
        return [0.0, b];
    }
    // Scaled so that the size neither overflows nor loses digits.
    let (factor, root) = match a.abs().max(b.abs()) {
        large if large > 1e150 => (1.0 / 16.0, 4.0),
        small if small < 1e-150 => (2f64.powi(200), 2f64.powi(-100)),
        _ => (1.0, 1.0),
    };
    let (a, b) = (a * factor, b * factor);
    let half = ((a.abs() + a.hypot(b)) / 2.0).sqrt();
    let other = b.abs() / (2.0 * half);
    let [re, im] = if a >= 0.0 { [half, other] } else { [other, half] };
    [re * root, (im * root).copysign(b)]
}

pub(crate) fn reciprocal_root(z: Complex) -> Complex {
    if z == [0.0, 0.0] {
        return [f64::INFINITY, f64::NAN];
    }
    divide([1.0, 0.0], square_root(z))
}

pub(crate) fn cube_root(z: Complex) -> Complex {
    if z == [0.0, 0.0] { z } else { exponential(scale(log(z), 1.0 / 3.0)) }
}

/// `z^w`.
pub(crate) fn power(z: Complex, w: Complex) -> Complex {
    if w == [0.0, 0.0] {
        return [1.0, 0.0];
    }
    if z == [0.0, 0.0] {
        return if w[0] > 0.0 { [0.0, 0.0] } else { [f64::NAN, f64::NAN] };
    }
    let whole = w[1] == 0.0 && w[0].fract() == 0.0 && w[0].abs() <= 64.0;
    if whole && z[0].is_finite() && z[1].is_finite() {
        let mut result = [1.0, 0.0];
        (0..w[0].abs() as usize).for_each(|_| result = multiply(result, z));
        return if w[0] < 0.0 { divide([1.0, 0.0], result) } else { result };
    }
    exponential(multiply(w, log(z)))
}

pub(crate) fn hyperbolic_sine([a, b]: Complex) -> Complex {
    if b == 0.0 {
        return [a.sinh(), b];
    }
    // Beyond this the cosine and the sine of the same argument are equal, and may overflow.
    if a.abs() > 40.0 && b.is_finite() {
        let [re, im] = exponential([a.abs() - LN_2, b]);
        return [re.copysign(re * a), im];
    }
    let part = |size: f64, turn: f64| if size == 0.0 { size } else { size * turn };
    [part(a.sinh(), b.cos()), a.cosh() * b.sin()]
}

pub(crate) fn hyperbolic_cosine([a, b]: Complex) -> Complex {
    if b == 0.0 {
        return [a.cosh(), b * a.signum()];
    }
    if a.abs() > 40.0 && b.is_finite() {
        let [re, im] = exponential([a.abs() - LN_2, b]);
        return [re, im * a.signum()];
    }
    let part = |size: f64, turn: f64| if size == 0.0 { size } else { size * turn };
    [a.cosh() * b.cos(), part(a.sinh(), b.sin())]
}

pub(crate) fn hyperbolic_tangent([a, b]: Complex) -> Complex {
    if a.abs() > 20.0 {
        let turn = if b.is_finite() { (2.0 * b).sin() } else { 0.0 };
        return [1f64.copysign(a), 4.0 * turn * (-2.0 * a.abs()).exp()];
    }
    // Kahan's form: t = tan b, s = sinh a.
    let (tangent, sine) = (b.tan(), a.sinh());
    let (beta, rho) = (1.0 + tangent * tangent, (1.0 + sine * sine).sqrt());
    if tangent.is_infinite() {
        return [rho / sine, 1.0 / tangent];
    }
    let whole = 1.0 + beta * sine * sine;
    [beta * rho * sine / whole, tangent / whole]
}

pub(crate) fn sine(z: Complex) -> Complex {
    times_minus_i(hyperbolic_sine(times_i(z)))
}

pub(crate) fn cosine(z: Complex) -> Complex {
    hyperbolic_cosine(times_i(z))
}

pub(crate) fn tangent(z: Complex) -> Complex {
    times_minus_i(hyperbolic_tangent(times_i(z)))
}

pub(crate) fn logistic([a, b]: Complex) -> Complex {
    divide([1.0, 0.0], add([1.0, 0.0], exponential([-a, -b])))
}

/// Beyond this, `sqrt(1 - z^2)` is `i z` up to rounding, and squares may overflow.
const LARGE: f64 = 1e8;

pub(crate) fn arc_sine(z: Complex) -> Complex {
    let [a, b] = z;
    if absolute(z) > LARGE {
        let re = a.atan2(b.abs());
        return [re, (log(scale(z, 0.5))[0] + 2.0 * LN_2).copysign(b)];
    }
    let (minus, plus) = (square_root([1.0 - a, -b]), square_root([1.0 + a, b]));
    let re = a.atan2(multiply(minus, plus)[0]);
    [re, (multiply(conjugate(minus), plus)[1]).asinh()]
}

pub(crate) fn arc_cosine(z: Complex) -> Complex {
    let [a, b] = z;
    if absolute(z) > LARGE {
        return [b.abs().atan2(a), -(log(scale(z, 0.5))[0] + 2.0 * LN_2).copysign(b)];
    }
    let (minus, plus) = (square_root([1.0 - a, -b]), square_root([1.0 + a, b]));
    [2.0 * minus[0].atan2(plus[0]), multiply(conjugate(plus), minus)[1].asinh()]
}

pub(crate) fn arc_hyperbolic_sine(z: Complex) -> Complex {
    times_minus_i(arc_sine(times_i(z)))
}

pub(crate) fn arc_hyperbolic_cosine(z: Complex) -> Complex {
    let [a, b] = z;
    if absolute(z) > LARGE {
        return [log(scale(z, 0.5))[0] + 2.0 * LN_2, b.atan2(a)];
    }
    let (minus, plus) = (square_root([a - 1.0, b]), square_root([a + 1.0, b]));
    [multiply(conjugate(minus), plus)[0].asinh(), 2.0 * minus[1].atan2(plus[0])]
}

pub(crate) fn arc_hyperbolic_tangent(z: Complex) -> Complex {
    let [a, b] = z;
    if absolute(z) > LARGE {
        let im = if b.is_nan() { b } else { FRAC_PI_2.copysign(b) };
        return [divide([1.0, 0.0], z)[0], im];
    }
    // re = log1p(4a / ((1 - a)^2 + b^2)) / 4 with the sign of a.
    let size = a.abs();
    let gap = (1.0 - size) * (1.0 - size) + b * b;
    let re = ((4.0 * size / gap).ln_1p() / 4.0).copysign(a);
    let im = (2.0 * b).atan2((1.0 - size) * (1.0 + size) - b * b) / 2.0;
    [re, if b == 0.0 && size <= 1.0 { b } else { im }]
}

pub(crate) fn arc_tangent(z: Complex) -> Complex {
    times_minus_i(arc_hyperbolic_tangent(times_i(z)))
}

/// The angle of a number.
pub(crate) fn turn(part: usize, parts: usize) -> Complex {
    let angle = 2.0 * PI * (part % parts) as f64 / parts as f64;
    [angle.cos(), angle.sin()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> impl Iterator<Item = Complex> {
        let line = [-3.5, -1.0, -0.3, -1e-5, 1e-5, 0.4, 1.0, 2.25];
        line.into_iter().flat_map(move |a| line.into_iter().map(move |b| [a, b]))
    }

    fn close(found: Complex, expected: Complex, what: &str) {
        let gap = absolute(subtract(found, expected));
        assert!(gap <= 1e-11 * absolute(expected).max(1.0), "{what}: {found:?}, expected {expected:?}");
    }

    #[test]
    fn inverse_functions_undo_each_other() {
        let pairs: [(fn(Complex) -> Complex, fn(Complex) -> Complex, &str); 11] = [
            (exponential, log, "log"),
            (exponential_minus_one, log_plus_one, "log1p"),
            (|z| multiply(z, z), square_root, "sqrt"),
            (|z| divide([1.0, 0.0], multiply(z, z)), reciprocal_root, "rsqrt"),
            (|z| multiply(z, multiply(z, z)), cube_root, "cbrt"),
            (sine, arc_sine, "asin"),
            (cosine, arc_cosine, "acos"),
            (tangent, arc_tangent, "atan"),
            (hyperbolic_sine, arc_hyperbolic_sine, "asinh"),
            (hyperbolic_cosine, arc_hyperbolic_cosine, "acosh"),
            (hyperbolic_tangent, arc_hyperbolic_tangent, "atanh"),
        ];
        for (forward, back, what) in pairs {
            for z in points() {
                close(forward(back(z)), z, &format!("{what} of {z:?}"));
            }
        }
    }

    #[test]
    fn functions_agree_on_the_real_line() {
        let pairs: [(fn(Complex) -> Complex, fn(f64) -> f64, &str); 15] = [
            (exponential, f64::exp, "exp"),
            (exponential_minus_one, f64::exp_m1, "expm1"),
            (log, f64::ln, "log"),
            (log_plus_one, f64::ln_1p, "log1p"),
            (square_root, f64::sqrt, "sqrt"),
            (cube_root, f64::cbrt, "cbrt"),
            (hyperbolic_sine, f64::sinh, "sinh"),
            (hyperbolic_cosine, f64::cosh, "cosh"),
            (hyperbolic_tangent, f64::tanh, "tanh"),
            (sine, f64::sin, "sin"),
            (cosine, f64::cos, "cos"),
            (tangent, f64::tan, "tan"),
            (arc_tangent, f64::atan, "atan"),
            (arc_hyperbolic_sine, f64::asinh, "asinh"),
            (logistic, |x| 1.0 / (1.0 + (-x).exp()), "logistic"),
        ];
        for (complex, real, what) in pairs {
            for x in [1e-9, 0.1, 0.75, 1.0, 3.0, 30.0, 1e6] {
                let (found, expected) = (complex([x, 0.0]), real(x));
                let close = found[0] == expected || (found[0] - expected).abs() <= 1e-14 * expected.abs();
                assert!(close, "{what}({x}) = {found:?}, expected {expected}");
            }
        }
        for x in [-0.9, -0.5, 0.2, 1.0] {
            close(arc_sine([x, 0.0]), [x.asin(), 0.0], "asin");
            close(arc_cosine([x, 0.0]), [x.acos(), 0.0], "acos");
        }
    }

    #[test]
    fn quotients_and_powers_undo_products() {
        for z in points() {
            for w in points() {
                close(divide(multiply(z, w), w), z, "divide");
            }
            close(power(z, [3.0, 0.0]), multiply(z, multiply(z, z)), "power");
            close(power(z, [-1.0, 0.0]), divide([1.0, 0.0], z), "power");
            close(multiply(power(z, [0.5, 0.0]), power(z, [0.5, 0.0])), z, "power");
            close(power(z, [0.3, 0.2]), exponential(multiply([0.3, 0.2], log(z))), "power");
        }
        assert_eq!(divide([1e300, 1e300], [1e300, 1e300]), [1.0, 0.0]);
        assert_eq!(power([0.0, 0.0], [0.0, 0.0]), [1.0, 0.0]);
    }

    #[test]
    fn large_numbers_do_not_overflow_on_the_way() {
        assert!((absolute([3e200, 4e200]) / 5e200 - 1.0).abs() < 1e-15);
        close(square_root([1e308, 1e308]), scale(square_root([1e306, 1e306]), 10.0), "sqrt");
        close(log([1e308, 1e308]), [308.0 * 10f64.ln() + LN_2 / 2.0, PI / 4.0], "log");
        close(arc_sine([1e20, 1.0]), [FRAC_PI_2, 2e20f64.ln()], "asin");
        assert_eq!(hyperbolic_tangent([1e4, 1.0])[0], 1.0);
    }
}
