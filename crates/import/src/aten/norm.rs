//! Normalisations. Layer and RMS norm become composites; batch, group and instance norm are written
//! out, and batch norm in training mode also replaces its running statistics.

use super::{Rows, convert, one, operand, wide};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::Result;
use partita_ir::composites::{LAYER_NORM, RMS_NORM};
use partita_ir::ops::UnaryKind;
use partita_ir::{Attribute, ValueId};

pub const ROWS: Rows = &[
    ("aten.layer_norm.default", |c| row_norm(c, true)),
    ("aten.native_layer_norm.default", |c| row_norm(c, true)),
    ("aten.rms_norm.default", |c| row_norm(c, false)),
    ("aten._fused_rms_norm.default", |c| row_norm(c, false)),
    ("aten.batch_norm.default", batch_norm_in_place),
    ("aten.native_batch_norm.default", batch_norm_in_place),
    ("aten._native_batch_norm_legit.default", batch_norm_in_place),
    ("aten._native_batch_norm_legit_functional.default", batch_norm_functional),
    ("aten._native_batch_norm_legit_no_training.default", batch_norm_fixed),
    ("aten._native_batch_norm_legit.no_stats", batch_norm_in_place),
    ("aten.group_norm.default", |c| {
        let groups = c.required_int("num_groups")?;
        group_norm(c, groups)
    }),
    ("aten.native_group_norm.default", |c| {
        let groups = c.required_int("group")?;
        group_norm(c, groups)
    }),
    ("aten.instance_norm.default", instance_norm),
    ("aten._weight_norm.default", weight_norm),
];

/// Layer norm (`centred`) or RMS norm over the trailing dimensions `normalized_shape`, as one row.
fn row_norm(call: &mut Call, centred: bool) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "input", dtype)?;
    let own = call.shape(x);
    let normalized = call.extents(&call.ints("normalized_shape")?)?;
    let Some(outer) = own.len().checked_sub(normalized.len()).filter(|&outer| own[outer..] == normalized[..])
    else {
        return Err(
            call.unsupported("the trailing extents of the input", format!("{normalized:?} of {own:?}"))
        );
    };
    let count: usize = normalized.iter().product();
    if normalized.is_empty() || count == 0 {
        return Err(call.unsupported("at least one element", format!("{normalized:?}")));
    }
    let flat = [&own[..outer], &[count]].concat();
    let mut operands = vec![call.b().reshape(x, &flat)?];
    let names: &[&str] = if centred { &["weight", "bias"] } else { &["weight"] };
    let given: Vec<&str> = names.iter().copied().filter(|name| call.has(name)).collect();
    if given == ["bias"] {
        return Err(call.unsupported("a weight, if there is a bias", "a bias alone"));
    }
    for name in given {
        let parameter = operand(call, name, dtype)?;
        operands.push(call.b().reshape(parameter, &[count])?);
    }
    // RMS norm without an epsilon takes the smallest step of the element type, as PyTorch does.
    let smallest = match dtype {
        partita_base::DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let epsilon = call.float("eps", if centred { 1e-5 } else { smallest })?;
    let template = if centred { &LAYER_NORM } else { &RMS_NORM };
    let y = call.b().composite(template, &[("epsilon", Attribute::Float(epsilon))], &operands)?;
    let y = call.b().reshape(y, &own)?;
    if call.result_count() < 2 || !centred {
        return Ok(vec![Out::Value(y), Out::Absent]);
    }
    let statistics = row_statistics(call, x, outer, epsilon)?;
    let mut outs = vec![Out::Value(y)];
    for (position, value) in (1..).zip(statistics) {
        // An autocast region states them in its narrow type; nothing is stated where nothing reads them.
        let stated = call.result_dtype(position).unwrap_or(call.ty(value).dtype);
        outs.push(Out::Value(convert(call, value, stated)?));
    }
    Ok(outs)
}

