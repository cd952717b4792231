//! Matmul of `f32` on Intel AMX, whose instructions multiply tiles of `bf16` and accumulate in `f32`.
//!
//! An f32 has 24 significand bits, a bf16 has eight: `x = x1 + x2 + x3`, exactly, where `x1` is x rounded to
//! nearest, `x2` is the remainder truncated, and `x3` is the rest. Of the nine products of the parts of two
//! numbers, the six largest are computed; the other three add up to at most half a unit in the last place of
//! the product, of either sign. So a sum is as accurate as if every product were rounded once, and more
//! accurate than a sum in order, because sixteen products are added before they join the accumulator. (Three
//! parts and six products: G. Henry, P. T. P. Tang and A. Heinecke, "Leveraging the bfloat16 Artificial
//! Intelligence Datatype For Higher-Precision Computations", ARITH 2019; `BF16_BF16_F32_X6` among JAX's
//! algorithms.)
//!
//! AMX treats subnormal numbers as zero, so numbers below 2^-109 lose their last bits. A number that is not
//! finite, or rounds to infinity, has no parts: its row of `lhs` or column of `rhs` is computed without AMX.
//!
//! **Bits.** An element of `out` depends only on its row of `lhs`, its column of `rhs`, `scale` and
//! `accumulate`. The sum over k is split into the same blocks as in the other matmul; each block starts at
//! zero and adds 32 products of each of the six pairs of parts at a time, in the order of `sums!`; product i
//! of a step is added together with product 16 + i. A twin in plain Rust (`gemm/tests.rs`) gives the same
//! bits.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::gemm::pack::{DEPTH, PITCH, copy, depth_block, with_buffer};
use crate::matrix::{Matrix, MatrixMut};

/// Rows and columns of a tile of `out`, and `f32` in a row of a tile.
const TILE: usize = 16;
/// Rows or columns of two tiles, which are computed together.
const PANEL: usize = 2 * TILE;
/// Products of parts that one instruction adds to each element.
const STEP: usize = 32;
/// The bf16 parts of a number.
const PARTS: usize = 3;
const TILE_BYTES: usize = 1024;
/// Bytes of one step of a panel: the first part of both tiles, then the second, then the third.
const STEP_BYTES: usize = PARTS * 2 * TILE_BYTES;
/// Maximum number of bytes of a packed block of `rhs`, which stays in L2.
const RHS_BYTES: usize = 5 << 18;
/// Rows that are loaded before any of them is stored: if rows are a multiple of 4096 bytes apart, a load
/// waits for the store before it.
const TOGETHER: usize = 8;
/// Rows of `lhs` and of `out` that each step of a sum prefetches.
const ASKED_ROWS: usize = 4;
/// Bytes of a packed panel of `lhs`.
const LHS_BYTES: usize = DEPTH / STEP * STEP_BYTES;
/// Bytes of a copy of rows of `lhs` before they are split into parts, if they are not contiguous.
const WHOLE_BYTES: usize = PANEL * PITCH * size_of::<f32>();
const SUMS_BYTES: usize = size_of::<Sums>();
/// Bytes of a thread's packing buffer.
const PACKED_BYTES: usize = RHS_BYTES + LHS_BYTES + WHOLE_BYTES + 2 * SUMS_BYTES;

/// The sums of a panel of `lhs` times a panel of `rhs`.
type Sums = [f32; PANEL * PANEL];

/// Whether this machine, which has AVX-512, has AMX, and the operating system lets this process use it.
pub(crate) fn is_available() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    let (found, wanted) = (__cpuid_count(7, 0).edx, BF16 | TILES);
    found & wanted == wanted && permitted()
}

