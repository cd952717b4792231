//! The innermost loop: a tile of the product that lives in registers.

use super::lanes::{Job, Lanes};
use crate::matmul::{Matrix, MatrixMut};

/// A tile of `R` rows and `W` vectors of columns.
#[derive(Clone, Copy)]
pub(super) struct Tile<V: Lanes> {
    /// How many products each sum has.
    pub depth: usize,
    /// `R` rows of `depth`.
    pub lhs: Matrix<V::Element>,
    /// `depth` rows of `W` full vectors, each row contiguous.
    pub rhs: Matrix<V::Element>,
    /// Each row contiguous.
    pub out: MatrixMut<V::Element>,
    /// Columns that are written, at most `W` vectors.
    pub columns: usize,
    pub scale: V::Element,
    pub ahead: (*const V::Element, isize, isize, usize),
    /// Whether to add to what is there.
    pub accumulate: bool,
}

struct Sized<V: Lanes, const R: usize, const W: usize>(Tile<V>);

impl<V: Lanes, const R: usize, const W: usize> Job for Sized<V, R, W> {
    /// Every sum starts at zero and takes its products in order, each by one fused multiply-add; that is then
    /// scaled, or scaled and added to `out` by one more. No other place computes with elements, so that this order
    /// is all that the bits of a product depend on.
    #[inline(always)]
    unsafe fn run(self) {
        let Tile { depth, mut lhs, mut rhs, out, columns, scale, accumulate, ahead } = self.0;
        let late = super::knob(5);
        let part = super::knob(6);
        // SAFETY: the matrices cover the tile, of which rows below R and lanes below `columns` are written.
        unsafe {
            let fetch = || for r in 0..R {
                for w in 0..W {
                    V::prefetch(out.rows_after(r).pointer.wrapping_add(w * V::COUNT));
                }
            };
            if late & 1 == 0 { fetch() }
            let mut sums = [[V::splat(V::ZERO); W]; R];
            let first = if late & 1 == 1 { depth - depth.min(part) } else { depth };
            for p in 0..first {
                if W >= 3 {
                V::prefetch(ahead.0.wrapping_offset((p & ahead.3) as isize * ahead.1 + (p >> ahead.3.count_ones()) as isize * ahead.2)); }
                let mut right = [V::splat(V::ZERO); W];
                for w in 0..W {
                    right[w] = V::load(rhs.pointer.add(w * V::COUNT));
                }
                for r in 0..R {
                    let left = V::splat(lhs.pointer.offset(r as isize * lhs.row).read());
                    for w in 0..W {
                        sums[r][w] = left.times_plus(right[w], sums[r][w]);
                    }
                }
                lhs.pointer = lhs.pointer.wrapping_offset(lhs.column);
                rhs.pointer = rhs.pointer.wrapping_offset(rhs.row);
            }
            if late & 1 == 1 { fetch() }
            for _ in first..depth {
                let mut right = [V::splat(V::ZERO); W];
                for w in 0..W {
                    right[w] = V::load(rhs.pointer.add(w * V::COUNT));
                }
                for r in 0..R {
                    let left = V::splat(lhs.pointer.offset(r as isize * lhs.row).read());
                    for w in 0..W {
                        sums[r][w] = left.times_plus(right[w], sums[r][w]);
                    }
                }
                lhs.pointer = lhs.pointer.wrapping_offset(lhs.column);
                rhs.pointer = rhs.pointer.wrapping_offset(rhs.row);
            }
            let scale = V::splat(scale);
            for r in 0..R {
                for w in 0..W {
                    let to = out.pointer.offset(r as isize * out.row).add(w * V::COUNT);
                    let sum = sums[r][w];
                    let here = columns - w * V::COUNT;
                    if here >= V::COUNT {
                        let value = if accumulate { sum.times_plus(scale, V::load(to)) } else { sum.times(scale) };
                        value.store(to);
                    } else {
                        let value = if accumulate {
                            sum.times_plus(scale, V::load_first(to, here))
                        } else {
                            sum.times(scale)
                        };
                        value.store_first(to, here);
                    }
                }
            }
        }
    }
}

impl<V: Lanes> Tile<V> {
    /// Computes a tile of `rows <= V::ROWS` rows.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, the matrices cover the tile and `out` overlaps neither of the others.
    pub(super) unsafe fn compute(self, rows: usize) {
        macro_rules! sized {
            ($($r:literal)*) => {
                match rows {
                    $($r => {
                        if const { $r <= V::ROWS } {
                            // SAFETY: the caller's.
                            unsafe {
                                match self.columns.div_ceil(V::COUNT) {
                                    4 => if const { V::VECTORS >= 4 } { V::compiled(Sized::<V, $r, 4>(self)) },
                                    3 => V::compiled(Sized::<V, $r, 3>(self)),
                                    2 => V::compiled(Sized::<V, $r, 2>(self)),
                                    _ => V::compiled(Sized::<V, $r, 1>(self)),
                                }
                            }
                        }
                    })*
                    _ => unreachable!("a tile of {rows} rows"),
                }
            };
        }
        sized!(1 2 3 4 5 6 7 8)
    }
}