/// Mean and inverse standard deviation of each row, which the backward pass of a joint program reads.
fn row_statistics(call: &mut Call, x: ValueId, outer: usize, epsilon: f64) -> Result<[ValueId; 2]> {
    let own = call.shape(x);
    let sums = wide(call.ty(x).dtype);
    let x = convert(call, x, sums)?;
    let dims: Vec<usize> = (outer..own.len()).collect();
    let share = 1.0 / own[outer..].iter().product::<usize>() as f64;
    let sum = call.b().reduce_sum(x, &dims)?;
    let mean = call.b().scale(sum, share)?;
    let kept: Vec<usize> = (0..outer).collect();
    let spread = call.b().broadcast_in_dim(mean, &own, &kept)?;
    let centred = call.b().subtract(x, spread)?;
    let squares = call.b().multiply(centred, centred)?;
    let sum = call.b().reduce_sum(squares, &dims)?;
    let variance = call.b().scale(sum, share)?;
    let variance = call.b().offset(variance, epsilon)?;
    let inverse = call.b().unary(UnaryKind::Rsqrt, variance)?;
    let rows: Vec<usize> =
        own.iter().enumerate().map(|(dim, &extent)| if dim < outer { extent } else { 1 }).collect();
    Ok([call.b().reshape(mean, &rows)?, call.b().reshape(inverse, &rows)?])
}

/// A vector over the channels, dimension 1, spread over a shape.
fn over_channels(call: &mut Call, x: ValueId, shape: &[usize]) -> Result<ValueId> {
    if shape.len() < 2 || call.shape(x) != [shape[1]] {
        return Err(call.unsupported("one element for each channel", call.ty(x).to_string()));
    }
    call.b().broadcast_in_dim(x, shape, &[1])
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the channels.
fn normalised(call: &mut Call, x: ValueId, mean: ValueId, variance: ValueId) -> Result<ValueId> {
    let shape = call.shape(x);
    let dtype = call.ty(x).dtype;
    let epsilon = call.float("eps", 1e-5)?;
    let mean = over_channels(call, mean, &shape)?;
    let centred = call.b().subtract(x, mean)?;
    let variance = call.b().offset(variance, epsilon)?;
    let inverse = call.b().unary(UnaryKind::Rsqrt, variance)?;
    let inverse = over_channels(call, inverse, &shape)?;
    let y = call.b().multiply(centred, inverse)?;
    affine(call, y, dtype)
}

/// Times `weight` plus `bias` over the channels, where given.
fn affine(call: &mut Call, mut y: ValueId, dtype: partita_base::DType) -> Result<ValueId> {
    let shape = call.shape(y);
    if call.has("weight") {
        let weight = operand(call, "weight", dtype)?;
        let weight = over_channels(call, weight, &shape)?;
        y = call.b().multiply(y, weight)?;
    }
    if call.has("bias") {
        let bias = operand(call, "bias", dtype)?;
        let bias = over_channels(call, bias, &shape)?;
        y = call.b().add(y, bias)?;
    }
    Ok(y)
}

/// Mean and biased variance of each channel, and the count of elements of a channel.
fn statistics(call: &mut Call, x: ValueId) -> Result<(ValueId, ValueId, f64)> {
    let shape = call.shape(x);
    let dims: Vec<usize> = (0..shape.len()).filter(|&d| d != 1).collect();
    let count: usize = dims.iter().map(|&d| shape[d]).product();
    if count == 0 || shape.len() < 2 {
        return Err(call.unsupported("an input [n, c, ..] with elements", format!("{shape:?}")));
    }
    let sum = call.b().reduce_sum(x, &dims)?;
    let mean = call.b().scale(sum, 1.0 / count as f64)?;
    let spread = over_channels(call, mean, &shape)?;
    let centred = call.b().subtract(x, spread)?;
    let squares = call.b().multiply(centred, centred)?;
    let sum = call.b().reduce_sum(squares, &dims)?;
    Ok((mean, call.b().scale(sum, 1.0 / count as f64)?, count as f64))
}

/// A running statistic moved towards a new one.
fn moved(call: &mut Call, name: &str, new: ValueId, factor: f64) -> Result<ValueId> {
    let momentum = call.float("momentum", 0.1)?;
    let old = call.tensor(name)?;
    let dtype = call.ty(old).dtype;
    let new = call.b().stop_gradient(new)?;
    let new = convert(call, new, dtype)?;
    let (old, new) = (call.b().scale(old, 1.0 - momentum)?, call.b().scale(new, momentum * factor)?);
    call.b().add(old, new)
}

/// The result of batch norm over the batch, and the running statistics moved towards it.
fn over_batch(call: &mut Call) -> Result<(ValueId, Vec<(&'static str, ValueId)>)> {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "input", wide(dtype))?;
    let (mean, variance, count) = statistics(call, x)?;
    let y = normalised(call, x, mean, variance)?;
    let y = convert(call, y, dtype)?;
    let mut running = Vec::new();
    if call.has("running_mean") {
        running.push(("running_mean", moved(call, "running_mean", mean, 1.0)?));
    }
    if call.has("running_var") {
        // The running variance is the unbiased one.
        let unbiased = count / (count - 1.0).max(1.0);
        running.push(("running_var", moved(call, "running_var", variance, unbiased)?));
    }
    Ok((y, running))
}

fn with_running(call: &mut Call) -> Result<ValueId> {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "input", wide(dtype))?;
    let mean = operand(call, "running_mean", wide(dtype))?;
    let variance = operand(call, "running_var", wide(dtype))?;
    let y = normalised(call, x, mean, variance)?;
    convert(call, y, dtype)
}

fn batch_norm_fixed(call: &mut Call) -> Outs {
    let y = with_running(call)?;
    Ok(vec![Out::Value(y), Out::Absent, Out::Absent])
}

/// Batch norm that replaces its running statistics in place.
fn batch_norm_in_place(call: &mut Call) -> Outs {
    if !call.flag("training", false)? && call.has("running_mean") {
        return batch_norm_fixed(call);
    }
    let (y, running) = over_batch(call)?;
    for (name, new) in running {
        call.update(name, new)?;
    }
    Ok(vec![Out::Value(y), Out::Absent, Out::Absent])
}

/// Batch norm that returns its new running statistics.
fn batch_norm_functional(call: &mut Call) -> Outs {
    if !call.flag("training", false)? {
        let y = with_running(call)?;
        let (mean, variance) = (call.tensor("running_mean")?, call.tensor("running_var")?);
        return Ok(vec![Out::Value(y), Out::Absent, Out::Absent, Out::Value(mean), Out::Value(variance)]);
    }
    let (y, running) = over_batch(call)?;
    let mut outs = vec![Out::Value(y), Out::Absent, Out::Absent];
    outs.extend(running.into_iter().map(|(_, new)| Out::Value(new)));
    Ok(outs)
}

/// Normalises each group of channels of each row.
fn group_norm(call: &mut Call, groups: i64) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "input", wide(dtype))?;
    let own = call.shape(x);
    let groups =
        usize::try_from(groups).ok().filter(|&g| g > 0 && own.len() >= 2 && own[1].is_multiple_of(g));
    let groups =
        groups.ok_or_else(|| call.unsupported("groups that divide the channels", format!("{own:?}")))?;
    let y = grouped(call, x, groups)?;
    let y = affine(call, y, wide(dtype))?;
    let y = convert(call, y, dtype)?;
    Ok(vec![Out::Value(y), Out::Absent, Out::Absent])
}

