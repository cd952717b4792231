//! The innermost loops of matmul: strips of the result, tile by tile, each tile in registers.

use super::lanes::{Job, Lanes};
use super::prefetch::{StripPrefetch, TilePrefetch};
use crate::matrix::{Matrix, MatrixMut};

/// A strip: at most `V::ROWS` rows of a block of the result.
#[derive(Clone, Copy)]
pub(super) struct Strip<V: Lanes> {
    /// The number of products in each sum, and the rows of `rhs` to skip before the first.
    pub depth: usize,
    pub skip: usize,
    /// The columns of the block, and how many of them are needed.
    pub columns: usize,
    pub wanted: usize,
    pub lhs: Matrix<V::Element>,
    pub rhs: Panels<V>,
    /// What is prefetched while this strip is computed.
    pub prefetch: StripPrefetch<V::Element>,
    /// Each row is contiguous.
    pub out: MatrixMut<V::Element>,
    pub scale: V::Element,
    /// Whether to add to `out` instead of overwriting it.
    pub accumulate: bool,
}

/// A block of `rhs`: either in place, with contiguous rows of whole vectors; or packed into consecutive
/// panels, each as wide as a tile, with contiguous rows padded to whole vectors.
#[derive(Clone, Copy)]
pub(super) enum Panels<V: Lanes> {
    InPlace(Matrix<V::Element>),
    Packed(*const V::Element, usize),
}

/// Splits columns into as few panels as tiles allow, all of about the same width: (first column, columns).
#[inline(always)]
pub(super) fn panels<V: Lanes>(columns: usize) -> Cuts<V> {
    let vectors = columns.div_ceil(V::COUNT);
    Cuts { first: 0, columns, vectors, panels: vectors.div_ceil(V::VECTORS), lanes: std::marker::PhantomData }
}

pub(super) struct Cuts<V> {
    first: usize,
    columns: usize,
    vectors: usize,
    panels: usize,
    lanes: std::marker::PhantomData<V>,
}

impl<V: Lanes> Iterator for Cuts<V> {
    type Item = (usize, usize);
    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.panels == 0 {
            return None;
        }
        let vectors = self.vectors.div_ceil(self.panels);
        self.vectors -= vectors;
        self.panels -= 1;
        let first = self.first;
        self.first += vectors * V::COUNT;
        Some((first, self.first.min(self.columns) - first))
    }
}

impl<V: Lanes> Strip<V> {
    /// Computes a strip of `rows <= V::ROWS` rows.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, the matrices cover the strip and `out` overlaps neither of
    /// the others.
    pub(super) unsafe fn compute(self, rows: usize) {
        macro_rules! rows {
            ($($r:literal)*) => {
                match rows {
                    $($r => {
                        if const { $r <= V::ROWS } {
                            // SAFETY: the caller upholds the contract.
                            unsafe { V::compiled(Rows::<V, $r>(self)) }
                        }
                    })*
                    _ => unreachable!("a strip of {rows} rows"),
                }
            };
        }
        rows!(1 2 3 4 5 6)
    }
}

/// A strip of `R` rows.
struct Rows<V: Lanes, const R: usize>(Strip<V>);

impl<V: Lanes, const R: usize> Job for Rows<V, R> {
    #[inline(always)]
    unsafe fn run(self) {
        let strip = self.0;
        let cuts = panels::<V>(strip.columns);
        let tiles = cuts.panels;
        for (number, (first, columns)) in cuts.enumerate() {
            if first >= strip.wanted {
                break;
            }
            let prefetch = strip.prefetch.of_tile(number, tiles, V::ROWS, strip.depth);
            // SAFETY: the tile is inside the strip.
            unsafe {
                let rhs = match strip.rhs {
                    Panels::InPlace(rhs) => rhs.columns_after(first),
                    Panels::Packed(rhs, depth) => {
                        let row = columns.next_multiple_of(V::COUNT) as isize;
                        Matrix { pointer: rhs.add(first * depth), row, column: 1 }
                    }
                };
                let rhs = rhs.rows_after(strip.skip);
                let columns = columns.min(strip.wanted - first);
                let vectors = columns.div_ceil(V::COUNT);
                let out = strip.out.columns_after(first);
                match vectors {
                    4 => {
                        if const { V::VECTORS >= 4 } {
                            tile::<V, R, 4>(&strip, rhs, out, columns, prefetch)
                        }
                    }
                    3 => {
                        if const { V::VECTORS >= 3 } {
                            tile::<V, R, 3>(&strip, rhs, out, columns, prefetch)
                        }
                    }
                    2 => tile::<V, R, 2>(&strip, rhs, out, columns, prefetch),
                    _ => tile::<V, R, 1>(&strip, rhs, out, columns, prefetch),
                }
            }
        }
    }
}

/// Steps before the end of a sum at which the prefetch of `out` begins, so that it is in cache when it is
/// written.
const NOTICE: usize = 48;

