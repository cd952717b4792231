//! Matmul of views: batches, transposed operands, f16 and bf16 widened to f32, and integer types by a plain
//! loop.

use crate::options::KernelOptions;
use partita_base::DType;

use crate::element::Float;
use crate::element::{Number, Real, dispatch};
use crate::gemm::pack::depth_block;
use crate::gemm::{Band, Part, product, whole_product};
use crate::matrix::{Matrix, MatrixMut};
use crate::native::{Bf16Out, NativeBackend, backend};
use crate::tiles::{Reader, Scratch, Writer, tiles};
use crate::view::{MAX_RANK, View, ViewMut};
use crate::workspace::{Workspace, piece_bytes};

/// `out[m, n] = scale * lhs[m, k] rhs[k, n]`, added to `out` if `accumulate`; computes only what `part`
/// selects.
///
/// # Safety
/// The matrices have these sizes, and `out` overlaps neither of the others.
pub(crate) unsafe fn gemm_part<C: Real>(
    options: KernelOptions,
    part: Part<'_>,
    sizes: [usize; 3],
    scale: C,
    lhs: Matrix<C>,
    rhs: Matrix<C>,
    out: MatrixMut<C>,
    accumulate: bool,
) {
    let scale = scale.to_f64();
    // SAFETY: the caller upholds the contract; the types are the same.
    unsafe {
        match C::DTYPE {
            DType::F32 => {
                let scale = scale as f32;
                product::<f32>(options, sizes, scale, lhs.cast(), rhs.cast(), out.cast(), accumulate, part)
            }
            _ => product::<f64>(options, sizes, scale, lhs.cast(), rhs.cast(), out.cast(), accumulate, part),
        }
    }
}

/// Bytes of workspace that [`matmul`] needs for matrices [m, k] and [k, n] of one type: f16 and bf16 are
/// widened to f32; the other types need none.
pub fn matmul_workspace_bytes(dtype: DType, m: usize, k: usize, n: usize) -> usize {
    match dtype {
        DType::F16 | DType::BF16 => {
            piece_bytes::<f32>(m * k) + piece_bytes::<f32>(k * n) + piece_bytes::<f32>(m * n)
        }
        _ => 0,
    }
}

/// The length of the blocks into which [`matmul`] splits its sums over `k`; `None` for types without such
/// blocks. A block is summed in order from zero, and the sums of blocks are added in order: so a matmul over
/// some blocks, accumulated onto the matmul over the blocks before, gives the bits of the matmul over all.
pub fn matmul_sum_block(dtype: DType, k: usize) -> Option<usize> {
    matches!(dtype, DType::F32 | DType::F64).then(|| depth_block(k))
}

/// `out[.., m, n] = lhs[.., m, k] rhs[.., k, n]`, added to `out` if `accumulate`. Any strides, so a
/// transposed operand needs no copy. Leading dimensions of an operand that are missing or have size one
/// broadcast. f16 and bf16 are multiplied in f32, round once, and may also write an f32 `out`; integers wrap.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn matmul(
    options: KernelOptions,
    lhs: &View<'_>,
    rhs: &View<'_>,
    out: &mut ViewMut<'_>,
    accumulate: bool,
    workspace: &mut [u8],
) {
    let rank = out.rank();
    assert!(rank >= 2 && lhs.rank() >= 2 && rhs.rank() >= 2, "a matrix has two dimensions");
    let dtype = lhs.dtype();
    let widens = matches!(dtype, DType::F16 | DType::BF16) && out.dtype() == DType::F32;
    assert!(rhs.dtype() == dtype && (out.dtype() == dtype || widens), "matmul needs one type, not {dtype}");
    let (m, n) = (out.shape()[rank - 2], out.shape()[rank - 1]);
    let k = lhs.shape()[lhs.rank() - 1];
    let mut lhs_shape = [0; MAX_RANK];
    lhs_shape[..rank].copy_from_slice(out.shape());
    let mut rhs_shape = lhs_shape;
    lhs_shape[rank - 1] = k;
    rhs_shape[rank - 2] = k;
    let fits = |view: &View<'_>, want: &[usize]| view.shape()[view.rank() - 2..] == want[rank - 2..];
    assert!(
        fits(lhs, &lhs_shape[..rank]) && fits(rhs, &rhs_shape[..rank]),
        "matmul of {:?} and {:?} does not give {:?}",
        lhs.shape(),
        rhs.shape(),
        out.shape()
    );
    let lhs = lhs.broadcast_to(&lhs_shape[..rank]);
    let rhs = rhs.broadcast_to(&rhs_shape[..rank]);
    if m == 0 || n == 0 {
        return;
    }
    let problem = Problem::new(&lhs, &rhs, out, [m, k, n]);
    let sizes = problem.sizes;
    match dtype {
        // SAFETY: the views guarantee the matrices, whose sizes were checked against each other.
        DType::F32 => problem.for_each(&lhs, &rhs, out, |a, b, c| unsafe {
            whole_product(options, sizes, 1.0, a, b, c, accumulate)
        }),
        // SAFETY: as above.
        DType::F64 => problem.for_each(&lhs, &rhs, out, |a, b, c| unsafe {
            product::<f64>(options, sizes, 1.0, a, b, c, accumulate, Part::WHOLE)
        }),
        DType::F16 => half_matmul::<half::f16>(options, &lhs, &rhs, out, accumulate, workspace),
        DType::BF16 => {
            if !bf16_matmul(options, &problem, &lhs, &rhs, out, accumulate) {
                half_matmul::<half::bf16>(options, &lhs, &rhs, out, accumulate, workspace);
            }
        }
        _ => dispatch!(bits dtype, T => problem.naive::<T>(&lhs, &rhs, out, accumulate)),
    }
}

