//! Reductions in an order that depends only on the shape and the reduced dimensions, never on strides.
//!
//! If the last dimension is reduced, a run of elements goes round-robin over a fixed number of lanes, tile by
//! tile. If it is kept, rows of outputs accumulate side by side, in blocks of rows. Either way partial
//! results are combined at two levels, so that the rounding error of long sums grows slowly.

use crate::options::KernelOptions;
use bytemuck::{cast_slice, cast_slice_mut};

use crate::element::Element;
use crate::element::{Bits, Number, dispatch};
use crate::native::levels::multiversion;
use crate::native::vector::LANES;
use crate::scalar::Scalar;
use crate::tiles::{Reader, TILE, TileBytes, Writer, tiles};
use crate::view::{MAX_RANK, View, ViewMut};
use partita_base::DType;

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

/// Rows that accumulate before their result joins the total.
pub(crate) const BLOCK_ROWS: usize = 64;

/// Columns that accumulate side by side: long runs of memory, whose accumulators stay in L2.
const COLUMNS: usize = 4 * TILE;

/// A combining function, as a type.
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
/// The maximum of all values that are not NaN: cheaper than [`Max`] if a NaN is detected elsewhere.
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
    // Constant widths, so that each step is a few whole vectors.
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

/// The rest of a run, padded to whole lanes. Lanes that are all treated alike stay in vectors.
#[inline(always)]
pub(crate) fn padded<T: Element>(rest: &[T]) -> [T; LANES] {
    let mut lanes = [T::zeroed(); LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

/// [`fold_run`] for loops that are themselves compiled for every level.
#[inline(always)]
pub(crate) fn fold_lanes<T: Element, F: Fold<T::Compute>>(x: &[T]) -> T::Compute {
    let mut lanes = [F::IDENTITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = F::apply(*lane, x.load());
        }
    }
    if !rest.is_empty() {
        let last = padded(rest);
        for l in 0..LANES {
            lanes[l] = if l < rest.len() { F::apply(lanes[l], last[l].load()) } else { lanes[l] };
        }
    }
    join_lanes::<T::Compute, F>(lanes)
}

multiversion! {
    /// Combines a run of elements: element `i` joins lane `i mod LANES`, then the lanes join pairwise.
    pub(crate) fn fold_run[T: Element, F: Fold<T::Compute>; T](x: &[T]) -> T::Compute {
        fold_lanes::<T, F>(x)
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

/// Evaluates an expression with an element type and a combining function as types.
macro_rules! fold {
    (@arms $op:expr, $T:ident, $F:ident => $body:expr, $($name:ident)*) => {
        match $op {
            $(Reduction::$name => { type $F = $name; $body })*
            _ => unreachable!("the arms cover the family"),
        }
    };
    ($op:expr, $dtype:expr, $T:ident, $F:ident => $body:expr) => {
        match $op {
            Reduction::And | Reduction::Or => {
                dispatch!(bits $dtype, $T => fold!(@arms $op, $T, $F => $body, And Or))
            }
            _ => dispatch!($dtype, $T => fold!(@arms $op, $T, $F => $body, Sum Prod Max Min)),
        }
    };
}

/// Combines `init` with all elements along the dimensions marked in `reduced`. The shape of `out` is that of
/// `x` with those dimensions removed, or kept with size one. f16 and bf16 accumulate in f32.
///
/// # Panics
/// Where shapes or types do not fit, or a bitwise reduction is applied to floats.
pub fn reduce(
    options: KernelOptions,
    op: Reduction,
    x: &View<'_>,
    reduced: &[bool],
    init: &Scalar,
    out: &mut ViewMut<'_>,
) {
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
    fold!(op, dtype, T, F => run::<T, F>(options, x, reduced, init.get(), out))
}

#[inline(never)]
fn run<T: Element, F: Fold<T::Compute>>(
    options: KernelOptions,
    x: &View<'_>,
    reduced: &[bool],
    init: T,
    out: &mut ViewMut<'_>,
) {
    let long = |&d: &usize| x.shape()[d] != 1;
    let last = (0..x.rank()).rfind(long);
    // The trailing dimensions that are kept, if any, follow the reduced ones.
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
        reduce_rows::<T, F>(options, &reader, outer_count * inner_count, count, init, &mut writer);
    } else {
        reduce_columns::<T, F>(options, &reader, [outer_count, count, inner_count], init, &mut writer);
    }
}

/// `out[i] = init + x[i, 0] + x[i, 1] + ..` for `x` of shape [rows, count].
#[inline(never)]
fn reduce_rows<T: Element, F: Fold<T::Compute>>(
    options: KernelOptions,
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
                total = F::apply(total, fold_run::<T, F>(options, tile));
            }
            *result = T::store(total);
        }
        out.store(first, cast_slice(results));
    }
}

/// `out[i, j] = init + x[i, 0, j] + x[i, 1, j] + ..`
#[inline(never)]
fn reduce_columns<T: Element, F: Fold<T::Compute>>(
    options: KernelOptions,
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
                    fold_into::<T, F>(options, &mut block[first..first + some], x);
                }
            }
            fold_into::<T::Compute, F>(options, total, block);
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

/// Rows that [`reduce`] combines before their result joins the total, if it reduces the first dimensions and
/// keeps more than one element: a reduction that is split between such blocks gives the same bits.
pub const REDUCE_BLOCK_ROWS: usize = BLOCK_ROWS;

/// Bytes of the results of all blocks of `rows` rows of `width` elements, for [`join_blocks`].
pub fn block_results_bytes(dtype: DType, rows: usize, width: usize) -> usize {
    rows.div_ceil(BLOCK_ROWS) * width * dispatch!(dtype, T => size_of::<<T as Element>::Compute>())
}

