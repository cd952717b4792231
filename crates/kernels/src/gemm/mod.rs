//! The product of two matrices of floats.
//!
//! A block of `rhs` that fits the second-level cache is copied into panels as wide as a register tile; rows of `lhs`,
//! where they do not lie well already, are copied a few tiles at a time into the same cache; then every tile of the
//! product runs over its rows and its panel. Transposed operands are transposed while they are copied.
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
use pack::{PackColumns, PackRows};
use tile::Tile;

static KNOBS: [std::sync::atomic::AtomicUsize; 8] = [const { std::sync::atomic::AtomicUsize::new(0) }; 8];
pub fn set_knob(i: usize, v: usize) {
    KNOBS[i].store(v, std::sync::atomic::Ordering::Relaxed)
}
#[inline(always)]
pub(crate) fn knob(i: usize) -> usize {
    KNOBS[i].load(std::sync::atomic::Ordering::Relaxed)
}
/// The longest sum that is taken at once: rows of a block of `rhs`.
const DEPTH: usize = 1024;
/// Bytes of a packed block of `rhs`.
const RHS_BYTES: usize = 4 << 20;
/// Tiles of `lhs` that are packed together.
const LHS_TILES: usize = 64;

/// Bytes of packed blocks: `lhs` behind `rhs`.
const BYTES: usize = RHS_BYTES + LHS_TILES * 14 * (DEPTH + 48) * 8;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

thread_local! {
    /// What a thread packs blocks into: made at its first product, never grown.
    static PACKED: RefCell<Box<[Line]>> = RefCell::new(vec![Line([0; 64]); BYTES.div_ceil(64)].into());
}

/// A float with lanes on every machine.
pub(crate) trait Factor: Copy + 'static {
    const ONE: Self;
    /// [`product`] at one level, which the machine must have.
    #[doc(hidden)]
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
            const ONE: Self = 1.0;
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
    k.div_ceil(k.div_ceil(knob(1)).max(1)).next_multiple_of(16).max(16)
}

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
        let most = knob(2) / size_of::<V::Element>() / depth_block / V::COUNT * V::COUNT;
        n.div_ceil(n.div_ceil(most)).next_multiple_of(V::COUNT)
    };
    let rows_block = knob(3) * V::ROWS;
    let pack_lhs = (lhs.column != 1 && lhs.row != 1);
    PACKED.with_borrow_mut(|packed| {
        let rhs_packed: *mut V::Element = packed.as_mut_ptr().cast();
        // SAFETY: the two parts lie one behind the other in the buffer; see BYTES.
        let lhs_packed: *mut V::Element = unsafe { rhs_packed.byte_add(RHS_BYTES) };
        for j in (0..n).step_by(columns_block) {
            let columns = columns_block.min(n - j);
            for p in (0..k.max(1)).step_by(depth_block) {
                let depth = depth_block.min(k - p);
                let rhs = rhs.rows_after(p).columns_after(j);
                for (jj, width) in panels::<V>(columns) {
                    if rhs.column == 1 && width % V::COUNT == 0 && m < knob(4) { continue; }
                    // SAFETY: the block is inside `rhs` and fits the buffer.
                    unsafe {
                        V::compiled(PackColumns::<V> {
                            from: rhs.columns_after(jj),
                            depth,
                            columns: width,
                            to: rhs_packed.add(jj * depth),
                        });
                    }
                }
                for i in (0..m).step_by(rows_block) {
                    let rows = rows_block.min(m - i);
                    let lhs = lhs.rows_after(i).columns_after(p);
                    for ii in (0..rows).step_by(V::ROWS) {
                        let height = V::ROWS.min(rows - ii);
                        let mut lhs = lhs.rows_after(ii);
                        if pack_lhs {
                            let pack = PackRows::<V> {
                                from: lhs,
                                depth,
                                rows: height,
                                to: unsafe { lhs_packed.add(ii / V::ROWS * PackRows::<V>::room(depth)) },
                            };
                            lhs = pack.copy();
                            unsafe { V::compiled(pack) };
                        }
                        for (jj, width) in panels::<V>(columns) {
                            // SAFETY: the tile is inside the matrices and the packed blocks.
                            unsafe {
                                let tile = Tile::<V> {
                                    depth,
                                    lhs,
                                    rhs: if rhs.column == 1 && width % V::COUNT == 0 && m < knob(4) { rhs.columns_after(jj) } else { Matrix {
                                        pointer: rhs_packed.add(jj * depth),
                                        row: width.next_multiple_of(V::COUNT) as isize,
                                        column: 1,
                                    } },
                                    out: out.rows_after(i + ii).columns_after(j + jj),
                                    columns: width,
                                    ahead: {
                                        let next = if knob(0) & 1 == 0 {
                                            lhs.pointer
                                        } else {
                                            let mut next = lhs.pointer;
                                            if jj + width == columns { next = next.wrapping_offset(V::ROWS as isize * lhs.row); }
                                            next
                                        };
                                        if knob(0) & 1 == 0 || jj + width < columns { (next, 0, 0, 0) } else if lhs.column == 1 { (next, lhs.row, 16, 7) } else { (next, 0, lhs.column, 0) }
                                    },
                                    scale,
                                    accumulate: accumulate || p > 0,
                                };
                                if out.column == 1 {
                                    tile.compute(height);
                                } else {
                                    apart(tile, height);
                                }
                            }
                        }
                    }
                }
            }
        }
    });
}

/// Cuts columns into as few panels as tiles allow, none much narrower than the others: (first column, columns).
fn panels<V: Lanes>(columns: usize) -> impl Iterator<Item = (usize, usize)> {
    let vectors = columns.div_ceil(V::COUNT);
    let panels = vectors.div_ceil(V::VECTORS);
    let (wide, rest) = (vectors.div_ceil(panels), vectors % panels);
    (0..panels).map(move |i| {
        let narrow = if rest == 0 { 0 } else { i.saturating_sub(rest) };
        let first = (i * wide - narrow) * V::COUNT;
        let width = if rest != 0 && i >= rest { wide - 1 } else { wide };
        (first, (width * V::COUNT).min(columns - first))
    })
}

/// A tile of an `out` neither of whose directions is contiguous, by way of one that is.
unsafe fn apart<V: Lanes>(tile: Tile<V>, rows: usize) {
    let mut near = [V::ZERO; 8 * 64];
    let out = MatrixMut { pointer: near.as_mut_ptr(), row: (V::VECTORS * V::COUNT) as isize, column: 1 };
    let places = || (0..rows).flat_map(|i| (0..tile.columns).map(move |j| (i, j)));
    let far = |(i, j)| tile.out.rows_after(i).columns_after(j).pointer;
    // SAFETY: the caller's.
    unsafe {
        for (i, j) in places() {
            out.rows_after(i).columns_after(j).pointer.write(far((i, j)).read());
        }
        Tile { out, ..tile }.compute(rows);
        for (i, j) in places() {
            far((i, j)).write(out.rows_after(i).columns_after(j).pointer.read());
        }
    }
}
