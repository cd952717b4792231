//! Special functions of real numbers that the standard library lacks.

use std::f64::consts::PI;

/// `psi(x)`, the derivative of the logarithm of the gamma function; NaN at its poles.
pub(super) fn digamma(x: f64) -> f64 {
    if x <= 0.0 && x.fract() == 0.0 {
        return f64::NAN;
    }
    if x < 0.0 {
        return digamma(1.0 - x) - PI / (PI * x.rem_euclid(1.0)).tan();
    }
    // The recurrence up to where the asymptotic series is exact.
    let (mut large, mut sum) = (x, 0.0);
    while large < 12.0 {
        sum -= 1.0 / large;
        large += 1.0;
    }
    let square = 1.0 / (large * large);
    let series = BERNOULLI.iter().enumerate().rev();
    let tail = series.fold(0.0, |tail, (k, b)| (tail + b / (2 * k + 2) as f64) * square);
    sum + large.ln() - 0.5 / large - tail
}

/// The Bernoulli numbers B_2, B_4, ..
const BERNOULLI: [f64; 12] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
    43867.0 / 798.0,
    -174611.0 / 330.0,
    854513.0 / 138.0,
    -236364091.0 / 2730.0,
];

/// The Hurwitz zeta function, the sum of `(q + k)^-s` over k, by Euler and Maclaurin.
pub(super) fn zeta(s: f64, q: f64) -> f64 {
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s < 1.0 || s.is_nan() || q.is_nan() {
        return f64::NAN;
    }
    if q <= 0.0 && q.fract() == 0.0 {
        // Poles, with one sign for even powers only.
        return if s % 2.0 == 0.0 { f64::INFINITY } else { f64::NAN };
    }
    if q < 0.0 && s.fract() != 0.0 {
        return f64::NAN;
    }
    let (mut at, mut sum) = (q, 0.0);
    while at < 12.0 {
        sum += at.powf(-s);
        at += 1.0;
    }
    let power = at.powf(-s);
    sum += power * at / (s - 1.0) + power / 2.0;
    let (mut factor, mut scale) = (s, power / at);
    for (k, b) in BERNOULLI.iter().enumerate() {
        // factor is s (s + 1) .. (s + 2k) / (2k + 2)!.
        let order = (2 * k + 2) as f64;
        factor /= if k == 0 { 2.0 } else { order * (order - 1.0) };
        let term = b * factor * scale;
        sum += term;
        if term.abs() <= f64::EPSILON * sum.abs() / 16.0 {
            break;
        }
        factor *= (s + order - 1.0) * (s + order);
        scale /= at * at;
    }
    sum
}

/// The n-th derivative of digamma.
pub(super) fn polygamma(n: f64, x: f64) -> f64 {
    if n == 0.0 {
        return digamma(x);
    }
    if n < 0.0 || n.fract() != 0.0 {
        return f64::NAN;
    }
    let sign = if n % 2.0 == 0.0 { -1.0 } else { 1.0 };
    sign * libm::tgamma(n + 1.0) * zeta(n + 1.0, x)
}

/// `ln |gamma(x)|`, infinite at its poles.
pub(super) fn log_gamma(x: f64) -> f64 {
    if x <= 0.0 && x.fract() == 0.0 { f64::INFINITY } else { libm::lgamma(x) }
}

/// `e^-|x| I_1(x)`, with the modified Bessel function of the first kind and order 1.
pub(super) fn bessel_i1e(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 30.0 {
        // All terms are positive.
        let (half, mut k) = (size / 2.0, 1.0);
        let (mut term, mut sum) = (half, half);
        while term > sum * f64::EPSILON / 8.0 {
            term *= half * half / (k * (k + 1.0));
            sum += term;
            k += 1.0;
        }
        sum * (-size).exp()
    } else {
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 1..24 {
            let odd = f64::from(2 * k - 1);
            term *= (odd * odd - 4.0) / (8.0 * f64::from(k) * size);
            sum += term;
        }
        sum / (2.0 * PI * size).sqrt()
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64, what: &str) {
        assert!((found - expected).abs() <= 1e-13 * expected.abs(), "{what}: {found}, expected {expected}");
    }

    #[test]
    fn functions_have_their_known_values() {
        const EULER: f64 = 0.577_215_664_901_532_9;
        const APERY: f64 = 1.202_056_903_159_594_2;
        close(digamma(1.0), -EULER, "psi(1)");
        close(digamma(0.5), -EULER - 2.0 * 2f64.ln(), "psi(1/2)");
        close(digamma(-0.5), 2.0 - EULER - 2.0 * 2f64.ln(), "psi(-1/2)");
        assert!(digamma(-2.0).is_nan() && digamma(0.0).is_nan());
        close(zeta(2.0, 1.0), PI * PI / 6.0, "zeta(2)");
        close(zeta(3.0, 1.0), APERY, "zeta(3)");
        close(zeta(2.0, 3.0), PI * PI / 6.0 - 1.25, "zeta(2, 3)");
        close(zeta(2.0, -0.5), PI * PI / 2.0 + 4.0, "zeta(2, -1/2)");
        close(polygamma(1.0, 0.5), PI * PI / 2.0, "psi'(1/2)");
        close(polygamma(2.0, 1.0), -2.0 * APERY, "psi''(1)");
        assert!(polygamma(0.5, 1.0).is_nan() && polygamma(1.0, 0.0).is_infinite());
        close(log_gamma(0.5), PI.sqrt().ln(), "lgamma(1/2)");
        assert_eq!(log_gamma(-3.0), f64::INFINITY);
        close(bessel_i1e(1.0), 0.565_159_103_992_485 * (-1f64).exp(), "i1e(1)");
        assert_eq!(bessel_i1e(-2.0), -bessel_i1e(2.0));
        // Both expansions agree where they meet.
        close(bessel_i1e(29.999_999_999_999_9), bessel_i1e(30.0), "i1e(30)");
    }

    #[test]
    fn recurrences_hold() {
        for x in [0.1, 0.7, 1.3, 4.2, 11.5, 40.0] {
            close(digamma(x + 1.0) + 1.0, digamma(x) + 1.0 / x + 1.0, "psi");
            close(zeta(2.5, x), zeta(2.5, x + 1.0) + x.powf(-2.5), "zeta");
            close(polygamma(3.0, x), polygamma(3.0, x + 1.0) + 6.0 / x.powi(4), "psi'''");
        }
    }
}
