//! Comparisons, logic, choices and limits.

use super::arithmetic::promoted_operands;
use super::{Rows, broadcast_pair, constant, convert, one, operand, operands};
use crate::pt2::call::{Call, Outs, Scalar};
use partita_base::{DType, Result};
use partita_ir::ValueId;
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};

pub const ROWS: Rows = &[
    ("aten.eq.Tensor", |c| compare(c, Direction::Eq)),
    ("aten.eq.Scalar", |c| compare(c, Direction::Eq)),
    ("aten.ne.Tensor", |c| compare(c, Direction::Ne)),
    ("aten.ne.Scalar", |c| compare(c, Direction::Ne)),
    ("aten.lt.Tensor", |c| compare(c, Direction::Lt)),
    ("aten.lt.Scalar", |c| compare(c, Direction::Lt)),
    ("aten.le.Tensor", |c| compare(c, Direction::Le)),
    ("aten.le.Scalar", |c| compare(c, Direction::Le)),
    ("aten.gt.Tensor", |c| compare(c, Direction::Gt)),
    ("aten.gt.Scalar", |c| compare(c, Direction::Gt)),
    ("aten.ge.Tensor", |c| compare(c, Direction::Ge)),
    ("aten.ge.Scalar", |c| compare(c, Direction::Ge)),
    ("aten.logical_and.default", |c| logical(c, BinaryKind::And)),
    ("aten.logical_or.default", |c| logical(c, BinaryKind::Or)),
    ("aten.logical_xor.default", |c| logical(c, BinaryKind::Xor)),
    ("aten.logical_not.default", logical_not),
    ("aten.isnan.default", is_nan),
    ("aten.isinf.default", is_infinite),
    ("aten.isfinite.default", is_finite),
    ("aten.where.self", choose),
    ("aten.where.ScalarOther", choose),
    ("aten.where.ScalarSelf", choose),
    ("aten.where.Scalar", choose),
    ("aten.masked_fill.Scalar", masked_fill),
    ("aten.masked_fill.Tensor", masked_fill),
    ("aten.clamp.default", |c| limit(c, Some("min"), Some("max"))),
    ("aten.clamp.Tensor", |c| limit(c, Some("min"), Some("max"))),
    ("aten.clip.default", |c| limit(c, Some("min"), Some("max"))),
    ("aten.clamp_min.default", |c| limit(c, Some("min"), None)),
    ("aten.clamp_min.Tensor", |c| limit(c, Some("min"), None)),
    ("aten.clamp_max.default", |c| limit(c, None, Some("max"))),
    ("aten.clamp_max.Tensor", |c| limit(c, None, Some("max"))),
    ("aten.hardtanh.default", hardtanh),
    ("aten.relu.default", |c| between(c, Some(0.0), None)),
    ("aten.relu6.default", |c| between(c, Some(0.0), Some(6.0))),
    ("aten.threshold.default", threshold),
    ("aten.hardshrink.default", |c| shrink(c, false)),
    ("aten.softshrink.default", |c| shrink(c, true)),
];

fn compare(call: &mut Call, direction: Direction) -> Outs {
    let [a, b] = promoted_operands(call, ["self", "other"])?;
    one(call.b().compare(direction, a, b)?)
}

fn logical(call: &mut Call, kind: BinaryKind) -> Outs {
    let [a, b] = operands(call, ["self", "other"], DType::Bool)?;
    one(call.b().binary(kind, a, b)?)
}

fn logical_not(call: &mut Call) -> Outs {
    let x = operand(call, "self", DType::Bool)?;
    one(call.b().unary(UnaryKind::Not, x)?)
}

fn is_nan(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    one(call.b().compare(Direction::Ne, x, x)?)
}

fn is_finite(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    if call.ty(x).dtype.is_float() {
        return one(call.b().unary(UnaryKind::IsFinite, x)?);
    }
    one(call.b().compare(Direction::Eq, x, x)?)
}

fn is_infinite(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    if !call.ty(x).dtype.is_float() {
        return one(call.b().compare(Direction::Ne, x, x)?);
    }
    let size = call.b().unary(UnaryKind::Abs, x)?;
    let infinity = call.b().full_like(size, f64::INFINITY)?;
    one(call.b().compare(Direction::Eq, size, infinity)?)
}

/// `condition ? self : other`
fn choose(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let condition = operand(call, "condition", DType::Bool)?;
    let [a, b] = operands(call, ["self", "other"], dtype)?;
    one(select(call, condition, a, b)?)
}

