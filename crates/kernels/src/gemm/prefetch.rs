//! Prefetch in a product: cache lines that its sums read next, requested a few at a time while the sums before them are
//! computed. Requested all at once when they are needed, they would all be waited for.

use crate::matrix::Matrix;

/// What is prefetched while a strip of the product is computed.
#[derive(Clone, Copy)]
pub(super) struct StripPrefetch<E> {
    /// Rows of `lhs` that the next strip reads, where they are.
    pub below: Matrix<E>,
    /// Strips that follow with the same block of `rhs`.
    pub strips: usize,
    /// What is packed after them.
    pub block: BlockPrefetch<E>,
}

impl<E: Copy> StripPrefetch<E> {
    /// What tile `number` of `tiles` of a strip prefetches, whose sums have `depth` steps. The last one prefetches the rows
    /// below, which the `rhs` of others would push out of the first cache again; the last strips' others prefetch what is
    /// packed next.
    #[inline(always)]
    pub(super) fn of_tile(&self, number: usize, tiles: usize, rows: usize, depth: usize) -> TilePrefetch<E> {
        match (tiles - 1 - number).checked_sub(1) {
            Some(tiles_here) => {
                let follow = self.strips * (tiles - 1) + tiles_here;
                self.block.of_tile(follow, depth).unwrap_or(TilePrefetch::NOTHING)
            }
            None if self.below.column == 1 => TilePrefetch::rows(self.below, rows),
            None => TilePrefetch::columns(self.below),
        }
    }
}

/// Cache lines that a tile's sums prefetch on their way, some every few steps.
#[derive(Clone, Copy)]
pub(super) struct TilePrefetch<E> {
    at: *const E,
    /// Cache lines at a time.
    lines: usize,
    /// From one of them to the next, in elements.
    apart: isize,
    /// Steps of a sum from one time to the next.
    pub steps: usize,
    /// From the first of those lines to the first of the next.
    onward: isize,
}

impl<E: Copy> TilePrefetch<E> {
    /// Elements in a cache line.
    const LINE: usize = 64 / size_of::<E>();

    const NOTHING: Self =
        TilePrefetch { at: std::ptr::null(), lines: 0, apart: 0, steps: Self::LINE, onward: 0 };

    /// Rows of contiguous elements, as many of these as the sum has steps.
    #[inline(always)]
    fn rows(from: Matrix<E>, rows: usize) -> Self {
        let onward = Self::LINE as isize;
        TilePrefetch { at: from.pointer, lines: rows, apart: from.row, steps: Self::LINE, onward }
    }

    /// The first elements of columns, as many as the sum has steps.
    #[inline(always)]
    fn columns(from: Matrix<E>) -> Self {
        const STEPS: usize = 4;
        let onward = STEPS as isize * from.column;
        TilePrefetch { at: from.pointer, lines: STEPS, apart: from.column, steps: STEPS, onward }
    }

    /// Prefetches the next lines.
    #[inline(always)]
    pub(super) fn advance(&mut self, prefetch: impl Fn(*const E)) {
        for line in 0..self.lines {
            prefetch(self.at.wrapping_offset(line as isize * self.apart));
        }
        self.at = self.at.wrapping_offset(self.onward);
    }
}

/// A block of a matrix that is packed later: rows of contiguous elements.
#[derive(Clone, Copy)]
pub(super) struct BlockPrefetch<E> {
    from: Matrix<E>,
    rows: usize,
    columns: usize,
}

impl<E: Copy> BlockPrefetch<E> {
    /// Rows that a tile prefetches.
    const ROWS: usize = 8;

    pub(super) const NOTHING: Self =
        BlockPrefetch { from: Matrix { pointer: std::ptr::null(), row: 0, column: 1 }, rows: 0, columns: 0 };

    /// The first rows and columns of a matrix; nothing where neither are contiguous.
    pub(super) fn new(from: Matrix<E>, [rows, columns]: [usize; 2]) -> Self {
        match (from.row, from.column) {
            (_, 1) => BlockPrefetch { from, rows, columns },
            (1, _) => BlockPrefetch { from: from.transposed(), rows: columns, columns: rows },
            _ => BlockPrefetch::NOTHING,
        }
    }

    /// What a tile prefetches whose sums have `depth` steps, if `tiles` follow it; nothing as long as those suffice.
    #[inline(always)]
    fn of_tile(&self, tiles: usize, depth: usize) -> Option<TilePrefetch<E>> {
        let high = self.rows.div_ceil(Self::ROWS);
        let piece = (high * self.columns.div_ceil(depth.max(1))).checked_sub(tiles + 1)?;
        let from = self.from.rows_after(piece % high * Self::ROWS).columns_after(piece / high * depth);
        Some(TilePrefetch::rows(from, Self::ROWS))
    }
}
