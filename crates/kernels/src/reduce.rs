//! Reductions, in an order fixed by the shape and the reduced dimensions alone, never by strides.
//!
//! Where the last dimension is reduced, a run of elements goes round-robin over a fixed number of lanes, tile
//! by tile. Where it is kept, whole rows of outputs accumulate side by side, in blocks of rows. Either way
//! partial results are combined at two levels, so that the rounding error of long sums grows slowly.

use bytemuck::{cast_slice, cast_slice_mut};

use crate::element::{Bits, Number, dispatch};
use crate::simd::multiversion;
use crate::tiles::{Reader, TILE, TileBytes, Writer, tiles};
use crate::{Element, MAX_RANK, Scalar, View, ViewMut};

/// How a reduction combines two values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Reduction {
    /// Addition; *or* of bools.
    Sum,
    /// Multiplication; *and* of bools.
    Prod,
    /// Maximum; NaN if any is.
    Max,
    /// Minimum; NaN if any is.
    Min,
    /// Bitwise and; integers and bool.
    And,
    /// Bitwise or; integers and bool.
    Or,
}

/// Partial results that accumulate side by side within a run.
pub(crate) const LANES: usize = 32;
/// Rows that accumulate before their result joins the total.
pub(crate) const BLOCK_ROWS: usize = 64;

/// Columns that accumulate side by side: long runs of memory, whose accumulators stay in the second cache.
const COLUMNS: usize = 4 * TILE;

/// A way to combine values, as a type.
pub(crate) trait Fold<C> {
    const IDENTITY: C;
    fn apply(a: C, b: C) -> C;
}
macro_rules! folds {
    ($($name:ident: $bound:ident, $identity:ident, $method:ident;)*) => {$(
        pub(crate) struct $name;
        impl<C: $bound> Fold<C> for $name {
            const IDENTITY: C = C::$identity;
            #[inline(always)]
            fn apply(a: C, b: C) -> C {
                a.$method(b)
            }
        }
    )*};
}
/// The maximum of the numbers among the values: cheaper than [`Max`] where a NaN shows elsewhere.
pub(crate) struct Peak;
impl<C: Number> Fold<C> for Peak {
    const IDENTITY: C = C::LOWEST;
    #[inline(always)]
    fn apply(a: C, b: C) -> C {
        if b > a { b } else { a }
    }
}
folds! {
    Sum: Number, ZERO, plus;
    Prod: Number, ONE, times;
    Max: Number, LOWEST, maximum;
    Min: Number, HIGHEST, minimum;
    And: Bits, ALL_ONES, and;
    Or: Bits, ZERO, or;
}

/// Combines lanes pairwise.
#[inline(always)]
pub(crate) fn join_lanes<C: Number, F: Fold<C>>(mut lanes: [C; LANES]) -> C {
    // Constant widths: each step is a few whole vectors.
    macro_rules! halve {
        ($($width:literal)*) => {$(
            for i in 0..$width {
                lanes[i] = F::apply(lanes[i], lanes[i + $width]);
            }
        )*};
    }
    halve!(16 8 4 2 1);
    lanes[0]
}

multiversion! {
    /// Combines a run of elements: element `i` joins lane `i mod LANES`, then the lanes join pairwise.
    pub(crate) fn fold_run[T: Element, F: Fold<T::Compute>; T](x: &[T]) -> T::Compute {
        let mut lanes = [F::IDENTITY; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = F::apply(*lane, x.load());
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = F::apply(*lane, x.load());
        }
        join_lanes::<T::Compute, F>(lanes)
    }
}

multiversion! {
    /// `total[i] = total[i] combined with x[i]`
    pub(crate) fn fold_into[T: Element, F: Fold<T::Compute>; T](total: &mut [T::Compute], x: &[T]) {
        for (total, &x) in total.iter_mut().zip(x) {
            *total = F::apply(*total, x.load());
        }
    }
}

