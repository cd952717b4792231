//! Packs blocks of `rhs` in the order in which tiles read them, and copies rows of `lhs` whose layout is slow
//! to read.

use std::cell::RefCell;

use super::lanes::{Job, Lanes};
use super::operand::Operand;
use crate::matrix::Matrix;

/// Maximum number of rows of a block of `rhs`, which is the longest sum that is accumulated at once.
pub(crate) const DEPTH: usize = 384;

/// Minimum number of rows that a block of `rhs` has room for.
pub(super) const MIN_DEPTH: usize = 32;

/// The length of the blocks that a sum over `k` is split into: a function of `k` alone.
pub(crate) fn depth_block(k: usize) -> usize {
    k.div_ceil(k.div_ceil(DEPTH).max(1)).next_multiple_of(MIN_DEPTH).max(MIN_DEPTH)
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

thread_local! {
    /// The packing buffer of a thread, for blocks of `rhs` followed by rows of `lhs`; allocated at its first
    /// matmul.
    static BUFFER: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with this thread's packing buffer of at least `bytes` bytes, aligned to a cache line. It
/// grows when the thread's first matmul on AMX follows one without.
pub(crate) fn with_buffer(bytes: usize, work: impl FnOnce(*mut u8)) {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() * size_of::<Line>() < bytes {
            buffer.clear();
            buffer.resize(bytes.div_ceil(size_of::<Line>()), Line([0; 64]));
        }
        work(buffer.as_mut_ptr().cast());
    });
}

/// Packs `depth` rows of `columns` panel by panel. In a panel, rows follow each other, padded with zeros to
/// whole vectors.
pub(crate) struct Pack<'a, V: Lanes> {
    pub from: Operand<'a, V::Element>,
    pub depth: usize,
    pub columns: usize,
    pub to: *mut V::Element,
}

impl<V: Lanes> Job for Pack<'_, V> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: all places read are inside `from`, and all places written inside the panels.
        unsafe { self.from.pack::<V>([self.depth, self.columns], self.to) };
    }
}

/// Copies rows of `lhs` to rows of [`PITCH`] elements.
pub(crate) struct Near<'a, V: Lanes> {
    pub from: Operand<'a, V::Element>,
    pub rows: usize,
    pub depth: usize,
    pub to: *mut V::Element,
}

/// Elements from row to row in a copy of `lhs`: the longest row plus one vector, which avoids cache set
/// conflicts.
pub(crate) const PITCH: usize = DEPTH + 16;

impl<V: Lanes> Job for Near<'_, V> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: all places read are inside `from`, and all places written inside the copy.
        unsafe { self.from.copy::<V>([self.rows, self.depth], self.to, PITCH) };
    }
}

/// Copies rows and columns to rows that are `width` elements apart, each padded with zeros to whole vectors.
///
/// # Safety
/// The same as for [`square`].
#[inline(always)]
pub(crate) unsafe fn copy<V: Lanes>(
    from: Matrix<V::Element>,
    sizes: [usize; 2],
    to: *mut V::Element,
    width: usize,
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match (from.row, from.column) {
            (_, 1) => rows::<V>(from, sizes, to, width),
            (1, _) => transposed::<V>(from, sizes, to, width),
            _ => any::<V>(from, sizes, to, width),
        }
    }
}

/// [`copy`] for contiguous rows.
///
/// # Safety
/// The same as for [`square`].
#[inline(always)]
unsafe fn rows<V: Lanes>(
    from: Matrix<V::Element>,
    [rows, columns]: [usize; 2],
    to: *mut V::Element,
    width: usize,
) {
    let whole = columns / V::COUNT * V::COUNT;
    for i in 0..rows {
        let (from, to) = (from.rows_after(i).pointer, to.wrapping_add(i * width));
        // SAFETY: the caller upholds the contract.
        unsafe {
            for j in (0..whole).step_by(V::COUNT) {
                V::load(from.add(j)).store(to.add(j));
            }
            if whole < columns {
                V::load_first(from.add(whole), columns - whole).store(to.add(whole));
            }
        }
    }
}

/// [`copy`] for contiguous columns.
///
/// # Safety
/// The same as for [`square`].
#[inline(always)]
pub(crate) unsafe fn transposed<V: Lanes>(
    from: Matrix<V::Element>,
    [rows, columns]: [usize; 2],
    to: *mut V::Element,
    width: usize,
) {
    /// Prefetch distance in squares: columns may be too far apart for the hardware prefetcher.
    const AHEAD: usize = 2;
    for j in (0..columns).step_by(V::COUNT) {
        for i in (0..rows).step_by(V::COUNT) {
            let (from, to) = (from.columns_after(j).rows_after(i), to.wrapping_add(i * width + j));
            let (rows, columns) = (V::COUNT.min(rows - i), V::COUNT.min(columns - j));
            // SAFETY: the caller upholds the contract; a prefetched address need not be valid.
            unsafe {
                for column in 0..V::COUNT {
                    V::prefetch(from.columns_after(AHEAD * V::COUNT + column).pointer);
                }
                if rows == V::COUNT && columns == V::COUNT {
                    square::<V>(from, V::COUNT, V::COUNT, to, width);
                } else {
                    square::<V>(from, rows, columns, to, width);
                }
            }
        }
    }
}

/// [`copy`] for any strides.
///
/// # Safety
/// The same as for [`square`].
#[inline(always)]
unsafe fn any<V: Lanes>(
    from: Matrix<V::Element>,
    [rows, columns]: [usize; 2],
    to: *mut V::Element,
    width: usize,
) {
    for i in 0..rows {
        for j in 0..columns.next_multiple_of(V::COUNT) {
            // SAFETY: the caller upholds the contract.
            unsafe {
                to.add(i * width + j).write(if j < columns {
                    from.rows_after(i).columns_after(j).pointer.read()
                } else {
                    V::ZERO
                });
            }
        }
    }
}

/// Transposes a square in registers, of which only some rows and columns may exist. Zipping rows that are
/// half the height apart rotates the bits of the index (row, column) by one; as many zips as a row index has
/// bits exchange row and column.
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
    // SAFETY: the caller upholds the contract.
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
