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

/// `attention(q[b, h, s, d], k[b, g, t, d], v[b, g, t, d], mask[b, 1, s, t]?) -> [b, h, s, d]`; h is a multiple of
/// g; attributes `causal`, `scale`. Rows with nothing to attend to give 0.
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
    let mut allowed: Option<ValueId> = None;
    if causal {
        let ty = TensorType::new(DType::I32, shape);
        let row = b.push1(Iota { ty: ty.clone(), dim: 3 }, &[])?;
        let column = b.push1(Iota { ty, dim: 4 }, &[])?;
        // With fewer queries than keys, the queries are the last ones.
        let row = b.offset(row, t as f64 - s as f64)?;
        allowed = Some(b.compare(Direction::Ge, row, column)?);
    }
    if let Some(&mask) = args.get(3) {
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
    // With a causal mask, a shard of the rows would need its offset.
    let rows = rule.factor(q[2], if a.flag("causal") { Whole } else { Pass });
    let keys = rule.factor(k[2], Whole);
    let depth = rule.factor(q[3], Whole);
    let q_dims = vec![vec![batch], heads.clone(), vec![rows], vec![depth]];
    let k_dims = vec![vec![batch], vec![group], vec![keys], vec![depth]];
    rule.operands = vec![q_dims.clone(), k_dims.clone(), k_dims];
    if let Some(mask) = operands.get(3) {
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
