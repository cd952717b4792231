//! Blocks of queries and keys: their sizes, copies and scores, and the functions applied to rows of scores.

pub(super) mod narrow;

use crate::options::KernelOptions;
use std::ops::Range;

use super::{AttentionOptions, Sizes};
use crate::element::{Element, Float};
use crate::element::{Number, Real};
use crate::gemm::{BAND_ROWS, Band, Part, RowsAhead};
use crate::matmul::gemm_part;
use crate::matrix::{Matrix, MatrixMut};
use crate::native::levels::multiversion;
use crate::native::vector::LANES;
use crate::reduce::{Fold, Peak, Sum, join_lanes};
use crate::rows::lane_sum;
use crate::tiles::{Reader, TILE, TileBytes, tiles};
use crate::view::{View, ViewMut};

/// Maximum number of query rows in a block.
const ROWS: usize = 144;

/// A number of elements rounded up to whole vectors of every machine.
pub(super) fn padded(count: usize) -> usize {
    count.next_multiple_of(16)
}

/// Block sizes for queries and keys: as few blocks as the maximum sizes allow, all of about the same length.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// Query rows in every block but the last.
    pub rows: usize,
    /// Keys in every block but the last: a multiple of the lanes of sums.
    pub keys: usize,
}

impl Blocks {
    pub fn new(queries: usize, keys: usize, most_keys: usize) -> Blocks {
        let even = |count: usize, most: usize| count.div_ceil(count.div_ceil(most).max(1));
        let rows = even(queries, ROWS).next_multiple_of(BAND_ROWS).min(queries);
        Blocks { rows, keys: even(keys, most_keys).next_multiple_of(LANES) }
    }

    /// Elements from one row of scores to the next: one cache line more than there are keys, so that the rows
    /// do not all map to the same cache sets.
    fn pitch(&self) -> usize {
        self.keys + 16
    }

    /// Elements of one block of scores.
    pub fn scores(&self) -> usize {
        self.rows * self.pitch()
    }
}

/// `0..count` as consecutive ranges of `step`; one empty range if `count` is 0.
pub(super) fn ranges(count: usize, step: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..count.div_ceil(step.max(1)).max(1)).map(move |i| i * step..count.min((i + 1) * step))
}

/// One attention problem, and how it is split into blocks.
pub(super) struct Problem<'a> {
    pub sizes: Sizes,
    pub options: &'a AttentionOptions<'a>,
    pub blocks: Blocks,
    /// Elements from one row of the copied queries or keys to the next.
    pub columns: usize,
}

impl<'a> Problem<'a> {
    pub fn new(sizes: Sizes, options: &'a AttentionOptions<'a>, most_keys: usize) -> Self {
        let runs = options.places.runs;
        let blocks = Blocks::new(sizes.queries / runs, sizes.keys / runs, most_keys);
        Problem { sizes, options, blocks, columns: padded(sizes.width) }
    }

    /// The queries in blocks, each inside one run of positions.
    pub fn blocks_of_queries(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + use<> {
        blocks_of_runs(self.sizes.queries, self.options.places.runs, self.blocks.rows)
    }

    /// The keys in blocks, each inside one run of positions.
    pub fn blocks_of_keys(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + use<> {
        blocks_of_runs(self.sizes.keys, self.options.places.runs, self.blocks.keys)
    }

    /// The tile of scores of some queries of one head and some keys, both of one run: of the keys, those between the first
    /// and the last that a query sees.
    pub fn tile(&self, head: [usize; 2], queries: &Range<usize>, keys: &Range<usize>) -> Tile<'a> {
        let seen = self.whole_tile(head, queries, keys).span();
        // Whole lanes are left out, so that a key stays in its lane.
        let before = seen.start / LANES * LANES;
        let some = keys.start + before..keys.start + seen.end;
        Tile { before, ..self.whole_tile(head, queries, &some) }
    }

    fn whole_tile(&self, [b, h]: [usize; 2], queries: &Range<usize>, keys: &Range<usize>) -> Tile<'a> {
        let &Problem { sizes, options, blocks, columns } = self;
        let place = |firsts: [isize; 2], count: usize, at: usize| {
            let run = usize::from(options.places.runs == 2 && at >= count / 2);
            firsts[run] + (at - run * (count / 2)) as isize
        };
        let first_query = place(options.places.queries, sizes.queries, queries.start);
        let first_key = place(options.places.keys, sizes.keys, keys.start);
        let (ahead, far) = (first_query - first_key, (queries.len() + keys.len()) as isize);
        let window = options.window.map(|window| isize::try_from(window).unwrap_or(isize::MAX));
        let shift = match (options.causal, window) {
            (true, _) => ahead + 1,
            (false, Some(window)) => ahead.saturating_add(window),
            (false, None) => far,
        };
        let low = window.map_or(-far, |window| (ahead + 1).saturating_sub(window));
        let visible = options.visible.map(|visible| {
            let limits = visible.index(0, b).slice(0, queries.start, queries.end, 1);
            (Matrix::of_view(&limits), first_key as i64)
        });
        let mask = options.mask.map(|mask| {
            let mask = mask.broadcast_to(&[sizes.batch, sizes.heads, sizes.queries, sizes.keys]);
            let mask = mask.index(0, b).index(0, h).slice(0, queries.start, queries.end, 1);
            mask.slice(1, keys.start, keys.end, 1)
        });
        let (rows, keys, pitch) = (queries.len(), keys.len(), blocks.pitch());
        let shift = shift.clamp(-far, far);
        let low = low.clamp(-far, far);
        Tile { rows, keys, before: 0, width: sizes.width, columns, pitch, shift, low, visible, mask }
    }
}

