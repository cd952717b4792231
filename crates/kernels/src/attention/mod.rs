//! Scaled dot-product attention in blocks of query rows and keys with a running softmax, after FlashAttention
//! (Dao et al., 2022): the scratch memory is one block of scores, however many keys there are. Of a block of keys, only
//! those between the first and the last that any of the rows sees are computed, whatever hides the others: a causal mask,
//! a sliding window, or the boundaries of documents.
//!
//! Forward, each block of query rows loops over the blocks of keys. Its output accumulates values weighted by
//! `exp(score - max)`, where `max` is the largest score so far; when a later block has a larger one, the sum
//! is rescaled.
//!
//! Backward, the outer loop runs over blocks of keys, so that the gradients of one block of keys stay in
//! cache. The exponentials are recomputed from the maximum of their row. The forward pass saves no
//! statistics: for each query row the last block of keys that it sees is processed first, after a pass over
//! the earlier blocks that computes the row's maximum, its sum and the mean of its gradient. If all keys fit
//! one block there are no earlier blocks, and every matmul is computed once.
//!
//! **Bits.** How sums are split into blocks depends only on the numbers of queries and keys and on which keys the rows
//! see. Without a causal mask, a window and limits, the results of a query row do not depend on the other rows.

mod backward;
mod blocks;
mod forward;
mod part;

use crate::options::KernelOptions;
use partita_base::DType;
use std::ops::Range;

use crate::element::dispatch;
use crate::view::{View, ViewMut};
use crate::workspace::piece_bytes;
use blocks::{Blocks, Problem, padded};

pub use part::{attention_part, attention_part_backward, attention_part_backward_workspace_bytes};

/// The mask and the scale of attention scores.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions<'a> {
    /// Bool [B or 1, H or 1, S, T]: false hides a key from a query.
    pub mask: Option<View<'a>>,
    /// Causal mask: a query sees no key of a later position.
    pub causal: bool,
    /// With a window of N, a query sees no key that is N or more positions away.
    pub window: Option<usize>,
    /// I32 [B, S, 2]: the position of the first key that a query sees, and of the one behind the last.
    pub visible: Option<View<'a>>,
    /// The positions of queries and keys.
    pub places: Places,
    /// The factor on scores; usually 1 / sqrt(D).
    pub scale: f64,
}

impl AttentionOptions<'_> {
    /// Every query sees every key.
    pub fn new(scale: f64) -> AttentionOptions<'static> {
        AttentionOptions {
            mask: None,
            causal: false,
            window: None,
            visible: None,
            places: Places::behind(0),
            scale,
        }
    }
}

/// Positions in a sequence: queries and keys are cut into one or two runs of equal length, each of consecutive positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// 1 or 2; the second entries below do not count if it is 1.
    pub runs: usize,
    /// The position of the first query of each run.
    pub queries: [isize; 2],
    /// The position of the first key of each run.
    pub keys: [isize; 2],
}

impl Places {
    /// One run, with the first query so many positions behind the first key.
    pub fn behind(queries: isize) -> Places {
        Places { runs: 1, queries: [queries, 0], keys: [0, 0] }
    }
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
        if let Some(visible) = &options.visible {
            let fits = visible.shape() == [batch, queries, 2] && visible.dtype() == DType::I32;
            assert!(fits, "limits of {:?} for {batch} x {queries} queries", visible.shape());
        }
        let runs = options.places.runs;
        assert!((1..=2).contains(&runs), "{runs} runs of positions");
        assert!(queries.is_multiple_of(runs) && keys.is_multiple_of(runs), "runs are equally long");
        Sizes { batch, heads, key_heads, queries, keys, width }
    }

    /// Query heads per key head.
    fn group(&self) -> usize {
        self.heads.checked_div(self.key_heads).unwrap_or(0)
    }
}

/// Bytes of workspace for buffers of so many elements each, of the type that `dtype` computes in.
fn bytes<const N: usize>(dtype: DType, pieces: [usize; N]) -> usize {
    let piece = if dtype == DType::F64 { piece_bytes::<f64> } else { piece_bytes::<f32> };
    pieces.map(piece).iter().sum()
}

/// Bytes of workspace for so many blocks of scores in bf16, of that type alone.
fn narrow_bytes(dtype: DType, count: usize, blocks: &Blocks) -> usize {
    if dtype == DType::BF16 { count * piece_bytes::<half::bf16>(blocks.scores()) } else { 0 }
}

