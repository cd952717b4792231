//! Scaled dot-product attention, head by head, in blocks of query rows, so that scratch is a block of rows of
//! scores rather than all of them, and a causal mask skips the keys no row of the block can see.

use partita_base::DType;

use crate::element::{Number, Real, dispatch};
use crate::matmul::{Matrix, MatrixMut, gemm, round, widen};
use crate::reduce::{Peak, fold_run};
use crate::rows::{dot, exp_in_place, scale_in_place, softmax_gradient};
use crate::tiles::{Reader, Scratch, TILE, TileBytes, tiles};
use crate::workspace::{Workspace, piece_bytes};
use crate::{Element, Float, View, ViewMut};

/// Query rows whose scores are held at a time.
const BLOCK_ROWS: usize = 64;

/// What a query may see, and how scores are scaled.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions<'a> {
    /// Bool [B or 1, H or 1, S, T]: false hides a key from a query.
    pub mask: Option<View<'a>>,
    /// Hides keys behind the query: query `i` sees keys `0..=i + query_offset`.
    pub causal: bool,
    /// The position of the first query among the keys, when decoding behind cached keys.
    pub query_offset: usize,
    /// What scores are multiplied by; usually 1 / sqrt(D).
    pub scale: f64,
}

/// The sizes of one attention problem.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
}

impl Sizes {
    fn new(q: &View<'_>, k: &View<'_>, v: &View<'_>, options: &AttentionOptions<'_>) -> Self {
        let (&[batch, heads, queries, width], &[_, key_heads, keys, _]) = (q.shape(), k.shape()) else {
            panic!("attention takes [B, H, S, D], not {:?} and {:?}", q.shape(), k.shape());
        };
        assert!(
            k.shape() == [batch, key_heads, keys, width] && v.shape() == k.shape(),
            "attention of {:?} over keys {:?} and values {:?}",
            q.shape(),
            k.shape(),
            v.shape()
        );
        assert!(
            heads == 0 || (key_heads > 0 && heads.is_multiple_of(key_heads)),
            "{heads} query heads do not share {key_heads} key heads"
        );
        assert!(q.dtype() == k.dtype() && q.dtype() == v.dtype(), "attention needs one type");
        if let Some(mask) = &options.mask {
            let full = [batch, heads, queries, keys];
            let fits = mask.rank() == 4 && mask.shape().iter().zip(full).all(|(&m, f)| m == f || m == 1);
            assert!(fits && mask.dtype() == DType::Bool, "a mask of {:?} for scores {full:?}", mask.shape());
        }
        Sizes { batch, heads, key_heads, queries, keys, width }
    }
}

/// Bytes of workspace that [`attention`] needs for S queries, T keys and heads of D.
pub fn attention_workspace_bytes(dtype: DType, queries: usize, keys: usize, width: usize) -> usize {
    let scores = BLOCK_ROWS.min(queries) * keys;
    match dtype {
        DType::F64 => piece_bytes::<f64>(scores),
        DType::F32 => piece_bytes::<f32>(scores),
        _ => {
            piece_bytes::<f32>(scores)
                + 2 * (piece_bytes::<f32>(queries * width) + piece_bytes::<f32>(keys * width))
        }
    }
}

/// Bytes of workspace that [`attention_backward`] needs for S queries, T keys and heads of D.
pub fn attention_backward_workspace_bytes(dtype: DType, queries: usize, keys: usize, width: usize) -> usize {
    let scores = BLOCK_ROWS.min(queries) * keys;
    match dtype {
        DType::F64 => 2 * piece_bytes::<f64>(scores),
        DType::F32 => 2 * piece_bytes::<f32>(scores),
        _ => {
            2 * piece_bytes::<f32>(scores)
                + 3 * piece_bytes::<f32>(queries * width)
                + 4 * piece_bytes::<f32>(keys * width)
        }
    }
}

/// The matrix of one head: the view's own memory, or for halves a widened copy in `copy`.
fn head_of<T: Float>(
    view: &View<'_>,
    at: [usize; 2],
    copy: &mut [T::Compute],
    scratch: &mut Scratch,
) -> Matrix<T::Compute> {
    let head = view.index(0, at[0]).index(0, at[1]);
    if T::DTYPE == T::Compute::DTYPE {
        return Matrix::of_view(&head);
    }
    widen::<T>(&head, copy, scratch);
    Matrix::of(copy, head.shape()[1])
}

/// The matrix to write one head to: the view's own memory, or for halves `copy`, to be rounded later.
fn head_of_mut<T: Float>(
    view: &mut ViewMut<'_>,
    at: [usize; 2],
    copy: &mut [T::Compute],
) -> MatrixMut<T::Compute> {
    let mut head = view.reborrow().index(0, at[0]).index(0, at[1]);
    if T::DTYPE == T::Compute::DTYPE {
        return MatrixMut::of_view(&mut head);
    }
    MatrixMut::of(copy, head.shape()[1])
}

