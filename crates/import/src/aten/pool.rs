//! Pooling as reductions of windows, and resizing over spatial dimensions.

use super::convolution::{Windows, per_dim};
use super::index::picked;
use super::{Rows, convert, one, operand, wide};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::{DType, Result};
use partita_ir::builder::identity;
use partita_ir::ops::{Direction, Pad, ReduceWindow, Reducer, Slice};
use partita_ir::{Literal, TensorType, ValueId};
use partita_mesh::Combiner;

pub const ROWS: Rows = &[
    ("aten.max_pool1d.default", |c| max_pool(c, 1)),
    ("aten.max_pool2d.default", |c| max_pool(c, 2)),
    ("aten.max_pool2d_with_indices.default", |c| max_pool(c, 2)),
    ("aten.avg_pool1d.default", |c| avg_pool(c, 1)),
    ("aten.avg_pool2d.default", |c| avg_pool(c, 2)),
    ("aten.adaptive_avg_pool1d.default", |c| adaptive(c, 1)),
    ("aten.adaptive_avg_pool2d.default", |c| adaptive(c, 2)),
    ("aten._adaptive_avg_pool2d.default", |c| adaptive(c, 2)),
    ("aten.upsample_nearest1d.vec", |c| upsample_nearest(c, 1)),
    ("aten.upsample_nearest1d.default", |c| upsample_nearest(c, 1)),
    ("aten.upsample_nearest2d.vec", |c| upsample_nearest(c, 2)),
    ("aten.upsample_nearest2d.default", |c| upsample_nearest(c, 2)),
];

/// The input as `[n, c, spatial..]`, and whether a batch dimension was added.
fn batched(call: &mut Call, x: ValueId, spatial: usize) -> Result<(ValueId, bool)> {
    let shape = call.shape(x);
    match shape.len().checked_sub(spatial) {
        Some(2) => Ok((x, false)),
        Some(1) => {
            let shape = [&[1], &shape[..]].concat();
            Ok((call.b().reshape(x, &shape)?, true))
        }
        _ => {
            Err(call
                .unsupported(&format!("[n, c, ..] with {spatial} spatial dimensions"), format!("{shape:?}")))
        }
    }
}

fn unbatched(call: &mut Call, y: ValueId, was_added: bool) -> Result<ValueId> {
    let shape = call.shape(y);
    if was_added { call.b().reshape(y, &shape[1..]) } else { Ok(y) }
}

/// The windows of a pooling op, and the spatial extents of its result.
fn windows(call: &Call, spatial: &[usize]) -> Result<(Windows, Vec<usize>)> {
    let count = spatial.len();
    let kernel = per_dim(call, "kernel_size", count, 1)?;
    let stride = match call.maybe_ints("stride")?.is_none_or(|stride| stride.is_empty()) {
        true => kernel.clone(),
        false => per_dim(call, "stride", count, 1)?,
    };
    let padding = per_dim(call, "padding", count, 0)?.into_iter().map(|edge| (edge, edge)).collect();
    let dilation = per_dim(call, "dilation", count, 1)?;
    let windows = Windows { kernel, stride, dilation, padding };
    let mut result = windows.result(call, spatial)?;
    if call.flag("ceil_mode", false)? {
        for dim in 0..count {
            let reach = windows.dilation[dim] * (windows.kernel[dim] - 1) + 1;
            let padded = spatial[dim] + 2 * windows.padding[dim].0;
            let more = (padded - reach).div_ceil(windows.stride[dim]) + 1;
            // The last window must begin inside the input or its left edge.
            let begins_inside = (more - 1) * windows.stride[dim] < spatial[dim] + windows.padding[dim].0;
            result[dim] = if begins_inside { more } else { result[dim] };
        }
    }
    Ok((windows, result))
}

/// Combines the elements of each window of `[n, c, spatial..]`.
fn reduced(
    call: &mut Call,
    x: ValueId,
    windows: &Windows,
    result: &[usize],
    combiner: Combiner,
) -> Result<ValueId> {
    let ty = call.ty(x);
    call.check_size(&[&ty.shape[..2], result].concat())?;
    let plain = |sizes: &[usize]| [&[1, 1], sizes].concat();
    let mut padding = vec![(0, 0); 2];
    for (dim, &(low, high)) in windows.padding.iter().enumerate() {
        // With `ceil_mode` the last window may reach further.
        let reach = windows.reach(dim, result[dim]) as i64;
        padding.push((low as i64, (high as i64).max(reach - (ty.shape[dim + 2] + low) as i64)));
    }
    let op = ReduceWindow {
        window: plain(&windows.kernel),
        strides: plain(&windows.stride),
        base_dilation: vec![1; ty.rank()],
        window_dilation: plain(&windows.dilation),
        padding,
        reducer: Reducer::Combiner(combiner),
    };
    let start = call.b().constant(identity(combiner, ty.dtype));
    call.b().push1(op, &[x, start])
}

