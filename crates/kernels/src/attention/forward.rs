//! Forward pass of attention: blocks of queries by blocks of keys, with a running softmax.

use super::blocks::narrow::{Products, round_scores, round_scores_here, rows_of};
use super::blocks::{Problem, Rows, after, ahead, exponentials, in_place, inverse, load, scale_rows, store};
use super::part;
use crate::element::{Element, Float, Number, Real};
use crate::gemm::RowsAhead;
use crate::matrix::Matrix;
use crate::options::KernelOptions;
use crate::view::{View, ViewMut};
use crate::workspace::Workspace;

/// Maximum number of keys in a block.
pub(super) const KEYS: usize = 512;

/// [`attention`](super::attention) for one element type; with `lse`, [`attention_part`](super::attention_part), whose
/// results have another one.
pub(super) fn forward<T: Float, O: Element<Compute = T::Compute>>(
    kernel_options: KernelOptions,
    problem: &Problem<'_>,
    [q, k, v]: [&View<'_>; 3],
    out: &mut ViewMut<'_>,
    mut lse: Option<&mut ViewMut<'_>>,
    workspace: &mut [u8],
) {
    let &Problem { sizes, blocks, columns, .. } = problem;
    let heads = [sizes.batch, sizes.heads];
    let scale = T::Compute::from_f64(problem.options.scale);
    let mut workspace = Workspace::new(workspace);
    let scores = workspace.take::<T::Compute>(blocks.scores());
    let [q_rows, out_rows] = [(); 2].map(|()| workspace.take::<T::Compute>(blocks.rows * columns));
    let [k_rows, v_rows] = [(); 2].map(|()| workspace.take::<T::Compute>(blocks.keys * columns));
    let [max, sum, factor] = [(); 3].map(|()| workspace.take::<T::Compute>(blocks.rows));
    let products = Products::of::<T>(kernel_options, sizes.width);
    let is_narrow = products == Products::Narrow;
    let narrow = workspace.take::<T>(products.scores(blocks.scores()));
    let mut rows = Rows { max, sum, factor };
    let mut at_hand = None;
    for head in (0..sizes.batch).flat_map(|b| (0..sizes.heads).map(move |h| [b, h])) {
        let key_head = [head[0], head[1] / sizes.group()];
        let next_key_head = after(key_head, [sizes.batch, sizes.key_heads]);
        for some in problem.blocks_of_queries() {
            rows.begin();
            if !is_narrow {
                load::<T>(kernel_options, q, head, &some, q_rows);
            }
            out_rows.fill(T::Compute::ZERO);
            for block in problem.blocks_of_keys() {
                let tile = problem.tile(head, &some, &block);
                if tile.is_empty() {
                    continue;
                }
                let k_there = in_place::<T>(k, key_head, &block);
                // If all keys fit one block, its copy serves all queries of the heads that share it.
                if !is_narrow && at_hand.replace((key_head, block.start)) != Some((key_head, block.start)) {
                    if k_there.is_none() {
                        load::<T>(kernel_options, k, key_head, &block, k_rows);
                    }
                    load::<T>(kernel_options, v, key_head, &block, v_rows);
                }
                // While this tile is computed, the next queries are prefetched; before the next head also its
                // keys.
                let (next, follow) = match some.end < sizes.queries {
                    true => (Some(head), some.end..sizes.queries.min(some.end + blocks.rows)),
                    false => (after(head, heads), 0..blocks.rows),
                };
                let alike = some.start.min(sizes.keys)..some.end.min(sizes.keys);
                let next_keys = [k, v].map(|x| ahead(x, next_key_head, &alike));
                let soon: [RowsAhead; 3] = [ahead(q, next, &follow), next_keys[0], next_keys[1]];
                // SAFETY: the rows are inside `q` and `k`; those of the block may be copied to `k_rows`.
                unsafe {
                    if is_narrow {
                        let keys = rows_of(k, key_head, &tile.keys_of(&block));
                        tile.narrow_scores(kernel_options, scale, [rows_of(q, head, &some), keys], scores);
                    } else {
                        tile.scores(
                            kernel_options,
                            scale,
                            q_rows,
                            k_there.unwrap_or(Matrix::of(k_rows, columns)).rows_after(tile.before),
                            scores,
                            &soon,
                        )
                    }
                };
                tile.hide(scores);
                exponentials(kernel_options, &tile, scores, &mut rows);
                if block.start > 0 {
                    scale_rows(kernel_options, out_rows, columns, rows.factor);
                }
                let soon = [ahead(&out.as_view(), Some(head), &some)];
                if is_narrow {
                    round_scores::<T>(kernel_options, &tile, scores, &[], narrow);
                    let values = rows_of(v, key_head, &tile.keys_of(&block));
                    // SAFETY: the rows are inside `v`.
                    unsafe {
                        tile.narrow_over_keys(kernel_options, bytemuck::cast_slice(narrow), values, out_rows)
                    };
                    continue;
                }
                if products == Products::Rounded {
                    round_scores_here::<T>(kernel_options, &tile, scores, &[]);
                }
                let v_rows = &v_rows[tile.before * columns..];
                tile.over_keys(kernel_options, T::Compute::ONE, scores, v_rows, out_rows, &soon);
            }
            if let Some(lse) = &mut lse {
                part::write(lse, head, &some, |row| match rows.sum[row] {
                    sum if sum == T::Compute::ZERO => part::nothing(),
                    sum => rows.max[row] + sum.ln(),
                });
            }
            rows.sum.iter_mut().for_each(|sum| *sum = inverse(*sum));
            store::<O>(kernel_options, out_rows, rows.sum, out, head, &some);
        }
    }
}