/// Requests permission to use the tile registers, which the system then saves on context switches.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: a system call that writes no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// `out[m, n] = scale * lhs[m, k] rhs[k, n]`, added to `out` if `accumulate`.
///
/// # Safety
/// AMX [`is_available`], the matrices have these sizes, and `out` overlaps neither of the others.
pub(super) unsafe fn product(
    [m, k, n]: [usize; 3],
    scale: f32,
    lhs: Matrix<f32>,
    rhs: Matrix<f32>,
    out: MatrixMut<f32>,
    accumulate: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    let depth_block = depth_block(k);
    let steps_block = depth_block.div_ceil(STEP);
    // With few columns, the sums do not prefetch all rows of `lhs`; if columns are copied, the copies
    // prefetch them.
    let leaves_lhs = lhs.column == 1 && n < PANEL / ASKED_ROWS * PANEL;
    let columns_block = {
        let most = RHS_BYTES / (steps_block * STEP_BYTES) * PANEL;
        n.div_ceil(n.div_ceil(most)).next_multiple_of(PANEL)
    };
    with_buffer(PACKED_BYTES, |right| {
        // SAFETY: the machine has the instructions; parts of blocks are inside the matrices; the parts of the
        // buffer are disjoint and inside it.
        unsafe {
            let left = right.add(RHS_BYTES);
            let whole: *mut f32 = left.add(LHS_BYTES).cast();
            let sums = &mut *left.add(LHS_BYTES + WHOLE_BYTES).cast::<Sums>();
            let turned = &mut *left.add(LHS_BYTES + WHOLE_BYTES + SUMS_BYTES).cast::<Sums>();
            configure();
            for j in (0..n).step_by(columns_block) {
                let columns = columns_block.min(n - j);
                for p in (0..k.max(1)).step_by(depth_block) {
                    let depth = depth_block.min(k - p);
                    let steps = depth.div_ceil(STEP);
                    let accumulate = accumulate || p > 0;
                    let (lhs, rhs) = (lhs.columns_after(p), rhs.rows_after(p).columns_after(j));
                    let odd_columns = pack_block(rhs, [depth, columns], right, turned);
                    for i in (0..m).step_by(PANEL) {
                        let rows = PANEL.min(m - i);
                        let lhs = lhs.rows_after(i);
                        let below = lhs.rows_after(PANEL);
                        if leaves_lhs && i + PANEL < m {
                            (0..depth).step_by(STEP).for_each(|p| ask(below.columns_after(p), 0..PANEL));
                        }
                        let odd_rows = pack_lhs(lhs, [rows, depth], left, whole);
                        for (panel, odd) in (0..columns).step_by(PANEL).zip(&odd_columns) {
                            let columns = PANEL.min(columns - panel);
                            let rhs_panel = right.add(panel / PANEL * steps * STEP_BYTES);
                            let out = out.rows_after(i).columns_after(j + panel);
                            // The rows of `out` that a sum of so few steps does not prefetch.
                            ask(out.read(), ASKED_ROWS * steps..PANEL);
                            let ahead = Ahead::new(panel / PANEL, below, out.read());
                            let sizes = [rows, columns];
                            let is_odd = odd_rows | odd != 0;
                            let is_whole = sizes == [PANEL; 2] && out.column == 1;
                            if is_whole && !is_odd && !accumulate && scale == 1.0 {
                                let into = Target::new(out.pointer, out.row);
                                sum(sizes, steps, left, rhs_panel, &into, &ahead);
                                continue;
                            }
                            let into = Target::new(sums.as_mut_ptr(), PANEL as isize);
                            sum(sizes, steps, left, rhs_panel, &into, &ahead);
                            if is_odd {
                                let rhs = rhs.columns_after(panel);
                                one_by_one([rows, depth, columns], lhs, rhs, [odd_rows, *odd], sums);
                            }
                            write(sizes, sums, turned, scale, out, accumulate);
                        }
                    }
                }
            }
            release();
        }
    });
}

/// Configures eight tiles of sixteen rows of 64 bytes.
///
/// # Safety
/// AMX is available.
unsafe fn configure() {
    #[repr(C, align(64))]
    struct Configuration {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }
    let mut configuration =
        Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    configuration.row_bytes[..8].fill(64);
    configuration.rows[..8].fill(16);
    // SAFETY: the caller upholds the contract. Compilers keep nothing in tile registers, so nothing is lost,
    // and the tiles keep their contents until they are released.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly, preserves_flags)) }
}