/// Adds the elements from position `first` on, of rows of `width` elements, to the results of their blocks.
/// The elements must be added in order, from the beginning of a block on.
pub(crate) fn fold_rows(
    options: KernelOptions,
    op: Reduction,
    dtype: DType,
    x: &[u8],
    first: usize,
    width: usize,
    results: &mut [u8],
) {
    fold!(op, dtype, T, F => fold_typed_rows::<T, F>(options, cast_slice(x), first, width, cast_slice_mut(results)))
}

/// The results to which `count` elements from position `first` on, all of one row, are added; initialised if
/// they are the first of a block.
pub(crate) fn block_results<C: Copy, F: Fold<C>>(
    results: &mut [C],
    first: usize,
    count: usize,
    width: usize,
) -> &mut [C] {
    let (row, column) = (first / width, first % width);
    let results = &mut results[row / BLOCK_ROWS * width + column..][..count];
    if row.is_multiple_of(BLOCK_ROWS) {
        results.fill(F::IDENTITY);
    }
    results
}

#[inline(never)]
fn fold_typed_rows<T: Element, F: Fold<T::Compute>>(
    options: KernelOptions,
    mut x: &[T],
    first: usize,
    width: usize,
    results: &mut [T::Compute],
) {
    let mut at = first;
    while !x.is_empty() {
        let (own, rest) = x.split_at(x.len().min(width - at % width));
        fold_into::<T, F>(options, block_results::<_, F>(results, at, own.len(), width), own);
        (x, at) = (rest, at + own.len());
    }
}

/// Reduces along rows: takes the elements from position `first` on, of rows of `width` elements, in order,
/// and writes `init` combined with each row, as [`reduce`] does, to `out` at the row's number. Each call
/// begins and ends at the end of a row or of a tile of a row; the partial result of the last row is carried
/// to the next call.
pub(crate) fn fold_along(
    options: KernelOptions,
    op: Reduction,
    dtype: DType,
    x: &[u8],
    first: usize,
    width: usize,
    init: &Scalar,
    carried: &mut u64,
    out: &mut [u8],
) {
    fold!(op, dtype, T, F => {
        let carried = &mut cast_slice_mut(std::slice::from_mut(carried))[0];
        fold_typed_along::<T, F>(options, cast_slice(x), first, width, init.get(), carried, cast_slice_mut(out))
    })
}

#[inline(never)]
fn fold_typed_along<T: Element, F: Fold<T::Compute>>(
    options: KernelOptions,
    mut x: &[T],
    first: usize,
    width: usize,
    init: T,
    carried: &mut T::Compute,
    out: &mut [T],
) {
    let mut at = first;
    while !x.is_empty() {
        let (row, column) = (at / width, at % width);
        let (own, rest) = x.split_at(x.len().min(width - column));
        let before = if column == 0 { init.load() } else { *carried };
        *carried = F::apply(before, fold_run::<T, F>(options, own));
        if column + own.len() == width {
            out[row] = T::store(*carried);
        }
        (x, at) = (rest, at + own.len());
    }
}

/// Combines `init` with the results of all blocks, in order, which gives what [`reduce`] gives. The results
/// are overwritten.
///
/// # Panics
/// Where types do not fit, or `out` does not have the elements of a row.
pub fn join_blocks<'a>(
    options: KernelOptions,
    op: Reduction,
    init: &Scalar,
    parts: impl Iterator<Item = &'a mut [u8]>,
    out: &mut ViewMut<'_>,
) {
    fold!(op, out.dtype(), T, F => join_typed_blocks::<T, F>(options, init.get(), parts, out))
}

fn join_typed_blocks<'a, T: Element, F: Fold<T::Compute>>(
    options: KernelOptions,
    init: T,
    parts: impl Iterator<Item = &'a mut [u8]>,
    out: &mut ViewMut<'_>,
) {
    let mut writer = Writer::new(out);
    let width = writer.len();
    if width == 0 {
        return;
    }
    let mut blocks = parts.flat_map(|part| cast_slice_mut::<u8, T::Compute>(part).chunks_exact_mut(width));
    let total = blocks.next().map(|total| {
        total.iter_mut().for_each(|x| *x = F::apply(init.load(), *x));
        blocks.for_each(|block| fold_into::<T::Compute, F>(options, total, block));
        &*total
    });
    let mut rounded: TileBytes = [0; TILE];
    for (start, some) in tiles(width) {
        let rounded: &mut [T] = &mut cast_slice_mut(&mut rounded)[..some];
        for (i, rounded) in (start..).zip(rounded.iter_mut()) {
            *rounded = total.map_or(init, |total| T::store(total[i]));
        }
        writer.store(start, cast_slice(rounded));
    }
}

/// The index of the largest element along `dim`, the lowest among equals; NaN counts as largest. `out` is
/// i64, with the shape of `x` without `dim`.
///
/// # Panics
/// Where shapes or types do not fit, or the dimension is empty.
pub fn argmax(x: &View<'_>, dim: usize, out: &mut ViewMut<'_>) {
    let count = x.shape()[dim];
    let rows: usize =
        x.shape().iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &size)| size).product();
    assert!(
        out.shape().iter().eq(x.shape()[..dim].iter().chain(&x.shape()[dim + 1..])),
        "argmax drops one dim"
    );
    assert!(count > 0 || rows == 0, "argmax of nothing");
    assert_eq!(out.dtype(), DType::I64, "argmax gives i64");
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