/// Combines `init` with all elements along the dimensions marked in `reduced`. The shape of `out` is that of
/// `x` with those dimensions left out, or kept with size one. Halves accumulate in f32.
///
/// # Panics
/// Where shapes or types do not fit, or a bitwise reduction meets floats.
pub fn reduce(op: Reduction, x: &View<'_>, reduced: &[bool], init: &Scalar, out: &mut ViewMut<'_>) {
    let dtype = x.dtype();
    assert_eq!(reduced.len(), x.rank(), "a reduction says of every dimension whether it goes");
    assert!(init.dtype() == dtype && out.dtype() == dtype, "a reduction keeps the type");
    let kept = || x.shape().iter().zip(reduced).filter(|&(_, &reduced)| !reduced).map(|(&size, _)| size);
    let ones = x.shape().iter().zip(reduced).map(|(&size, &reduced)| if reduced { 1 } else { size });
    assert!(
        out.shape().iter().copied().eq(kept()) || out.shape().iter().copied().eq(ones),
        "a reduction of {:?} does not give {:?}",
        x.shape(),
        out.shape()
    );
    macro_rules! arms {
        ($T:ty: $($name:ident)*) => {
            match op {
                $(Reduction::$name => run::<$T, $name>(x, reduced, init.get(), out),)*
                _ => unreachable!("the arms cover the family"),
            }
        };
    }
    match op {
        Reduction::And | Reduction::Or => dispatch!(bits dtype, T => arms!(T: And Or)),
        _ => dispatch!(dtype, T => arms!(T: Sum Prod Max Min)),
    }
}

#[inline(never)]
fn run<T: Element, F: Fold<T::Compute>>(x: &View<'_>, reduced: &[bool], init: T, out: &mut ViewMut<'_>) {
    let long = |&d: &usize| x.shape()[d] != 1;
    let last = (0..x.rank()).rfind(long);
    // The trailing kept dimensions, if any, stay behind the reduced ones.
    let inner_from = (0..x.rank()).filter(long).rfind(|&d| reduced[d]).map_or(0, |d| d + 1);
    let by_rows = last.is_some_and(|d| reduced[d]);
    let mut order = [0; MAX_RANK];
    let outer = (0..inner_from).filter(|&d| !reduced[d]);
    let middle = (0..x.rank()).filter(|&d| reduced[d]);
    let inner = (inner_from..x.rank()).filter(|&d| !reduced[d]);
    for (place, d) in order.iter_mut().zip(outer.chain(middle).chain(inner)) {
        *place = d;
    }
    let size = |keep: &dyn Fn(usize) -> bool| -> usize {
        (0..x.rank()).filter(|&d| keep(d)).map(|d| x.shape()[d]).product()
    };
    let count = size(&|d| reduced[d]);
    let inner_count = size(&|d| !reduced[d] && d >= inner_from);
    let outer_count = size(&|d| !reduced[d] && d < inner_from);
    let x = x.permute(&order[..x.rank()]);
    let reader = Reader::new(&x);
    let mut writer = Writer::new(out);
    if by_rows {
        reduce_rows::<T, F>(&reader, outer_count * inner_count, count, init, &mut writer);
    } else {
        reduce_columns::<T, F>(&reader, [outer_count, count, inner_count], init, &mut writer);
    }
}

/// `out[i] = init + x[i, 0] + x[i, 1] + ..` for `x` of shape [rows, count].
#[inline(never)]
fn reduce_rows<T: Element, F: Fold<T::Compute>>(
    x: &Reader<'_>,
    rows: usize,
    count: usize,
    init: T,
    out: &mut Writer<'_>,
) {
    let mut scratch: TileBytes = [0; TILE];
    let mut results: TileBytes = [0; TILE];
    for (first, some_rows) in tiles(rows) {
        let results: &mut [T] = &mut cast_slice_mut(&mut results)[..some_rows];
        for (row, result) in (first..).zip(results.iter_mut()) {
            let mut total = init.load();
            for (start, some) in tiles(count) {
                let tile = x.typed::<T>(row * count + start, some, &mut scratch);
                total = F::apply(total, fold_run::<T, F>(tile));
            }
            *result = T::store(total);
        }
        out.store(first, cast_slice(results));
    }
}

