//! Attention to a part of the keys, and its gradient: the pieces from which ring attention is joined.

use super::attention::{by_head, floor, head_factors, seen};
use super::{extents, widened};
use crate::composite::{Attributes, AttributesExt, Template};
use crate::graph::ValueId;
use crate::ops::{BinaryKind, Direction, Iota, UnaryKind};
use crate::rule::{FactorKind, Rule};
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Diagnostic, Result};

/// `attention_part(q[b, h, s, d], k[b, g, t, d], v[b, g, t, d], place, limits i32[b, s, 2]?) -> (out[b, h, s, d], lse[b, h,
/// s])`: the attention of some queries to some keys of longer sequences. `place` is i64 `[3]`: the position of the first
/// query, the position of the first key, and how many keys there are; those behind are padding. Or it is i64 `[5]`: queries
/// and keys are each two runs of equal length, and `place` has the positions of the first query of each, then of the first
/// key of each, then the number of keys, which is t.
///
/// `lse` is the logarithm of the sum of the exponentials of a row's scores; for a row without keys it is hugely negative,
/// and `out` is 0. Two parts of one row join by their `lse`. Attributes `causal`, `scale`, `window` and `limits` as for
/// `attention`. Results are f32 for narrower operands.
pub static ATTENTION_PART: Template = Template {
    name: "partita.attention_part",
    arguments: &["q", "k", "v", "place", "limits"],
    optional: 1,
    build: build_part,
    gradient: None,
    rule: Some(part_rule),
    offsets_operand: None,
};

/// `attention_part_gradient(q, k, v, lse[b, h, s], delta[b, h, s], dout[b, h, s, d], place, limits?) -> (dq, dk, dv)`:
/// what the keys of a part contribute to the gradients of attention. `lse` is that of all keys of a row, `delta` the sum
/// of `dout` times the output of all keys. The others are as for `attention_part`. Results are f32 for narrower operands.
pub static ATTENTION_PART_GRADIENT: Template = Template {
    name: "partita.attention_part_gradient",
    arguments: &["q", "k", "v", "lse", "delta", "dout", "place", "limits"],
    optional: 1,
    build: build_gradient,
    gradient: None,
    rule: Some(part_rule),
    offsets_operand: None,
};

/// The scores of a part, and which of them count.
struct Scores {
    /// `[b, g, per, s, t]`; hidden ones are the floor.
    scores: ValueId,
    /// Whether each score counts.
    counts: ValueId,
    /// The queries by key head: `[b, g, per, s, d]`.
    q: ValueId,
    k: ValueId,
    v: ValueId,
}

/// The positions of `count` queries or keys in runs, i64 `[count]`, from the entries of `place` from `at` on.
fn positions(b: &mut GraphBuilder, place: ValueId, at: usize, count: usize) -> Result<ValueId> {
    let runs = (b.shape(place)[0] - 1) / 2;
    let length = count / runs;
    let mut all = Vec::with_capacity(runs);
    for run in 0..runs {
        let first = b.slice_dim(place, 0, at + run, at + run + 1)?;
        let first = b.reshape(first, &[])?;
        let first = b.broadcast_scalar(first, &[length])?;
        let number = b.iota(TensorType::new(DType::I64, [length]), 0)?;
        all.push(b.add(number, first)?);
    }
    b.concatenate(&all, 0)
}

fn scores(
    a: &Attributes,
    b: &mut GraphBuilder,
    [q, k, v, place]: [ValueId; 4],
    limits: Option<ValueId>,
) -> Result<Scores> {
    let [batch, heads, s, d] = extents(b, q, "q")?;
    let [_, groups, t, _] = extents(b, k, "k")?;
    let [numbers] = extents(b, place, "place")?;
    if !(numbers == 3 || (numbers == 5 && s.is_multiple_of(2) && t.is_multiple_of(2))) {
        return Err(Diagnostic::new("E116", "the place of a part of attention does not fit")
            .expected("3 numbers; or 5, with an even number of queries and of keys")
            .found(format!("{numbers} numbers, {s} queries, {t} keys")));
    }
    let per = heads.checked_div(groups).unwrap_or(1);
    let [(q, _), (k, _), (v, _)] = [widened(b, q)?, widened(b, k)?, widened(b, v)?];
    let q = b.reshape(q, &[batch, groups, per, s, d])?;
    let scores = by_head(b, q, k, [&[4], &[3]])?;
    let scores = b.scale(scores, a.float("scale")?)?;
    let shape = [batch, groups, per, s, t];
    let keys = b.slice_dim(place, 0, numbers - 1, numbers)?;
    let keys = b.reshape(keys, &[])?;
    let keys = b.broadcast_scalar(keys, &shape)?;
    let number = b.push1(Iota { ty: TensorType::new(DType::I64, shape), dim: 4 }, &[])?;
    let mut counts = b.compare(Direction::Lt, number, keys)?;
    let row = positions(b, place, 0, s)?;
    let column = positions(b, place, (numbers - 1) / 2, t)?;
    let row = b.broadcast_in_dim(row, &shape, &[3])?;
    let column = b.broadcast_in_dim(column, &shape, &[4])?;
    if let Some(seen) = seen(b, a, [row, column], limits)? {
        counts = b.binary(BinaryKind::And, counts, seen)?;
    }
    let dtype = b.ty(scores).dtype;
    let hidden = b.full(&TensorType::new(dtype, shape), floor(dtype))?;
    let scores = b.select(counts, scores, hidden)?;
    Ok(Scores { scores, counts, q, k, v })
}