/// Releases the tile registers, so that the system need not save them any more.
///
/// # Safety
/// AMX is available.
unsafe fn release() {
    // SAFETY: the caller upholds the contract.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// Text for instructions that exist only if both tiles are computed.
macro_rules! when {
    (both $text:expr) => {
        $text
    };
    (one $text:expr) => {
        ""
    };
}

/// Prefetches the cache lines of a tile that is loaded next.
macro_rules! prefetch {
    ($panel:literal, $at:literal) => {
        concat!(
            prefetch!(@line $panel, $at, 0), prefetch!(@line $panel, $at, 64), prefetch!(@line $panel, $at, 128),
            prefetch!(@line $panel, $at, 192), prefetch!(@line $panel, $at, 256), prefetch!(@line $panel, $at, 320),
            prefetch!(@line $panel, $at, 384), prefetch!(@line $panel, $at, 448), prefetch!(@line $panel, $at, 512),
            prefetch!(@line $panel, $at, 576), prefetch!(@line $panel, $at, 640), prefetch!(@line $panel, $at, 704),
            prefetch!(@line $panel, $at, 768), prefetch!(@line $panel, $at, 832), prefetch!(@line $panel, $at, 896),
            prefetch!(@line $panel, $at, 960),
        )
    };
    (@line $panel:literal, $at:literal, $line:literal) => {
        concat!("prefetcht0 [{", $panel, "} + ", $at, " + ", $line, "]\n")
    };
}

/// Multiplies one part of `lhs`, in tmm4 and tmm5, with one of `rhs`, in tmm6 and tmm7. Meanwhile prefetches
/// two tiles.
macro_rules! multiply {
    ($rows:tt, $columns:tt, $first:expr, $second:expr) => {
        concat!(
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            $first,
            when!($columns "tdpbf16ps tmm1, tmm4, tmm7\n"),
            when!($rows "tdpbf16ps tmm2, tmm5, tmm6\n"),
            $second,
            when!($rows when!($columns "tdpbf16ps tmm3, tmm5, tmm7\n")),
        )
    };
}

/// Loads one part of a step of a panel into these registers: its first tile, and its second if both are
/// computed.
macro_rules! load {
    ($wanted:tt, $panel:literal, $first:literal at $at:literal, $second:literal at $second_at:literal) => {
        concat!(
            load!(@tile $panel, $first, $at),
            when!($wanted load!(@tile $panel, $second, $second_at)),
        )
    };
    (@tile $panel:literal, $tile:literal, $at:literal) => {
        concat!("tileloadd tmm", $tile, ", [{", $panel, "} + {row} + ", $at, "]\n")
    };
}

/// The sums of a panel of `lhs` times a panel of `rhs`. In a step of a panel, parts are 2048 bytes apart and
/// their tiles 1024; the next step follows after 6144 bytes. Small products are added first, as far as that
/// saves loads: parts 1 and 3, 1 and 2, 2 and 2, 2 and 1, 3 and 1, 1 and 1.
///
/// All of the next step is prefetched meanwhile: if two threads share a core, a tile load does not overlap
/// with a tile multiplication, so loads from L2 would take a fifth of the time.
macro_rules! sums {
    ($rows:tt, $columns:tt, $steps:ident, $lhs:ident, $rhs:ident, $into:ident, $ahead:ident) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {steps}, {steps}",
            "jz 3f",
            "2:",
            "lea {ahead}, [{lhs} + 6144]",
            "cmp {steps}, 1",
            "cmove {ahead}, {first}",
            load!($rows, "lhs", 4 at 0, 5 at 1024),
            load!($columns, "rhs", 6 at 4096, 7 at 5120),
            "prefetcht1 [{next}]",
            "prefetcht1 [{next} + 64]",
            "prefetcht1 [{next} + {apart}]",
            "prefetcht1 [{next} + {apart} + 64]",
            multiply!($rows, $columns, prefetch!("ahead", 0), prefetch!("ahead", 1024)),
            load!($columns, "rhs", 6 at 2048, 7 at 3072),
            "lea {next}, [{next} + {apart} * 2]",
            "prefetcht1 [{next}]",
            "prefetcht1 [{next} + 64]",
            "prefetcht1 [{next} + {apart}]",
            "prefetcht1 [{next} + {apart} + 64]",
            multiply!($rows, $columns, prefetch!("rhs", 10240), prefetch!("rhs", 11264)),
            load!($rows, "lhs", 4 at 2048, 5 at 3072),
            "add {next}, {onward}",
            "prefetcht1 [{out}]",
            "prefetcht1 [{out} + 64]",
            "prefetcht1 [{out} + {pitch}]",
            "prefetcht1 [{out} + {pitch} + 64]",
            multiply!($rows, $columns, prefetch!("rhs", 8192), prefetch!("rhs", 9216)),
            load!($columns, "rhs", 6 at 0, 7 at 1024),
            "lea {out}, [{out} + {pitch} * 2]",
            "prefetcht1 [{out}]",
            "prefetcht1 [{out} + 64]",
            "prefetcht1 [{out} + {pitch}]",
            "prefetcht1 [{out} + {pitch} + 64]",
            multiply!($rows, $columns, prefetch!("rhs", 6144), prefetch!("rhs", 7168)),
            load!($rows, "lhs", 4 at 4096, 5 at 5120),
            "lea {out}, [{out} + {pitch} * 2]",
            multiply!($rows, $columns, prefetch!("ahead", 2048), prefetch!("ahead", 3072)),
            load!($rows, "lhs", 4 at 0, 5 at 1024),
            multiply!($rows, $columns, prefetch!("ahead", 4096), prefetch!("ahead", 5120)),
            "add {lhs}, 6144",
            "add {rhs}, 6144",
            "dec {steps}",
            "jnz 2b",
            "3:",
            "mov {lhs}, [{into}]",
            "mov {rhs}, [{into} + 8]",
            "mov {row}, [{into} + 16]",
            "tilestored [{lhs} + {row}], tmm0",
            "tilestored [{lhs} + {row} + 64], tmm1",
            "tilestored [{rhs} + {row}], tmm2",
            "tilestored [{rhs} + {row} + 64], tmm3",
            steps = inout(reg) $steps => _,
            lhs = inout(reg) $lhs => _,
            rhs = inout(reg) $rhs => _,
            row = inout(reg) 64usize => _,
            into = in(reg) $into,
            next = inout(reg) $ahead.next => _,
            apart = in(reg) $ahead.apart,
            onward = in(reg) $ahead.onward - 2 * $ahead.apart,
            first = in(reg) $lhs,
            ahead = out(reg) _,
            out = inout(reg) $ahead.out => _,
            pitch = in(reg) $ahead.pitch,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// The destination of a panel's sums: its first and its seventeenth row, and the bytes from row to row.
#[repr(C)]
struct Target {
    first: *mut f32,
    second: *mut f32,
    pitch: isize,
}

impl Target {
    fn new(first: *mut f32, row: isize) -> Self {
        let second = first.wrapping_offset(TILE as isize * row);
        Target { first, second, pitch: row * size_of::<f32>() as isize }
    }
}

/// What each step of a sum prefetches; strides are in bytes.
struct Ahead {
    /// Four rows of `lhs` that are `apart` from one another; each step moves `onward`.
    next: *const f32,
    apart: isize,
    onward: isize,
    /// Four rows of `out`.
    out: *const f32,
    pitch: isize,
}

impl Ahead {
    /// The prefetches during panel `number`: rows of `lhs` below, which are packed next, and the destination
    /// of the sums.
    fn new(number: usize, below: Matrix<f32>, out: Matrix<f32>) -> Self {
        const F32: isize = size_of::<f32>() as isize;
        let (next, out) = (lines(below), lines(out));
        let onward = STEP as isize * below.column;
        Ahead {
            next: next.rows_after(ASKED_ROWS * number).pointer,
            apart: next.row * F32,
            onward: onward * F32,
            out: out.pointer,
            pitch: out.row * F32,
        }
    }
}

/// The matrix, or its transpose if only its columns are contiguous.
fn lines(matrix: Matrix<f32>) -> Matrix<f32> {
    if matrix.column == 1 { matrix } else { matrix.transposed() }
}

/// Prefetches the first [`PANEL`] numbers of rows, or of columns if those are contiguous.
fn ask(from: Matrix<f32>, rows: std::ops::Range<usize>) {
    for row in rows {
        let row = lines(from).rows_after(row).pointer;
        // SAFETY: a prefetched address need not be valid.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(row.cast());
            _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(TILE).cast());
        }
    }
}