/// `0..count` as ranges of `step` that do not cross the boundaries of runs of equal length.
fn blocks_of_runs(count: usize, runs: usize, step: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    let length = count / runs;
    (0..runs).flat_map(move |run| {
        ranges(length, step).map(move |block| run * length + block.start..run * length + block.end)
    })
}

/// A tile of scores (query rows by keys): its layout, and which of its entries are not masked.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    rows: usize,
    keys: usize,
    /// Keys of the block before those of the tile.
    pub before: usize,
    width: usize,
    columns: usize,
    pitch: usize,
    /// Query row `i` sees the keys below `i + shift`, and from `i + low` on.
    shift: isize,
    low: isize,
    /// The positions that each row sees, and the position of the first key.
    visible: Option<(Matrix<i32>, i64)>,
    mask: Option<View<'a>>,
}

impl Tile<'_> {
    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The keys below what a row sees under the causal mask or behind the window, which matmuls skip.
    #[inline(always)]
    fn below(&self, row: usize) -> usize {
        (row as isize + self.shift).clamp(0, self.keys as isize) as usize
    }

    /// The keys that a row sees (the explicit mask is not considered).
    #[inline(always)]
    fn seen(&self, row: usize) -> Range<usize> {
        let (mut start, mut end) =
            ((row as isize + self.low).clamp(0, self.keys as isize) as usize, self.below(row));
        if let Some((limits, first)) = self.visible {
            let limits = limits.rows_after(row);
            let key = |column: usize| {
                // SAFETY: the limits have two columns and a row for each row of the tile, and are i32.
                let position = unsafe { limits.columns_after(column).pointer.read() };
                (i64::from(position) - first).clamp(0, self.keys as i64) as usize
            };
            (start, end) = (start.max(key(0)), end.min(key(1)));
        }
        start.min(end)..end
    }

    /// From the first to the last key that any row sees.
    fn span(&self) -> Range<usize> {
        let Some(last) = self.rows.checked_sub(1) else { return 0..0 };
        if self.visible.is_none() {
            // Later rows see later keys.
            let (start, end) = (self.seen(0).start, self.seen(last).end);
            return start.min(end)..end;
        }
        let seen = (0..self.rows).map(|row| self.seen(row)).filter(|seen| !seen.is_empty());
        let joined = seen.reduce(|all, seen| all.start.min(seen.start)..all.end.max(seen.end));
        joined.unwrap_or(0..0)
    }

    /// Whether no row sees any key.
    pub fn is_empty(&self) -> bool {
        self.keys == 0 || self.rows == 0
    }

    /// The number of keys that matmuls compute: those that the last row sees under the causal mask.
    fn reach(&self) -> usize {
        self.rows.checked_sub(1).map_or(0, |last| self.below(last))
    }

    /// `out = scale a b^T` where not masked; `a` has a row for each query and `b` has a row for each key.
    ///
    /// # Safety
    /// `b` has these rows.
    pub unsafe fn scores<C: Real>(
        &self,
        kernel_options: KernelOptions,
        scale: C,
        a: &[C],
        b: Matrix<C>,
        out: &mut [C],
        ahead: &[RowsAhead],
    ) {
        let part = Part { band: Band::Out(self.shift), ahead };
        let size = [self.rows, self.width, self.reach()];
        let (a, out) = (Matrix::of(a, self.columns), MatrixMut::of(out, self.pitch));
        // SAFETY: the caller guarantees the rows of `b`; `a` has its rows, and `out` has room for the matmul.
        unsafe { gemm_part(kernel_options, part, size, scale, a, b.transposed(), out, false) }
    }

    /// `out += scale p x`: `p` holds scores, `x` has a row for each key, `out` has a row for each query.
    pub fn over_keys<C: Real>(
        &self,
        kernel_options: KernelOptions,
        scale: C,
        p: &[C],
        x: &[C],
        out: &mut [C],
        ahead: &[RowsAhead],
    ) {
        let part = Part { band: Band::Lower(self.shift), ahead };
        let [p, x] = [Matrix::of(p, self.pitch), Matrix::of(x, self.columns)];
        let out = MatrixMut::of(out, self.columns);
        // SAFETY: `p` is rows by keys, and the other matrices have as many rows.
        unsafe {
            gemm_part(kernel_options, part, [self.rows, self.keys, self.columns], scale, p, x, out, true)
        }
    }

    /// `out += scale p^T x`: `p` holds scores, `x` has a row for each query, `out` has a row for each key.
    pub fn over_rows<C: Real>(
        &self,
        kernel_options: KernelOptions,
        scale: C,
        p: &[C],
        x: &[C],
        out: &mut [C],
        ahead: &[RowsAhead],
    ) {
        let part = Part { band: Band::Upper(self.shift), ahead };
        let [p, x] = [Matrix::of(p, self.pitch).transposed(), Matrix::of(x, self.columns)];
        let out = MatrixMut::of(out, self.columns);
        // SAFETY: `p` is rows by keys, and the other matrices have as many rows.
        unsafe {
            gemm_part(kernel_options, part, [self.reach(), self.rows, self.columns], scale, p, x, out, true)
        }
    }

    /// Sets scores to minus infinity where the mask is false.
    pub fn hide<C: Real>(&self, scores: &mut [C]) {
        let Some(mask) = &self.mask else { return };
        let mut scratch: TileBytes = [0; TILE];
        for (row, scores) in scores.chunks_mut(self.pitch).enumerate().take(self.rows) {
            let mask = mask.index(0, row);
            let reader = Reader::new(&mask);
            for (start, count) in tiles(self.seen(row).end) {
                let mask = reader.tile(start, count, bytemuck::cast_slice_mut(&mut scratch));
                for (score, &visible) in scores[start..].iter_mut().zip(mask) {
                    *score = if visible != 0 { *score } else { C::LOWEST };
                }
            }
        }
    }
}