/// Each group of channels of each row with mean 0 and variance 1.
fn grouped(call: &mut Call, x: ValueId, groups: usize) -> Result<ValueId> {
    let own = call.shape(x);
    let count: usize = own[1..].iter().product::<usize>() / groups;
    if count == 0 {
        return Err(call.unsupported("at least one element", format!("{own:?}")));
    }
    let rows = call.b().reshape(x, &[own[0], groups, count])?;
    let epsilon = call.float("eps", 1e-5)?;
    let y = call.b().composite(&LAYER_NORM, &[("epsilon", Attribute::Float(epsilon))], &[rows])?;
    call.b().reshape(y, &own)
}

fn instance_norm(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "input", wide(dtype))?;
    let own = call.shape(x);
    if !call.flag("use_input_stats", true)? || call.has("running_mean") || own.len() < 3 {
        return Err(call.unsupported("statistics of the input, [n, c, ..]", "running statistics"));
    }
    let y = grouped(call, x, own[1].max(1))?;
    let y = affine(call, y, wide(dtype))?;
    one(convert(call, y, dtype)?)
}

/// `g v / |v|`, the norm over all dimensions but one.
fn weight_norm(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (v, g) = (operand(call, "v", dtype)?, operand(call, "g", dtype)?);
    let own = call.shape(v);
    let dim = call.wrap(call.int("dim", 0)?, own.len())?;
    let dims: Vec<usize> = (0..own.len()).filter(|&d| d != dim).collect();
    if own.is_empty() {
        return Err(call.unsupported("a weight with dimensions", "a scalar"));
    }
    let squares = call.b().multiply(v, v)?;
    let sum = if dims.is_empty() { squares } else { call.b().reduce_sum(squares, &dims)? };
    let inverse = call.b().unary(UnaryKind::Rsqrt, sum)?;
    let inverse = call.b().broadcast_in_dim(inverse, &own, &[dim])?;
    let g = call.spread(g, &own)?;
    let direction = call.b().multiply(v, inverse)?;
    one(call.b().multiply(direction, g)?)
}
