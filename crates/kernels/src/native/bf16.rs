//! Matmul of `bf16` by the instruction of AVX-512 that multiplies pairs of them and accumulates in `f32`.
//!
//! `vdpbf16ps` adds the product of the odd elements of two pairs to an `f32`, rounds, and adds the product of the even
//! elements, and rounds. Products of `bf16` are exact in `f32`. So with each pair swapped, a sum has the bits of fused
//! multiply-adds in order, which is what the matmul of widened elements computes (`gemm/tile.rs`), over the same blocks of
//! k. Only subnormal numbers differ: the instruction takes them, and gives them, as zero.
//!
//! Both operands are packed as pairs of neighbours along k: rows of `lhs` in strips of [`ROWS`], columns of `rhs` in panels
//! of [`COLUMNS`], zero where k is odd or a strip or panel is not full. A tile of sums stays in registers over a block of k;
//! sums of blocks are added up in L1 and are stored once, rounded to the type of the result.

use std::arch::x86_64::*;

use half::bf16;

use crate::gemm::Band;
use crate::gemm::pack::{depth_block, with_buffer};
use crate::halves::{bf16_from_f32, bf16_to_f32};
use crate::matrix::{Matrix, MatrixMut};
use crate::native::Bf16Out;

/// Rows of a tile.
const ROWS: usize = 8;
/// Vectors of a row of a tile.
const VECTORS: usize = 3;
const LANES: usize = 16;
/// Columns of a tile.
const COLUMNS: usize = VECTORS * LANES;
/// Bytes of packed panels of `rhs`, at most: half of L2, unless one panel has more.
const RHS_BYTES: usize = 1 << 19;
/// Rows of `lhs` that are packed at a time.
const BLOCK_ROWS: usize = 64;
/// The longest sum: packed operands of so many rows still fit L2.
pub(super) const MAX_DEPTH: usize = 8192;

/// A packed pair of neighbours along k: the first one in the high half.
type Pair = u32;

/// `out[m, n] = scale * lhs[m, k] rhs[k, n]`, or `lhs[m, k] rhs[k, n]` added to `out` if `accumulate`; computes only what
/// `band` selects.
///
/// # Safety
/// The machine has the instruction, the matrices have these sizes, and `out` overlaps neither of the others.
pub(super) unsafe fn product(
    [m, k, n]: [usize; 3],
    scale: f32,
    lhs: Matrix<bf16>,
    rhs: Matrix<bf16>,
    out: Bf16Out,
    accumulate: bool,
    band: Band,
) {
    let pairs = k.div_ceil(2);
    let panel_bytes = pairs.max(1) * COLUMNS * size_of::<Pair>();
    let panels = (RHS_BYTES / panel_bytes).clamp(1, n.div_ceil(COLUMNS));
    let rows_bytes = pairs * BLOCK_ROWS * size_of::<Pair>();
    with_buffer(panels * panel_bytes + rows_bytes, |buffer| {
        let right: *mut Pair = buffer.cast();
        // SAFETY: the caller upholds the contract; panels and rows lie side by side in the buffer, which is aligned to a
        // cache line, as is the size of a panel.
        unsafe {
            let left = right.add(panels * panel_bytes / size_of::<Pair>());
            let sizes = Sizes { m, k, n, panels };
            let how = How { scale, accumulate, band };
            block(sizes, lhs, rhs, out, how, [left, right]);
        }
    });
}

#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
    /// Panels that are packed at a time.
    panels: usize,
}

/// What becomes of the sums, and which are needed.
#[derive(Clone, Copy)]
struct How {
    /// The factor on sums that are not accumulated.
    scale: f32,
    accumulate: bool,
    band: Band,
}

impl Band {
    /// For some rows of a strip: the range of k that their sums need, from an even place on, and the number of columns that
    /// are needed.
    fn of_strip(self, i: usize, rows: usize, [k, n]: [usize; 2]) -> (std::ops::Range<usize>, usize) {
        const { assert!(ROWS + 1 < crate::gemm::BAND_ROWS) };
        let at =
            |row: usize, shift: isize, end: usize| (row as isize + shift).clamp(0, end as isize) as usize;
        match self {
            Band::Full => (0..k, n),
            Band::Out(shift) => (0..k, at(i + rows - 1, shift, n)),
            Band::Lower(shift) => (0..at(i + rows - 1, shift, k), n),
            Band::Upper(shift) => (at(i + 1, -shift, k) & !1..k, n),
        }
    }
}

