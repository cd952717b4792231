//! Reductions in an order that depends only on the shape and the reduced dimensions, never on strides.
//!
//! If the last dimension is reduced, a run of elements goes round-robin over a fixed number of lanes, tile by
//! tile. If it is kept, rows of outputs accumulate side by side, in blocks of rows. Either way the results of
//! tiles and blocks join a total, of sums one of twice the precision ([`crate::total`]).

use crate::options::KernelOptions;
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use smallvec::SmallVec;

use crate::element::Element;
use crate::element::{Bits, Number, dispatch};
use crate::native::levels::multiversion;
use crate::native::vector::LANES;
use crate::scalar::Scalar;
use crate::tiles::{Reader, TILE, TileBytes, Writer, tiles};
use crate::total::Total;
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

/// Bytes of the accumulators of columns that accumulate side by side: long runs of memory, whose accumulators
/// stay in L2.
const COLUMN_BYTES: usize = 4 * size_of::<TileBytes>();

/// Blocks of rows whose results are combined before they join the total.
const GROUP_BLOCKS: usize = 4;

/// The most bytes of a total.
const TOTAL_BYTES: usize = 16;

/// A combining function, as a type.
pub(crate) trait Fold<C> {
    const IDENTITY: C;
    /// The combination of the results of many runs.
    type Total: Pod;
    fn apply(a: C, b: C) -> C;
    fn begin(initial: C) -> Self::Total;
    fn join(total: Self::Total, result: C) -> Self::Total;
    fn end(total: Self::Total) -> C;
}
macro_rules! folds {
    ($($name:ident: $bound:ident, $identity:ident, $apply:expr, $total:ty: $begin:expr, $join:expr, $end:expr;)*) => {$(
        impl<C: $bound> Fold<C> for $name {
            const IDENTITY: C = C::$identity;
            type Total = $total;
            #[inline(always)]
            fn apply(a: C, b: C) -> C {
                $apply(a, b)
            }
            #[inline(always)]
            fn begin(initial: C) -> $total {
                $begin(initial)
            }
            #[inline(always)]
            fn join(total: $total, result: C) -> $total {
                $join(total, result)
            }
            #[inline(always)]
            fn end(total: $total) -> C {
                $end(total)
            }
        }
    )*};
    ($($name:ident: $bound:ident, $identity:ident, $apply:expr;)*) => {
        folds! { $($name: $bound, $identity, $apply, C: |x| x, Self::apply, |x| x;)* }
    };
}
pub(crate) struct Sum;
pub(crate) struct Prod;
pub(crate) struct Max;
pub(crate) struct Min;
pub(crate) struct And;
pub(crate) struct Or;
/// The maximum of all values that are not NaN: cheaper than [`Max`] if a NaN is detected elsewhere.
pub(crate) struct Peak;
folds! {
    Sum: Number, ZERO, C::plus, C::Total: C::Total::new, C::Total::plus, C::Total::get;
}
folds! {
    Peak: Number, LOWEST, |a, b| if b > a { b } else { a };
    Prod: Number, ONE, C::times;
    Max: Number, LOWEST, C::maximum;
    Min: Number, HIGHEST, C::minimum;
    And: Bits, ALL_ONES, C::and;
    Or: Bits, ZERO, C::or;
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

multiversion! {
    /// `totals[i] = totals[i] combined with the combination of blocks[..][i]`; instead of the totals, which are
    /// not read then, begins with `init` if it is given.
    fn join_group[C: Number, F: Fold<C>; C](init: Option<C>, blocks: &[&[C]], totals: &mut [F::Total]) {
        let begun = |total: F::Total| init.map_or(total, F::begin);
        let (chunks, rest) = totals.as_chunks_mut::<LANES>();
        let rest_start = chunks.len() * LANES;
        for (chunk, totals) in chunks.iter_mut().enumerate() {
            let mut lanes = blocks[0].as_chunks::<LANES>().0[chunk];
            for block in &blocks[1..] {
                let block = &block.as_chunks::<LANES>().0[chunk];
                for l in 0..LANES {
                    lanes[l] = F::apply(lanes[l], block[l]);
                }
            }
            for l in 0..LANES {
                totals[l] = F::join(begun(totals[l]), lanes[l]);
            }
        }
        for (i, total) in (rest_start..).zip(rest) {
            let result = blocks[1..].iter().fold(blocks[0][i], |result, block| F::apply(result, block[i]));
            *total = F::join(begun(*total), result);
        }
    }
}

multiversion! {
    /// `out[i] = init combined with results[i]`, rounded: one addition has the same bits in either precision.
    fn round_result[T: Element, F: Fold<T::Compute>; T](init: T, results: &[T::Compute], out: &mut [T]) {
        for (out, &result) in out.iter_mut().zip(results) {
            *out = T::store(F::apply(init.load(), result));
        }
    }
}

multiversion! {
    /// `out[i] = totals[i]`, rounded.
    fn round_totals[T: Element, F: Fold<T::Compute>; T](totals: &[F::Total], out: &mut [T]) {
        for (out, &total) in out.iter_mut().zip(totals) {
            *out = T::store(F::end(total));
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
            if (1..=TILE).contains(&count) {
                // As in [`round_result`].
                let tile = x.typed::<T>(row * count, count, &mut scratch);
                *result = T::store(F::apply(init.load(), fold_run::<T, F>(options, tile)));
                continue;
            }
            let mut total = F::begin(init.load());
            for (start, some) in tiles(count) {
                let tile = x.typed::<T>(row * count + start, some, &mut scratch);
                total = F::join(total, fold_run::<T, F>(options, tile));
            }
            *result = T::store(F::end(total));
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
    let [mut totals, mut results] = [[0u64; COLUMN_BYTES / size_of::<u64>()]; 2];
    let bytes = size_of::<F::Total>().max(2 * size_of::<T::Compute>()).max(size_of::<u64>());
    let most = COLUMN_BYTES / bytes;
    for (i, column) in (0..outer).flat_map(|i| (0..inner).step_by(most).map(move |column| (i, column))) {
        let columns = most.min(inner - column);
        let total: &mut [F::Total] = &mut cast_slice_mut(&mut totals)[..columns];
        let results: &mut [T::Compute] = &mut cast_slice_mut(&mut results)[..2 * columns];
        let (group, block) = results.split_at_mut(columns);
        let is_one_group = (1..=GROUP_BLOCKS * BLOCK_ROWS).contains(&count);
        if !is_one_group {
            total.fill(F::begin(init.load()));
        }
        for group_start in (0..count).step_by(GROUP_BLOCKS * BLOCK_ROWS) {
            let group_end = count.min(group_start + GROUP_BLOCKS * BLOCK_ROWS);
            for block_start in (group_start..group_end).step_by(BLOCK_ROWS) {
                let result = if block_start == group_start { &mut *group } else { &mut *block };
                result.fill(F::IDENTITY);
                for row in block_start..group_end.min(block_start + BLOCK_ROWS) {
                    let start = (i * count + row) * inner + column;
                    for (first, some) in tiles(columns) {
                        let x = x.typed::<T>(start + first, some, &mut scratch);
                        fold_into::<T, F>(options, &mut result[first..first + some], x);
                    }
                }
                if block_start > group_start {
                    fold_into::<T::Compute, F>(options, group, block);
                }
            }
            if !is_one_group {
                join_group::<T::Compute, F>(options, None, &[&*group], total);
            }
        }
        for (first, some) in tiles(columns) {
            let rounded: &mut [T] = &mut cast_slice_mut(&mut scratch)[..some];
            if is_one_group {
                round_result::<T, F>(options, init, &group[first..], rounded);
            } else {
                round_totals::<T, F>(options, &total[first..], rounded);
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

/// Consecutive elements of rows of `width` elements, from position `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub dtype: DType,
    pub bytes: &'a [u8],
    pub first: usize,
    pub width: usize,
}

/// Adds elements of rows to the results of their blocks. The elements must be added in order, from the beginning of a
/// block on.
pub(crate) fn fold_rows(options: KernelOptions, op: Reduction, elements: Stretch<'_>, results: &mut [u8]) {
    let Stretch { dtype, bytes: x, first, width } = elements;
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

/// The total of a row that continues in the next call.
pub(crate) type Carried = [u64; TOTAL_BYTES / size_of::<u64>()];

/// Reduces along rows: takes their elements in order, and writes `init` combined with each row, as [`reduce`] does, to
/// `out` at the row's number. Each call begins and ends at the end of a row or of a tile of a row; the total of the last
/// row is carried to the next call.
pub(crate) fn fold_along(
    options: KernelOptions,
    op: Reduction,
    elements: Stretch<'_>,
    init: &Scalar,
    carried: &mut Carried,
    out: &mut [u8],
) {
    let Stretch { dtype, bytes: x, first, width } = elements;
    fold!(op, dtype, T, F => {
        let carried = &mut cast_slice_mut(carried)[0];
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
    carried: &mut F::Total,
    out: &mut [T],
) {
    let mut at = first;
    while !x.is_empty() {
        let (row, column) = (at / width, at % width);
        let (own, rest) = x.split_at(x.len().min(width - column));
        let before = if column == 0 { F::begin(init.load()) } else { *carried };
        *carried = F::join(before, fold_run::<T, F>(options, own));
        if column + own.len() == width {
            out[row] = T::store(F::end(*carried));
        }
        (x, at) = (rest, at + own.len());
    }
}

/// Combines `init` with the results of all blocks, in order, which gives what [`reduce`] gives.
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
    let parts: SmallVec<[&[T::Compute]; 64]> = parts.map(|part| cast_slice(part)).collect();
    let width = out.as_view().shape().iter().product();
    join_parts::<T, F>(options, init, &parts, width, 0, out);
}

/// Combines `init` with the results of all blocks of `width` results, in order, and writes those from column
/// `first` on.
pub(crate) fn join_parts<T: Element, F: Fold<T::Compute>>(
    options: KernelOptions,
    init: T,
    parts: &[&[T::Compute]],
    width: usize,
    first: usize,
    out: &mut ViewMut<'_>,
) {
    let mut writer = Writer::new(out);
    let block_count = parts.iter().map(|part| part.len()).sum::<usize>() / width.max(1);
    let mut totals = [0u64; COLUMN_BYTES / size_of::<u64>()];
    let most = COLUMN_BYTES / size_of::<F::Total>().max(size_of::<u64>());
    let mut rounded: TileBytes = [0; TILE];
    for column in (0..writer.len()).step_by(most) {
        let columns = most.min(writer.len() - column);
        let totals: &mut [F::Total] = &mut cast_slice_mut(&mut totals)[..columns];
        let blocks = parts.iter().flat_map(|part| part.chunks_exact(width));
        let mut blocks = blocks.map(|block| &block[first + column..][..columns]);
        let only = if block_count == 1 { blocks.next() } else { None };
        for begin in (0..block_count).step_by(GROUP_BLOCKS).filter(|_| block_count > 1) {
            let mut group: [&[T::Compute]; GROUP_BLOCKS] = [&[]; GROUP_BLOCKS];
            let count = group.iter_mut().zip(&mut blocks).map(|(place, block)| *place = block).count();
            let init = (begin == 0).then(|| init.load());
            join_group::<_, F>(options, init, &group[..count], totals);
        }
        for (start, some) in tiles(columns) {
            let rounded: &mut [T] = &mut cast_slice_mut(&mut rounded)[..some];
            match only {
                Some(block) => round_result::<T, F>(options, init, &block[start..], rounded),
                None if block_count == 0 => rounded.fill(init),
                None => round_totals::<T, F>(options, &totals[start..], rounded),
            }
            writer.store(column + start, cast_slice(rounded));
        }
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