/// Computes the sums of a panel, [`PANEL`] rows of [`PANEL`], of which `rows` and `columns` are needed.
///
/// # Safety
/// The tiles are configured, the panels have `steps` steps, and `into` has room for all sums.
unsafe fn sum(
    [rows, columns]: [usize; 2],
    steps: usize,
    lhs: *const u8,
    rhs: *const u8,
    into: &Target,
    ahead: &Ahead,
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        match (rows > TILE, columns > TILE) {
            (true, true) => sums!(both, both, steps, lhs, rhs, into, ahead),
            (true, false) => sums!(both, one, steps, lhs, rhs, into, ahead),
            (false, true) => sums!(one, both, steps, lhs, rhs, into, ahead),
            (false, false) => sums!(one, one, steps, lhs, rhs, into, ahead),
        }
    }
}

/// Packs one row of a pair of tiles for each part: two vectors, interleaved lane by lane. The result is
/// `nothing` with NaN in the lanes whose number has no parts.
///
/// # Safety
/// There is room for the row, aligned to its 64 bytes, and for the rows of the other parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_parts(low: __m512, high: __m512, to: *mut u8, nothing: __m512) -> __m512 {
    let (low, low_parts) = apart(low);
    let (high, high_parts) = apart(high);
    for (part, (low, high)) in low_parts.into_iter().zip(high_parts).enumerate() {
        // Combines the upper halves of both numbers: a | (b & c).
        let pair = _mm512_ternarylogic_epi32::<0xf8>(_mm512_srli_epi32::<16>(low), high, upper_halves());
        // SAFETY: the caller upholds the contract.
        unsafe { _mm512_store_si512(to.add(part * 2 * TILE_BYTES).cast(), pair) };
    }
    _mm512_fmadd_ps(_mm512_add_ps(low, high), _mm512_setzero_ps(), nothing)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn upper_halves() -> __m512i {
    _mm512_set1_epi32(0xffff_0000_u32 as i32)
}

