//! Matrix multiplication of floats: `out = scale * lhs rhs`, optionally added to `out`.
//!
//! A block of `rhs` that fits L2 is packed into panels as wide as a register tile, transposed on the way if
//! its columns are the contiguous ones; a small matmul reads `rhs` in place. Then each strip of rows of `lhs`
//! is multiplied with all panels. Elements of `lhs` are only broadcast, so its rows are read in place, with
//! two exceptions, which are copied: rows whose distance maps them to the same sets of L1, and rows whose
//! elements are not contiguous. This is a variant of the scheme of Goto and van de Geijn ("Anatomy of
//! High-Performance Matrix Multiplication", 2008).
//!
//! The entry point is [`product`]. [`whole_product`] may use AMX instead (`native/amx.rs`).
//!
//! **Bits.** An element of `out` depends only on its row of `lhs`, its column of `rhs`, `scale` and
//! `accumulate`: not on the sizes of the matrices, the position in them, strides, or the vector width. The
//! sum over k is split into blocks whose length depends on k alone, and each block is summed in order (see
//! `tile.rs`). Only the payload of a NaN may differ.

pub(crate) mod lanes;
pub(crate) mod operand;
pub(crate) mod pack;
mod prefetch;
#[cfg(test)]
mod tests;
mod tile;

use crate::matrix::{Matrix, MatrixMut};
use crate::native::{NativeBackend, backend};
use crate::options::{KernelOptions, Level};
use lanes::Lanes;
use operand::Operand;
use pack::{DEPTH, Near, PITCH, Pack, depth_block, with_buffer};
use prefetch::{BlockPrefetch, StripPrefetch};
use tile::{Panels, Strip, panels};

/// Bytes of a packed block of `rhs`: as many `f32` columns as rows.
const RHS_BYTES: usize = DEPTH * DEPTH * size_of::<f32>();
/// Maximum number of rows of `lhs` that are copied at once: a multiple of the rows of every strip and of the
/// lanes of every vector.
const NEAR_ROWS: usize = 96;
const NEAR_BYTES: usize = NEAR_ROWS * PITCH * size_of::<f64>();
const BLOCK_BYTES: usize = RHS_BYTES + NEAR_BYTES;
/// Distance in bytes at which rows conflict in L1: rows at a multiple of the bytes of one cache way share
/// sets.
const WAY_BYTES: usize = 4096;
/// A matmul of at most so many rows reads `rhs` in place if its layout allows it.
const IN_PLACE_ROWS: usize = 128;

/// Work that is written for the lanes of any level.
pub(crate) trait Work<C> {
    /// Does the work with these lanes.
    ///
    /// # Safety
    /// The contract of the work; and the machine has the instructions of the lanes.
    unsafe fn run<V: Lanes<Element = C>>(self);
}

/// A float type with lanes on every machine.
pub(crate) trait Factor: Copy + 'static {
    /// Work with the lanes of one level, which the machine must have.
    ///
    /// # Safety
    /// The contract of the work.
    unsafe fn at_level(level: Level, work: impl Work<Self>);
}

macro_rules! factor {
    ($type:ty, $plain:ty, $avx2:ident, $avx512:ident) => {
        impl Factor for $type {
            unsafe fn at_level(level: Level, work: impl Work<Self>) {
                // SAFETY: the caller upholds the contract.
                unsafe {
                    match level {
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx512 => work.run::<crate::native::lanes::$avx512>(),
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx2 => work.run::<crate::native::lanes::$avx2>(),
                        Level::Portable => work.run::<$plain>(),
                    }
                }
            }
        }
    };
}
factor!(f32, [f32; 8], __m256, __m512);
factor!(f64, [f64; 4], __m256d, __m512d);

/// `out[m, n] = scale * lhs[m, k] rhs[k, n]`, added to `out` if `accumulate`; computes only what `part`
/// selects.
///
/// # Safety
/// The matrices have these sizes, and `out` overlaps neither of the others.
pub(crate) unsafe fn product<'a, C: Factor>(
    options: KernelOptions,
    sizes: [usize; 3],
    scale: C,
    lhs: impl Into<Operand<'a, C>>,
    rhs: impl Into<Operand<'a, C>>,
    out: MatrixMut<C>,
    accumulate: bool,
    part: Part<'_>,
) {
    let (lhs, rhs) = (lhs.into(), rhs.into());
    // SAFETY: the caller upholds the contract; options exist only for what the machine has.
    unsafe {
        C::at_level(options.level(), Product { sizes, scale, lhs, rhs, out, accumulate, part });
    }
}

