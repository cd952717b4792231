//! Scaled dot-product attention over grouped heads.

use super::softmax::shifted;
use super::{extents, widened};
use crate::composite::AttributesExt;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::{BinaryKind, Direction, DotGeneral, Iota};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Diagnostic, Result};

/// `attention(q[b, h, s, d], k[b, g, t, d], v[b, g, t, d], mask?) -> [b, h, s, d]`; h is a multiple of g; attributes
/// `causal`, `scale`, `window`. Rows with nothing to attend to give 0.
///
/// `causal` hides keys at later positions; a `window` of N hides those N or more positions away (Mistral's sliding window
/// if it is causal too). With fewer queries than keys, both take the queries for the last ones. `mask` is a bool `[b, 1 or
/// h, s, t]`, or an i32 `[b, s, 2]`: the position of the first key that a query sees, and of the one behind the last, which
/// are the boundaries of its document in a packed sequence.
pub static ATTENTION: Template = Template {
    name: "partita.attention",
    arguments: &["q", "k", "v", "mask"],
    optional: 1,
    build: build_attention,
    gradient: None,
    rule: Some(attention_rule),
    offsets_operand: None,
};

fn build_attention(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (q, k, v) = (args[0], args[1], args[2]);
    let (scale, causal) = (a.float("scale")?, a.flag("causal"));
    let (qs, ks) = (b.shape(q), b.shape(k));
    let [batch, heads, s, d] = qs[..] else { return Err(attention_shape(&qs)) };
    let [_, groups, t, _] = ks[..] else { return Err(attention_shape(&ks)) };
    if groups != heads && (groups == 0 || heads % groups != 0) {
        return Err(attention_shape(&ks));
    }
    let (q, dtype) = widened(b, q)?;
    let (k, _) = widened(b, k)?;
    let (v, _) = widened(b, v)?;
    let per = heads.checked_div(groups).unwrap_or(1);
    // The query heads of one group share a key head: [b, g, per, s, d] x [b, g, t, d].
    let q = b.reshape(q, &[batch, groups, per, s, d])?;
    let scores = by_head(b, q, k, [&[4], &[3]])?;
    let mut scores = b.scale(scores, scale)?;
    let shape = [batch, groups, per, s, t];
    let mask = args.get(3).copied();
    let limits = mask.filter(|&mask| b.ty(mask).dtype != DType::Bool);
    let mut allowed = None;
    if causal || attention_window(a).is_some() || limits.is_some() {
        let ty = TensorType::new(DType::I32, shape);
        let row = b.push1(Iota { ty: ty.clone(), dim: 3 }, &[])?;
        let column = b.push1(Iota { ty, dim: 4 }, &[])?;
        // With fewer queries than keys, the queries are the last ones.
        let row = b.offset(row, t as f64 - s as f64)?;
        allowed = seen(b, a, [row, column], limits)?;
    }
    if let Some(mask) = mask.filter(|_| limits.is_none()) {
        let ms: [usize; 4] = extents(b, mask, "mask")?;
        let mask = if ms[1] == 1 {
            let mask = b.reshape(mask, &[ms[0], ms[2], ms[3]])?;
            let dims = [0, 3, 4];
            b.broadcast_in_dim(mask, &shape, &dims)?
        } else {
            let mask = b.reshape(mask, &[ms[0], groups, per, ms[2], ms[3]])?;
            b.broadcast_in_dim(mask, &shape, &[0, 1, 2, 3, 4])?
        };
        allowed = Some(match allowed {
            Some(other) => b.binary(BinaryKind::And, other, mask)?,
            None => mask,
        });
    }
    let wide = b.ty(scores).dtype;
    if let Some(allowed) = allowed {
        // A finite floor keeps fully masked rows free of NaN; they are zeroed below.
        let hidden = b.full(&TensorType::new(wide, shape), floor(wide))?;
        scores = b.select(allowed, scores, hidden)?;
    }
    let shifted = shifted(b, scores)?;
    let mut e = b.exponential(shifted)?;
    if let Some(allowed) = allowed {
        let zero = b.full(&TensorType::new(wide, shape), 0.0)?;
        e = b.select(allowed, e, zero)?;
    }
    let sum = b.reduce_sum(e, &[4])?;
    // A fully masked row has sum 0 and e all 0; dividing by a tiny number gives 0.
    let tiny = b.full_like(sum, 1e-30)?;
    let sum = b.maximum(sum, tiny)?;
    let sum = b.spread_last(sum, &shape)?;
    let p = b.divide(e, sum)?;
    let out = by_head(b, p, v, [&[4], &[2]])?;
    let out = b.reshape(out, &[batch, heads, s, d])?;
    Ok(vec![b.convert(out, dtype)?])
}

/// The sliding window among the attributes of attention.
pub fn attention_window(a: &Attributes) -> Option<usize> {
    a.int("window").ok().and_then(|window| usize::try_from(window).ok())
}