/// Computes a tile of `R` rows and `W` vectors of columns, of which `columns` are written. Every sum starts
/// at zero and adds its products in order, each by one fused multiply-add; the sum is then scaled, or scaled
/// and added to `out` by one more. All arithmetic of matmul is here, so this order alone determines its bits.
///
/// # Safety
/// The machine has the instructions, and the pointers cover the tile.
#[inline(always)]
unsafe fn tile<V: Lanes, const R: usize, const W: usize>(
    strip: &Strip<V>,
    rhs: Matrix<V::Element>,
    out: MatrixMut<V::Element>,
    columns: usize,
    prefetch: TilePrefetch<V::Element>,
) {
    let packed = const { (W * V::COUNT) as isize };
    // SAFETY: the caller upholds the contract.
    unsafe {
        match (R == V::ROWS && strip.lhs.column == 1, rhs.row == packed) {
            (true, true) => {
                tile_of::<V, R, W, true>(strip, Matrix { row: packed, ..rhs }, out, columns, prefetch)
            }
            (true, false) => tile_of::<V, R, W, true>(strip, rhs, out, columns, prefetch),
            (false, _) => tile_of::<V, R, W, false>(strip, rhs, out, columns, prefetch),
        }
    }
}

/// [`tile`]; `NEAR` says that rows of `lhs` are contiguous. Strides that the caller passes as constants are
/// known to the compiler.
///
/// # Safety
/// The same as for [`tile`].
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant bounds and indices are what becomes registers")]
unsafe fn tile_of<V: Lanes, const R: usize, const W: usize, const NEAR: bool>(
    strip: &Strip<V>,
    rhs: Matrix<V::Element>,
    out: MatrixMut<V::Element>,
    columns: usize,
    mut prefetch: TilePrefetch<V::Element>,
) {
    let Strip { depth, lhs, accumulate, .. } = *strip;
    let lhs = Matrix { column: if NEAR { 1 } else { lhs.column }, ..lhs };
    let early = depth.saturating_sub(NOTICE);
    let place = |r, w| out.rows_after(r).pointer.wrapping_add(w * V::COUNT);
    let mut asked = 0;
    // SAFETY: the caller upholds the contract; a prefetched address need not be valid.
    unsafe {
        let sums = [[V::splat(V::ZERO); W]; R];
        let sums = sum::<V, R, W, NEAR>(sums, early, lhs, rhs, &mut prefetch, || {
            // One request at a time: many at once would delay the loads of the sum itself.
            if asked < R * W {
                V::prefetch(place(asked / W, asked % W));
                asked += 1;
            }
        });
        // Request all again, including those that were not reached: `rhs` may have evicted them from L1.
        for r in 0..R {
            for w in 0..W {
                V::prefetch(place(r, w));
            }
        }
        let (lhs, rhs) = (lhs.columns_after(early), rhs.rows_after(early));
        let sums = sum::<V, R, W, NEAR>(sums, depth - early, lhs, rhs, &mut prefetch, || ());
        let scale = V::splat(strip.scale);
        for r in 0..R {
            for w in 0..W {
                let (to, sum) = (place(r, w), sums[r][w]);
                let here = columns - w * V::COUNT;
                if here >= V::COUNT {
                    let value =
                        if accumulate { sum.times_plus(scale, V::load(to)) } else { sum.times(scale) };
                    value.store(to);
                } else {
                    let there = if accumulate { V::load_first(to, here) } else { V::splat(V::ZERO) };
                    let value = if accumulate { sum.times_plus(scale, there) } else { sum.times(scale) };
                    value.store_first(to, here);
                }
            }
        }
    }
}

/// Adds `depth` steps to all sums of a tile. Meanwhile prefetches what is read next, and calls `between`
/// after every few steps.
///
/// # Safety
/// The same as for [`tile`].
#[inline(always)]
unsafe fn sum<V: Lanes, const R: usize, const W: usize, const NEAR: bool>(
    mut sums: [[V; W]; R],
    depth: usize,
    mut lhs: Matrix<V::Element>,
    mut rhs: Matrix<V::Element>,
    prefetch: &mut TilePrefetch<V::Element>,
    mut between: impl FnMut(),
) -> [[V; W]; R] {
    /// Steps per unrolled iteration: constant offsets of contiguous loads cost no instructions.
    const TOGETHER: usize = 4;
    let mut left = depth;
    while left > 0 {
        let mut steps = left.min(prefetch.steps);
        left -= steps;
        // SAFETY: the caller upholds the contract; a prefetched address need not be valid.
        unsafe {
            prefetch.advance(|at| V::prefetch(at));
            between();
            while NEAR && steps >= TOGETHER {
                for p in 0..TOGETHER {
                    step(&mut sums, lhs.columns_after(p), rhs.rows_after(p).pointer);
                }
                (lhs, rhs) = (lhs.columns_after(TOGETHER), rhs.rows_after(TOGETHER));
                steps -= TOGETHER;
            }
            while steps > 0 {
                step(&mut sums, lhs, rhs.pointer);
                (lhs, rhs) = (lhs.columns_after(1), rhs.rows_after(1));
                steps -= 1;
            }
        }
    }
    sums
}

/// One step of all sums of a tile.
///
/// # Safety
/// The same as for [`tile`].
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant bounds and indices are what becomes registers")]
unsafe fn step<V: Lanes, const R: usize, const W: usize>(
    sums: &mut [[V; W]; R],
    lhs: Matrix<V::Element>,
    rhs: *const V::Element,
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut right = [V::splat(V::ZERO); W];
        for w in 0..W {
            right[w] = V::load(rhs.add(w * V::COUNT));
        }
        for r in 0..R {
            let left = V::splat(lhs.rows_after(r).pointer.read());
            for w in 0..W {
                sums[r][w] = left.times_plus(right[w], sums[r][w]);
            }
        }
    }
}