/// A batch of matmuls; leading dimensions that only rows of `lhs` and `out` have are merged into m.
struct Problem {
    sizes: [usize; 3],
    batch_rank: usize,
    lhs_row: isize,
    out_row: isize,
}

impl Problem {
    fn new(lhs: &View<'_>, rhs: &View<'_>, out: &ViewMut<'_>, [mut m, k, n]: [usize; 3]) -> Self {
        let mut batch_rank = out.rank() - 2;
        let (mut lhs_row, mut out_row) = (lhs.strides()[batch_rank], out.strides()[batch_rank]);
        while let Some(d) = batch_rank.checked_sub(1) {
            let (size, lhs_step, out_step) = (out.shape()[d], lhs.strides()[d], out.strides()[d]);
            if size != 1 {
                let goes_on = rhs.strides()[d] == 0
                    && (m == 1 || (lhs_step == lhs_row * m as isize && out_step == out_row * m as isize));
                if !goes_on {
                    break;
                }
                if m == 1 {
                    (lhs_row, out_row) = (lhs_step, out_step);
                }
                m *= size;
            }
            batch_rank -= 1;
        }
        Problem { sizes: [m, k, n], batch_rank, lhs_row, out_row }
    }

    /// Calls `product` with the three matrices of every matmul in the batch.
    fn for_each<T, O>(
        &self,
        lhs: &View<'_>,
        rhs: &View<'_>,
        out: &mut ViewMut<'_>,
        mut product: impl FnMut(Matrix<T>, Matrix<T>, MatrixMut<O>),
    ) {
        let batch = self.batch_rank;
        let (a, b, c) = (Matrix::<T>::of_view(lhs), Matrix::<T>::of_view(rhs), MatrixMut::<O>::of_view(out));
        let count: usize = out.shape()[..batch].iter().product();
        for i in 0..count {
            let (mut rest, mut at) = (i, [0isize; 3]);
            for d in (0..batch).rev() {
                let index = (rest % out.shape()[d]) as isize;
                rest /= out.shape()[d];
                at[0] += index * lhs.strides()[d];
                at[1] += index * rhs.strides()[d];
                at[2] += index * out.strides()[d];
            }
            product(
                Matrix { pointer: a.pointer.wrapping_offset(at[0]), row: self.lhs_row, ..a },
                Matrix { pointer: b.pointer.wrapping_offset(at[1]), ..b },
                MatrixMut { pointer: c.pointer.wrapping_offset(at[2]), row: self.out_row, ..c },
            );
        }
    }

