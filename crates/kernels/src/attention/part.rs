//! Attention to some of the keys of a sequence, and what they contribute to the gradients: the pieces of ring
//! attention, which join by the logarithm of the sum of the exponentials of a row (`lse`).
//!
//! The gradients need no pass over earlier keys: `lse` and the mean of the gradient of each row are given.

use super::blocks::narrow::{Products, gradients_of_whole, round_scores, round_scores_here, rows_of};
use super::blocks::{Blocks, Problem, exponentials_again, gradients, load, padded, ranges, store};
use super::{AttentionOptions, Sizes, backward, bytes, forward};
use crate::element::{Element, Float, Number, Real, dispatch};
use crate::matrix::{Matrix, MatrixMut};
use crate::options::KernelOptions;
use crate::view::{View, ViewMut};
use crate::workspace::Workspace;
use partita_base::DType;
use std::ops::Range;

/// The `lse` of a row that sees no key: less than any other, and finite.
pub(super) fn nothing<C: Real>() -> C {
    C::from_f64(if C::DTYPE == DType::F64 { -1e300 } else { -1e30 })
}

/// Rows of statistics `[B, H, S]` of one head as a matrix with one row.
fn row<C>(view: &View<'_>, [b, h]: [usize; 2]) -> Matrix<C> {
    Matrix::of_view(&view.index(0, b)).rows_after(h)
}

/// Copies the statistics of some rows.
fn read<C: Copy>(view: &View<'_>, head: [usize; 2], rows: &Range<usize>, into: &mut [C]) {
    let from = row::<C>(view, head);
    for (into, place) in into.iter_mut().zip(rows.clone()) {
        // SAFETY: the place is inside the view, whose type was checked.
        *into = unsafe { from.columns_after(place).pointer.read() };
    }
}

/// Writes a statistic of some rows.
pub(super) fn write<C: Real>(
    view: &mut ViewMut<'_>,
    [b, h]: [usize; 2],
    rows: &Range<usize>,
    of: impl Fn(usize) -> C,
) {
    let to = MatrixMut::<C>::of_view(&mut view.reborrow().index(0, b)).rows_after(h);
    for (number, place) in rows.clone().enumerate() {
        // SAFETY: the place is inside the view, whose type was checked.
        unsafe { to.columns_after(place).pointer.write(of(number)) };
    }
}

/// The problem over the first `keys` keys; blocks are those of all keys, for which the workspace is.
fn problem<'a>(sizes: Sizes, options: &'a AttentionOptions<'a>, most: usize, keys: usize) -> Problem<'a> {
    assert!(keys <= sizes.keys, "{keys} keys of {}", sizes.keys);
    assert!(keys == sizes.keys || options.places.runs == 1, "keys of two runs are not padded");
    let problem = Problem::new(sizes, options, most);
    Problem { sizes: Sizes { keys, ..sizes }, ..problem }
}

fn check_rows(q: &View<'_>, shape: &[usize], dtype: DType) {
    let wide = if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    assert!(shape == &q.shape()[..3] && dtype == wide, "rows {shape:?} {dtype} of {:?}", q.shape());
}

