//! Loops over the tiles of a row, shared by softmax, norms, losses and attention. Sums use a fixed number of
//! lanes.

use crate::element::Real;
use crate::native::levels::multiversion;
use crate::native::prefetch::Ahead;
use crate::native::vector::LANES;
use crate::options::KernelOptions;
use crate::reduce::{Peak, Sum, fold_lanes, join_lanes, padded};
use crate::stream::Streaming;
use crate::total::{RUN, Total};

/// Sums `$term` over the elements of slices of equal length: in lanes, which are joined at the end.
macro_rules! lane_sum {
    ($C:ty; $first:ident $(, $other:ident)*; $term:expr) => {{
        let mut lanes = [<$C>::ZERO; LANES];
        let (chunks, rest) = $first.as_chunks::<LANES>();
        $(let (other_chunks, other_rest) = $other.as_chunks::<LANES>(); let $other = (other_chunks, other_rest);)*
        #[allow(clippy::needless_range_loop)]
        for i in 0..chunks.len() {
            for l in 0..LANES {
                let $first = chunks[i][l];
                $(let $other = $other.0[i][l];)*
                lanes[l] = lanes[l] + $term;
            }
        }
        if !rest.is_empty() {
            let count = rest.len();
            let rest = $crate::reduce::padded(rest);
            $(let $other = $crate::reduce::padded($other.1);)*
            for l in 0..LANES {
                let $first = rest[l];
                $(let $other = $other[l];)*
                lanes[l] = if l < count { lanes[l] + $term } else { lanes[l] };
            }
        }
        join_lanes::<$C, Sum>(lanes)
    }};
}
pub(crate) use lane_sum;

/// Writes `$term` for the elements of slices of equal length with [`put`](crate::stream::put).
macro_rules! map_into {
    ($M:ty, $C:ty; $first:ident $(, $other:ident)*; $term:expr; $out:ident, $streaming:ident) => {{
        let (chunks, rest) = $first.as_chunks::<LANES>();
        let (out_chunks, out_rest) = $out.as_chunks_mut::<LANES>();
        $(let (other_chunks, other_rest) = $other.as_chunks::<LANES>(); let $other = (other_chunks, other_rest);)*
        for (i, out) in out_chunks.iter_mut().enumerate() {
            let mut values = [<$C>::ZERO; LANES];
            for l in 0..LANES {
                let $first = chunks[i][l];
                $(let $other = $other.0[i][l];)*
                values[l] = $term;
            }
            $crate::stream::put::<$M, $C>(values, out, $streaming);
        }
        for (l, out) in out_rest.iter_mut().enumerate() {
            let $first = rest[l];
            $(let $other = $other.1[l];)*
            *out = $term;
        }
    }};
}

/// A running sum of exponentials, `sum(e^(x - shift))`, in one pass over memory. No number exceeds the shift
/// by more than [`SLACK`]. The shift changes only when a number exceeds that, so most tiles do not depend on
/// the maxima of earlier tiles.
pub(crate) struct SumExp<C: Real> {
    shift: C,
    /// The sum of the last numbers, not yet in the total.
    sum: [C; LANES],
    count: usize,
    total: C::Total,
}

/// How far numbers may exceed the shift: the rounding error of such a difference is no larger than that of an
/// exponential.
const SLACK: f64 = 4.0;

impl<C: Real> SumExp<C> {
    /// The sum of no numbers.
    pub(crate) fn new() -> Self {
        SumExp { shift: C::LOWEST, sum: [C::ZERO; LANES], count: 0, total: C::Total::new(C::ZERO) }
    }
}

/// The shift of exponentials: one of the numbers, or zero if all are minus infinity.
#[inline(always)]
fn finite<C: Real>(shift: C) -> C {
    if shift == C::LOWEST { C::ZERO } else { shift }
}