fn build_part(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let [batch, heads, s, _] = extents(b, args[0], "q")?;
    let (shape, rows) = (b.shape(args[0]), [batch, heads, s]);
    let Scores { scores, counts, v, .. } =
        scores(a, b, [args[0], args[1], args[2], args[3]], args.get(4).copied())?;
    let all = b.shape(scores);
    let dtype = b.ty(scores).dtype;
    let max = b.reduce_max(scores, &[4])?;
    // A part without keys has no maximum.
    let least = b.full_like(max, floor(dtype))?;
    let max = b.maximum(max, least)?;
    let beside_max = b.spread_last(max, &all)?;
    let shifted = b.subtract(scores, beside_max)?;
    let e = b.exponential(shifted)?;
    let zero = b.full_like(e, 0.0)?;
    let e = b.select(counts, e, zero)?;
    let sum = b.reduce_sum(e, &[4])?;
    // A row without keys has sum 0 and only zeros in `e`.
    let tiny = b.full_like(sum, 1e-30)?;
    let sum = b.maximum(sum, tiny)?;
    let beside_sum = b.spread_last(sum, &all)?;
    let p = b.divide(e, beside_sum)?;
    let out = by_head(b, p, v, [&[4], &[2]])?;
    let log = b.unary(UnaryKind::Log, sum)?;
    let lse = b.add(max, log)?;
    Ok(vec![b.reshape(out, &shape)?, b.reshape(lse, &rows)?])
}

fn build_gradient(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let &[q, k, v, lse, delta, dout, place, ref limits @ ..] = args else {
        unreachable!("the number of operands was checked")
    };
    let shape = b.shape(q);
    let Scores { scores, counts, q, k, v } = scores(a, b, [q, k, v, place], limits.first().copied())?;
    let all = b.shape(scores);
    let (by_group, rows) = (b.shape(q), all[..4].to_vec());
    let (dout, _) = widened(b, dout)?;
    let dout = b.reshape(dout, &by_group)?;
    let [lse, delta] = [lse, delta].map(|row| -> Result<ValueId> {
        let row = b.reshape(row, &rows)?;
        b.spread_last(row, &all)
    });
    let p = b.subtract(scores, lse?)?;
    let p = b.exponential(p)?;
    // Where nothing counts, `lse` may be the floor too.
    let zero = b.full_like(p, 0.0)?;
    let p = b.select(counts, p, zero)?;
    let dv = by_head(b, p, dout, [&[2, 3], &[2, 3]])?;
    let dp = by_head(b, dout, v, [&[4], &[3]])?;
    let dp = b.subtract(dp, delta?)?;
    let ds = b.multiply(p, dp)?;
    let ds = b.scale(ds, a.float("scale")?)?;
    let dq = by_head(b, ds, k, [&[4], &[2]])?;
    let dk = by_head(b, ds, q, [&[2, 3], &[2, 3]])?;
    Ok(vec![b.reshape(dq, &shape)?, dk, dv])
}

/// Batch and head groups may be sharded; `place` says where the rows and keys of this part are.
fn part_rule(_: &Attributes, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
    use FactorKind::Whole;
    let (q, k) = (&operands[0].shape, &operands[1].shape);
    let mut rule = Rule::default();
    let (batch, group, heads) = head_factors(&mut rule, q, k);
    let rows = rule.factor(q[2], Whole);
    let keys = rule.factor(k[2], Whole);
    let depth = rule.factor(q[3], Whole);
    let of_queries = vec![vec![batch], heads, vec![rows], vec![depth]];
    let of_keys = vec![vec![batch], vec![group], vec![keys], vec![depth]];
    let row = of_queries[..3].to_vec();
    let is_gradient = operands.len() > 5;
    if !is_gradient {
        rule.operands = vec![of_queries.clone(), of_keys.clone(), of_keys, vec![vec![]]];
        rule.results = vec![of_queries, row];
    } else {
        let first = [of_queries.clone(), of_keys.clone(), of_keys.clone(), row.clone(), row];
        rule.operands = first.into_iter().chain([of_queries.clone(), vec![vec![]]]).collect();
        rule.results = vec![of_queries, of_keys.clone(), of_keys];
    }
    if operands.len() > if is_gradient { 7 } else { 4 } {
        let both = rule.factor(2, Whole);
        rule.operands.push(vec![vec![batch], vec![rows], vec![both]]);
    }
    rule
}
