//! Copies of blocks of `rhs` in the order in which tiles read them, and of strips of `lhs` whose rows are in each other's way.

use super::DEPTH;
use super::lanes::{Job, Lanes};
use super::tile::panels;
use crate::matmul::Matrix;

/// Copies `depth` rows of `columns` panel by panel. In a panel, rows follow each other, filled up with zeros to whole
/// vectors.
pub(super) struct Pack<V: Lanes> {
    pub from: Matrix<V::Element>,
    pub depth: usize,
    pub columns: usize,
    pub to: *mut V::Element,
}

impl<V: Lanes> Job for Pack<V> {
    #[inline(always)]
    unsafe fn run(self) {
        for (first, columns) in panels::<V>(self.columns) {
            let (from, to) = (self.from.columns_after(first), self.to.wrapping_add(first * self.depth));
            let whole = columns.is_multiple_of(V::COUNT);
            // SAFETY: all places read are inside `from`, those written in the panel.
            unsafe {
                match (from.row, from.column) {
                    (_, 1) if whole => rows::<V>(from, self.depth, columns, to),
                    (1, _) => transposed::<V>(from, self.depth, columns, to),
                    _ => any::<V>(from, self.depth, columns, to),
                }
            }
        }
    }
}

/// Copies a strip of `lhs` with contiguous rows to rows of [`PITCH`].
pub(super) struct Near<V: Lanes> {
    pub from: Matrix<V::Element>,
    pub rows: usize,
    pub depth: usize,
    pub to: *mut V::Element,
}

/// Elements from row to row of a strip's copy: the longest row, and whole vectors.
pub(super) const PITCH: usize = DEPTH + 16;

/// Bytes from row to row at which rows are in each other's way: a multiple of what a way of the first cache holds.
pub(super) const WAY_BYTES: usize = 4096;

impl<V: Lanes> Job for Near<V> {
    #[inline(always)]
    unsafe fn run(self) {
        let whole = self.depth / V::COUNT * V::COUNT;
        for row in 0..self.rows {
            let (from, to) = (self.from.rows_after(row).pointer, self.to.wrapping_add(row * PITCH));
            // SAFETY: all places read are inside `from`, those written in the copy.
            unsafe {
                for p in (0..whole).step_by(V::COUNT) {
                    V::load(from.add(p)).store(to.add(p));
                }
                V::load_first(from.add(whole), self.depth - whole).store(to.add(whole));
            }
        }
    }
}

/// A panel of whole vectors whose rows are contiguous.
///
/// # Safety
/// As of [`square`].
#[inline(always)]
unsafe fn rows<V: Lanes>(from: Matrix<V::Element>, depth: usize, columns: usize, mut to: *mut V::Element) {
    for p in 0..depth {
        let row = from.rows_after(p).pointer;
        for j in (0..columns).step_by(V::COUNT) {
            // SAFETY: the caller's.
            unsafe {
                V::load(row.add(j)).store(to);
                to = to.add(V::COUNT);
            }
        }
    }
}

/// A panel whose columns are contiguous.
///
/// # Safety
/// As of [`square`].
#[inline(always)]
unsafe fn transposed<V: Lanes>(from: Matrix<V::Element>, depth: usize, columns: usize, to: *mut V::Element) {
    let width = columns.next_multiple_of(V::COUNT);
    for j in (0..columns).step_by(V::COUNT) {
        for p in (0..depth).step_by(V::COUNT) {
            let (from, to) = (from.columns_after(j).rows_after(p), to.wrapping_add(p * width + j));
            let (rows, columns) = (V::COUNT.min(depth - p), V::COUNT.min(columns - j));
            // SAFETY: the caller's.
            unsafe {
                if rows == V::COUNT && columns == V::COUNT {
                    square::<V>(from, V::COUNT, V::COUNT, to, width);
                } else {
                    square::<V>(from, rows, columns, to, width);
                }
            }
        }
    }
}

/// Transposes a square, of which some rows and columns are there. A zip of rows half the height apart turns the bits
/// of (row, column) by one place; as many as a row number has bits exchange the two.
///
/// # Safety
/// The places are readable and writable, and the machine has the instructions.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant bounds and indices are what becomes registers")]
unsafe fn square<V: Lanes>(
    from: Matrix<V::Element>,
    rows: usize,
    columns: usize,
    to: *mut V::Element,
    width: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut square = [V::splat(V::ZERO); 16];
        for j in 0..columns {
            let column = from.columns_after(j).pointer;
            square[j] = if rows == V::COUNT { V::load(column) } else { V::load_first(column, rows) };
        }
        for _ in 0..V::COUNT.ilog2() {
            let before = square;
            for i in 0..V::COUNT / 2 {
                [square[2 * i], square[2 * i + 1]] = before[i].zip(before[i + V::COUNT / 2]);
            }
        }
        for i in 0..rows {
            square[i].store(to.add(i * width));
        }
    }
}

/// A panel of any strides.
///
/// # Safety
/// As of [`square`].
#[inline(always)]
unsafe fn any<V: Lanes>(from: Matrix<V::Element>, depth: usize, columns: usize, mut to: *mut V::Element) {
    for p in 0..depth {
        for j in 0..columns.next_multiple_of(V::COUNT) {
            // SAFETY: the caller's.
            unsafe {
                to.write(if j < columns {
                    from.rows_after(p).columns_after(j).pointer.read()
                } else {
                    V::ZERO
                });
                to = to.add(1);
            }
        }
    }
}