/// The loops over panels and strips.
///
/// # Safety
/// That of [`product`]; the buffers hold the packed rows and panels.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
unsafe fn block(
    Sizes { m, k, n, panels }: Sizes,
    lhs: Matrix<bf16>,
    rhs: Matrix<bf16>,
    out: Bf16Out,
    How { scale, accumulate, band }: How,
    [left, right]: [*mut Pair; 2],
) {
    let pairs = k.div_ceil(2);
    let block_pairs = depth_block(k) / 2;
    // SAFETY: all places are inside the matrices and the buffers.
    unsafe {
        for j in (0..n).step_by(panels * COLUMNS) {
            let columns = (panels * COLUMNS).min(n - j);
            let of_panels = |column: usize| (column, right.add(column * pairs));
            for (column, to) in (0..columns).step_by(COLUMNS).map(of_panels) {
                let here = COLUMNS.min(columns - column);
                pack(rhs.columns_after(j + column), [k, here], to, [COLUMNS, ROWS], COLUMNS / ROWS);
            }
            for i in (0..m).step_by(BLOCK_ROWS) {
                let rows = BLOCK_ROWS.min(m - i);
                let from = lhs.rows_after(i).transposed();
                pack(from, [k, rows], left, [ROWS, ROWS * pairs], rows.div_ceil(ROWS));
                for (column, panel) in (0..columns).step_by(COLUMNS).map(of_panels) {
                    for row in (0..rows).step_by(ROWS) {
                        let out = out.rows_after(i + row).columns_after(j + column);
                        let sizes = [ROWS.min(rows - row), COLUMNS.min(columns - column)];
                        let (depth, wanted) = band.of_strip(i + row, sizes[0], [k, n]);
                        if wanted <= j + column || (depth.is_empty() && accumulate) {
                            continue;
                        }
                        let vectors = sizes[1].div_ceil(LANES);
                        // Whole vectors of f32 go where they belong, others by way of a tile in L1.
                        let there = match out {
                            Bf16Out::F32(out) => {
                                let is_whole = sizes == [ROWS, vectors * LANES] && !depth.is_empty();
                                Some((out.pointer, out.row)).filter(|_| is_whole && out.column == 1)
                            }
                            Bf16Out::Bf16(_) => None,
                        };
                        let mut sums = std::mem::MaybeUninit::<[[f32; COLUMNS]; ROWS]>::uninit();
                        let (to, step) = there.unwrap_or_else(|| {
                            let sums = sums.write([[0.0; COLUMNS]; ROWS]);
                            if accumulate {
                                load(sums, sizes, out);
                            }
                            (sums.as_mut_ptr().cast(), COLUMNS as isize)
                        });
                        // The blocks of k that the band does not skip, from and to the pairs that it needs.
                        let (first, last) = (depth.start / 2, depth.end.div_ceil(2));
                        let mut is_first = !accumulate;
                        for begin in (0..last).step_by(block_pairs) {
                            let (from, end) = (begin.max(first), last.min(begin + block_pairs));
                            if from < end {
                                let strip = left.add(row * pairs + from * ROWS);
                                let panel = panel.add(from * COLUMNS);
                                let scale = if end == last { scale } else { 1.0 };
                                let sum = match vectors {
                                    1 => tile::<1>,
                                    2 => tile::<2>,
                                    _ => tile::<VECTORS>,
                                };
                                sum(end - from, strip, panel, (to, step), !is_first, scale);
                                is_first = false;
                            }
                        }
                        if there.is_none() {
                            // SAFETY: without a place in `out` they were written.
                            store(sums.assume_init_mut(), sizes, out);
                        }
                    }
                }
            }
        }
    }
}