/// Rounds what [`head_of_mut`] collected.
fn finish_head<T: Float>(view: &mut ViewMut<'_>, at: [usize; 2], copy: &[T::Compute], scratch: &mut Scratch) {
    if T::DTYPE != T::Compute::DTYPE {
        round::<T>(copy, &mut view.reborrow().index(0, at[0]).index(0, at[1]), scratch);
    }
}

/// How many elements of a copy a type needs.
fn copied<T: Float>(count: usize) -> usize {
    if T::DTYPE == T::Compute::DTYPE { 0 } else { count }
}

/// `out = softmax(scale q k^T, masked) v` for each head. `q` and `out` are [B, H, S, D], `k` and `v`
/// [B, H', T, D] with H a multiple of H': query head h reads key head h / (H / H'). A query that sees no key
/// gives zeros. Strides are free. Floats; halves compute in f32.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn attention(
    q: &View<'_>,
    k: &View<'_>,
    v: &View<'_>,
    options: &AttentionOptions<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let sizes = Sizes::new(q, k, v, options);
    assert!(out.shape() == q.shape() && out.dtype() == q.dtype(), "attention gives what it is asked with");
    dispatch!(float q.dtype(), T => forward::<T>(sizes, [q, k, v], options, out, workspace))
}

fn forward<T: Float>(
    sizes: Sizes,
    [q, k, v]: [&View<'_>; 3],
    options: &AttentionOptions<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let Sizes { batch, heads, key_heads, queries, keys, width } = sizes;
    let mut workspace = Workspace::new(workspace);
    let scores = workspace.take::<T::Compute>(BLOCK_ROWS.min(queries) * keys);
    let [q_copy, out_copy] = [(); 2].map(|()| workspace.take(copied::<T>(queries * width)));
    let [k_copy, v_copy] = [(); 2].map(|()| workspace.take(copied::<T>(keys * width)));
    let mut scratch = Scratch::new();
    for b in 0..batch {
        for h in 0..heads {
            let key_head = [b, h / (heads / key_heads)];
            let q = head_of::<T>(q, [b, h], q_copy, &mut scratch);
            let k = head_of::<T>(k, key_head, k_copy, &mut scratch);
            let v = head_of::<T>(v, key_head, v_copy, &mut scratch);
            let into = head_of_mut::<T>(out, [b, h], out_copy);
            for first in (0..queries).step_by(BLOCK_ROWS) {
                let rows = BLOCK_ROWS.min(queries - first);
                let seen = probabilities(&sizes, options, [b, h], q, k, first..first + rows, scores);
                // SAFETY: `scores` is rows by seen, values are seen by width, and `out`, which is apart from
                // both, has `rows` rows left.
                unsafe {
                    let p = Matrix::of(scores, seen);
                    gemm([rows, seen, width], T::Compute::ONE, p, v, into.rows_after(first), false);
                }
            }
            finish_head::<T>(out, [b, h], out_copy, &mut scratch);
        }
    }
}

/// Fills `scores` with the probabilities of a block of query rows over the first keys, and returns how many
/// keys those are; none of the rows sees a later one.
fn probabilities<C: Real>(
    sizes: &Sizes,
    options: &AttentionOptions<'_>,
    [b, h]: [usize; 2],
    q: Matrix<C>,
    k: Matrix<C>,
    rows: std::ops::Range<usize>,
    scores: &mut [C],
) -> usize {
    let visible = |row: usize| {
        if options.causal { sizes.keys.min(row + options.query_offset + 1) } else { sizes.keys }
    };
    let seen = visible(rows.end - 1);
    let size = [rows.len(), sizes.width, seen];
    // SAFETY: q has these rows, k at least `seen`; `scores` is scratch with room for the product.
    unsafe {
        let (q, k) = (q.rows_after(rows.start), k.transposed());
        gemm(size, C::from_f64(options.scale), q, k, MatrixMut::of(scores, seen), false);
    }
    let mask =
        options.mask.map(|mask| mask.broadcast_to(&[sizes.batch, sizes.heads, sizes.queries, sizes.keys]));
    for (row, scores) in rows.zip(scores.chunks_mut(seen.max(1))) {
        let (scores, hidden) = scores.split_at_mut(visible(row));
        hidden.fill(C::ZERO);
        if let Some(mask) = &mask {
            hide(&mask.index(0, b).index(0, h).index(0, row), scores);
        }
        let max = fold_run::<C, Peak>(scores);
        // Not a number is not hidden: it goes on into the result.
        if max == C::LOWEST && scores.iter().all(|&score| score == max) {
            scores.fill(C::ZERO);
            continue;
        }
        let sum = exp_in_place(scores, max);
        scale_in_place(scores, C::ONE / sum);
    }
    seen
}

/// Sets scores to minus infinity where the mask is false.
fn hide<C: Real>(mask: &View<'_>, scores: &mut [C]) {
    let reader = Reader::new(mask);
    let mut scratch: TileBytes = [0; TILE];
    for (start, count) in tiles(scores.len()) {
        let mask = reader.tile(start, count, bytemuck::cast_slice_mut(&mut scratch));
        for (score, &visible) in scores[start..].iter_mut().zip(mask) {
            *score = if visible != 0 { *score } else { C::LOWEST };
        }
    }
}

/// The gradients of [`attention`] with respect to `q`, `k` and `v`, recomputing the probabilities. Gradients of
/// a key head sum over the query heads that read it.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn attention_backward(
    q: &View<'_>,
    k: &View<'_>,
    v: &View<'_>,
    options: &AttentionOptions<'_>,
    dout: &View<'_>,
    dq: &mut ViewMut<'_>,
    dk: &mut ViewMut<'_>,
    dv: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let sizes = Sizes::new(q, k, v, options);
    for (x, dx) in [(q, &dout.shape()), (q, &dq.shape()), (k, &dk.shape()), (v, &dv.shape())] {
        assert_eq!(x.shape(), *dx, "a gradient has the shape of what it belongs to");
    }
    for dtype in [dout.dtype(), dq.dtype(), dk.dtype(), dv.dtype()] {
        assert_eq!(dtype, q.dtype(), "attention needs one type");
    }
    dispatch!(float q.dtype(), T => backward::<T>(sizes, [q, k, v, dout], options, [dq.reborrow(), dk.reborrow(), dv.reborrow()], workspace))
}