/// Softmax statistics of the rows of a block.
pub(super) struct Rows<'a, C> {
    /// The largest score so far.
    pub max: &'a mut [C],
    /// The sum of `exp(score - max)` so far.
    pub sum: &'a mut [C],
    /// What the sums were last multiplied by because `max` grew.
    pub factor: &'a mut [C],
}

impl<'a, C: Number> Rows<'a, C> {
    /// Resets the statistics: no scores yet.
    pub fn begin(&mut self) {
        self.max.fill(C::LOWEST);
        self.sum.fill(C::ZERO);
    }
}

/// The reciprocal of a sum of exponentials; zero for an empty sum.
#[inline(always)]
pub(super) fn inverse<C: Real>(sum: C) -> C {
    if sum == C::ZERO { C::ZERO } else { C::ONE / sum }
}

/// A row of scores as whole chunks, which end at or after the last key that a matmul reads; masked entries
/// become `hidden`.
#[inline(always)]
fn chunks<'a, C: Number>(
    tile: &Tile<'_>,
    row: usize,
    scores: &'a mut [C],
    hidden: C,
) -> &'a mut [[C; LANES]] {
    let seen = tile.seen(row);
    let end = (tile.below(row) + BAND_ROWS).min(tile.keys).next_multiple_of(LANES);
    let scores = &mut scores[row * tile.pitch..][..end];
    scores[..seen.start].fill(hidden);
    scores[seen.end..].fill(hidden);
    scores.as_chunks_mut().0
}

