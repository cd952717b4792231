//! Vectorised inverse error function with a known error bound. A caller that needs correct rounding checks
//! whether both ends of the error interval round to the same value, and computes the few other elements
//! slowly.
//!
//! Method: piecewise Taylor series. Each octave of `1 - |x|` is split into pieces of equal width, each with a
//! series around its middle. The exponent and the first mantissa bits of `1 - |x|` are the index into the
//! table of series.

use crate::math::nearer_erf_inv;
use crate::native::levels::multiversion;
use crate::options::KernelOptions;
use std::f64::consts::FRAC_2_SQRT_PI;

/// Base-2 logarithm of the pieces per octave.
const PIECE_BITS: u32 = 7;
/// Octaves that 24-bit numbers reach.
const OCTAVES: i32 = 24;
/// Table rows: the octaves that five bits of an exponent distinguish.
const ROWS: usize = 32 << PIECE_BITS;
/// Mantissa bits below those that select the piece.
const LOW_BITS: u32 = 52 - PIECE_BITS;
/// Numbers whose table rows are looked up before any series is evaluated.
const LOOK_UP: usize = 64;

/// Taylor series of degree 4 in four words. The last word is the third coefficient, and its lower half is the
/// upper half of the fourth.
type Series = [f64; 4];

/// The table of series.
pub struct InverseErf {
    rows: Box<[Series; ROWS]>,
}

impl InverseErf {
    /// Error bound as (relative, absolute) terms, which add: at least twice the largest error that occurs.
    pub const ERROR: (f64, f64) = (1.0 / (1u64 << 41) as f64, 1.0 / (1u64 << 46) as f64);

    /// Computes the table, each series from the value of its neighbour at its middle.
    pub fn new() -> InverseErf {
        let mut rows = Box::new([[0.0; 4]; ROWS]);
        let (mut at, mut series) = (1.0, [0.0, -1.0 / FRAC_2_SQRT_PI, 0.0, 0.0]);
        for (octave, piece) in
            (1..=OCTAVES).flat_map(|octave| (0..1 << PIECE_BITS).rev().map(move |piece| (octave, piece)))
        {
            let middle = 0.5f64.powi(octave) * (1.0 + (f64::from(piece) + 0.5) / f64::from(1 << PIECE_BITS));
            let y = nearer_erf_inv(sum(series, middle - at), 1.0 - middle);
            // With u the first derivative, the n-th is u^n P(y), where P becomes P' + 2 n y P. As a function
            // of 1 - |x|, odd derivatives change sign.
            let (u, s) = ((y * y).exp() / FRAC_2_SQRT_PI, y * y);
            let cubic = -u.powi(3) * (2.0 + 8.0 * s) / 6.0;
            let quartic = u.powi(4) * y * (28.0 + 48.0 * s) / 24.0;
            // The upper half is chosen so that the whole word is as near to the third coefficient as
            // possible.
            let low = quartic.to_bits() >> 32;
            let both = (cubic.to_bits() - low + (1 << 31)) >> 32 << 32 | low;
            (at, series) = (middle, [y, -u, u * u * y, f64::from_bits(both)]);
            rows[row(middle)] = series;
        }
        InverseErf { rows }
    }

    /// Replaces each number by its inverse error function, to within [`InverseErf::ERROR`]. The numbers are
    /// multiples of 2^-24 in (-1, 1), without 0.
    pub fn apply(&self, options: KernelOptions, numbers: &mut [f64]) {
        apply(options, &self.rows, numbers);
    }
}

impl Default for InverseErf {
    fn default() -> Self {
        InverseErf::new()
    }
}

/// The table index for a distance from one.
#[inline(always)]
fn row(distance: f64) -> usize {
    (distance.to_bits() >> LOW_BITS) as usize % ROWS
}

/// The value of a series at a distance from its middle.
#[inline(always)]
fn sum([a, b, c, de]: Series, h: f64) -> f64 {
    let e = f64::from_bits(de.to_bits() << 32);
    a + h * (b + h * (c + h * (de + h * e)))
}

multiversion! {
    fn apply[](rows: &[Series; ROWS], numbers: &mut [f64]) {
        let mut found = [[0.0; 4]; LOOK_UP];
        for numbers in numbers.chunks_mut(LOOK_UP) {
            for (series, x) in found.iter_mut().zip(&*numbers) {
                *series = rows[row(1.0 - x.abs())];
            }
            for (x, series) in numbers.iter_mut().zip(&found) {
                let distance = 1.0 - x.abs();
                let middle = distance.to_bits() >> LOW_BITS << LOW_BITS | 1 << (LOW_BITS - 1);
                *x = sum(*series, distance - f64::from_bits(middle)).copysign(*x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::erf_inv;

    #[test]
    fn values_are_within_half_the_bound_at_the_ends_of_every_piece_and_near_zero() {
        let (relative, absolute) = InverseErf::ERROR;
        let grid = 0.5f64.powi(OCTAVES);
        let mut numbers: Vec<f64> = (1..=OCTAVES)
            .flat_map(|octave| (0..=8 << PIECE_BITS).map(move |eighth| (octave, f64::from(eighth))))
            .map(|(octave, eighth)| 0.5f64.powi(octave) * (1.0 + eighth / f64::from(8 << PIECE_BITS)))
            .flat_map(|distance| [distance - grid, distance, distance + grid])
            .map(|distance| 1.0 - (distance / grid).round().max(1.0) * grid)
            .chain((1..1000).map(|n| f64::from(n) * grid))
            .filter(|&x| x > 0.0 && x < 1.0)
            .collect();
        numbers.extend(numbers.clone().iter().map(|x| -x));
        let mut values = numbers.clone();
        InverseErf::new().apply(KernelOptions::native(), &mut values);
        for (x, y) in numbers.iter().zip(values) {
            let exact = erf_inv(*x);
            let bound = (relative * exact.abs() + absolute) / 2.0;
            assert!((y - exact).abs() <= bound, "{x}: {y} for {exact}, {:e} of {bound:e}", y - exact);
        }
    }
}