/// Bytes of workspace that [`attention`] needs for S queries, T keys and head size D. For blocks of R <= min(S, 144)
/// queries and K <= min(T, 512) keys, in elements of the compute type: R (K + 16) scores, 2 R D of queries and output, 2
/// K D of keys and values, and 3 R statistics; K rounded up to 32 and D to 16. For bf16 besides R (K +
/// 16) elements of bf16.
pub fn attention_workspace_bytes(dtype: DType, queries: usize, keys: usize, width: usize) -> usize {
    let blocks = Blocks::new(queries, keys, forward::KEYS);
    let [own, shared] = [blocks.rows, blocks.keys].map(|rows| rows * padded(width));
    bytes(dtype, [blocks.scores(), own, own, shared, shared, blocks.rows, blocks.rows, blocks.rows])
        + narrow_bytes(dtype, 1, &blocks)
}

/// Bytes of workspace that [`attention_backward`] needs for S queries, T keys, head size D, and `group` query
/// heads per key head. For blocks of R <= min(S, 144) queries and K <= min(T, 2048) keys, in elements of the
/// compute type: 2 R (K + 16) scores and their gradients, 2 R D of queries and output gradients, 4 K D of
/// keys, values and their gradients, 256 D of earlier keys and values, `group` S (D + 3) of query gradients
/// and row statistics, and 2 R or R + K; K rounded up to 32 and D to 16.
pub fn attention_backward_workspace_bytes(
    dtype: DType,
    group: usize,
    queries: usize,
    keys: usize,
    width: usize,
) -> usize {
    let blocks = Blocks::new(queries, keys, backward::KEYS);
    let all = group * queries;
    let [own, shared, early, gradients] =
        [blocks.rows, blocks.keys, backward::EARLIER_KEYS, all].map(|rows| rows * padded(width));
    let scores = bytes(dtype, [blocks.scores(); 2]);
    let rows = bytes(dtype, [own, own, shared, shared, shared, shared, early, early, gradients]);
    let statistics = bytes(dtype, [all, all, all, blocks.rows, blocks.rows.max(blocks.keys)]);
    scores + rows + statistics + narrow_bytes(dtype, 2, &blocks)
}

/// The pairs of a query and a key whose scores [`attention`] computes for one head, of the first row of a batch: blocks
/// that are hidden as a whole do not count, nor does the explicit mask.
pub fn attention_pairs(queries: usize, keys: usize, options: &AttentionOptions<'_>) -> usize {
    let sizes = Sizes { batch: 1, heads: 1, key_heads: 1, queries, keys, width: 1 };
    let options = AttentionOptions { mask: None, ..*options };
    let problem = Problem::new(sizes, &options, forward::KEYS);
    let blocks = |some: Range<usize>| {
        let problem = &problem;
        problem.blocks_of_keys().map(move |block| some.len() * problem.tile([0, 0], &some, &block).keys())
    };
    problem.blocks_of_queries().flat_map(blocks).sum()
}

/// `out = softmax(scale q k^T, masked) v` for each head. `q` and `out` are [B, H, S, D], `k` and `v` are [B,
/// H', T, D] with H a multiple of H': query head h reads key head h / (H / H'). A query that sees no key
/// gives zeros. Any strides. Float types; f16 and bf16 compute in f32, and bf16 rounds the weights of values before their
/// matmul.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn attention(
    kernel_options: KernelOptions,
    [q, k, v]: [&View<'_>; 3],
    options: &AttentionOptions<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let sizes = Sizes::new(q, k, v, options);
    assert!(out.shape() == q.shape() && out.dtype() == q.dtype(), "attention gives what it is asked with");
    let problem = Problem::new(sizes, options, forward::KEYS);
    dispatch!(float q.dtype(), T => forward::forward::<T, T>(kernel_options, &problem, [q, k, v], out, None, workspace))
}

/// The gradients of [`attention`] with respect to `q`, `k` and `v`; the probabilities are recomputed. The
/// gradients of a key head sum over the query heads that read it.
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn attention_backward(
    kernel_options: KernelOptions,
    [q, k, v, dout]: [&View<'_>; 4],
    options: &AttentionOptions<'_>,
    [dq, dk, dv]: [&mut ViewMut<'_>; 3],
    workspace: &mut [u8],
) {
    let sizes = Sizes::new(q, k, v, options);
    for (x, dx) in [(q, &dout.shape()), (q, &dq.shape()), (k, &dk.shape()), (v, &dv.shape())] {
        assert_eq!(x.shape(), *dx, "a gradient has the shape of what it belongs to");
    }
    for dtype in [dout.dtype(), dq.dtype(), dk.dtype(), dv.dtype()] {
        assert_eq!(dtype, q.dtype(), "attention needs one type");
    }
    let problem = Problem::new(sizes, options, backward::KEYS);
    let gradients = [dq.reborrow(), dk.reborrow(), dv.reborrow()];
    dispatch!(float q.dtype(), T => backward::backward::<T>(kernel_options, &problem, [q, k, v, dout], gradients, workspace))
}
