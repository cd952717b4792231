//! Scaled dot-product attention as the composite, so that kernels and plans apply to it.

use super::activation::{along, dropped};
use super::contract::matmul;
use super::{Rows, convert, operand};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::{DType, Result};
use partita_ir::composites::{ATTENTION, SOFTMAX};
use partita_ir::ops::{BinaryKind, Direction};
use partita_ir::{Attribute, Literal, TensorType, ValueId};
use partita_mesh::Combiner;

pub const ROWS: Rows = &[
    ("aten.scaled_dot_product_attention.default", attention),
    ("aten._scaled_dot_product_flash_attention_for_cpu.default", attention),
];

fn attention(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (q, k) = (operand(call, "query", dtype)?, operand(call, "key", dtype)?);
    let v = operand(call, "value", dtype)?;
    let (qs, ks, vs) = (call.shape(q), call.shape(k), call.shape(v));
    let lengths = [qs.len(), ks.len(), vs.len()];
    if lengths.iter().any(|&rank| rank < 2 || rank != qs.len()) {
        return Err(call.unsupported("query, key and value of one rank", format!("{qs:?}, {ks:?}, {vs:?}")));
    }
    let rank = qs.len();
    let (s, t, d) = (qs[rank - 2], ks[rank - 2], qs[rank - 1]);
    let scale = call.float("scale", 1.0 / (d.max(1) as f64).sqrt())?;
    let rate = call.float("dropout_p", 0.0)?;
    let is_causal = call.flag("is_causal", false)?;
    let mask = call.maybe("attn_mask")?;
    let is_boolean = mask.is_none_or(|mask| call.ty(mask).dtype == DType::Bool);
    let groups_fit = rank >= 3 && qs[..rank - 3] == ks[..rank - 3] && ks[..rank - 2] == vs[..rank - 2] && {
        let (heads, groups) = (qs[rank - 3], ks[rank - 3]);
        heads == groups || (call.flag("enable_gqa", false)? && groups > 0 && heads.is_multiple_of(groups))
    };
    let suits_composite = rate == 0.0
        && is_boolean
        && groups_fit
        && (3..=4).contains(&rank)
        && vs[rank - 1] == d
        && ks[rank - 1] == d;
    let y = match suits_composite {
        true => composite(call, [q, k, v], mask, is_causal, scale)?,
        false => written_out(call, [q, k, v], mask, is_causal, scale, rate, [s, t])?,
    };
    let y = convert(call, y, dtype)?;
    // Log-sum-exp and the state of random numbers serve a written-out backward pass.
    Ok(vec![Out::Value(y), Out::Absent, Out::Absent, Out::Absent])
}

/// The composite over four dimensions. PyTorch's causal mask aligns the first query with the first
/// key, the composite's the last with the last: they are the same only for as many keys as queries.
fn composite(
    call: &mut Call,
    qkv: [ValueId; 3],
    mask: Option<ValueId>,
    is_causal: bool,
    scale: f64,
) -> Result<ValueId> {
    let own = call.shape(qkv[0]);
    let mut operands = Vec::new();
    for x in qkv {
        let shape = call.shape(x);
        let shape = if shape.len() == 3 { [&[1], &shape[..]].concat() } else { shape };
        operands.push(call.b().reshape(x, &shape)?);
    }
    let (q, k) = (call.shape(operands[0]), call.shape(operands[1]));
    let (s, t) = (q[2], k[2]);
    let mut allowed = match mask {
        None => None,
        Some(mask) => {
            // [b, 1 or h, s, t], broadcast along b, s and t.
            let own = call.shape(mask);
            let mut shape = vec![1; 4usize.saturating_sub(own.len())];
            shape.extend(&own);
            let heads = shape.get(1).copied().unwrap_or(1);
            if shape.len() != 4 || (heads != 1 && heads != q[1]) {
                return Err(call.unsupported("a mask that broadcasts to [b, h, s, t]", format!("{own:?}")));
            }
            let mask = call.b().reshape(mask, &shape)?;
            Some(call.spread(mask, &[q[0], heads, s, t])?)
        }
    };
    let needs_mask = is_causal && s != t;
    if needs_mask {
        let causal = causal_mask(call, s, t)?;
        let causal = call.spread(causal, &[q[0], 1, s, t])?;
        allowed = Some(match allowed {
            None => causal,
            Some(mask) => {
                let shape = call.shape(mask);
                let causal = call.spread(causal, &shape)?;
                call.b().binary(BinaryKind::And, mask, causal)?
            }
        });
    }
    operands.extend(allowed);
    let causal = is_causal && !needs_mask;
    let attributes = [("causal", Attribute::Bool(causal)), ("scale", Attribute::Float(scale))];
    let y = call.b().composite(&ATTENTION, &attributes, &operands)?;
    call.b().reshape(y, &own)
}