/// Sums over `pairs` of the first `W` vectors of the rows of a tile, added to what is there if `accumulate`, times `scale`.
///
/// # Safety
/// The machine has the instructions; the pointers cover the pairs of a strip and of a panel, and the rows of the tile, which
/// are `step` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
#[allow(clippy::needless_range_loop, reason = "constant bounds and indices are what becomes registers")]
unsafe fn tile<const W: usize>(
    pairs: usize,
    mut left: *const Pair,
    mut right: *const Pair,
    (to, step): (*mut f32, isize),
    accumulate: bool,
    scale: f32,
) {
    // SAFETY: the caller upholds the contract. A vector of 512 bits is one, whatever its elements.
    unsafe {
        let pairs_of = |vector: __m512i| std::mem::transmute::<__m512i, __m512bh>(vector);
        let mut tile = [[_mm512_setzero_ps(); W]; ROWS];
        for _ in 0..pairs {
            let mut columns = [_mm512_setzero_si512(); W];
            for v in 0..W {
                columns[v] = _mm512_loadu_si512(right.add(v * LANES).cast());
            }
            for r in 0..ROWS {
                let row = pairs_of(_mm512_set1_epi32(left.add(r).read() as i32));
                for v in 0..W {
                    tile[r][v] = _mm512_dpbf16_ps(tile[r][v], row, pairs_of(columns[v]));
                }
            }
            (left, right) = (left.add(ROWS), right.add(COLUMNS));
        }
        let scale = _mm512_set1_ps(scale);
        for r in 0..ROWS {
            let row = to.offset(r as isize * step);
            for v in 0..W {
                let to = row.add(v * LANES);
                let sum =
                    if accumulate { _mm512_add_ps(tile[r][v], _mm512_loadu_ps(to)) } else { tile[r][v] };
                _mm512_storeu_ps(to, _mm512_mul_ps(sum, scale));
            }
        }
    }
}

/// Loads the first rows and columns of a tile.
///
/// # Safety
/// `out` has these rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn load(sums: &mut [[f32; COLUMNS]; ROWS], [rows, columns]: [usize; 2], out: Bf16Out) {
    for (r, sums) in sums.iter_mut().enumerate().take(rows) {
        // SAFETY: the row is inside `out`.
        unsafe {
            match out.rows_after(r) {
                Bf16Out::F32(row) => each_place(sums, columns, row, |sum, at| *sum = *at),
                Bf16Out::Bf16(row) => each_place(sums, columns, row, |sum, at| *sum = bf16_to_f32(*at)),
            }
        }
    }
}

/// Stores the first rows and columns of a tile.
///
/// # Safety
/// `out` has these rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn store(sums: &mut [[f32; COLUMNS]; ROWS], [rows, columns]: [usize; 2], out: Bf16Out) {
    for (r, sums) in sums.iter_mut().enumerate().take(rows) {
        // SAFETY: the row is inside `out`.
        unsafe {
            match out.rows_after(r) {
                Bf16Out::F32(row) => each_place(sums, columns, row, |sum, at| *at = *sum),
                Bf16Out::Bf16(row) => each_place(sums, columns, row, |sum, at| *at = bf16_from_f32(*sum)),
            }
        }
    }
}

/// Each sum of a row of a tile with its place in the result.
///
/// # Safety
/// The row has these columns.
#[inline(always)]
unsafe fn each_place<T: Copy>(
    sums: &mut [f32; COLUMNS],
    columns: usize,
    row: MatrixMut<T>,
    mut each: impl FnMut(&mut f32, &mut T),
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        if row.column == 1 {
            let row = std::slice::from_raw_parts_mut(row.pointer, columns);
            sums.iter_mut().zip(row).for_each(|(sum, at)| each(sum, at));
        } else {
            for (c, sum) in sums.iter_mut().enumerate().take(columns) {
                each(sum, &mut *row.columns_after(c).pointer);
            }
        }
    }
}