/// `condition ? a : b`, all broadcast to one shape.
pub(super) fn select(call: &mut Call, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId> {
    let [a, b] = broadcast_pair(call, a, b)?;
    let [condition, a] = broadcast_pair(call, condition, a)?;
    let shape = call.shape(a);
    let b = call.spread(b, &shape)?;
    call.b().select(condition, a, b)
}

fn masked_fill(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let mask = operand(call, "mask", DType::Bool)?;
    let value = operand(call, "value", dtype)?;
    one(select(call, mask, value, x)?)
}

/// Limits by arguments, numbers or tensors. NaN, as a limit too, gives NaN.
fn limit(call: &mut Call, low: Option<&str>, high: Option<&str>) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let sides = [(low, BinaryKind::Maximum, Direction::Gt), (high, BinaryKind::Minimum, Direction::Lt)];
    let given: Vec<_> = sides
        .into_iter()
        .filter_map(|(name, kind, inside)| Some((name.filter(|name| call.has(name))?, kind, inside)))
        .collect();
    // Numbers have no gradient, and elements at one have none either. With tensors, both share it.
    let by_numbers = dtype.is_float() && !given.iter().any(|(name, _, _)| call.is_tensor(name));
    let mut limited = if by_numbers { call.b().stop_gradient(x)? } else { x };
    let mut within = None;
    for (name, kind, inside) in given {
        let bound = operand(call, name, dtype)?;
        let [a, bound] = broadcast_pair(call, limited, bound)?;
        limited = call.b().binary(kind, a, bound)?;
        if by_numbers {
            let is_inside = call.b().compare(inside, x, bound)?;
            within = Some(match within {
                None => is_inside,
                Some(within) => call.b().binary(BinaryKind::And, within, is_inside)?,
            });
        }
    }
    one(match within {
        Some(within) => call.b().select(within, x, limited)?,
        None => limited,
    })
}

fn hardtanh(call: &mut Call) -> Outs {
    let (low, high) = (call.float("min_val", -1.0)?, call.float("max_val", 1.0)?);
    between(call, Some(low), Some(high))
}

/// Limits by numbers; elements at a limit have the gradient 0, and NaN passes.
fn between(call: &mut Call, low: Option<f64>, high: Option<f64>) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let x = convert(call, x, dtype)?;
    one(within(call, x, low, high)?)
}

/// See [`between`].
pub(super) fn within(call: &mut Call, x: ValueId, low: Option<f64>, high: Option<f64>) -> Result<ValueId> {
    let mut limited = x;
    for (bound, direction) in [(low, Direction::Le), (high, Direction::Ge)] {
        if let Some(bound) = bound {
            let dtype = call.ty(x).dtype;
            let bound = constant(call, dtype, Scalar::Float(bound));
            let shape = call.shape(x);
            let bound = call.spread(bound, &shape)?;
            let beyond = call.b().compare(direction, limited, bound)?;
            limited = call.b().select(beyond, bound, limited)?;
        }
    }
    Ok(limited)
}

/// `x > threshold ? x : value`; NaN passes.
fn threshold(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let limit = operand(call, "threshold", dtype)?;
    let value = operand(call, "value", dtype)?;
    let [x, limit] = broadcast_pair(call, x, limit)?;
    let is_low = call.b().compare(Direction::Le, x, limit)?;
    one(select(call, is_low, value, x)?)
}

/// 0 within a distance of 0, the identity beyond, or moved toward 0 by that distance if `soft`.
fn shrink(call: &mut Call, soft: bool) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let width = call.float("lambd", 0.5)?;
    let mut y = x;
    if soft {
        let (low, high) = (call.b().offset(x, width)?, call.b().offset(x, -width)?);
        let zero = call.b().full_like(x, 0.0)?;
        let is_low = call.b().compare(Direction::Lt, x, zero)?;
        y = call.b().select(is_low, low, high)?;
    }
    let (low, high) = (call.b().full_like(x, -width)?, call.b().full_like(x, width)?);
    let (above, below) =
        (call.b().compare(Direction::Ge, x, low)?, call.b().compare(Direction::Le, x, high)?);
    let is_small = call.b().binary(BinaryKind::And, above, below)?;
    let zero = call.b().full_like(x, 0.0)?;
    one(call.b().select(is_small, zero, y)?)
}