/// `out[i, j] = init + x[i, 0, j] + x[i, 1, j] + ..`
#[inline(never)]
fn reduce_columns<T: Element, F: Fold<T::Compute>>(
    x: &Reader<'_>,
    [outer, count, inner]: [usize; 3],
    init: T,
    out: &mut Writer<'_>,
) {
    let mut scratch: TileBytes = [0; TILE];
    let mut totals = [0u64; COLUMNS];
    let mut blocks = [0u64; COLUMNS];
    for (i, column) in (0..outer).flat_map(|i| (0..inner).step_by(COLUMNS).map(move |column| (i, column))) {
        let columns = COLUMNS.min(inner - column);
        let total: &mut [T::Compute] = &mut cast_slice_mut(&mut totals)[..columns];
        let block: &mut [T::Compute] = &mut cast_slice_mut(&mut blocks)[..columns];
        total.fill(init.load());
        for block_start in (0..count).step_by(BLOCK_ROWS) {
            block.fill(F::IDENTITY);
            for row in block_start..count.min(block_start + BLOCK_ROWS) {
                let start = (i * count + row) * inner + column;
                for (first, some) in tiles(columns) {
                    let x = x.typed::<T>(start + first, some, &mut scratch);
                    fold_into::<T, F>(&mut block[first..first + some], x);
                }
            }
            fold_into::<T::Compute, F>(total, block);
        }
        for (first, some) in tiles(columns) {
            let rounded: &mut [T] = &mut cast_slice_mut(&mut scratch)[..some];
            for (rounded, &total) in rounded.iter_mut().zip(&total[first..]) {
                *rounded = T::store(total);
            }
            out.store(i * inner + column + first, cast_slice(rounded));
        }
    }
}

/// The index of the largest element along `dim`, the lowest of equals; NaN counts as largest. `out` is i64,
/// its shape that of `x` without `dim`.
///
/// # Panics
/// Where shapes or types do not fit, or there is nothing to choose from.
pub fn argmax(x: &View<'_>, dim: usize, out: &mut ViewMut<'_>) {
    let count = x.shape()[dim];
    let rows: usize =
        x.shape().iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &size)| size).product();
    assert!(
        out.shape().iter().eq(x.shape()[..dim].iter().chain(&x.shape()[dim + 1..])),
        "argmax drops one dim"
    );
    assert!(count > 0 || rows == 0, "argmax of nothing");
    assert_eq!(out.dtype(), partita_base::DType::I64, "argmax gives i64");
    let mut order: [usize; MAX_RANK] = std::array::from_fn(|d| if d < dim { d } else { d + 1 });
    order[x.rank() - 1] = dim;
    let reader = Reader::new(&x.permute(&order[..x.rank()]));
    let mut writer = Writer::new(out);
    dispatch!(x.dtype(), T => argmax_rows::<T>(&reader, rows, count, &mut writer))
}

#[inline(never)]
fn argmax_rows<T: Element>(x: &Reader<'_>, rows: usize, count: usize, out: &mut Writer<'_>) {
    let mut scratch: TileBytes = [0; TILE];
    for row in 0..rows {
        let mut best = (0i64, x.typed::<T>(row * count, 1, &mut scratch)[0].load());
        for (start, some) in tiles(count) {
            let tile = x.typed::<T>(row * count + start, some, &mut scratch);
            for (i, &x) in (start as i64..).zip(tile) {
                let x = x.load();
                #[allow(clippy::eq_op)]
                let first_nan = x != x && best.1 == best.1;
                if x > best.1 || first_nan {
                    best = (i, x);
                }
            }
        }
        out.store(row, bytemuck::bytes_of(&best.0));
    }
}
