//! Activations, softmax and dropout.

use super::{Rows, convert, one, operand, wide};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::{DType, Result};
use partita_ir::composite::Template;
use partita_ir::composites::{GELU, LOG_SOFTMAX, SILU, SOFTMAX};
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};
use partita_ir::{Attribute, ValueId};

pub const ROWS: Rows = &[
    ("aten.gelu.default", gelu),
    ("aten.silu.default", silu),
    ("aten.leaky_relu.default", leaky_relu),
    ("aten.elu.default", elu),
    ("aten.selu.default", selu),
    ("aten.celu.default", celu),
    ("aten.softplus.default", |c| softplus_of_self(c)),
    ("aten.log_sigmoid.default", log_sigmoid),
    ("aten.log_sigmoid_forward.default", log_sigmoid),
    ("aten.mish.default", mish),
    ("aten.hardsigmoid.default", |c| hard(c, false)),
    ("aten.hardswish.default", |c| hard(c, true)),
    ("aten.glu.default", glu),
    ("aten.prelu.default", |c| prelu(c)),
    ("aten._prelu_kernel.default", |c| prelu(c)),
    ("aten.softmax.int", |c| softmax(c, &SOFTMAX)),
    ("aten._softmax.default", |c| softmax(c, &SOFTMAX)),
    ("aten.log_softmax.int", |c| softmax(c, &LOG_SOFTMAX)),
    ("aten._log_softmax.default", |c| softmax(c, &LOG_SOFTMAX)),
    ("aten.dropout.default", |c| dropout(c, "train")),
    ("aten.feature_dropout.default", feature_dropout),
    ("aten.native_dropout.default", |c| dropout(c, "train")),
];

fn input(call: &mut Call) -> Result<ValueId> {
    let dtype = call.result_dtype(0)?;
    operand(call, "self", dtype)
}

/// `self` in the type of sums, since a step of a formula may overflow f16, and the type of the result.
fn wide_input(call: &mut Call) -> Result<(ValueId, DType)> {
    let dtype = call.result_dtype(0)?;
    Ok((operand(call, "self", wide(dtype))?, dtype))
}

fn gelu(call: &mut Call) -> Outs {
    let x = input(call)?;
    let tanh = call.text("approximate", "none")? == "tanh";
    one(call.b().composite(&GELU, &[("tanh", Attribute::Bool(tanh))], &[x])?)
}

fn silu(call: &mut Call) -> Outs {
    let x = input(call)?;
    one(call.b().composite(&SILU, &[], &[x])?)
}

/// `x > 0 ? x : other`
fn positive_or(call: &mut Call, x: ValueId, other: ValueId) -> Result<ValueId> {
    let zero = call.b().full_like(x, 0.0)?;
    let is_positive = call.b().compare(Direction::Gt, x, zero)?;
    call.b().select(is_positive, x, other)
}

fn leaky_relu(call: &mut Call) -> Outs {
    let x = input(call)?;
    let slope = call.float("negative_slope", 0.01)?;
    let scaled = call.b().scale(x, slope)?;
    one(positive_or(call, x, scaled)?)
}

fn prelu(call: &mut Call) -> Outs {
    let x = input(call)?;
    let weight = call.tensor("weight")?;
    let (shape, own) = (call.shape(x), call.shape(weight));
    // One slope for each channel, dimension 1.
    let mut spread = vec![1; shape.len()];
    if own.len() == 1 && !shape.is_empty() {
        spread[usize::from(shape.len() > 1)] = own[0];
    }
    let weight = if own.len() == 1 { call.b().reshape(weight, &spread)? } else { weight };
    let weight = call.spread(weight, &shape)?;
    // A product that is not taken must not be infinite: its gradient would be NaN.
    let zero = call.b().full_like(x, 0.0)?;
    let is_positive = call.b().compare(Direction::Gt, x, zero)?;
    let low = call.b().select(is_positive, zero, x)?;
    let scaled = call.b().multiply(low, weight)?;
    one(call.b().select(is_positive, x, scaled)?)
}

