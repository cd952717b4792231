//! Copies of blocks in the order in which tiles read them.

use super::lanes::{Job, Lanes};
use crate::matmul::Matrix;

/// Copies `depth` rows of up to two vectors of columns into rows of `vectors` whole vectors, the rest zero.
pub(super) struct PackColumns<V: Lanes> {
    pub from: Matrix<V::Element>,
    pub depth: usize,
    pub columns: usize,
    pub to: *mut V::Element,
}

impl<V: Lanes> Job for PackColumns<V> {
    #[inline(always)]
    unsafe fn run(self) {
        let PackColumns { from, depth, columns, to } = self;
        let width = columns.next_multiple_of(V::COUNT);
        for first in (0..columns).step_by(V::COUNT) {
            let count = V::COUNT.min(columns - first);
            // SAFETY: all places read are inside `from`, those written inside `depth` rows of `width`.
            unsafe {
                let from = from.columns_after(first);
                let to = to.add(first);
                if from.column == 1 && count == V::COUNT {
                    for p in 0..depth {
                        V::load(from.rows_after(p).pointer).store(to.add(p * width));
                    }
                } else if from.column == 1 {
                    for p in 0..depth {
                        V::load_first(from.rows_after(p).pointer, count).store(to.add(p * width));
                    }
                } else if from.row == 1 {
                    for p in (0..depth).step_by(V::COUNT) {
                        let rows = V::COUNT.min(depth - p);
                        transpose::<V>(from.rows_after(p), rows, count, to.add(p * width), width);
                    }
                } else {
                    for p in 0..depth {
                        let from = from.rows_after(p);
                        for j in 0..V::COUNT {
                            let value = if j < count { from.columns_after(j).pointer.read() } else { V::ZERO };
                            to.add(p * width + j).write(value);
                        }
                    }
                }
            }
        }
    }
}

/// Writes `rows` vectors, `width` apart, from `columns` columns, each contiguous. Zips of rows half the height
/// apart turn the bits of (row, column) by one place; as many as the row has bits exchange the two.
///
/// # Safety
/// The places are readable and writable, and the machine has the instructions.
#[inline(always)]
unsafe fn transpose<V: Lanes>(
    from: Matrix<V::Element>,
    rows: usize,
    columns: usize,
    to: *mut V::Element,
    width: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut square = [V::splat(V::ZERO); 16];
        if rows == V::COUNT && columns == V::COUNT {
            for i in 0..V::COUNT {
                square[i] = V::load(from.columns_after(i).pointer);
            }
        } else {
            for i in 0..columns {
                square[i] = V::load_first(from.columns_after(i).pointer, rows);
            }
        }
        for _ in 0..V::COUNT.ilog2() {
            let before = square;
            for i in 0..V::COUNT / 2 {
                [square[2 * i], square[2 * i + 1]] = before[i].zip(before[i + V::COUNT / 2]);
            }
        }
        if rows == V::COUNT {
            for i in 0..V::COUNT {
                square[i].store(to.add(i * width));
            }
        } else {
            for i in 0..rows {
                square[i].store(to.add(i * width));
            }
        }
    }
}

/// Copies up to `V::ROWS` rows of `depth`, without changing which of the two directions is contiguous, and returns
/// the copy.
pub(super) struct PackRows<V: Lanes> {
    pub from: Matrix<V::Element>,
    pub depth: usize,
    pub rows: usize,
    pub to: *mut V::Element,
}

impl<V: Lanes> PackRows<V> {
    /// Elements that a copy of `V::ROWS` rows takes at most.
    pub(super) const fn room(depth: usize) -> usize {
        V::ROWS * row_stride(depth)
    }

    /// Where a copy will be.
    pub(super) fn copy(&self) -> Matrix<V::Element> {
        if self.from.column == 1 {
            Matrix { pointer: self.to, row: row_stride(self.depth) as isize, column: 1 }
        } else {
            Matrix { pointer: self.to, row: 1, column: V::ROWS as isize }
        }
    }
}

/// Rows begin an odd number of cache lines apart, so that they do not compete for the same sets of a cache.
const fn row_stride(depth: usize) -> usize {
    depth.next_multiple_of(32) + 16
}

impl<V: Lanes> Job for PackRows<V> {
    #[inline(always)]
    unsafe fn run(self) {
        let PackRows { from, depth, rows, to } = self;
        // SAFETY: all places read are inside `from`, those written inside the copy.
        unsafe {
            if from.column == 1 {
                for r in 0..rows {
                    let (from, to) = (from.rows_after(r).pointer, to.add(r * row_stride(depth)));
                    let mut p = 0;
                    while p + V::COUNT <= depth {
                        V::load(from.add(p)).store(to.add(p));
                        p += V::COUNT;
                    }
                    V::load_first(from.add(p), depth - p).store_first(to.add(p), depth - p);
                }
            } else if from.row == 1 && rows == V::ROWS {
                for p in 0..depth {
                    let (from, to) = (from.columns_after(p).pointer, to.add(p * V::ROWS));
                    let mut r = 0;
                    while r + V::COUNT <= V::ROWS {
                        V::load(from.add(r)).store(to.add(r));
                        r += V::COUNT;
                    }
                    V::load_first(from.add(r), V::ROWS - r).store_first(to.add(r), V::ROWS - r);
                }
            } else {
                for p in 0..depth {
                    let from = from.columns_after(p);
                    for r in 0..rows {
                        to.add(p * V::ROWS + r).write(from.rows_after(r).pointer.read());
                    }
                }
            }
        }
    }
}