    /// A plain loop, for types without an optimised matmul.
    fn naive<T: Number>(&self, lhs: &View<'_>, rhs: &View<'_>, out: &mut ViewMut<'_>, accumulate: bool) {
        let [m, k, n] = self.sizes;
        self.for_each(lhs, rhs, out, |a: Matrix<T>, b: Matrix<T>, c: MatrixMut<T>| {
            for i in 0..m as isize {
                for j in 0..n as isize {
                    // SAFETY: i, j and l stay inside the matrices, which the views guarantee.
                    unsafe {
                        let into = c.pointer.offset(i * c.row + j * c.column);
                        let mut sum = if accumulate { into.read() } else { T::ZERO };
                        for l in 0..k as isize {
                            let left = a.pointer.offset(i * a.row + l * a.column).read();
                            let right = b.pointer.offset(l * b.row + j * b.column).read();
                            sum = sum.plus(left.times(right));
                        }
                        into.write(sum);
                    }
                }
            }
        });
    }
}

/// Widens a view's elements, row-major.
pub(crate) fn widen<T: Float>(view: &View<'_>, into: &mut [T::Compute], scratch: &mut Scratch) {
    let reader = Reader::new(view);
    for (start, count) in tiles(reader.len()) {
        into[start..start + count].copy_from_slice(reader.widened::<T>(start, count, scratch));
    }
}

/// Rounds row-major elements into a view.
pub(crate) fn round<T: Float>(from: &[T::Compute], view: &mut ViewMut<'_>, scratch: &mut Scratch) {
    let mut writer = Writer::new(view);
    for (start, count) in tiles(writer.len()) {
        writer
            .widened::<T>(start, count, scratch, |tile, _| tile.copy_from_slice(&from[start..start + count]));
    }
}

/// The matmuls of a batch one by one, by the machine's instruction for bf16; false if it has none for them.
fn bf16_matmul(
    options: KernelOptions,
    problem: &Problem,
    lhs: &View<'_>,
    rhs: &View<'_>,
    out: &mut ViewMut<'_>,
    accumulate: bool,
) -> bool {
    let mut done = true;
    let mut product = |a, b, c| {
        // SAFETY: the views guarantee the matrices, whose sizes were checked against each other. All matmuls of a batch have
        // the same sizes, so either all are done or none.
        done &= unsafe { backend(options).matmul_bf16(problem.sizes, 1.0, a, b, c, accumulate, Band::Full) };
    };
    if out.dtype() == DType::F32 {
        problem.for_each(lhs, rhs, out, |a, b, c| product(a, b, Bf16Out::F32(c)));
    } else {
        problem.for_each(lhs, rhs, out, |a, b, c| product(a, b, Bf16Out::Bf16(c)));
    }
    done
}

/// The matmuls of a batch one by one, through f32 copies.
fn half_matmul<T: Float<Compute = f32>>(
    options: KernelOptions,
    lhs: &View<'_>,
    rhs: &View<'_>,
    out: &mut ViewMut<'_>,
    accumulate: bool,
    workspace: &mut [u8],
) {
    let rank = out.rank();
    if rank > 2 {
        for i in 0..out.shape()[0] {
            let mut out = out.reborrow().index(0, i);
            half_matmul::<T>(options, &lhs.index(0, i), &rhs.index(0, i), &mut out, accumulate, workspace);
        }
        return;
    }
    let [m, k, n] = [out.shape()[0], lhs.shape()[1], out.shape()[1]];
    let mut workspace = Workspace::new(workspace);
    let (a, b, c) =
        (workspace.take::<f32>(m * k), workspace.take::<f32>(k * n), workspace.take::<f32>(m * n));
    let mut scratch = Scratch::new();
    widen::<T>(lhs, a, &mut scratch);
    widen::<T>(rhs, b, &mut scratch);
    let wide = out.dtype() == DType::F32;
    if accumulate {
        if wide {
            widen::<f32>(&out.as_view(), c, &mut scratch);
        } else {
            widen::<T>(&out.as_view(), c, &mut scratch);
        }
    }
    // SAFETY: the three parts of the workspace are disjoint and have these sizes.
    unsafe {
        let (a, b, c) = (Matrix::of(a, k), Matrix::of(b, n), MatrixMut::of(c, n));
        whole_product(options, [m, k, n], 1.0, a, b, c, accumulate);
    }
    if wide {
        round::<f32>(c, out, &mut scratch);
    } else {
        round::<T>(c, out, &mut scratch);
    }
}