/// Splits numbers into three parts. The first result is what the parts leave: zero, or NaN if a number has no
/// parts. The second is floats whose upper halves are the parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn apart(number: __m512) -> (__m512, [__m512i; PARTS]) {
    let upper = |number: __m512i| _mm512_and_si512(number, upper_halves());
    let half = _mm512_set1_epi32(0x8000);
    let first = upper(_mm512_add_epi32(_mm512_castps_si512(number), half));
    let left = _mm512_sub_ps(number, _mm512_castsi512_ps(first));
    let second = upper(_mm512_castps_si512(left));
    let left = _mm512_sub_ps(left, _mm512_castsi512_ps(second));
    // At most eight bits are left.
    (left, [first, second, _mm512_castps_si512(left)])
}

/// Whether a number has no parts, because it is not finite or rounds to infinity.
fn is_odd(number: f32) -> bool {
    number.to_bits() & 0x7fff_ffff >= 0x7f7f_8000
}

/// Loads a vector: all elements if `WHOLE`, otherwise those of the mask.
///
/// # Safety
/// Those elements are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const WHOLE: bool>(from: *const f32, mask: u16) -> __m512 {
    // SAFETY: the caller upholds the contract.
    unsafe { if WHOLE { _mm512_loadu_ps(from) } else { _mm512_maskz_loadu_ps(mask, from) } }
}

/// The mask of the first `count` lanes.
fn lanes(count: usize) -> u16 {
    ((1_u32 << count.min(TILE)) - 1) as u16
}

/// Packs rows of `lhs`. Returns which rows have numbers without parts.
///
/// # Safety
/// The places are readable, and there is room for the parts.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pack_lhs(mut from: Matrix<f32>, [rows, depth]: [usize; 2], to: *mut u8, whole: *mut f32) -> u32 {
    let mut nothing = _mm512_setzero_ps();
    // SAFETY: the caller upholds the contract.
    unsafe {
        if from.column != 1 {
            copy::<__m512>(from, [rows, depth], whole, PITCH);
            from = Matrix { pointer: whole, row: PITCH as isize, column: 1 };
        }
        for (step, p) in (0..depth).step_by(STEP).enumerate() {
            for group in (0..rows).step_by(TOGETHER) {
                let sizes = [rows - group, depth - p];
                let from = from.rows_after(group).columns_after(p);
                let to = to.add(step * STEP_BYTES + group / TILE * TILE_BYTES + group % TILE * 64);
                let left = if sizes[0] >= TOGETHER && sizes[1] >= STEP {
                    pack_rows::<true>(from, sizes, to)
                } else {
                    pack_rows::<false>(from, sizes, to)
                };
                nothing = _mm512_fmadd_ps(left, _mm512_setzero_ps(), nothing);
            }
        }
        if _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(nothing, nothing) == 0 {
            0
        } else {
            odd_rows(from, [rows, depth])
        }
    }
}

