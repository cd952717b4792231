//! The inverse of the error function in bulk, to within a bound that is told: whoever needs every bit looks whether both
//! ends of that interval round alike, and computes the few others slowly.
//!
//! Each octave of `1 - |x|` is cut into even pieces; around the middle of each stands a Taylor series. Where a number's
//! row stands is read off its exponent and the first bits of its mantissa.

use crate::math::nearer_erf_inv;
use crate::native::levels::multiversion;
use crate::options::KernelOptions;
use std::f64::consts::FRAC_2_SQRT_PI;

/// Pieces of an octave, as a power of two.
const PIECE_BITS: u32 = 7;
/// Octaves that numbers of 24 bits reach.
const OCTAVES: i32 = 24;
/// Rows: as many octaves as five bits of an exponent tell apart.
const ROWS: usize = 32 << PIECE_BITS;
/// Bits of a mantissa beneath those that choose the piece.
const LOW_BITS: u32 = 52 - PIECE_BITS;
/// Numbers whose rows are looked up before any series is summed.
const LOOK_UP: usize = 64;

/// A series of degree 4. The last word is the third coefficient, and its lower half the upper half of the fourth.
type Series = [f64; 4];

/// The series of all pieces.
pub struct InverseErf {
    rows: Box<[Series; ROWS]>,
}

impl InverseErf {
    /// Bound on the error, as a share of the value, and beside it: twice the largest there is, at the least.
    pub const ERROR: (f64, f64) = (1.0 / (1u64 << 41) as f64, 1.0 / (1u64 << 46) as f64);

    /// Works the series out, each from what the one before says of its middle.
    pub fn new() -> InverseErf {
        let mut rows = Box::new([[0.0; 4]; ROWS]);
        let (mut at, mut series) = (1.0, [0.0, -1.0 / FRAC_2_SQRT_PI, 0.0, 0.0]);
        for (octave, piece) in
            (1..=OCTAVES).flat_map(|octave| (0..1 << PIECE_BITS).rev().map(move |piece| (octave, piece)))
        {
            let middle = 0.5f64.powi(octave) * (1.0 + (f64::from(piece) + 0.5) / f64::from(1 << PIECE_BITS));
            let y = nearer_erf_inv(sum(series, middle - at), 1.0 - middle);
            // With u the first derivative, the others are u^n P(y): P becomes P' + 2 n y P. Towards 1 - |x|, odd ones turn
            // around.
            let (u, s) = ((y * y).exp() / FRAC_2_SQRT_PI, y * y);
            let cubic = -u.powi(3) * (2.0 + 8.0 * s) / 6.0;
            let quartic = u.powi(4) * y * (28.0 + 48.0 * s) / 24.0;
            // The upper half makes the whole the nearest to the third coefficient that there is.
            let low = quartic.to_bits() >> 32;
            let both = (cubic.to_bits() - low + (1 << 31)) >> 32 << 32 | low;
            (at, series) = (middle, [y, -u, u * u * y, f64::from_bits(both)]);
            rows[row(middle)] = series;
        }
        InverseErf { rows }
    }

    /// Puts for each number the value there, to within [`InverseErf::ERROR`]. The numbers are multiples of 2^-24 between
    /// -1 and 1, both and 0 excluded.
    pub fn apply(&self, options: KernelOptions, numbers: &mut [f64]) {
        apply(options, &self.rows, numbers);
    }
}

impl Default for InverseErf {
    fn default() -> Self {
        InverseErf::new()
    }
}

/// Where the series for this distance from one stands.
#[inline(always)]
fn row(distance: f64) -> usize {
    (distance.to_bits() >> LOW_BITS) as usize % ROWS
}

/// The value at a distance from the middle.
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
