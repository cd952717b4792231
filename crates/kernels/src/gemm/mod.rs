//! The product of two matrices of floats.
//!
//! A block of `rhs` that fits the second-level cache is copied into panels as wide as a register tile, transposed on the
//! way where its columns are the contiguous ones; a small product reads `rhs` where it is. Then strip after strip of
//! `lhs` runs over all panels. Rows of `lhs` are only ever broadcast, element by element, which any strides serve:
//! measured, copying them did not pay.
//!
//! **Bits.** An element of `out` depends on its row of `lhs`, its column of `rhs`, `scale` and `accumulate` only: not
//! on the sizes or the place of the matrices around it, on strides, or on the machine's vectors. The sum over k is cut
//! into blocks that only k decides, and each is summed in order (see `tile.rs`). Only which NaN a NaN is may differ.

mod lanes;
mod pack;
#[cfg(test)]
mod tests;
mod tile;

use std::cell::RefCell;

use crate::matmul::{Matrix, MatrixMut};
use crate::simd::{Level, level};
use lanes::Lanes;
use pack::Pack;
use tile::{Panels, Strip, panels};

/// The longest sum that is taken at once: rows of a block of `rhs`.
const DEPTH: usize = 384;
/// Bytes of a packed block of `rhs`.
const RHS_BYTES: usize = 512 << 10;
/// A product of at most so many rows reads `rhs` where it is, if it can.
const IN_PLACE_ROWS: usize = 192;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

thread_local! {
    /// What a thread packs blocks into: made at its first product, never grown.
    static PACKED: RefCell<Box<[Line]>> = RefCell::new(vec![Line([0; 64]); RHS_BYTES / 64].into());
}

/// A float with lanes on every machine.
pub(crate) trait Factor: Copy + 'static {
    /// [`product`] at one level, which the machine must have.
    ///
    /// # Safety
    /// As of [`product`].
    unsafe fn product_at(
        level: Level,
        sizes: [usize; 3],
        scale: Self,
        lhs: Matrix<Self>,
        rhs: Matrix<Self>,
        out: MatrixMut<Self>,
        accumulate: bool,
    );
}

macro_rules! factor {
    ($type:ty, $plain:ty, $avx2:ident, $avx512:ident) => {
        impl Factor for $type {
            unsafe fn product_at(
                level: Level,
                sizes: [usize; 3],
                scale: Self,
                lhs: Matrix<Self>,
                rhs: Matrix<Self>,
                out: MatrixMut<Self>,
                accumulate: bool,
            ) {
                // SAFETY: the caller's.
                unsafe {
                    match level {
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx512 => {
                            blocks::<std::arch::x86_64::$avx512>(sizes, scale, lhs, rhs, out, accumulate)
                        }
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx2 => {
                            blocks::<std::arch::x86_64::$avx2>(sizes, scale, lhs, rhs, out, accumulate)
                        }
                        Level::Baseline => blocks::<$plain>(sizes, scale, lhs, rhs, out, accumulate),
                    }
                }
            }
        }
    };
}
factor!(f32, [f32; 8], __m256, __m512);
factor!(f64, [f64; 4], __m256d, __m512d);

/// `out[m, n] = scale * lhs[m, k] rhs[k, n]`, added to what is there if `accumulate`.
///
/// # Safety
/// The matrices have these sizes, and `out` overlaps neither of the others.
pub(crate) unsafe fn product<C: Factor>(
    sizes: [usize; 3],
    scale: C,
    lhs: Matrix<C>,
    rhs: Matrix<C>,
    out: MatrixMut<C>,
    accumulate: bool,
) {
    // SAFETY: the caller's; `level` found the instructions.
    unsafe { C::product_at(level(), sizes, scale, lhs, rhs, out, accumulate) }
}

/// Into how long blocks a sum is cut: a function of `k` alone.
fn depth_block(k: usize) -> usize {
    k.div_ceil(k.div_ceil(DEPTH).max(1)).next_multiple_of(16).max(16)
}

/// [`product`] with the lanes of one level.
///
/// # Safety
/// As of [`product`], and the machine has the instructions.
unsafe fn blocks<V: Lanes>(
    [mut m, k, mut n]: [usize; 3],
    scale: V::Element,
    mut lhs: Matrix<V::Element>,
    mut rhs: Matrix<V::Element>,
    mut out: MatrixMut<V::Element>,
    accumulate: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    // Vectors run along the columns of `out`; where its rows are the contiguous ones, the transposed product is it.
    if (n == 1 || out.column != 1) && (m == 1 || out.row == 1) {
        (m, n) = (n, m);
        (lhs, rhs) = (rhs.transposed(), lhs.transposed());
        out = MatrixMut { row: out.column, column: out.row, ..out };
    }
    if n == 1 {
        out.column = 1;
    }
    let depth_block = depth_block(k);
    let columns_block = {
        let most = RHS_BYTES / size_of::<V::Element>() / depth_block / V::COUNT * V::COUNT;
        n.div_ceil(n.div_ceil(most)).next_multiple_of(V::COUNT)
    };
    let in_place = rhs.column == 1 && n.is_multiple_of(V::COUNT) && m <= IN_PLACE_ROWS;
    PACKED.with_borrow_mut(|packed| {
        let packed: *mut V::Element = packed.as_mut_ptr().cast();
        for j in (0..n).step_by(columns_block) {
            let columns = columns_block.min(n - j);
            for p in (0..k.max(1)).step_by(depth_block) {
                let depth = depth_block.min(k - p);
                let rhs = rhs.rows_after(p).columns_after(j);
                let rhs = if in_place {
                    Panels::<V>::InPlace(rhs)
                } else {
                    // SAFETY: the block is inside `rhs` and fits the buffer.
                    unsafe { V::compiled(Pack::<V> { from: rhs, depth, columns, to: packed }) };
                    Panels::Packed(packed)
                };
                let (lhs, out) = (lhs.columns_after(p), out.columns_after(j));
                for i in (0..m).step_by(V::ROWS) {
                    let rows = V::ROWS.min(m - i);
                    let accumulate = accumulate || p > 0;
                    let (lhs, out) = (lhs.rows_after(i), out.rows_after(i));
                    let strip = Strip { depth, columns, lhs, rhs, out, scale, accumulate };
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
        }
    });
}

/// A strip of an `out` neither of whose directions is contiguous, tile by tile by way of one that is.
///
/// # Safety
/// As of [`Strip::compute`].
unsafe fn apart<V: Lanes>(strip: Strip<V>, rows: usize) {
    for (first, columns) in panels::<V>(strip.columns) {
        let mut near = [V::ZERO; 6 * 64];
        let out = MatrixMut { pointer: near.as_mut_ptr(), row: (V::VECTORS * V::COUNT) as isize, column: 1 };
        let rhs = match strip.rhs {
            Panels::InPlace(rhs) => Panels::InPlace(rhs.columns_after(first)),
            Panels::Packed(rhs) => Panels::Packed(rhs.wrapping_add(first * strip.depth)),
        };
        let places = || (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
        let far = |(i, j)| strip.out.rows_after(i).columns_after(first + j).pointer;
        let near = |(i, j)| out.rows_after(i).columns_after(j).pointer;
        // SAFETY: the caller's.
        unsafe {
            places().for_each(|at| near(at).write(far(at).read()));
            Strip { columns, rhs, out, ..strip }.compute(rows);
            places().for_each(|at| far(at).write(near(at).read()));
        }
    }
}
