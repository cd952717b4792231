//! What a product asks memory for while it sums: what it reads next would otherwise arrive all at once, and the
//! processor would wait for it.

use crate::matmul::Matrix;

/// What is read when a strip of `lhs` is done.
#[derive(Clone, Copy)]
pub(super) struct Next<E> {
    /// Rows of `lhs` that are read soon, where they are.
    pub below: Matrix<E>,
    /// Strips that follow with the same block of `rhs`.
    pub strips: usize,
    /// What is packed after them.
    pub block: Later<E>,
}

impl<E: Copy> Next<E> {
    /// What tile `number` of `tiles` of a strip asks for, whose sums have `depth` steps. The last one asks for the rows
    /// below, which the `rhs` of others would push out of the first cache again; the last strips' others for what is
    /// packed next.
    #[inline(always)]
    pub(super) fn soon(&self, number: usize, tiles: usize, rows: usize, depth: usize) -> Soon<E> {
        match (tiles - 1 - number).checked_sub(1) {
            Some(tiles_here) => {
                let follow = self.strips * (tiles - 1) + tiles_here;
                self.block.of_tile(follow, depth).unwrap_or(Soon::NOTHING)
            }
            None if self.below.column == 1 => Soon::rows(self.below, rows),
            None => Soon::columns(self.below),
        }
    }
}

/// Lines of memory that a sum asks for on its way, some every few steps.
#[derive(Clone, Copy)]
pub(super) struct Soon<E> {
    at: *const E,
    lines: usize,
    apart: isize,
    pub steps: usize,
    /// From the first of those lines to the first of the next.
    onward: isize,
}

impl<E: Copy> Soon<E> {
    /// Elements in a line of memory.
    const LINE: usize = 64 / size_of::<E>();

    const NOTHING: Self = Soon { at: std::ptr::null(), lines: 0, apart: 0, steps: Self::LINE, onward: 0 };

    /// Rows of contiguous elements, as many of these as the sum has steps.
    #[inline(always)]
    fn rows(from: Matrix<E>, rows: usize) -> Self {
        let onward = Self::LINE as isize;
        Soon { at: from.pointer, lines: rows, apart: from.row, steps: Self::LINE, onward }
    }

    /// The first elements of columns, as many as the sum has steps.
    #[inline(always)]
    fn columns(from: Matrix<E>) -> Self {
        const STEPS: usize = 4;
        let onward = STEPS as isize * from.column;
        Soon { at: from.pointer, lines: STEPS, apart: from.column, steps: STEPS, onward }
    }

    /// Asks for the next lines.
    #[inline(always)]
    pub(super) fn ask(&mut self, prefetch: impl Fn(*const E)) {
        for line in 0..self.lines {
            prefetch(self.at.wrapping_offset(line as isize * self.apart));
        }
        self.at = self.at.wrapping_offset(self.onward);
    }
}

/// A block of a matrix that is read later: rows of contiguous elements.
#[derive(Clone, Copy)]
pub(super) struct Later<E> {
    from: Matrix<E>,
    rows: usize,
    columns: usize,
}

impl<E: Copy> Later<E> {
    /// Rows that a tile asks for.
    const ROWS: usize = 8;

    pub(super) const NOTHING: Self =
        Later { from: Matrix { pointer: std::ptr::null(), row: 0, column: 1 }, rows: 0, columns: 0 };

    /// The first rows and columns of a matrix; nothing where neither are contiguous.
    pub(super) fn block(from: Matrix<E>, [rows, columns]: [usize; 2]) -> Self {
        match (from.row, from.column) {
            (_, 1) => Later { from, rows, columns },
            (1, _) => Later { from: from.transposed(), rows: columns, columns: rows },
            _ => Later::NOTHING,
        }
    }

    /// What a tile asks for whose sums have `depth` steps, if `tiles` follow it; nothing as long as those suffice.
    #[inline(always)]
    fn of_tile(&self, tiles: usize, depth: usize) -> Option<Soon<E>> {
        let high = self.rows.div_ceil(Self::ROWS);
        let piece = (high * self.columns.div_ceil(depth.max(1))).checked_sub(tiles + 1)?;
        let from = self.from.rows_after(piece % high * Self::ROWS).columns_after(piece / high * depth);
        Some(Soon::rows(from, Self::ROWS))
    }
}
