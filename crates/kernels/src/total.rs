//! Sums of long rows. Elements accumulate in lanes, or row by row, for at most [`RUN`] elements or one block
//! of rows; the results of such runs are added up in a [`Total`], which has twice the precision, in order. So
//! the rounding error of a sum does not grow with its length, and the bits depend on nothing but the order.

use bytemuck::{Pod, Zeroable};

use crate::element::{Bool, Number};
use crate::tiles::TILE;

/// Elements of a row that accumulate in lanes before their sum joins the row's total; whole tiles.
pub(crate) const RUN: usize = 4 * TILE;

/// The sum of the results of many runs of numbers `C`.
pub trait Total<C>: Pod {
    /// The sum of one number.
    fn new(x: C) -> Self;
    /// The sum with one number more.
    fn plus(self, x: C) -> Self;
    /// All numbers of the sum multiplied by a factor.
    fn times(self, factor: C) -> Self;
    /// The sum, rounded.
    fn get(self) -> C;
    /// The quotient of the sum and a divisor, rounded.
    fn over(self, divisor: C) -> C;
}

impl Total<f32> for f64 {
    #[inline(always)]
    fn new(x: f32) -> f64 {
        f64::from(x)
    }
    #[inline(always)]
    fn plus(self, x: f32) -> f64 {
        self + f64::from(x)
    }
    #[inline(always)]
    fn times(self, factor: f32) -> f64 {
        self * f64::from(factor)
    }
    #[inline(always)]
    fn get(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn over(self, divisor: f32) -> f32 {
        (self / f64::from(divisor)) as f32
    }
}

/// A sum of f64: the rounded sum, and the sum of the errors of its roundings.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Pair {
    sum: f64,
    errors: f64,
}

impl Total<f64> for Pair {
    #[inline(always)]
    fn new(x: f64) -> Pair {
        Pair { sum: x, errors: 0.0 }
    }
    #[inline(always)]
    fn plus(self, x: f64) -> Pair {
        let sum = self.sum + x;
        let added = sum - self.sum;
        let error = (self.sum - (sum - added)) + (x - added);
        Pair { sum, errors: self.errors + error }
    }
    #[inline(always)]
    fn times(self, factor: f64) -> Pair {
        Pair { sum: self.sum * factor, errors: self.errors * factor }
    }
    #[inline(always)]
    fn get(self) -> f64 {
        // The error of an infinite sum is not a number.
        let whole = self.sum + self.errors;
        if whole.is_nan() { self.sum } else { whole }
    }
    #[inline(always)]
    fn over(self, divisor: f64) -> f64 {
        self.get() / divisor
    }
}

/// Sums that are exact, and wrap.
macro_rules! own_total {
    ($($type:ty)*) => {$(
        impl Total<$type> for $type {
            #[inline(always)]
            fn new(x: $type) -> $type {
                x
            }
            #[inline(always)]
            fn plus(self, x: $type) -> $type {
                Number::plus(self, x)
            }
            #[inline(always)]
            fn times(self, factor: $type) -> $type {
                Number::times(self, factor)
            }
            #[inline(always)]
            fn get(self) -> $type {
                self
            }
            #[inline(always)]
            fn over(self, divisor: $type) -> $type {
                Number::over(self, divisor)
            }
        }
    )*};
}
own_total!(Bool i8 i16 i32 i64 u8 u16 u32 u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn sum<C: Number>(start: C, term: C, count: usize) -> C::Total {
        (0..count).fold(C::Total::new(start), |total, _| total.plus(term))
    }

    #[test]
    fn totals_keep_what_rounding_drops() {
        assert_eq!(sum(1.0, f32::EPSILON / 8.0, 1 << 12).get(), 1.0 + 512.0 * f32::EPSILON);
        let total = sum(1.0, f64::EPSILON / 8.0, 1 << 12);
        assert_eq!(total.get(), 1.0 + 512.0 * f64::EPSILON);
        assert_eq!(total.times(2.0).over(4.0), 0.5 + 256.0 * f64::EPSILON);
        assert_eq!(sum(i32::MAX, 2, 1).get(), i32::MIN + 1);
    }

    #[test]
    fn totals_of_infinities_are_infinite_and_opposite_ones_are_not_numbers() {
        let of =
            |numbers: &[f64]| numbers.iter().fold(Pair::new(0.0), |total, &x| Total::plus(total, x)).get();
        assert_eq!(of(&[1.0, f64::INFINITY, 2.0]), f64::INFINITY);
        assert_eq!(of(&[f64::MAX, f64::MAX]), f64::INFINITY);
        assert!(of(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan() && of(&[f64::NAN, 1.0]).is_nan());
    }
}