/// Packs [`TOGETHER`] rows of a step of `lhs`, interleaving the two vectors of each row. NaN where a number
/// has no parts.
///
/// # Safety
/// The rows and columns (or those to be packed, if fewer) are readable, and there is room for the parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_rows<const WHOLE: bool>(from: Matrix<f32>, [rows, depth]: [usize; 2], to: *mut u8) -> __m512 {
    let mut numbers = [[_mm512_setzero_ps(); 2]; TOGETHER];
    let mut nothing = _mm512_setzero_ps();
    let masks = [lanes(depth), lanes(depth.saturating_sub(TILE))];
    // SAFETY: the caller upholds the contract.
    unsafe {
        for (i, [low, high]) in numbers.iter_mut().enumerate() {
            let row = from.rows_after(i).pointer;
            let masks = if WHOLE || i < rows { masks } else { [0; 2] };
            *low = load::<WHOLE>(row, masks[0]);
            *high = load::<WHOLE>(row.wrapping_add(TILE), masks[1]);
        }
        for (i, [low, high]) in numbers.into_iter().enumerate() {
            nothing = pack_parts(low, high, to.add(i * 64), nothing);
        }
    }
    nothing
}

/// Which rows have numbers without parts.
///
/// # Safety
/// The places are readable.
#[cold]
unsafe fn odd_rows(from: Matrix<f32>, [rows, depth]: [usize; 2]) -> u32 {
    // SAFETY: the caller upholds the contract.
    let at = |row: usize, p: usize| unsafe { from.rows_after(row).columns_after(p).pointer.read() };
    (0..rows).fold(0, |odd, row| odd | u32::from((0..depth).any(|p| is_odd(at(row, p)))) << row)
}

/// Packs a block of `rhs` panel by panel. Returns for each panel which columns have numbers without parts.
///
/// # Safety
/// The places are readable, and there is room for the parts.
unsafe fn pack_block(
    from: Matrix<f32>,
    [depth, columns]: [usize; 2],
    to: *mut u8,
    turned: &mut Sums,
) -> [u32; RHS_BYTES / STEP_BYTES] {
    let mut odd = [0; RHS_BYTES / STEP_BYTES];
    let (steps, panels) = (depth.div_ceil(STEP), columns.div_ceil(PANEL));
    // Follow the contiguous direction.
    let order = |at: usize| match from.column {
        1 => (at / panels, at % panels),
        _ => (at % steps, at / steps),
    };
    for (step, panel) in (0..steps * panels).map(order) {
        let sizes = [STEP.min(depth - step * STEP), PANEL.min(columns - panel * PANEL)];
        // SAFETY: the caller upholds the contract.
        odd[panel] |= unsafe {
            let to = to.add((panel * steps + step) * STEP_BYTES);
            pack_rhs(from.rows_after(step * STEP).columns_after(panel * PANEL), sizes, to, turned)
        };
    }
    odd
}

/// Packs a step of a panel of `rhs`: interleaves pairs of rows that are half a step apart. Returns which
/// columns have numbers without parts.
///
/// # Safety
/// The places are readable, and there is room for the parts.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pack_rhs(
    mut from: Matrix<f32>,
    [rows, columns]: [usize; 2],
    to: *mut u8,
    turned: &mut Sums,
) -> u32 {
    let mut odd = 0;
    // SAFETY: the caller upholds the contract.
    unsafe {
        if from.column != 1 {
            copy::<__m512>(from, [rows, columns], turned.as_mut_ptr(), PANEL);
            from = Matrix { pointer: turned.as_ptr(), row: PANEL as isize, column: 1 };
        }
        for tile in (0..columns).step_by(TILE) {
            let sizes = [rows, columns - tile];
            let (from, to) = (from.columns_after(tile), to.add(tile / TILE * TILE_BYTES));
            odd |= if rows == STEP && sizes[1] >= TILE {
                pack_columns::<true>(from, sizes, to)
            } else {
                pack_columns::<false>(from, sizes, to)
            } << tile;
        }
    }
    odd
}