multiversion! {
    /// Replaces scores by `exp(score - max)` with the largest score of their row so far.
    pub(super) fn exponentials[C: Real](tile: &Tile<'_>, scores: &mut [C], rows: &mut Rows<'_, C>) {
        for row in 0..tile.rows {
            let scores = chunks(tile, row, scores, C::LOWEST);
            let mut lanes = [C::LOWEST; LANES];
            for scores in &*scores {
                for (lane, &score) in lanes.iter_mut().zip(scores) {
                    *lane = Peak::apply(*lane, score);
                }
            }
            let before = rows.max[row];
            let max = Peak::apply(before, join_lanes::<C, Peak>(lanes));
            // A NaN is not a masked score: it must reach the result.
            if max == C::LOWEST && scores.as_flattened().iter().all(|&score| score == max) {
                scores.as_flattened_mut().fill(C::ZERO);
                rows.factor[row] = C::ONE;
                continue;
            }
            let mut lanes = [C::ZERO; LANES];
            for scores in scores {
                for (lane, score) in lanes.iter_mut().zip(scores) {
                    *score = (*score - max).exp_below_88();
                    *lane = *lane + *score;
                }
            }
            let factor = if max == before {
                C::ONE
            } else if before == C::LOWEST {
                C::ZERO
            } else {
                (before - max).exp_below_88()
            };
            rows.factor[row] = factor;
            rows.sum[row] = rows.sum[row] * factor + join_lanes::<C, Sum>(lanes);
            rows.max[row] = max;
        }
    }
}

multiversion! {
    /// Replaces scores by `exp(score - max)` with the final maximum of their row; rows that see no key become
    /// zeros.
    pub(super) fn exponentials_again[C: Real](tile: &Tile<'_>, scores: &mut [C], max: &[C], inverses: &[C]) {
        for row in 0..tile.rows {
            let scores = chunks(tile, row, scores, C::LOWEST);
            if inverses[row] == C::ZERO {
                scores.as_flattened_mut().fill(C::ZERO);
                continue;
            }
            for score in scores.as_flattened_mut() {
                *score = (*score - max[row]).exp_below_88();
            }
        }
    }
}

multiversion! {
    /// `means[row] += sum(p d)`
    pub(super) fn add_means[C: Real](tile: &Tile<'_>, p: &[C], d: &mut [C], means: &mut [C]) {
        for row in 0..tile.rows {
            let d = chunks(tile, row, d, C::ZERO);
            means[row] = means[row] + mean(&p[row * tile.pitch..], d);
        }
    }
}

/// The sum of the products p d.
#[inline(always)]
fn mean<C: Real>(p: &[C], d: &[[C; LANES]]) -> C {
    let d = d.as_flattened();
    let p = &p[..d.len()];
    lane_sum!(C; p, d; p * d)
}

multiversion! {
    /// `d = p (d - mean[row] inverses[row])`: the gradient through a softmax with the unscaled exponentials
    /// `p`. If the means are not complete yet, first adds this tile's part to them.
    pub(super) fn gradients[C: Real](tile: &Tile<'_>, p: &[C], d: &mut [C], means: &mut [C], inverses: &[C], complete: bool) {
        for row in 0..tile.rows {
            let (p, d) = (&p[row * tile.pitch..], chunks(tile, row, d, C::ZERO));
            if !complete {
                means[row] = means[row] + mean(p, d);
            }
            let shift = means[row] * inverses[row];
            for (d, &p) in d.as_flattened_mut().iter_mut().zip(p) {
                *d = p * (*d - shift);
            }
        }
    }
}

multiversion! {
    /// Multiplies each row by its factor.
    pub(super) fn scale_rows[C: Real](x: &mut [C], pitch: usize, factors: &[C]) {
        for (x, &factor) in x.chunks_exact_mut(pitch.max(1)).zip(factors) {
            for x in x {
                *x = *x * factor;
            }
        }
    }
}