/// The largest element of each window; the gradient goes to the first one.
fn max_pool(call: &mut Call, spatial: usize) -> Outs {
    let x = call.tensor("self")?;
    let (x, was_added) = batched(call, x, spatial)?;
    let (windows, result) = windows(call, &call.shape(x)[2..])?;
    let most = match windows.dilation.iter().all(|&dilation| dilation == 1) {
        true => reduced(call, x, &windows, &result, Combiner::Max)?,
        false => largest_of_slices(call, x, &windows, &result)?,
    };
    let y = unbatched(call, most, was_added)?;
    Ok(vec![Out::Value(y), Out::Absent])
}

/// Maxima of windows with gaps, whose reduction has no gradient: a slice of the padded input for each entry.
fn largest_of_slices(call: &mut Call, x: ValueId, windows: &Windows, result: &[usize]) -> Result<ValueId> {
    let ty = call.ty(x);
    let spatial = windows.kernel.len();
    let positions = windows.kernel.iter().try_fold(1usize, |n, &k| n.checked_mul(k)).unwrap_or(usize::MAX);
    call.check_nodes(positions)?;
    let (mut low, mut high, mut padded) = (vec![0; 2], vec![0; 2], ty.shape.clone());
    for (dim, &(before, after)) in windows.padding.iter().enumerate() {
        let after = after.max(windows.reach(dim, result[dim]).saturating_sub(padded[dim + 2] + before));
        low.push(before as i64);
        high.push(after as i64);
        padded[dim + 2] += before + after;
    }
    call.check_size(&padded)?;
    let lowest = call.b().constant(identity(Combiner::Max, ty.dtype));
    let x = call.b().push1(Pad { low, high, interior: vec![0; 2 + spatial] }, &[x, lowest])?;
    let mut most: Option<ValueId> = None;
    for position in 0..positions {
        let mut rest = position;
        let (mut start, mut limit, mut stride) = (vec![0; 2 + spatial], padded.clone(), vec![1; 2 + spatial]);
        for dim in (0..spatial).rev() {
            let at = rest % windows.kernel[dim] * windows.dilation[dim];
            rest /= windows.kernel[dim];
            start[dim + 2] = at;
            limit[dim + 2] = at + (result[dim].max(1) - 1) * windows.stride[dim] + 1;
            stride[dim + 2] = windows.stride[dim];
        }
        let slice = call.b().push1(Slice { start, limit, stride }, &[x])?;
        most = Some(match most {
            None => slice,
            Some(most) => {
                let stays = call.b().compare(Direction::Ge, most, slice)?;
                call.b().select(stays, most, slice)?
            }
        });
    }
    most.ok_or_else(|| call.unsupported("a window with elements", "none"))
}

fn avg_pool(call: &mut Call, spatial: usize) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", wide(dtype))?;
    let (x, was_added) = batched(call, x, spatial)?;
    let (windows, result) = windows(call, &call.shape(x)[2..])?;
    let edges = windows.padding.iter().any(|&(low, _)| low > 0);
    let is_even = !call.flag("ceil_mode", false)? && (!edges || call.flag("count_include_pad", true)?);
    if !is_even {
        return Err(call.unsupported(
            "windows that all count as many elements",
            "`ceil_mode`, or edges that do not count",
        ));
    }
    let count = match call.maybe_int("divisor_override")? {
        Some(divisor) if divisor > 0 => divisor as f64,
        _ => windows.kernel.iter().map(|&size| size as f64).product(),
    };
    let sum = reduced(call, x, &windows, &result, Combiner::Sum)?;
    let y = call.b().scale(sum, 1.0 / count)?;
    let y = unbatched(call, y, was_added)?;
    one(convert(call, y, dtype)?)
}