/// As [`attention`](super::attention) over the first `keys` keys. `out` [B, H, S, D] and `lse` [B, H, S] have the
/// type that `q` computes in. The workspace is that of [`attention`](super::attention) for all keys.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn attention_part(
    kernel_options: KernelOptions,
    [q, k, v]: [&View<'_>; 3],
    keys: usize,
    options: &AttentionOptions<'_>,
    [out, lse]: [&mut ViewMut<'_>; 2],
    workspace: &mut [u8],
) {
    let sizes = Sizes::new(q, k, v, options);
    check_rows(q, lse.shape(), lse.dtype());
    assert!(out.shape() == q.shape() && out.dtype() == lse.dtype(), "a part is not rounded");
    let problem = problem(sizes, options, forward::KEYS, keys);
    dispatch!(float q.dtype(), T => forward::forward::<T, <T as Element>::Compute>(
        kernel_options, &problem, [q, k, v], out, Some(lse), workspace
    ))
}

/// Bytes of workspace that [`attention_part_backward`] needs for S queries, T keys, head size D, and `group` query
/// heads per key head. For blocks of R <= min(S, 144) queries and K <= min(T, 2048) keys, in elements of the compute
/// type: 2 R (K + 16) scores and their gradients, 2 R D of queries and output gradients, 4 K D of keys, values and
/// their gradients, `group` S D of query gradients, and 4 R + K; K rounded up to 32 and D to 16.
pub fn attention_part_backward_workspace_bytes(
    dtype: DType,
    group: usize,
    queries: usize,
    keys: usize,
    width: usize,
) -> usize {
    let blocks = Blocks::new(queries, keys, backward::KEYS);
    let [own, shared, all] = [blocks.rows, blocks.keys, group * queries].map(|rows| rows * padded(width));
    let ones = blocks.rows.max(blocks.keys);
    bytes(dtype, [blocks.scores(); 2])
        + bytes(dtype, [own, own, shared, shared, shared, shared, all])
        + bytes(dtype, [blocks.rows, blocks.rows, blocks.rows, ones])
        + super::narrow_bytes(dtype, 2, &blocks)
}

/// What the first `keys` keys contribute to the gradients of attention to all keys of a sequence. `lse` and `delta` [B,
/// H, S] are of all keys: the logarithm of the sum of the exponentials, and the sum of `dout` times the output. They and
/// the gradients have the type that `q` computes in. Gradients of other keys are zero.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn attention_part_backward(
    kernel_options: KernelOptions,
    [q, k, v, lse, delta, dout]: [&View<'_>; 6],
    keys: usize,
    options: &AttentionOptions<'_>,
    [dq, dk, dv]: [&mut ViewMut<'_>; 3],
    workspace: &mut [u8],
) {
    let sizes = Sizes::new(q, k, v, options);
    check_rows(q, lse.shape(), lse.dtype());
    check_rows(q, delta.shape(), delta.dtype());
    assert!(dout.shape() == q.shape() && dout.dtype() == q.dtype(), "the gradient of what `q` gives");
    for (x, dx) in [(q, &*dq), (k, &*dk), (v, &*dv)] {
        assert!(
            dx.shape() == x.shape() && dx.dtype() == lse.dtype(),
            "a gradient has the shape of its tensor"
        );
    }
    let problem = problem(sizes, options, backward::KEYS, keys);
    let gradients = [dq.reborrow(), dk.reborrow(), dv.reborrow()];
    dispatch!(float q.dtype(), T => contributions::<T, <T as Element>::Compute>(
        kernel_options, &problem, sizes.keys, [q, k, v, lse, delta, dout], gradients, workspace
    ))
}

/// [`attention_part_backward`] for one element type, and the compute type in which results are stored.
fn contributions<T: Float, O: Element<Compute = T::Compute>>(
    kernel_options: KernelOptions,
    problem: &Problem<'_>,
    all_keys: usize,
    [q, k, v, lse, delta, dout]: [&View<'_>; 6],
    [mut dq, mut dk, mut dv]: [ViewMut<'_>; 3],
    workspace: &mut [u8],
) {
    let &Problem { sizes, blocks, columns, .. } = problem;
    let (one, scale) = (T::Compute::ONE, T::Compute::from_f64(problem.options.scale));
    let (group, queries) = (sizes.group(), sizes.queries);
    let mut workspace = Workspace::new(workspace);
    let [p, dp] = [(); 2].map(|()| workspace.take::<T::Compute>(blocks.scores()));
    let [q_rows, dout_rows] = [(); 2].map(|()| workspace.take::<T::Compute>(blocks.rows * columns));
    let [k_rows, v_rows, dk_rows, dv_rows] =
        [(); 4].map(|()| workspace.take::<T::Compute>(blocks.keys * columns));
    let dq_rows = workspace.take::<T::Compute>(group * queries * columns);
    let [peak, counts, mean] = [(); 3].map(|()| workspace.take::<T::Compute>(blocks.rows));
    let ones = workspace.take::<T::Compute>(blocks.rows.max(blocks.keys));
    ones.fill(one);
    let products = Products::of::<T>(kernel_options, sizes.width);
    let is_narrow = products == Products::Narrow;
    let [narrow_p, narrow_dp] = [(); 2].map(|()| workspace.take::<T>(products.scores(blocks.scores())));
    for key_head in (0..sizes.batch).flat_map(|b| (0..sizes.key_heads).map(move |h| [b, h])) {
        dq_rows.fill(T::Compute::ZERO);
        let members =
            || (0..group).flat_map(|member| problem.blocks_of_queries().map(move |some| (member, some)));
        for block in problem.blocks_of_keys() {
            if !is_narrow {
                load::<T>(kernel_options, k, key_head, &block, k_rows);
                load::<T>(kernel_options, v, key_head, &block, v_rows);
            }
            dk_rows.fill(T::Compute::ZERO);
            dv_rows.fill(T::Compute::ZERO);
            for (member, some) in members() {
                let head = [key_head[0], key_head[1] * group + member];
                let tile = problem.tile(head, &some, &block);
                if tile.is_empty() {
                    continue;
                }
                if !is_narrow {
                    load::<T>(kernel_options, q, head, &some, q_rows);
                    load::<T>(kernel_options, dout, head, &some, dout_rows);
                }
                read(lse, head, &some, peak);
                read(delta, head, &some, mean);
                for (counts, &peak) in counts.iter_mut().zip(&*peak) {
                    *counts = if peak == nothing() { T::Compute::ZERO } else { one };
                }
                let [k_there, v_there] =
                    [&*k_rows, &*v_rows].map(|rows| Matrix::of(rows, columns).rows_after(tile.before));
                let kept = member * queries + some.start..member * queries + some.end;
                let dq_rows = &mut dq_rows[kept.start * columns..kept.end * columns];
                let there = tile.before * columns;
                let [dk_there, dv_there] = [&mut *dk_rows, &mut *dv_rows].map(|rows| &mut rows[there..]);
                if is_narrow {
                    let keys = tile.keys_of(&block);
                    let [q_rows, dout_rows] = [q, dout].map(|x| rows_of(x, head, &some));
                    let [k_rows, v_rows] = [k, v].map(|x| rows_of(x, key_head, &keys));
                    // SAFETY: the rows are inside the views.
                    unsafe { tile.narrow_scores(kernel_options, scale, [q_rows, k_rows], p) };
                    tile.hide(p);
                    exponentials_again(kernel_options, &tile, p, peak, counts);
                    // SAFETY: as above.
                    unsafe { tile.narrow_scores(kernel_options, one, [dout_rows, v_rows], dp) };
                    gradients_of_whole(kernel_options, &tile, p, dp, mean, ones, scale, true);
                    round_scores::<T>(kernel_options, &tile, p, &[], narrow_p);
                    round_scores::<T>(kernel_options, &tile, dp, &[], narrow_dp);
                    let [p, dp] = [&*narrow_p, &*narrow_dp].map(bytemuck::cast_slice);
                    // SAFETY: as above.
                    unsafe {
                        tile.narrow_over_rows(kernel_options, p, dout_rows, dv_there);
                        tile.narrow_over_rows(kernel_options, dp, q_rows, dk_there);
                        tile.narrow_over_keys(kernel_options, dp, k_rows, dq_rows);
                    }
                    continue;
                }
                // SAFETY: the rows of the block were copied above.
                unsafe { tile.scores(kernel_options, scale, q_rows, k_there, p, &[]) };
                tile.hide(p);
                exponentials_again(kernel_options, &tile, p, peak, counts);
                // SAFETY: as above.
                unsafe { tile.scores(kernel_options, one, dout_rows, v_there, dp, &[]) };
                let scale = if products == Products::Rounded {
                    gradients_of_whole(kernel_options, &tile, p, dp, mean, ones, scale, true);
                    round_scores_here::<T>(kernel_options, &tile, p, &[]);
                    round_scores_here::<T>(kernel_options, &tile, dp, &[]);
                    one
                } else {
                    gradients(kernel_options, &tile, p, dp, mean, ones, true);
                    scale
                };
                tile.over_rows(kernel_options, one, p, dout_rows, dv_there, &[]);
                tile.over_rows(kernel_options, scale, dp, q_rows, dk_there, &[]);
                tile.over_keys(kernel_options, scale, dp, &k_rows[there..], dq_rows, &[]);
            }
            store::<O>(kernel_options, dk_rows, ones, &mut dk, key_head, &block);
            store::<O>(kernel_options, dv_rows, ones, &mut dv, key_head, &block);
        }
        for (member, some) in members() {
            let head = [key_head[0], key_head[1] * group + member];
            let kept = member * queries + some.start..member * queries + some.end;
            let rows = &dq_rows[kept.start * columns..kept.end * columns];
            store::<O>(kernel_options, rows, ones, &mut dq, head, &some);
        }
        dk_rows.fill(T::Compute::ZERO);
        for padding in ranges(all_keys - sizes.keys, blocks.keys) {
            let padding = sizes.keys + padding.start..sizes.keys + padding.end;
            store::<O>(kernel_options, dk_rows, ones, &mut dk, key_head, &padding);
            store::<O>(kernel_options, dk_rows, ones, &mut dv, key_head, &padding);
        }
    }
}