multiversion! {
    /// Widens rows of a matrix to the compute type, padded with zeros to whole vectors of columns.
    fn widen_rows[T: Float; T](from: Matrix<T>, rows: usize, columns: usize, into: &mut [T::Compute]) {
        for (row, into) in into.chunks_exact_mut(padded(columns).max(1)).enumerate().take(rows) {
            let from = from.rows_after(row);
            let (into, rest) = into.split_at_mut(columns);
            // SAFETY: the row is inside the matrix.
            unsafe {
                if from.column == 1 {
                    let from = std::slice::from_raw_parts(from.pointer, columns);
                    let (chunks, last) = into.as_chunks_mut::<16>();
                    let (from_chunks, from_last) = from.as_chunks::<16>();
                    for (into, from) in chunks.iter_mut().zip(from_chunks) {
                        for (into, from) in into.iter_mut().zip(from) {
                            *into = from.load();
                        }
                    }
                    last.iter_mut().zip(from_last).for_each(|(into, from)| *into = from.load());
                } else {
                    let from = |column| from.columns_after(column).pointer.read();
                    into.iter_mut().enumerate().for_each(|(column, into)| *into = from(column).load());
                }
            }
            rest.fill(T::Compute::ZERO);
        }
    }
}

multiversion! {
    /// Multiplies each row by its factor and rounds it into a matrix.
    fn round_rows[T: Float; T](from: &[T::Compute], factors: &[T::Compute], to: MatrixMut<T>, rows: usize, columns: usize) {
        for (row, from) in from.chunks_exact(padded(columns).max(1)).enumerate().take(rows) {
            let (to, from) = (to.rows_after(row), &from[..columns]);
            let factor = factors[row];
            // SAFETY: the row is inside the matrix.
            unsafe {
                if to.column == 1 {
                    let to = std::slice::from_raw_parts_mut(to.pointer, columns);
                    to.iter_mut().zip(from).for_each(|(to, &x)| *to = T::store(x * factor));
                } else {
                    let to = |column| to.columns_after(column).pointer;
                    from.iter().enumerate().for_each(|(column, &x)| to(column).write(T::store(x * factor)));
                }
            }
        }
    }
}

/// Some rows of one head in place, if they are stored in the type and layout that the kernel computes with.
pub(super) fn in_place<T: Float>(
    view: &View<'_>,
    [b, h]: [usize; 2],
    rows: &Range<usize>,
) -> Option<Matrix<T::Compute>> {
    let head = || view.index(0, b).index(0, h).slice(0, rows.start, rows.end, 1);
    (T::DTYPE == T::Compute::DTYPE).then(|| Matrix::of_view(&head()))
}

/// Copies some rows of one head, widened to the compute type; rows are `padded(width)` elements apart.
pub(super) fn load<T: Float>(
    kernel_options: KernelOptions,
    view: &View<'_>,
    [b, h]: [usize; 2],
    rows: &Range<usize>,
    into: &mut [T::Compute],
) {
    let head = view.index(0, b).index(0, h).slice(0, rows.start, rows.end, 1);
    let columns = head.shape()[1];
    widen_rows::<T>(kernel_options, Matrix::of_view(&head), rows.len(), columns, into);
}

/// Writes rows to where [`load`] would read them, each multiplied by its factor.
pub(super) fn store<T: Float>(
    kernel_options: KernelOptions,
    from: &[T::Compute],
    factors: &[T::Compute],
    view: &mut ViewMut<'_>,
    [b, h]: [usize; 2],
    rows: &Range<usize>,
) {
    let mut head = view.reborrow().index(0, b).index(0, h).slice(0, rows.start, rows.end, 1);
    let columns = head.shape()[1];
    round_rows::<T>(kernel_options, from, factors, MatrixMut::of_view(&mut head), rows.len(), columns);
}

/// Some rows of one head to be prefetched while other rows are computed; empty if `head` is `None`.
pub(super) fn ahead(view: &View<'_>, head: Option<[usize; 2]>, rows: &Range<usize>) -> RowsAhead {
    let Some([b, h]) = head else { return RowsAhead::NOTHING };
    let head = view.index(0, b).index(0, h).slice(0, rows.start, rows.end, 1);
    let size = head.dtype().size_bytes();
    RowsAhead {
        pointer: head.as_ptr(),
        step: head.strides()[0] * size as isize,
        length: head.shape()[1] * size,
    }
}

/// The head after one, in the order of `[batch, heads]`; `None` after the last.
pub(super) fn after([b, h]: [usize; 2], [batch, heads]: [usize; 2]) -> Option<[usize; 2]> {
    if h + 1 < heads { Some([b, h + 1]) } else { (b + 1 < batch).then_some([b + 1, 0]) }
}