/// `x > 0 ? scale x : alpha scale (exp(input_scale x) - 1)`. The slope at 0 is that of the exponential.
fn elu_of(call: &mut Call, alpha: f64, scale: f64, input_scale: f64) -> Outs {
    let (x, dtype) = wide_input(call)?;
    let zero = call.b().full_like(x, 0.0)?;
    let is_low = call.b().compare(Direction::Le, x, zero)?;
    // Limited first: the branch that is not taken must not overflow, for its gradient is multiplied by 0.
    let low = call.b().select(is_low, x, zero)?;
    let scaled = call.b().scale(low, input_scale)?;
    let grown = call.b().unary(UnaryKind::ExponentialMinusOne, scaled)?;
    let below = call.b().scale(grown, alpha * scale)?;
    let above = call.b().scale(x, scale)?;
    let y = call.b().select(is_low, below, above)?;
    one(convert(call, y, dtype)?)
}

fn elu(call: &mut Call) -> Outs {
    let (alpha, scale) = (call.float("alpha", 1.0)?, call.float("scale", 1.0)?);
    let input_scale = call.float("input_scale", 1.0)?;
    elu_of(call, alpha, scale, input_scale)
}

fn selu(call: &mut Call) -> Outs {
    elu_of(call, 1.6732632423543772, 1.0507009873554805, 1.0)
}

fn celu(call: &mut Call) -> Outs {
    let alpha = call.float("alpha", 1.0)?;
    if alpha == 0.0 {
        return Err(call.unsupported("`alpha` other than 0", "0"));
    }
    elu_of(call, alpha, 1.0, 1.0 / alpha)
}

/// `log(1 + exp(beta x)) / beta`, the identity above a threshold.
pub(super) fn softplus(call: &mut Call, x: ValueId, beta: f64, threshold: f64) -> Result<ValueId> {
    let scaled = if beta == 1.0 { x } else { call.b().scale(x, beta)? };
    let limit = call.b().full_like(x, threshold)?;
    let is_large = call.b().compare(Direction::Gt, scaled, limit)?;
    let zero = call.b().full_like(x, 0.0)?;
    let safe = call.b().select(is_large, zero, scaled)?;
    let grown = call.b().exponential(safe)?;
    let log = call.b().unary(UnaryKind::LogPlusOne, grown)?;
    let log = if beta == 1.0 { log } else { call.b().scale(log, 1.0 / beta)? };
    call.b().select(is_large, x, log)
}

fn softplus_of_self(call: &mut Call) -> Outs {
    let (x, dtype) = wide_input(call)?;
    let (beta, threshold) = (call.float("beta", 1.0)?, call.float("threshold", 20.0)?);
    let y = softplus(call, x, beta, threshold)?;
    one(convert(call, y, dtype)?)
}

fn log_sigmoid(call: &mut Call) -> Outs {
    let (x, dtype) = wide_input(call)?;
    let negative = call.b().negate(x)?;
    let plus = softplus(call, negative, 1.0, 20.0)?;
    let y = call.b().negate(plus)?;
    one(convert(call, y, dtype)?)
}

fn mish(call: &mut Call) -> Outs {
    let (x, dtype) = wide_input(call)?;
    let plus = softplus(call, x, 1.0, 20.0)?;
    let tanh = call.b().unary(UnaryKind::Tanh, plus)?;
    let y = call.b().multiply(x, tanh)?;
    one(convert(call, y, dtype)?)
}