/// `[s, t]`: key index at most the query index.
fn causal_mask(call: &mut Call, s: usize, t: usize) -> Result<ValueId> {
    let ty = TensorType::new(DType::I64, [s, t]);
    let (row, column) = (call.b().iota(ty.clone(), 0)?, call.b().iota(ty, 1)?);
    call.b().compare(Direction::Ge, row, column)
}

/// Attention as products and a softmax: with additive masks, dropout of weights, or other shapes.
fn written_out(
    call: &mut Call,
    [q, mut k, mut v]: [ValueId; 3],
    mask: Option<ValueId>,
    is_causal: bool,
    scale: f64,
    rate: f64,
    [s, t]: [usize; 2],
) -> Result<ValueId> {
    let (qs, ks) = (call.shape(q), call.shape(k));
    let rank = qs.len();
    if call.flag("enable_gqa", false)? && rank >= 3 && ks[rank - 3] != qs[rank - 3] {
        for x in [&mut k, &mut v] {
            *x = repeated_heads(call, *x, qs[rank - 3])?;
        }
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 1, rank - 2);
    let turned = call.b().transpose(k, &order)?;
    let scores = matmul(call, q, turned)?;
    let mut scores = call.b().scale(scores, scale)?;
    let shape = call.shape(scores);
    let dtype = call.ty(scores).dtype;
    let causal = if is_causal { Some(causal_mask(call, s, t)?) } else { None };
    // The mask of a causal query leaves its first key; another may hide all keys.
    let may_be_empty =
        mask.is_some_and(|mask| is_causal || !call.known(mask).is_some_and(|mask| leaves_keys(&mask)));
    for mask in [mask, causal].into_iter().flatten() {
        scores = if call.ty(mask).dtype == DType::Bool {
            let mask = call.spread(mask, &shape)?;
            let floor = call.b().full_like(scores, f64::NEG_INFINITY)?;
            call.b().select(mask, scores, floor)?
        } else {
            let mask = convert(call, mask, dtype)?;
            let mask = call.spread(mask, &shape)?;
            call.b().add(scores, mask)?
        };
    }
    let mut weights;
    if may_be_empty {
        // A query without keys has the weights 0.
        let fixed = call.b().stop_gradient(scores)?;
        let most = call.b().reduce(Combiner::Max, fixed, &[rank - 1])?;
        let least = call.b().full_like(most, f64::NEG_INFINITY)?;
        let is_empty = call.b().compare(Direction::Eq, most, least)?;
        let rows: Vec<usize> = (0..rank - 1).collect();
        let is_empty = call.b().broadcast_in_dim(is_empty, &shape, &rows)?;
        let zero = call.b().full_like(scores, 0.0)?;
        let scores = call.b().select(is_empty, zero, scores)?;
        weights = along(call, &SOFTMAX, scores, rank - 1)?;
        weights = call.b().select(is_empty, zero, weights)?;
    } else {
        weights = along(call, &SOFTMAX, scores, rank - 1)?;
    }
    let weights = dropped(call, weights, rate, true)?;
    matmul(call, weights, v)
}

/// Whether a mask leaves each query a key.
fn leaves_keys(mask: &Literal) -> bool {
    let keys = mask.ty.shape.last().copied().unwrap_or(1).max(1);
    let is_open =
        |&key: &f64| if mask.ty.dtype == DType::Bool { key != 0.0 } else { key > f64::NEG_INFINITY };
    mask.to_f64().chunks(keys).all(|row| row.iter().any(is_open))
}

/// Each head of `x[.., g, t, d]` repeated, so that there are `heads`.
fn repeated_heads(call: &mut Call, x: ValueId, heads: usize) -> Result<ValueId> {
    let own = call.shape(x);
    let at = own.len() - 3;
    if own[at] == 0 || !heads.is_multiple_of(own[at]) {
        return Err(call.unsupported(
            "query heads that are a multiple of key heads",
            format!("{heads} and {}", own[at]),
        ));
    }
    let mut apart = own.clone();
    apart.insert(at + 1, heads / own[at]);
    call.check_size(&apart)?;
    let dims: Vec<usize> = (0..apart.len()).filter(|&dim| dim != at + 1).collect();
    let x = call.b().broadcast_in_dim(x, &apart, &dims)?;
    let mut joined = own;
    joined[at] = heads;
    call.b().reshape(x, &joined)
}