multiversion! {
    /// Adds a tile, which is read twice while it is in L1. A NaN makes the sum NaN. Prefetches `ahead`
    /// meanwhile.
    pub(crate) fn add_exponentials[C: Real](total: &mut SumExp<C>, x: &[C], ahead: Ahead) {
        let peak = fold_lanes::<C, Peak>(x);
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut sum = total.sum;
        if peak > total.shift + C::from_f64(SLACK) {
            let scale = (total.shift - peak).exp_below_88();
            for sum in &mut sum {
                *sum = *sum * scale;
            }
            total.total = total.total.times(scale);
            total.shift = peak;
        }
        let shift = finite(total.shift);
        for (i, chunk) in chunks.iter().enumerate() {
            ahead.fetch(i);
            for l in 0..LANES {
                sum[l] = sum[l].plus_exp_below_88(chunk[l] - shift);
            }
        }
        if !rest.is_empty() {
            let last = padded(rest);
            for l in 0..LANES {
                sum[l] = if l < rest.len() { sum[l].plus_exp_below_88(last[l] - shift) } else { sum[l] };
            }
        }
        total.count += x.len();
        if total.count >= RUN {
            total.total = total.total.plus(join_lanes::<C, Sum>(sum));
            sum = [C::ZERO; LANES];
            total.count = 0;
        }
        total.sum = sum;
    }
}

multiversion! {
    /// The shift and the sum of all `e^(x - shift)`.
    pub(crate) fn join_exponentials[C: Real](total: &SumExp<C>) -> (C, C) {
        (finite(total.shift), total.total.plus(join_lanes::<C, Sum>(total.sum)).get())
    }
}

multiversion! {
    /// The sum of e^(x - shift) w, where no x is far above the shift.
    pub(crate) fn sum_exp_times[C: Real](x: &[C], shift: C, w: &[C]) -> C {
        lane_sum!(C; x, w; (x - shift).exp_below_88() * w)
    }
}

multiversion! {
    /// `out = e^(x - shift) scale`, where no x is far above the shift.
    pub(crate) fn exp_scaled[C: Real](x: &[C], shift: C, scale: C, out: &mut [C]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = (x - shift).exp_below_88() * scale;
        }
    }
}

/// `out = e^(x - shift)`, where no x is far above the shift; returns the sum.
pub(crate) fn exp_into<C: Real>(options: KernelOptions, x: &[C], shift: C, out: &mut [C]) -> C {
    let mut sum = [C::ZERO; LANES];
    add_exp_into(options, x, shift, out, &mut sum, &[]);
    join_lanes::<C, Sum>(sum)
}

multiversion! {
    /// [`exp_into`] for a part of a row, which is added to the lanes of the sum. Prefetches `ahead`
    /// meanwhile.
    pub(crate) fn add_exp_into[C: Real](x: &[C], shift: C, out: &mut [C], sum: &mut [C; LANES], ahead: &[Ahead]) {
        let mut lanes = *sum;
        let (chunks, rest) = x.as_chunks::<LANES>();
        let (out_chunks, out_rest) = out.as_chunks_mut::<LANES>();
        for (i, (out, chunk)) in out_chunks.iter_mut().zip(chunks).enumerate() {
            for ahead in ahead {
                ahead.fetch(i);
            }
            for l in 0..LANES {
                out[l] = (chunk[l] - shift).exp_below_88();
                lanes[l] = lanes[l] + out[l];
            }
        }
        if !rest.is_empty() {
            let mut last = padded(rest);
            for l in 0..LANES {
                last[l] = (last[l] - shift).exp_below_88();
                lanes[l] = if l < rest.len() { lanes[l] + last[l] } else { lanes[l] };
            }
            out_rest.copy_from_slice(&last[..rest.len()]);
        }
        *sum = lanes;
    }
}

multiversion! {
    /// `out = x scale`
    pub(crate) fn scale_into(M)[C: Real](x: &[C], scale: C, out: &mut [C], streaming: Option<&Streaming>) {
        map_into!(M, C; x; x * scale; out, streaming);
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
    pub(crate) fn softmax_gradient_into(M)[C: Real](p: &[C], scale: C, d: &[C], shift: C, out: &mut [C], streaming: Option<&Streaming>) {
        map_into!(M, C; p, d; p * scale * (d - shift); out, streaming);
    }
}

multiversion! {
    /// `out = (x - max) - log`
    pub(crate) fn log_softmax_into(M)[C: Real](x: &[C], max: C, log: C, out: &mut [C], streaming: Option<&Streaming>) {
        map_into!(M, C; x; (x - max) - log; out, streaming);
    }
}