fn backward<T: Float>(
    sizes: Sizes,
    [q, k, v, dout]: [&View<'_>; 4],
    options: &AttentionOptions<'_>,
    [mut dq, mut dk, mut dv]: [ViewMut<'_>; 3],
    workspace: &mut [u8],
) {
    let Sizes { batch, heads, key_heads, queries, keys, width } = sizes;
    let one = T::Compute::ONE;
    let scale = T::Compute::from_f64(options.scale);
    let mut workspace = Workspace::new(workspace);
    let [p, dp] = [(); 2].map(|()| workspace.take::<T::Compute>(BLOCK_ROWS.min(queries) * keys));
    let [q_copy, dout_copy, dq_copy] = [(); 3].map(|()| workspace.take(copied::<T>(queries * width)));
    let [k_copy, v_copy, dk_copy, dv_copy] = [(); 4].map(|()| workspace.take(copied::<T>(keys * width)));
    let mut scratch = Scratch::new();
    for (b, h) in (0..batch).flat_map(|b| (0..key_heads).map(move |h| (b, h))) {
        let k = head_of::<T>(k, [b, h], k_copy, &mut scratch);
        let v = head_of::<T>(v, [b, h], v_copy, &mut scratch);
        let dk_head = head_of_mut::<T>(&mut dk, [b, h], dk_copy);
        let dv_head = head_of_mut::<T>(&mut dv, [b, h], dv_copy);
        // SAFETY: an empty product only writes zeros to the two outputs, [keys, width] each.
        unsafe {
            gemm([keys, 0, width], one, Matrix::of(p, 0), k, dk_head, false);
            gemm([keys, 0, width], one, Matrix::of(p, 0), k, dv_head, false);
        }
        let group = heads / key_heads;
        for h in h * group..(h + 1) * group {
            let q = head_of::<T>(q, [b, h], q_copy, &mut scratch);
            let dout = head_of::<T>(dout, [b, h], dout_copy, &mut scratch);
            let dq_head = head_of_mut::<T>(&mut dq, [b, h], dq_copy);
            for first in (0..queries).step_by(BLOCK_ROWS) {
                let rows = BLOCK_ROWS.min(queries - first);
                let seen = probabilities(&sizes, options, [b, h], q, k, first..first + rows, p);
                let (q, dout) = (q.rows_after(first), dout.rows_after(first));
                // SAFETY: `dp` has room for rows by seen; dout has these rows, v at least `seen`.
                unsafe {
                    gemm([rows, width, seen], one, dout, v.transposed(), MatrixMut::of(dp, seen), false);
                    // SAFETY: p is rows by seen; dv, apart from the operands, has at least `seen` rows.
                    gemm([seen, rows, width], one, Matrix::of(p, seen).transposed(), dout, dv_head, true);
                }
                for (p, dp) in p.chunks(seen.max(1)).zip(dp.chunks_mut(seen.max(1))).take(rows) {
                    softmax_gradient(p, dot(p, dp), scale, dp);
                }
                let ds = Matrix::of(dp, seen);
                // SAFETY: ds is rows by seen; dq has these rows, dk at least `seen`; both are apart from it.
                unsafe {
                    gemm([rows, seen, width], one, ds, k, dq_head.rows_after(first), false);
                    gemm([seen, rows, width], one, ds.transposed(), q, dk_head, true);
                }
            }
            finish_head::<T>(&mut dq, [b, h], dq_copy, &mut scratch);
        }
        finish_head::<T>(&mut dk, [b, h], dk_copy, &mut scratch);
        finish_head::<T>(&mut dv, [b, h], dv_copy, &mut scratch);
    }
}