/// Whether each query sees each key, from their positions, integers `[batch, groups, per, s, t]`, and the `limits` of what
/// each query sees, i32 `[batch, s, 2]`; `None` if all see all.
pub(super) fn seen(
    b: &mut GraphBuilder,
    a: &Attributes,
    [row, column]: [ValueId; 2],
    limits: Option<ValueId>,
) -> Result<Option<ValueId>> {
    let ty = b.ty(row).clone();
    let mut conditions = Vec::new();
    if a.flag("causal") {
        conditions.push(b.compare(Direction::Ge, row, column)?);
    }
    if let Some(window) = attention_window(a) {
        // No sequence is so long that this limit matters.
        let window = b.full(&ty, window.min(1 << 30) as f64)?;
        let before = b.subtract(row, column)?;
        conditions.push(b.compare(Direction::Lt, before, window)?);
        if !a.flag("causal") {
            let behind = b.subtract(column, row)?;
            conditions.push(b.compare(Direction::Lt, behind, window)?);
        }
    }
    if let Some(limits) = limits {
        let [batch, s, two] = extents(b, limits, "limits")?;
        if [batch, s, two] != [ty.shape[0], ty.shape[3], 2] || b.ty(limits).dtype != DType::I32 {
            return Err(Diagnostic::new("E116", "the mask of attention does not fit the queries")
                .expected(format!("tensor<{}x{}x2xi32>, or a mask of i1", ty.shape[0], ty.shape[3]))
                .found(b.ty(limits).to_string()));
        }
        for (number, direction) in [(0, Direction::Ge), (1, Direction::Lt)] {
            let limit = b.slice_dim(limits, 2, number, number + 1)?;
            let limit = b.reshape(limit, &[batch, s])?;
            let limit = b.convert(limit, ty.dtype)?;
            let limit = b.broadcast_in_dim(limit, &ty.shape, &[0, 3])?;
            conditions.push(b.compare(direction, column, limit)?);
        }
    }
    let both = |all: Option<ValueId>, condition: ValueId, b: &mut GraphBuilder| match all {
        Some(all) => b.binary(BinaryKind::And, all, condition).map(Some),
        None => Ok(Some(condition)),
    };
    conditions.into_iter().try_fold(None, |all, condition| both(all, condition, b))
}

/// Less than any score, and finite: differences of two such are 0.
pub(super) fn floor(dtype: DType) -> f64 {
    if dtype == DType::F64 { -1e300 } else { -1e30 }
}

/// Contracts `a[b, g, ..]` with `b[b, g, ..]` over these dimensions.
pub(super) fn by_head(
    b: &mut GraphBuilder,
    lhs: ValueId,
    rhs: ValueId,
    over: [&[usize]; 2],
) -> Result<ValueId> {
    let dims = DotGeneral {
        lhs_batch: vec![0, 1],
        rhs_batch: vec![0, 1],
        lhs_contracting: over[0].to_vec(),
        rhs_contracting: over[1].to_vec(),
        result_dtype: None,
    };
    b.dot_general(lhs, rhs, dims)
}

/// The factors that all kinds of attention share, the first of a rule: those of the batch and of the groups, and those of
/// the query heads, of which a group has one or several. `q` and `k` are shapes `[batch, heads or groups, ..]`.
pub(crate) fn head_factors(rule: &mut Rule, q: &[usize], k: &[usize]) -> (FactorId, FactorId, Vec<FactorId>) {
    let batch = rule.factor(q[0], FactorKind::Pass);
    let group = rule.factor(k[1], FactorKind::Pass);
    let per = rule.factor(q[1].checked_div(k[1]).unwrap_or(1), FactorKind::Whole);
    (batch, group, if q[1] == k[1] { vec![group] } else { vec![group, per] })
}

fn attention_shape(found: &[usize]) -> Box<Diagnostic> {
    Diagnostic::new("E116", "the operands of attention do not fit together")
        .expected("q [batch, heads, s, d]; k, v [batch, groups, t, d]; heads a multiple of groups")
        .found(format!("{found:?}"))
}

/// Batch and head groups may be sharded. A query row needs all keys and is independent of other
/// rows unless the mask depends on its position.
fn attention_rule(a: &Attributes, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
    use FactorKind::{Pass, Whole};
    let (q, k) = (&operands[0].shape, &operands[1].shape);
    let mut rule = Rule::default();
    let (batch, group, heads) = head_factors(&mut rule, q, k);
    let limits = operands.get(3).filter(|mask| mask.dtype != DType::Bool);
    // With a causal mask or a window, a shard of the rows would need its offset; with limits, the blocks of a kernel would
    // be others.
    let is_cut = !a.flag("causal") && attention_window(a).is_none() && limits.is_none();
    let rows = rule.factor(q[2], if is_cut { Pass } else { Whole });
    let keys = rule.factor(k[2], Whole);
    let depth = rule.factor(q[3], Whole);
    let q_dims = vec![vec![batch], heads.clone(), vec![rows], vec![depth]];
    let k_dims = vec![vec![batch], vec![group], vec![keys], vec![depth]];
    rule.operands = vec![q_dims.clone(), k_dims.clone(), k_dims];
    if limits.is_some() {
        let both = rule.factor(2, Whole);
        rule.operands.push(vec![vec![batch], vec![rows], vec![both]]);
    } else if let Some(mask) = operands.get(3) {
        let dim = |extent: usize, of: usize, factors: Vec<usize>| if extent == of { factors } else { vec![] };
        let m = &mask.shape;
        rule.operands.push(vec![
            dim(m[0], q[0], vec![batch]),
            if m[1] == 1 { vec![] } else { heads },
            dim(m[2], q[2], vec![rows]),
            vec![keys],
        ]);
    }
    rule.results = vec![q_dims];
    // The output is linear in the values.
    rule.linear_in(&[2])
}