/// `clamp(x + 3, 0, 6) / 6`, times `x` if `gated`. The gradient of NaN is 0, or that of `x` if gated.
fn hard(call: &mut Call, gated: bool) -> Outs {
    let (x, dtype) = wide_input(call)?;
    let (low, high) = (call.b().full_like(x, -3.0)?, call.b().full_like(x, 3.0)?);
    let (zero, whole) = (call.b().full_like(x, 0.0)?, call.b().full_like(x, 1.0)?);
    let is_low = call.b().compare(Direction::Le, x, low)?;
    let (above, below) =
        (call.b().compare(Direction::Gt, x, low)?, call.b().compare(Direction::Lt, x, high)?);
    let is_between = call.b().binary(BinaryKind::And, above, below)?;
    let safe = call.b().select(is_between, x, zero)?;
    let moved = call.b().offset(safe, 3.0)?;
    let gate = call.b().scale(moved, 1.0 / 6.0)?;
    // Beyond the limits, NaN stays NaN, and so does 0 times -inf.
    let fixed = call.b().stop_gradient(x)?;
    let (inner, bottom, top) = match gated {
        true => (call.b().multiply(safe, gate)?, call.b().scale(fixed, 0.0)?, x),
        false => (gate, zero, call.b().minimum(fixed, whole)?),
    };
    let outer = call.b().select(is_low, bottom, top)?;
    let y = call.b().select(is_between, inner, outer)?;
    one(convert(call, y, dtype)?)
}

fn glu(call: &mut Call) -> Outs {
    let x = input(call)?;
    let shape = call.shape(x);
    let dim = call.wrap(call.int("dim", -1)?, shape.len())?;
    let Some(half) = shape.get(dim).filter(|extent| extent.is_multiple_of(2)).map(|extent| extent / 2) else {
        return Err(call.unsupported("an even dimension to halve", format!("{shape:?}")));
    };
    let a = call.b().slice_dim(x, dim, 0, half)?;
    let b = call.b().slice_dim(x, dim, half, 2 * half)?;
    let gate = call.b().unary(UnaryKind::Logistic, b)?;
    one(call.b().multiply(a, gate)?)
}

/// A composite along any dimension.
pub(super) fn along(call: &mut Call, template: &'static Template, x: ValueId, dim: usize) -> Result<ValueId> {
    let rank = call.shape(x).len();
    if rank == 0 {
        let line = call.b().reshape(x, &[1])?;
        let y = call.b().composite(template, &[], &[line])?;
        return call.b().reshape(y, &[]);
    }
    if dim + 1 == rank {
        return call.b().composite(template, &[], &[x]);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(dim, rank - 1);
    let turned = call.b().transpose(x, &order)?;
    let y = call.b().composite(template, &[], &[turned])?;
    call.b().transpose(y, &order)
}

fn softmax(call: &mut Call, template: &'static Template) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let dim = call.wrap(call.required_int("dim")?, call.shape(x).len())?;
    let y = along(call, template, x, dim)?;
    one(convert(call, y, dtype)?)
}

/// Dropout with random numbers of this project: equal on any mesh, different from PyTorch's.
fn dropout(call: &mut Call, flag: &str) -> Outs {
    // In place, the argument has another name.
    let name = if call.has("input") { "input" } else { "self" };
    let (rate, train) = (call.float("p", 0.5)?, call.flag(flag, true)?);
    if !train || rate == 0.0 {
        return call.view(name, Vec::new());
    }
    let x = call.tensor(name)?;
    let y = dropped(call, x, rate, train)?;
    Ok(vec![Out::Value(y), Out::Absent])
}

pub(super) fn dropped(call: &mut Call, x: ValueId, rate: f64, train: bool) -> Result<ValueId> {
    if !train || rate == 0.0 {
        return Ok(x);
    }
    call.note("dropout draws other random numbers than PyTorch: a function of seed, step and element");
    if rate == 1.0 {
        return call.b().scale(x, 0.0);
    }
    call.cx().dropout(x, rate)
}

fn feature_dropout(call: &mut Call) -> Outs {
    let x = call.tensor("input")?;
    if call.flag("train", true)? && call.float("p", 0.5)? != 0.0 {
        return Err(
            call.unsupported("dropout of single elements", "dropout of whole channels in training mode")
        );
    }
    let dtype: DType = call.ty(x).dtype;
    one(convert(call, x, dtype)?)
}