/// Packs `depth` rows of `columns` by pairs of rows and groups of eight columns, with zeros where there are no elements.
/// `apart` are the distances from pair to pair and from group to group.
///
/// # Safety
/// The machine has the instructions; `from` has these rows and columns, and `to` room for the groups.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pack(
    from: Matrix<bf16>,
    [depth, columns]: [usize; 2],
    to: *mut Pair,
    apart: [usize; 2],
    groups: usize,
) {
    let from = from.cast::<u16>();
    let full = columns / ROWS;
    // SAFETY: the caller upholds the contract.
    unsafe {
        let whole = match (from.row, from.column) {
            (_, 1) => interleave(from, depth / 2, to, apart, full),
            (1, _) => transpose(from, depth / 2, to, apart, full),
            _ => 0,
        };
        for group in 0..groups {
            let here = ROWS.min(columns.saturating_sub(group * ROWS));
            let (from, to) = (from.columns_after(group * ROWS), to.add(group * apart[1]));
            for pair in if group < full { whole } else { 0 }..depth.div_ceil(2) {
                for lane in 0..ROWS {
                    let element = |k: usize| {
                        let is_there = lane < here && k < depth;
                        let at = from.rows_after(k).columns_after(lane).pointer;
                        if is_there { u32::from(at.read()) } else { 0 }
                    };
                    let packed = element(2 * pair) << 16 | element(2 * pair + 1);
                    to.add(pair * apart[0] + lane).write(packed);
                }
            }
        }
    }
}

/// Packs pairs of rows of groups of eight contiguous elements; returns how many pairs.
///
/// # Safety
/// That of [`pack`].
#[target_feature(enable = "avx2")]
unsafe fn interleave(
    from: Matrix<u16>,
    pairs: usize,
    to: *mut Pair,
    apart: [usize; 2],
    groups: usize,
) -> usize {
    for pair in 0..pairs {
        let rows = [2 * pair, 2 * pair + 1].map(|row| from.rows_after(row).pointer);
        for group in 0..groups {
            // SAFETY: two rows of eight elements, and room for eight pairs.
            unsafe {
                let [first, second] = rows.map(|row| _mm_loadu_si128(row.add(group * ROWS).cast()));
                let to = to.add(pair * apart[0] + group * apart[1]).cast::<__m128i>();
                _mm_storeu_si128(to, _mm_unpacklo_epi16(second, first));
                _mm_storeu_si128(to.add(1), _mm_unpackhi_epi16(second, first));
            }
        }
    }
    pairs
}

/// Packs pairs of neighbours of eight columns whose elements are contiguous, eight pairs at a time; returns how many pairs.
///
/// # Safety
/// That of [`pack`].
#[target_feature(enable = "avx512f,avx512vl,avx2")]
#[allow(clippy::needless_range_loop, reason = "constant bounds and indices are what becomes registers")]
unsafe fn transpose(
    from: Matrix<u16>,
    pairs: usize,
    to: *mut Pair,
    [pair_apart, group_apart]: [usize; 2],
    groups: usize,
) -> usize {
    let whole = pairs / 8 * 8;
    let places = (0..groups).flat_map(|group| (0..whole).step_by(8).map(move |pair| (group, pair)));
    for (group, pair) in places {
        let from = from.columns_after(group * ROWS);
        // SAFETY: sixteen elements of each of eight columns, and room for eight rows of eight pairs.
        unsafe {
            let to = to.add(group * group_apart + pair * pair_apart);
            let mut a = [_mm256_setzero_si256(); 8];
            for c in 0..8 {
                let column = from.rows_after(2 * pair).columns_after(c).pointer;
                // In memory the first of two neighbours is in the low half.
                a[c] = _mm256_rol_epi32::<16>(_mm256_loadu_si256(column.cast()));
            }
            let mut b = a;
            for c in 0..4 {
                b[2 * c] = _mm256_unpacklo_epi32(a[2 * c], a[2 * c + 1]);
                b[2 * c + 1] = _mm256_unpackhi_epi32(a[2 * c], a[2 * c + 1]);
            }
            for h in 0..2 {
                let [b0, b1, b2, b3] = [b[4 * h], b[4 * h + 1], b[4 * h + 2], b[4 * h + 3]];
                a[4 * h] = _mm256_unpacklo_epi64(b0, b2);
                a[4 * h + 1] = _mm256_unpackhi_epi64(b0, b2);
                a[4 * h + 2] = _mm256_unpacklo_epi64(b1, b3);
                a[4 * h + 3] = _mm256_unpackhi_epi64(b1, b3);
            }
            for r in 0..4 {
                let low = _mm256_permute2x128_si256::<0x20>(a[r], a[r + 4]);
                let high = _mm256_permute2x128_si256::<0x31>(a[r], a[r + 4]);
                _mm256_storeu_si256(to.add(r * pair_apart).cast(), low);
                _mm256_storeu_si256(to.add((r + 4) * pair_apart).cast(), high);
            }
        }
    }
    whole
}