/// The arguments of [`product`].
#[derive(Clone, Copy)]
struct Product<'a, C> {
    sizes: [usize; 3],
    scale: C,
    lhs: Operand<'a, C>,
    rhs: Operand<'a, C>,
    out: MatrixMut<C>,
    accumulate: bool,
    part: Part<'a>,
}

/// [`product`] of complete `f32` matrices, on AMX if the options name it.
///
/// # Safety
/// The same as for [`product`].
pub(crate) unsafe fn whole_product(
    options: KernelOptions,
    sizes: [usize; 3],
    scale: f32,
    lhs: Matrix<f32>,
    rhs: Matrix<f32>,
    out: MatrixMut<f32>,
    accumulate: bool,
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        if !backend(options).matmul(sizes, scale, lhs, rhs, out, accumulate) {
            product(options, sizes, scale, lhs, rhs, out, accumulate, Part::WHOLE)
        }
    }
}

/// Which entries of a matmul are computed, and what is prefetched meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub band: Band,
    pub ahead: &'a [RowsAhead],
}

impl Part<'_> {
    pub const WHOLE: Part<'static> = Part { band: Band::Full, ahead: &[] };
}

/// Rows of memory that will soon be read or written: one is prefetched with each row of the matmul.
#[derive(Clone, Copy)]
pub(crate) struct RowsAhead {
    pub pointer: *const u8,
    /// Bytes from one row to the next.
    pub step: isize,
    /// Bytes in a row.
    pub length: usize,
}

impl RowsAhead {
    pub const NOTHING: RowsAhead = RowsAhead { pointer: std::ptr::null(), step: 0, length: 0 };
}

/// The entries of a matmul that a causal mask makes unnecessary. Rows of `lhs` are grouped into
/// [`BAND_ROWS`], so that the skipped part is the same on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Band {
    /// Nothing is skipped.
    Full,
    /// `out[i, j]` with `j >= i + shift` need not be computed: it may or may not be written. Rows of `out`
    /// must be contiguous.
    Out(isize),
    /// Products with `lhs[i, p]` for `p >= i + shift` are skipped: those entries of `lhs` are zero for the
    /// next [`BAND_ROWS`] values of `p`, and arbitrary after them.
    Lower(isize),
    /// Products with `lhs[i, p]` for `i >= p + shift` are skipped: those entries of `lhs` are zero for the
    /// next [`BAND_ROWS`] values of `i`, and arbitrary after them.
    Upper(isize),
}

/// Rows that a band treats alike: a multiple of the rows of every register tile.
pub(crate) const BAND_ROWS: usize = 12;

impl Band {
    /// For rows `i..i + rows` of one group: the range of k that their sums need, and the number of columns
    /// that are needed.
    fn strip(self, i: usize, rows: usize, [k, n]: [usize; 2]) -> (std::ops::Range<usize>, usize) {
        let first = i / BAND_ROWS * BAND_ROWS;
        let at =
            |row: usize, shift: isize, end: usize| (row as isize + shift).clamp(0, end as isize) as usize;
        match self {
            Band::Full => (0..k, n),
            Band::Out(shift) => (0..k, at(i + rows - 1, shift, n)),
            Band::Lower(shift) => (0..at(first + BAND_ROWS - 1, shift, k), n),
            Band::Upper(shift) => (at(first + 1, -shift, k)..k, n),
        }
    }
}

impl<C: Copy> Work<C> for Product<'_, C> {
    unsafe fn run<V: Lanes<Element = C>>(self) {
        // SAFETY: the caller upholds the contract.
        unsafe { blocks::<V>(self) }
    }
}

/// [`product`] with the lanes of one level.
///
/// # Safety
/// The same as for [`product`], and the machine has the instructions.
unsafe fn blocks<V: Lanes>(product: Product<'_, V::Element>) {
    let Product { sizes: [m, k, n], .. } = product;
    if m == 0 || n == 0 {
        return;
    }
    let blocking = Blocking::<V>::of(product);
    let Blocking { product: Product { sizes: [m, _, n], .. }, depth_block, columns_block, .. } = blocking;
    with_buffer(BLOCK_BYTES, |packed| {
        let packed: *mut V::Element = packed.cast();
        // SAFETY: it is inside the buffer.
        let near: *mut V::Element = unsafe { packed.byte_add(RHS_BYTES) };
        for j in (0..n).step_by(columns_block) {
            let columns = columns_block.min(n - j);
            for p in (0..k.max(1)).step_by(depth_block) {
                let depth = depth_block.min(k - p);
                // SAFETY: the block is inside `rhs` and fits the buffer, and each strip is inside the matrices.
                unsafe {
                    let (panels, prefetch) = blocking.panels([p, depth], [j, columns], packed);
                    let block = Block { p, depth, j, columns, panels, prefetch };
                    for i in (0..m).step_by(V::ROWS) {
                        blocking.strip(&block, i, near);
                    }
                }
            }
        }
    });
}