/// Means over windows from `floor(i n / m)` to `ceil((i + 1) n / m)`, one dimension at a time.
fn adaptive(call: &mut Call, spatial: usize) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", wide(dtype))?;
    let (mut x, was_added) = batched(call, x, spatial)?;
    let sizes = per_dim(call, "output_size", spatial, 1)?;
    for (dim, &size) in sizes.iter().enumerate() {
        x = adaptive_along(call, x, dim + 2, size)?;
    }
    let y = unbatched(call, x, was_added)?;
    one(convert(call, y, dtype)?)
}

fn adaptive_along(call: &mut Call, x: ValueId, dim: usize, size: usize) -> Result<ValueId> {
    let own = call.shape(x);
    let extent = own[dim];
    if size == 0 || extent == 0 || size > extent {
        return Err(call.unsupported("at least one element for each window", format!("{extent} to {size}")));
    }
    let mean = |call: &mut Call, x: ValueId, dim: usize, count: usize| {
        let sum = call.b().reduce_sum(x, &[dim])?;
        call.b().scale(sum, 1.0 / count as f64)
    };
    if extent.is_multiple_of(size) {
        let mut apart = own.clone();
        apart.splice(dim..=dim, [size, extent / size]);
        let x = call.b().reshape(x, &apart)?;
        return mean(call, x, dim + 1, extent / size);
    }
    call.check_nodes(size)?;
    let mut row = own.clone();
    row[dim] = 1;
    let mut rows = Vec::with_capacity(size);
    for at in 0..size {
        let (start, limit) = (at * extent / size, ((at + 1) * extent).div_ceil(size));
        let part = call.b().slice_dim(x, dim, start, limit)?;
        let y = mean(call, part, dim, limit - start)?;
        rows.push(call.b().reshape(y, &row)?);
    }
    call.b().concatenate(&rows, dim)
}

/// The nearest element of the input for each of the result, along the spatial dimensions. A whole factor repeats
/// elements; other sizes pick them by index.
fn upsample_nearest(call: &mut Call, spatial: usize) -> Outs {
    let mut x = if call.has("self") { call.tensor("self")? } else { call.tensor("input")? };
    let own = call.shape(x);
    if own.len() != spatial + 2 || own.contains(&0) {
        return Err(
            call.unsupported(&format!("[n, c, ..] with {spatial} spatial dimensions"), format!("{own:?}"))
        );
    }
    let mut factors: Vec<Option<f64>> = match call.maybe_floats("scale_factors")? {
        Some(factors) => factors.into_iter().map(Some).collect(),
        None => Vec::new(),
    };
    for name in if spatial == 1 { &["scales"][..] } else { &["scales_h", "scales_w"] } {
        if call.has(name) {
            factors.push(Some(call.float(name, 1.0)?));
        }
    }
    factors.resize(spatial, None);
    let mut result = own.clone();
    if call.has("output_size") {
        result[2..].copy_from_slice(&per_dim(call, "output_size", spatial, 1)?);
    } else {
        for (extent, factor) in result[2..].iter_mut().zip(&factors) {
            let factor = factor.filter(|factor| (0.0..1e6).contains(factor));
            let factor = factor.ok_or_else(|| call.unsupported("a size or a factor", "neither"))?;
            *extent = (*extent as f64 * factor) as usize;
        }
    }
    call.check_size(&result)?;
    for (dim, factor) in (2..).zip(factors) {
        x = nearest_along(call, x, dim, result[dim], factor)?;
    }
    one(x)
}

fn nearest_along(
    call: &mut Call,
    x: ValueId,
    dim: usize,
    size: usize,
    factor: Option<f64>,
) -> Result<ValueId> {
    let own = call.shape(x);
    let extent = own[dim];
    if size == extent {
        return Ok(x);
    }
    let mut result = own.clone();
    result[dim] = size;
    if size.is_multiple_of(extent) && factor.is_none_or(|factor| factor == (size / extent) as f64) {
        let mut apart = own.clone();
        apart.insert(dim + 1, size / extent);
        let dims: Vec<usize> = (0..apart.len()).filter(|&d| d != dim + 1).collect();
        let x = call.b().broadcast_in_dim(x, &apart, &dims)?;
        return call.b().reshape(x, &result);
    }
    // As ATen: in f32, by the factor if it is given.
    let step = factor.map_or(extent as f32 / size as f32, |factor| (1.0 / factor) as f32);
    let at = |i: usize| ((i as f32 * step) as usize).min(extent - 1) as f64;
    let index = Literal::from_f64(&TensorType::new(DType::I64, [size]), (0..size).map(at));
    let index = call.b().constant(index);
    picked(call, x, index, dim)
}