/// Packs a tile of `rhs`. Returns which columns have numbers without parts.
///
/// # Safety
/// The same as for [`pack_rhs`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_columns<const WHOLE: bool>(
    from: Matrix<f32>,
    [rows, columns]: [usize; 2],
    to: *mut u8,
) -> u32 {
    let mut nothing = _mm512_setzero_ps();
    let mask = lanes(columns);
    // SAFETY: the caller upholds the contract; a prefetched address need not be valid.
    unsafe {
        for pair in 0..TILE {
            let [low, high] = [from.rows_after(pair).pointer, from.rows_after(pair + TILE).pointer];
            _mm_prefetch::<_MM_HINT_T1>(low.wrapping_offset(STEP as isize * from.row).cast());
            _mm_prefetch::<_MM_HINT_T1>(high.wrapping_offset(STEP as isize * from.row).cast());
            let low = load::<WHOLE>(low, if pair < rows { mask } else { 0 });
            let high = load::<WHOLE>(high, if pair + TILE < rows { mask } else { 0 });
            nothing = pack_parts(low, high, to.add(pair * 64), nothing);
        }
    }
    u32::from(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(nothing, nothing))
}

/// Computes the sums of rows and columns with numbers that have no parts.
///
/// # Safety
/// The matrices have these sizes.
#[cold]
unsafe fn one_by_one(
    [rows, depth, columns]: [usize; 3],
    lhs: Matrix<f32>,
    rhs: Matrix<f32>,
    [odd_rows, odd_columns]: [u32; 2],
    sums: &mut Sums,
) {
    for i in 0..rows {
        for j in 0..columns {
            if (odd_rows >> i | odd_columns >> j) & 1 != 0 {
                sums[i * PANEL + j] = (0..depth).fold(0.0, |sum, p| {
                    let [left, right] =
                        [lhs.rows_after(i).columns_after(p), rhs.rows_after(p).columns_after(j)];
                    // SAFETY: inside the matrices.
                    let [left, right] = [left, right].map(|at| unsafe { at.pointer.read() });
                    f32::mul_add(left, right, sum)
                });
            }
        }
    }
}

/// Scales sums and writes them to `out`, or adds them to it.
///
/// # Safety
/// `out` has these sizes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn write(
    [mut rows, mut columns]: [usize; 2],
    sums: &Sums,
    turned: &mut Sums,
    scale: f32,
    mut out: MatrixMut<f32>,
    accumulate: bool,
) {
    let mut sums = sums;
    // SAFETY: the caller upholds the contract.
    unsafe {
        if out.column != 1 {
            let from = Matrix { pointer: sums.as_ptr(), row: 1, column: PANEL as isize };
            copy::<__m512>(from, [PANEL, PANEL], turned.as_mut_ptr(), PANEL);
            (sums, rows, columns) = (turned, columns, rows);
            out = MatrixMut { row: out.column, column: out.row, ..out };
        }
        if out.column != 1 {
            for i in 0..rows {
                for j in 0..columns {
                    let (sum, at) = (sums[i * PANEL + j], out.rows_after(i).columns_after(j).pointer);
                    at.write(if accumulate { sum.mul_add(scale, at.read()) } else { sum * scale });
                }
            }
            return;
        }
        let scale = _mm512_set1_ps(scale);
        let masks = [lanes(columns), lanes(columns.saturating_sub(TILE))];
        for first in (0..rows).step_by(TOGETHER) {
            let row =
                |i: usize| (out.rows_after(first + i).pointer, if first + i < rows { masks } else { [0; 2] });
            let mut there = [[_mm512_setzero_ps(); 2]; TOGETHER];
            if accumulate {
                for (i, there) in there.iter_mut().enumerate() {
                    let (at, [low, high]) = row(i);
                    *there =
                        [_mm512_maskz_loadu_ps(low, at), _mm512_maskz_loadu_ps(high, at.wrapping_add(TILE))];
                }
            }
            for (i, there) in there.iter().enumerate() {
                let (at, masks) = row(i);
                for (half, (there, mask)) in there.iter().zip(masks).enumerate() {
                    let sum = _mm512_loadu_ps(&sums[(first + i) * PANEL + half * TILE]);
                    let value = if accumulate {
                        _mm512_fmadd_ps(sum, scale, *there)
                    } else {
                        _mm512_mul_ps(sum, scale)
                    };
                    _mm512_mask_storeu_ps(at.wrapping_add(half * TILE), mask, value);
                }
            }
        }
    }
}
