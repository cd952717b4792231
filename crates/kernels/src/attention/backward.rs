//! Backward pass of attention: loops over blocks of keys, and for each over blocks of query rows. See the
//! module above for the algorithm.

use super::blocks::narrow::{Products, gradients_of_whole, round_scores, round_scores_here, rows_of};
use super::blocks::{
    Problem, Rows, add_means, after, ahead, exponentials, exponentials_again, gradients, inverse, load,
    ranges, scale_rows, store,
};
use crate::element::Float;
use crate::element::{Number, Real};
use crate::matrix::Matrix;
use crate::options::KernelOptions;
use crate::view::{View, ViewMut};
use crate::workspace::Workspace;

/// Maximum number of keys in a block.
pub(super) const KEYS: usize = 2048;
/// Keys in a block of the extra pass that computes row maxima and sums before the first gradient.
pub(super) const EARLIER_KEYS: usize = 128;

/// [`attention_backward`](super::attention_backward) for one element type.
pub(super) fn backward<T: Float>(
    kernel_options: KernelOptions,
    problem: &Problem<'_>,
    [q, k, v, dout]: [&View<'_>; 4],
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
    let [k_early, v_early] = [(); 2].map(|()| workspace.take::<T::Compute>(EARLIER_KEYS * columns));
    let dq_rows = workspace.take::<T::Compute>(group * queries * columns);
    let [max, sum, mean] = [(); 3].map(|()| workspace.take::<T::Compute>(group * queries));
    let factor = workspace.take::<T::Compute>(blocks.rows);
    let ones = workspace.take::<T::Compute>(blocks.rows.max(blocks.keys));
    ones.fill(one);
    let products = Products::of::<T>(kernel_options, sizes.width);
    let is_narrow = products == Products::Narrow;
    let [narrow_p, narrow_dp] = [(); 2].map(|()| workspace.take::<T>(products.scores(blocks.scores())));
    for key_head in (0..sizes.batch).flat_map(|b| (0..sizes.key_heads).map(move |h| [b, h])) {
        let next_key_head = after(key_head, [sizes.batch, sizes.key_heads]);
        for block in problem.blocks_of_keys().rev() {
            if !is_narrow {
                load::<T>(kernel_options, k, key_head, &block, k_rows);
                load::<T>(kernel_options, v, key_head, &block, v_rows);
            }
            dk_rows.fill(T::Compute::ZERO);
            dv_rows.fill(T::Compute::ZERO);
            let blocks_of_rows =
                (0..group).flat_map(|member| problem.blocks_of_queries().map(move |some| (member, some)));
            for (member, some) in blocks_of_rows {
                let head = [key_head[0], key_head[1] * group + member];
                let tile = problem.tile(head, &some, &block);
                // Every query row processes the first block of keys, even one that is masked entirely: its
                // gradient is set there.
                if tile.is_empty() && block.start > 0 {
                    continue;
                }
                let kept = member * queries + some.start..member * queries + some.end;
                let dq_rows = &mut dq_rows[kept.start * columns..kept.end * columns];
                let [max, sum, mean] = [&mut *max, &mut *sum, &mut *mean].map(|x| &mut x[kept.clone()]);
                // While this tile is computed, the next queries are prefetched; during the last tile of
                // queries also the next keys.
                let is_last = some.end == queries;
                let (next, follow) = match is_last {
                    true => (after(head, [sizes.batch, sizes.heads]), 0..blocks.rows),
                    false => (Some(head), some.end..queries.min(some.end + blocks.rows)),
                };
                let soon = [q, dout].map(|x| ahead(x, next, &follow));
                let soon_keys = [k, v].map(|x| ahead(x, next_key_head.filter(|_| is_last), &block));
                let written =
                    [&dk, &dv].map(|x| ahead(&x.as_view(), Some(key_head).filter(|_| is_last), &block));
                if !is_narrow {
                    load::<T>(kernel_options, q, head, &some, q_rows);
                    load::<T>(kernel_options, dout, head, &some, dout_rows);
                }
                // Rows of queries and of the output's gradient, of bf16.
                let narrow_rows = || [q, dout].map(|x| rows_of(x, head, &some));
                // The last block that these queries see is processed first (blocks run backwards).
                let is_first = problem.tile(head, &some, &(block.end..sizes.keys)).is_empty();
                let mut rows = Rows { max, sum, factor };
                if is_first {
                    dq_rows.fill(T::Compute::ZERO);
                    mean.fill(T::Compute::ZERO);
                    rows.begin();
                    for early in ranges(block.start, EARLIER_KEYS) {
                        let tile = problem.tile(head, &some, &early);
                        if tile.is_empty() {
                            continue;
                        }
                        if !is_narrow {
                            load::<T>(kernel_options, k, key_head, &early, k_early);
                            load::<T>(kernel_options, v, key_head, &early, v_early);
                        }
                        let keys = tile.keys_of(&early);
                        // SAFETY: the rows of these keys are inside `k`, or were just copied.
                        unsafe {
                            if is_narrow {
                                let rows = [narrow_rows()[0], rows_of(k, key_head, &keys)];
                                tile.narrow_scores(kernel_options, scale, rows, p);
                            } else {
                                let k_early = Matrix::of(k_early, columns).rows_after(tile.before);
                                tile.scores(kernel_options, scale, q_rows, k_early, p, &[]);
                            }
                        };
                        tile.hide(p);
                        exponentials(kernel_options, &tile, p, &mut rows);
                        // SAFETY: as above.
                        unsafe {
                            if is_narrow {
                                let rows = [narrow_rows()[1], rows_of(v, key_head, &keys)];
                                tile.narrow_scores(kernel_options, one, rows, dp);
                            } else {
                                let v_early = Matrix::of(v_early, columns).rows_after(tile.before);
                                tile.scores(kernel_options, one, dout_rows, v_early, dp, &[]);
                            }
                        };
                        scale_rows(kernel_options, mean, 1, rows.factor);
                        add_means(kernel_options, &tile, p, dp, mean);
                    }
                }
                let [k_there, v_there] =
                    [&*k_rows, &*v_rows].map(|rows| Matrix::of(rows, columns).rows_after(tile.before));
                let keys = tile.keys_of(&block);
                let (narrow_k, narrow_v) = (|| rows_of(k, key_head, &keys), || rows_of(v, key_head, &keys));
                // SAFETY: the rows of the block are inside `k`, or were copied above.
                unsafe {
                    if is_narrow {
                        tile.narrow_scores(kernel_options, scale, [narrow_rows()[0], narrow_k()], p);
                    } else {
                        tile.scores(kernel_options, scale, q_rows, k_there, p, &soon[..1]);
                    }
                };
                tile.hide(p);
                if is_first {
                    exponentials(kernel_options, &tile, p, &mut rows);
                    // From here on `sum` holds the reciprocal of the sum.
                    rows.sum.iter_mut().for_each(|sum| *sum = inverse(*sum));
                    scale_rows(kernel_options, mean, 1, rows.factor);
                    scale_rows(kernel_options, mean, 1, rows.sum);
                } else {
                    exponentials_again(kernel_options, &tile, p, rows.max, rows.sum);
                }
                if products != Products::Wide {
                    let [dk_there, dv_there] =
                        [&mut *dk_rows, &mut *dv_rows].map(|rows| &mut rows[tile.before * columns..]);
                    // SAFETY: the rows of the block are inside `v`, or were copied above.
                    unsafe {
                        if is_narrow {
                            tile.narrow_scores(kernel_options, one, [narrow_rows()[1], narrow_v()], dp);
                        } else {
                            tile.scores(kernel_options, one, dout_rows, v_there, dp, &soon[1..]);
                        }
                    };
                    gradients_of_whole(kernel_options, &tile, p, dp, mean, rows.sum, scale, !is_first);
                    if is_narrow {
                        round_scores::<T>(kernel_options, &tile, p, rows.sum, narrow_p);
                        round_scores::<T>(kernel_options, &tile, dp, &[], narrow_dp);
                        let [p, dp] = [&*narrow_p, &*narrow_dp].map(bytemuck::cast_slice);
                        let [q_rows, dout_rows] = narrow_rows();
                        // SAFETY: the rows are inside the views.
                        unsafe {
                            tile.narrow_over_rows(kernel_options, p, dout_rows, dv_there);
                            tile.narrow_over_rows(kernel_options, dp, q_rows, dk_there);
                            tile.narrow_over_keys(kernel_options, dp, narrow_k(), dq_rows);
                        }
                    } else {
                        round_scores_here::<T>(kernel_options, &tile, p, rows.sum);
                        round_scores_here::<T>(kernel_options, &tile, dp, &[]);
                        tile.over_rows(kernel_options, one, p, dout_rows, dv_there, &[]);
                        tile.over_rows(kernel_options, one, dp, q_rows, dk_there, &[]);
                        let k_rows = &k_rows[tile.before * columns..];
                        tile.over_keys(kernel_options, one, dp, k_rows, dq_rows, &[]);
                    }
                    if block.start == 0 {
                        store::<T>(kernel_options, dq_rows, ones, &mut dq, head, &some);
                    }
                    continue;
                }
                scale_rows(kernel_options, dout_rows, columns, rows.sum);
                // SAFETY: the rows of the block were copied above.
                unsafe { tile.scores(kernel_options, one, dout_rows, v_there, dp, &soon[1..]) };
                gradients(kernel_options, &tile, p, dp, mean, rows.sum, !is_first);
                let [dk_there, dv_there] =
                    [&mut *dk_rows, &mut *dv_rows].map(|rows| &mut rows[tile.before * columns..]);
                tile.over_rows(kernel_options, one, p, dout_rows, dv_there, &[soon_keys[0], written[1]]);
                tile.over_rows(kernel_options, scale, dp, q_rows, dk_there, &[soon_keys[1], written[0]]);
                let written = [ahead(&dq.as_view(), Some(head), &some)];
                tile.over_keys(
                    kernel_options,
                    scale,
                    dp,
                    &k_rows[tile.before * columns..],
                    dq_rows,
                    &written,
                );
                if block.start == 0 {
                    store::<T>(kernel_options, dq_rows, ones, &mut dq, head, &some);
                }
            }
            store::<T>(kernel_options, dk_rows, ones, &mut dk, key_head, &block);
            store::<T>(kernel_options, dv_rows, ones, &mut dv, key_head, &block);
        }
    }
}
