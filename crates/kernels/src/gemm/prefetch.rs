//! Software prefetch for matmul: the cache lines that the next sums read are requested a few at a time while
//! the current sums are computed. Requested all at once when they are needed, the tile would wait for all of
//! them.

use crate::matrix::Matrix;

/// What is prefetched while one strip of the matmul is computed.
#[derive(Clone, Copy)]
pub(super) struct StripPrefetch<E> {
    /// The rows of `lhs` that the next strip reads, in place.
    pub below: Matrix<E>,
    /// The number of strips that follow with the same block of `rhs`.
    pub strips: usize,
    /// The block that is packed after those strips.
    pub block: BlockPrefetch<E>,
}

impl<E: Copy> StripPrefetch<E> {
    /// What tile `number` of the `tiles` of a strip prefetches during its `depth` steps. The last tile
    /// prefetches the next strip's rows of `lhs`, because the `rhs` of earlier tiles would evict them from
    /// L1; the other tiles of the last strips prefetch the block that is packed next.
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

/// The cache lines that a tile prefetches during its sums, some every few steps.
#[derive(Clone, Copy)]
pub(super) struct TilePrefetch<E> {
    at: *const E,
    /// Cache lines per request.
    lines: usize,
    /// Elements between the lines of one request.
    apart: isize,
    /// Steps of the sums between two requests.
    pub steps: usize,
    /// Elements from the first line of one request to the first line of the next.
    onward: isize,
}

impl<E: Copy> TilePrefetch<E> {
    /// Elements per cache line.
    const LINE: usize = 64 / size_of::<E>();

    const NOTHING: Self =
        TilePrefetch { at: std::ptr::null(), lines: 0, apart: 0, steps: Self::LINE, onward: 0 };

    /// Rows of contiguous elements, of which as many are prefetched as the sum has steps.
    #[inline(always)]
    fn rows(from: Matrix<E>, rows: usize) -> Self {
        let onward = Self::LINE as isize;
        TilePrefetch { at: from.pointer, lines: rows, apart: from.row, steps: Self::LINE, onward }
    }

    /// The first elements of columns, of which as many are prefetched as the sum has steps.
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

/// A block of a matrix that will be packed later: rows of contiguous elements.
#[derive(Clone, Copy)]
pub(super) struct BlockPrefetch<E> {
    from: Matrix<E>,
    rows: usize,
    columns: usize,
}

impl<E: Copy> BlockPrefetch<E> {
    /// Rows that one tile prefetches.
    const ROWS: usize = 8;

    pub(super) const NOTHING: Self =
        BlockPrefetch { from: Matrix { pointer: std::ptr::null(), row: 0, column: 1 }, rows: 0, columns: 0 };

    /// The first rows and columns of a matrix; empty if neither its rows nor its columns are contiguous.
    pub(super) fn new(from: Matrix<E>, [rows, columns]: [usize; 2]) -> Self {
        match (from.row, from.column) {
            (_, 1) => BlockPrefetch { from, rows, columns },
            (1, _) => BlockPrefetch { from: from.transposed(), rows: columns, columns: rows },
            _ => BlockPrefetch::NOTHING,
        }
    }

    /// What a tile with sums of `depth` steps prefetches if `tiles` tiles follow it; nothing while those are
    /// enough.
    #[inline(always)]
    fn of_tile(&self, tiles: usize, depth: usize) -> Option<TilePrefetch<E>> {
        let high = self.rows.div_ceil(Self::ROWS);
        let piece = (high * self.columns.div_ceil(depth.max(1))).checked_sub(tiles + 1)?;
        let from = self.from.rows_after(piece % high * Self::ROWS).columns_after(piece / high * depth);
        Some(TilePrefetch::rows(from, Self::ROWS))
    }
}
