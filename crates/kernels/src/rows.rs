//! Loops over the tiles of a row, shared by softmax, norms, losses and attention. Sums go over fixed lanes.

use crate::element::Real;
use crate::reduce::{Fold, LANES, Peak, Sum, join_lanes};
use crate::simd::{Ahead, multiversion};

/// Sums `$term` over the elements of equally long slices, in lanes, while memory ahead comes where some is named.
macro_rules! lane_sum {
    ($C:ty $(, $ahead:ident)?; $first:ident $(, $other:ident)*; $term:expr) => {{
        let mut lanes = [<$C>::ZERO; LANES];
        let (chunks, rest) = $first.as_chunks::<LANES>();
        $(let (other_chunks, other_rest) = $other.as_chunks::<LANES>(); let $other = (other_chunks, other_rest);)*
        #[allow(clippy::needless_range_loop)]
        for i in 0..chunks.len() {
            $($ahead.fetch(i);)?
            for l in 0..LANES {
                let $first = chunks[i][l];
                $(let $other = $other.0[i][l];)*
                lanes[l] = lanes[l] + $term;
            }
        }
        for (l, &$first) in rest.iter().enumerate() {
            $(let $other = $other.1[l];)*
            lanes[l] = lanes[l] + $term;
        }
        join_lanes::<$C, Sum>(lanes)
    }};
}
pub(crate) use lane_sum;

/// The exponentials of numbers less the largest of them, summed in one pass over memory: each lane knows the largest
/// number it has met and the sum less that, which shrinks when there is a larger one.
pub(crate) struct SumExp<C> {
    max: [C; LANES],
    sum: [C; LANES],
}

impl<C: Real> SumExp<C> {
    /// Of nothing.
    pub(crate) fn new() -> Self {
        SumExp { max: [C::LOWEST; LANES], sum: [C::ZERO; LANES] }
    }
}

/// What exponentials are taken less: the largest number, or nothing where there is only minus infinity.
#[inline(always)]
fn shift<C: Real>(max: C) -> C {
    if max == C::LOWEST { C::ZERO } else { max }
}

multiversion! {
    /// Adds a tile, which is read twice while it is in the first cache. A NaN shows in the sum. Memory ahead comes
    /// meanwhile.
    pub(crate) fn add_exponentials[C: Real](total: &mut SumExp<C>, x: &[C], ahead: Ahead) {
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut max = total.max;
        for chunk in chunks {
            for (max, &x) in max.iter_mut().zip(chunk) {
                *max = Peak::apply(*max, x);
            }
        }
        for (max, &x) in max.iter_mut().zip(rest) {
            *max = Peak::apply(*max, x);
        }
        let shifts = max.map(shift);
        let mut sum = total.sum;
        for l in 0..LANES {
            sum[l] = sum[l] * (total.max[l] - shifts[l]).exp_of_nonpositive();
        }
        for (i, chunk) in chunks.iter().enumerate() {
            ahead.fetch(i);
            for l in 0..LANES {
                sum[l] = sum[l] + (chunk[l] - shifts[l]).exp_of_nonpositive();
            }
        }
        for (l, &x) in rest.iter().enumerate() {
            sum[l] = sum[l] + (x - shifts[l]).exp_of_nonpositive();
        }
        *total = SumExp { max, sum };
    }
}

multiversion! {
    /// The largest of all numbers, and the sum of the exponentials of all less that.
    pub(crate) fn join_exponentials[C: Real](total: &SumExp<C>) -> (C, C) {
        let max = join_lanes::<C, Peak>(total.max);
        let mut sum = total.sum;
        for (sum, &before) in sum.iter_mut().zip(&total.max) {
            *sum = *sum * (before - shift(max)).exp_of_nonpositive();
        }
        (max, join_lanes::<C, Sum>(sum))
    }
}

multiversion! {
    /// The sum of e^(x - shift) w, where no x is above the shift.
    pub(crate) fn sum_exp_times[C: Real](x: &[C], shift: C, w: &[C]) -> C {
        lane_sum!(C; x, w; (x - shift).exp_of_nonpositive() * w)
    }
}

multiversion! {
    /// `out = e^(x - shift) scale`, where no x is above the shift.
    pub(crate) fn exp_scaled[C: Real](x: &[C], shift: C, scale: C, out: &mut [C]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = (x - shift).exp_of_nonpositive() * scale;
        }
    }
}

multiversion! {
    /// `out = e^(x - shift)`, where no x is above the shift; returns the sum. Memory ahead comes meanwhile.
    pub(crate) fn exp_into[C: Real](x: &[C], shift: C, out: &mut [C], ahead: &[Ahead]) -> C {
        let mut lanes = [C::ZERO; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        let (out_chunks, out_rest) = out.as_chunks_mut::<LANES>();
        for (i, (out, chunk)) in out_chunks.iter_mut().zip(chunks).enumerate() {
            for ahead in ahead {
                ahead.fetch(i);
            }
            for l in 0..LANES {
                out[l] = (chunk[l] - shift).exp_of_nonpositive();
                lanes[l] = lanes[l] + out[l];
            }
        }
        for ((lane, &x), out) in lanes.iter_mut().zip(rest).zip(out_rest) {
            *out = (x - shift).exp_of_nonpositive();
            *lane = *lane + *out;
        }
        join_lanes::<C, Sum>(lanes)
    }
}

multiversion! {
    /// `out = x scale`
    pub(crate) fn scale_into[C: Real](x: &[C], scale: C, out: &mut [C]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = x * scale;
        }
    }
}

multiversion! {
    /// `x = x scale` in place.
    pub(crate) fn scale_in_place[C: Real](x: &mut [C], scale: C) {
        for x in x {
            *x = *x * scale;
        }
    }
}

multiversion! {
    /// The sum of a b.
    pub(crate) fn dot[C: Real](a: &[C], b: &[C]) -> C {
        lane_sum!(C; a, b; a * b)
    }
}

multiversion! {
    /// `out = p scale (d - shift)`: the gradient through a softmax of unscaled exponentials.
    pub(crate) fn softmax_gradient_into[C: Real](p: &[C], scale: C, d: &[C], shift: C, out: &mut [C]) {
        for ((out, &p), &d) in out.iter_mut().zip(p).zip(d) {
            *out = p * scale * (d - shift);
        }
    }
}