/// A matmul of at least one element, and how it is cut into blocks.
struct Blocking<'a, V: Lanes> {
    product: Product<'a, V::Element>,
    /// Rows and columns of a block of `rhs`.
    depth_block: usize,
    columns_block: usize,
    /// `rhs`, if it is read in place.
    in_place: Option<Matrix<V::Element>>,
    /// The number of rows of `lhs` that are copied at once, if they are.
    copied_rows: Option<usize>,
}

/// A block of `rhs`: its first row and column, its sizes, and where it is read.
struct Block<V: Lanes> {
    p: usize,
    depth: usize,
    j: usize,
    columns: usize,
    panels: Panels<V>,
    /// The block that is packed next.
    prefetch: BlockPrefetch<V::Element>,
}

impl<'a, V: Lanes> Blocking<'a, V> {
    fn of(mut product: Product<'a, V::Element>) -> Blocking<'a, V> {
        let Product { sizes: [mut m, k, mut n], mut lhs, mut rhs, mut out, part, .. } = product;
        // Vectors run along the columns of `out`; if instead its columns are contiguous, compute the transposed
        // matmul.
        if (n == 1 || out.column != 1) && (m == 1 || out.row == 1) && matches!(part.band, Band::Full) {
            (m, n) = (n, m);
            (lhs, rhs) = (rhs.transposed(), lhs.transposed());
            out = MatrixMut { row: out.column, column: out.row, ..out };
        }
        if n == 1 {
            out.column = 1;
        }
        product = Product { sizes: [m, k, n], lhs, rhs, out, ..product };
        let depth_block = depth_block(k);
        let columns_block = {
            let most = RHS_BYTES / size_of::<V::Element>() / depth_block / V::COUNT * V::COUNT;
            n.div_ceil(n.div_ceil(most)).next_multiple_of(V::COUNT)
        };
        let in_place =
            rhs.matrix().filter(|rhs| rhs.column == 1 && n.is_multiple_of(V::COUNT) && m <= IN_PLACE_ROWS);
        // A copy of `lhs` pays if more than one panel reads it: contiguous rows are copied strip by strip,
        // contiguous columns in larger groups, so that each cache line is used fully.
        let in_the_way =
            |lhs: Matrix<_>| (lhs.row.unsigned_abs() * size_of::<V::Element>()).is_multiple_of(WAY_BYTES);
        let copied_rows = match lhs {
            Operand::Grid { .. } => Some(NEAR_ROWS),
            Operand::Matrix(_) if n <= V::VECTORS * V::COUNT => None,
            Operand::Matrix(lhs @ Matrix { column: 1, .. }) if in_the_way(lhs) && m > 1 => Some(V::ROWS),
            Operand::Matrix(Matrix { row: 1, column, .. }) if column != 1 => Some(NEAR_ROWS),
            Operand::Matrix(_) => None,
        };
        Blocking { product, depth_block, columns_block, in_place, copied_rows }
    }

    /// A block of `rhs` in place, or packed; and the block that is packed after it.
    ///
    /// # Safety
    /// The block is inside `rhs` and fits into `packed`, and the machine has the instructions.
    #[inline]
    unsafe fn panels(
        &self,
        [p, depth]: [usize; 2],
        [j, columns]: [usize; 2],
        packed: *mut V::Element,
    ) -> (Panels<V>, BlockPrefetch<V::Element>) {
        let Blocking { product: Product { sizes: [_, k, n], rhs, .. }, .. } = self;
        let (depth_block, columns_block) = (self.depth_block, self.columns_block);
        if let Some(rhs) = self.in_place {
            return (Panels::InPlace(rhs.rows_after(p).columns_after(j)), BlockPrefetch::NOTHING);
        }
        let from = rhs.after(p, j);
        // SAFETY: the caller upholds the contract.
        unsafe { V::compiled(Pack::<V> { from, depth, columns, to: packed }) };
        let (p, j) = if p + depth_block < *k { (p + depth_block, j) } else { (0, j + columns_block) };
        let sizes = [k.saturating_sub(p).min(depth_block), n.saturating_sub(j).min(columns_block)];
        let next = rhs.after(p, j).matrix();
        let block = next.map_or(BlockPrefetch::NOTHING, |next| BlockPrefetch::new(next, sizes));
        (Panels::Packed(packed, depth), block)
    }

    /// Multiplies the strip of rows of `lhs` that begins at `i` with a block. `near` holds the rows that are copied.
    ///
    /// # Safety
    /// The strip is inside the matrices, `near` is behind the packed block, and the machine has the instructions.
    #[inline]
    unsafe fn strip(&self, block: &Block<V>, i: usize, near: *mut V::Element) {
        let Product { sizes: [m, k, n], scale, lhs, out, accumulate, part, .. } = self.product;
        let &Block { p, depth, j, columns, panels, prefetch } = block;
        let (lhs, out) = (lhs.after(0, p), out.columns_after(j));
        let rows = V::ROWS.min(m - i);
        let accumulate = accumulate || p > 0;
        if j == 0 && p == 0 {
            // SAFETY: the machine has the instructions.
            unsafe { prefetch_ahead::<V>(part.ahead, i..i + rows) };
        }
        if let Some(copied_rows) = self.copied_rows.filter(|&rows| i.is_multiple_of(rows)) {
            let (from, rows) = (lhs.after(i, 0), copied_rows.min(m - i));
            // SAFETY: the rows are inside `lhs`, and their copy fits the buffer after the packed block.
            unsafe { V::compiled(Near::<V> { from, rows, depth, to: near }) };
        }
        let (sums, wanted) = part.band.strip(i, rows, [k, n]);
        let [skip, end] = [sums.start, sums.end].map(|at| at.clamp(p, p + depth) - p);
        let (depth, wanted) = (end.saturating_sub(skip), columns.min(wanted.saturating_sub(j)));
        if wanted == 0 || (depth == 0 && accumulate) {
            return;
        }
        let (there, out) = (lhs.after(i, skip).matrix(), out.rows_after(i));
        let copy = Matrix { pointer: near.cast_const(), row: PITCH as isize, column: 1 };
        let copy = self.copied_rows.map(|copied_rows| copy.rows_after(i % copied_rows).columns_after(skip));
        let Some(lhs) = copy.or(there) else { unreachable!("the rows of a grid are copied") };
        // Contiguous rows are prefetched in place: they are read there, or copied from there strip by strip.
        let below = there.filter(|there| there.column == 1).unwrap_or(lhs).rows_after(rows);
        let strips = (m - i - rows).div_ceil(V::ROWS);
        let prefetch = StripPrefetch { below, strips, block: prefetch };
        let rhs = panels;
        let strip = Strip { depth, skip, columns, wanted, lhs, rhs, prefetch, out, scale, accumulate };
        // SAFETY: the strip is inside the matrices.
        unsafe {
            if out.column == 1 {
                strip.compute(rows);
            } else {
                apart(strip, rows);
            }
        }
    }
}

/// Prefetches these rows of each memory that is needed soon.
///
/// # Safety
/// The machine has the instructions.
#[inline]
unsafe fn prefetch_ahead<V: Lanes>(ahead: &[RowsAhead], rows: std::ops::Range<usize>) {
    for ahead in ahead {
        for row in rows.clone() {
            let row = ahead.pointer.wrapping_offset(row as isize * ahead.step);
            for line in (0..ahead.length).step_by(64) {
                // SAFETY: a prefetched address need not be valid.
                unsafe { V::prefetch(row.wrapping_add(line).cast()) };
            }
        }
    }
}

/// Computes a strip of an `out` that is contiguous in neither direction, tile by tile through a contiguous
/// copy.
///
/// # Safety
/// The same as for [`Strip::compute`].
unsafe fn apart<V: Lanes>(strip: Strip<V>, rows: usize) {
    for (first, columns) in panels::<V>(strip.columns) {
        let mut near = [V::ZERO; 6 * 64];
        let out = MatrixMut { pointer: near.as_mut_ptr(), row: (V::VECTORS * V::COUNT) as isize, column: 1 };
        let rhs = match strip.rhs {
            Panels::InPlace(rhs) => Panels::InPlace(rhs.columns_after(first)),
            Panels::Packed(rhs, depth) => Panels::Packed(rhs.wrapping_add(first * depth), depth),
        };
        let places = || (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
        let far = |(i, j)| strip.out.rows_after(i).columns_after(first + j).pointer;
        let near = |(i, j)| out.rows_after(i).columns_after(j).pointer;
        // SAFETY: the caller upholds the contract.
        unsafe {
            places().for_each(|at| near(at).write(far(at).read()));
            Strip { columns, wanted: columns, rhs, out, ..strip }.compute(rows);
            places().for_each(|at| far(at).write(near(at).read()));
        }
    }
}
