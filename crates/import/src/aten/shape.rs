//! Views and rearrangements: other shapes, orders, parts and repetitions of the same elements.

use super::{Rows, convert, one, operand};
use crate::pt2::call::{Call, Out, Outs, View, put_back};
use partita_base::Result;
use partita_ir::ValueId;
use partita_ir::ops::{Pad, Reverse};

pub const ROWS: Rows = &[
    ("aten.view.default", |c| reshaped(c, "size")),
    ("aten._unsafe_view.default", |c| reshaped(c, "size")),
    ("aten.reshape.default", |c| reshaped(c, "shape")),
    ("aten.view_as.default", |c| reshaped_like(c)),
    ("aten.reshape_as.default", |c| reshaped_like(c)),
    ("aten.flatten.using_ints", flatten),
    ("aten.unflatten.int", unflatten),
    ("aten.squeeze.default", squeeze),
    ("aten.squeeze.dim", squeeze),
    ("aten.squeeze.dims", squeeze),
    ("aten.unsqueeze.default", unsqueeze),
    ("aten.transpose.int", transpose),
    ("aten.swapaxes.default", |c| {
        let rank = rank_of(c, "self")?;
        let (a, b) = (c.wrap(c.required_int("axis0")?, rank)?, c.wrap(c.required_int("axis1")?, rank)?);
        swapped(c, a, b)
    }),
    ("aten.t.default", t),
    ("aten.numpy_T.default", reversed_dims),
    ("aten.mT.default", |c| {
        let rank = rank_of(c, "self")?;
        swapped(c, rank.wrapping_sub(2), rank.wrapping_sub(1))
    }),
    ("aten.permute.default", permute),
    ("aten.movedim.int", movedim),
    ("aten.expand.default", expand),
    ("aten.expand_as.default", expand_as),
    ("aten.broadcast_to.default", expand),
    ("aten.broadcast_tensors.default", broadcast_tensors),
    ("aten.slice.Tensor", slice),
    ("aten.select.int", select),
    ("aten.narrow.default", narrow),
    ("aten.split.Tensor", split),
    ("aten.split_with_sizes.default", |c| split_with_sizes(c, "split_sizes")),
    ("aten.split.sizes", |c| split_with_sizes(c, "split_size")),
    ("aten.unsafe_split.Tensor", split),
    ("aten.unsafe_split_with_sizes.default", |c| split_with_sizes(c, "split_sizes")),
    ("aten.chunk.default", chunk),
    ("aten.unbind.int", unbind),
    ("aten.cat.default", cat),
    ("aten.stack.default", stack),
    ("aten.repeat.default", repeat),
    ("aten.tile.default", repeat),
    ("aten.repeat_interleave.self_int", repeat_interleave),
    ("aten.flip.default", flip),
    ("aten.roll.default", roll),
    ("aten.pad.default", pad),
    ("aten.constant_pad_nd.default", pad),
    ("aten.pixel_shuffle.default", pixel_shuffle),
    ("aten.slice_scatter.default", |c| scattered(c, false)),
    ("aten.select_scatter.default", |c| scattered(c, true)),
];

pub(super) fn shape_of(call: &Call, name: &str) -> Result<Vec<usize>> {
    Ok(call.type_of(call.reference(name)?).shape)
}

pub(super) fn rank_of(call: &Call, name: &str) -> Result<usize> {
    Ok(shape_of(call, name)?.len())
}

fn reshaped(call: &mut Call, name: &str) -> Outs {
    let count = shape_of(call, "self")?.iter().product();
    let shape = call.inferred(&call.ints(name)?, count)?;
    call.reshaped("self", shape)
}

fn reshaped_like(call: &mut Call) -> Outs {
    let shape = shape_of(call, "other")?;
    if shape.iter().product::<usize>() != shape_of(call, "self")?.iter().product::<usize>() {
        return Err(call.unsupported("as many elements", format!("{shape:?}")));
    }
    call.reshaped("self", shape)
}

fn flatten(call: &mut Call) -> Outs {
    let shape = shape_of(call, "self")?;
    let first = call.wrap(call.int("start_dim", 0)?, shape.len())?;
    let last = call.wrap(call.int("end_dim", -1)?, shape.len())?;
    if first > last {
        return Err(call.unsupported("a first dimension before the last", format!("{first} to {last}")));
    }
    if shape.is_empty() {
        return call.view("self", vec![View::Reshape(vec![1])]);
    }
    let mut flat = shape[..first].to_vec();
    flat.push(shape[first..=last].iter().product());
    flat.extend_from_slice(&shape[last + 1..]);
    call.reshaped("self", flat)
}

fn unflatten(call: &mut Call) -> Outs {
    let shape = shape_of(call, "self")?;
    let dim = call.wrap(call.required_int("dim")?, shape.len())?;
    let Some(&extent) = shape.get(dim) else { return Err(call.unsupported("a dimension", "a scalar")) };
    let sizes = call.inferred(&call.ints("sizes")?, extent)?;
    let new = [&shape[..dim], &sizes, &shape[dim + 1..]].concat();
    call.view("self", vec![View::Reshape(new)])
}

fn squeeze(call: &mut Call) -> Outs {
    let shape = shape_of(call, "self")?;
    let dims: Vec<usize> = match call.maybe_ints("dim")? {
        Some(dims) => call.wrap_all(&dims, shape.len())?,
        None => (0..shape.len()).collect(),
    };
    let kept = |(dim, extent): (usize, &usize)| (*extent != 1 || !dims.contains(&dim)).then_some(*extent);
    let new = shape.iter().enumerate().filter_map(kept).collect();
    call.view("self", vec![View::Reshape(new)])
}

fn unsqueeze(call: &mut Call) -> Outs {
    let mut shape = shape_of(call, "self")?;
    let dim = call.wrap(call.required_int("dim")?, shape.len() + 1)?;
    shape.insert(dim, 1);
    call.view("self", vec![View::Reshape(shape)])
}

fn swapped(call: &mut Call, a: usize, b: usize) -> Outs {
    let rank = rank_of(call, "self")?;
    if rank == 0 {
        return call.view("self", Vec::new());
    }
    if a >= rank || b >= rank {
        return Err(call.unsupported("a tensor of at least 2 dimensions", format!("{rank} dimensions")));
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(a, b);
    call.view("self", vec![View::Permute(order)])
}

fn transpose(call: &mut Call) -> Outs {
    let rank = rank_of(call, "self")?;
    let a = call.wrap(call.required_int("dim0")?, rank)?;
    let b = call.wrap(call.required_int("dim1")?, rank)?;
    swapped(call, a, b)
}

fn t(call: &mut Call) -> Outs {
    match rank_of(call, "self")? {
        0 | 1 => call.view("self", Vec::new()),
        2 => swapped(call, 0, 1),
        rank => Err(call.unsupported("a matrix", format!("{rank} dimensions"))),
    }
}

fn reversed_dims(call: &mut Call) -> Outs {
    let order = (0..rank_of(call, "self")?).rev().collect();
    call.view("self", vec![View::Permute(order)])
}

fn permute(call: &mut Call) -> Outs {
    let rank = rank_of(call, "self")?;
    let order = call.wrap_all(&call.ints("dims")?, rank)?;
    if order.len() != rank {
        return Err(call.unsupported(&format!("{rank} dimensions"), format!("{order:?}")));
    }
    call.view("self", vec![View::Permute(order)])
}

fn movedim(call: &mut Call) -> Outs {
    let rank = rank_of(call, "self")?;
    let from = call.wrap(call.required_int("source")?, rank)?;
    let to = call.wrap(call.required_int("destination")?, rank)?;
    let mut order: Vec<usize> = (0..rank).filter(|&dim| dim != from).collect();
    order.insert(to.min(order.len()), from);
    order.truncate(rank);
    call.view("self", vec![View::Permute(order)])
}

fn expanded(call: &mut Call, shape: Vec<usize>) -> Outs {
    let own = shape_of(call, "self")?;
    let Some(new) = shape.len().checked_sub(own.len()) else {
        return Err(call.unsupported(&format!("at least {} dimensions", own.len()), format!("{shape:?}")));
    };
    let fits = own.iter().zip(&shape[new..]).all(|(&own, &to)| own == to || own == 1);
    if !fits {
        return Err(call.unsupported(&format!("a shape that {own:?} broadcasts to"), format!("{shape:?}")));
    }
    let dims = (new..shape.len()).collect();
    call.view("self", vec![View::Broadcast { shape, dims }])
}

fn expand(call: &mut Call) -> Outs {
    let own = shape_of(call, "self")?;
    let mut sizes = call.ints("size")?;
    let new = sizes.len().saturating_sub(own.len());
    // -1 keeps the extent.
    for (size, &own) in sizes.iter_mut().skip(new).zip(&own) {
        if *size == -1 {
            *size = own as i64;
        }
    }
    let shape = call.extents(&sizes)?;
    expanded(call, shape)
}

fn expand_as(call: &mut Call) -> Outs {
    let shape = shape_of(call, "other")?;
    expanded(call, shape)
}

fn broadcast_tensors(call: &mut Call) -> Outs {
    let tensors: Vec<_> = call.references("tensors")?.into_iter().flatten().collect();
    let mut shape = Vec::new();
    for &tensor in &tensors {
        shape = call.joint_shape(&shape, &call.type_of(tensor).shape)?;
    }
    let view = |tensor| {
        let rank = call.type_of(tensor).rank();
        let dims = (shape.len() - rank..shape.len()).collect();
        Out::View { of: tensor, views: vec![View::Broadcast { shape: shape.clone(), dims }], detach: false }
    };
    Ok(tensors.into_iter().map(view).collect())
}

/// A Python slice: bounds count from the end if negative, and are limited to the extent.
fn bounds(call: &Call, extent: usize) -> Result<(usize, usize, usize)> {
    let step = usize::try_from(call.int("step", 1)?).ok().filter(|&step| step > 0);
    let step = step.ok_or_else(|| call.unsupported("a step of at least 1", "another"))?;
    let within = |at: i64| {
        let at = if at < 0 { at.saturating_add(extent as i64) } else { at };
        at.clamp(0, extent as i64) as usize
    };
    let start = within(call.int("start", 0)?);
    let limit = within(call.int("end", i64::MAX)?).max(start);
    Ok((start, limit, step))
}

fn slice(call: &mut Call) -> Outs {
    let shape = shape_of(call, "self")?;
    let dim = call.wrap(call.int("dim", 0)?, shape.len())?;
    let Some(&extent) = shape.get(dim) else { return Err(call.unsupported("a dimension", "a scalar")) };
    let (start, limit, step) = bounds(call, extent)?;
    call.view("self", vec![View::Slice { dim, start, limit, step }])
}

/// One index of a dimension, which the result lacks.
fn index_views(shape: &[usize], dim: usize, at: usize) -> Vec<View> {
    let mut rest = shape.to_vec();
    rest.remove(dim);
    vec![View::Slice { dim, start: at, limit: at + 1, step: 1 }, View::Reshape(rest)]
}

fn index_within(call: &Call, name: &str, extent: usize) -> Result<usize> {
    let index = call.required_int(name)?;
    let from_first = if index < 0 { index.saturating_add(extent as i64) } else { index };
    match usize::try_from(from_first).ok().filter(|&at| at < extent) {
        Some(at) => Ok(at),
        None => Err(call.unsupported(&format!("an index of a dimension of {extent}"), index.to_string())),
    }
}

fn select(call: &mut Call) -> Outs {
    let shape = shape_of(call, "self")?;
    let dim = call.wrap(call.required_int("dim")?, shape.len())?;
    let Some(&extent) = shape.get(dim) else { return Err(call.unsupported("a dimension", "a scalar")) };
    let at = index_within(call, "index", extent)?;
    call.view("self", index_views(&shape, dim, at))
}

fn narrow(call: &mut Call) -> Outs {
    let shape = shape_of(call, "self")?;
    let dim = call.wrap(call.required_int("dim")?, shape.len())?;
    let extent = shape.get(dim).copied().unwrap_or(0);
    let (start, length) = (call.required_int("start")?, call.required_int("length")?);
    let start = if start < 0 { start.saturating_add(extent as i64) } else { start };
    let part = usize::try_from(start).ok().zip(usize::try_from(length).ok());
    match part.filter(|(start, length)| start.checked_add(*length).is_some_and(|end| end <= extent)) {
        Some((start, length)) => {
            call.view("self", vec![View::Slice { dim, start, limit: start + length, step: 1 }])
        }
        None => {
            Err(call
                .unsupported(&format!("a part of a dimension of {extent}"), format!("{length} from {start}")))
        }
    }
}

/// Consecutive parts of a dimension. There must be one for each result.
fn parts(call: &mut Call, dim: usize, sizes: impl Iterator<Item = usize>) -> Outs {
    let of = call.reference("self")?;
    let extent = call.type_of(of).shape.get(dim).copied().unwrap_or(0);
    let count = call.result_count();
    let mut outs = Vec::new();
    let mut start = 0usize;
    for size in sizes.take(count.saturating_add(1)) {
        let limit = start.saturating_add(size);
        if limit > extent || outs.len() == count {
            break;
        }
        outs.push(Out::View { of, views: vec![View::Slice { dim, start, limit, step: 1 }], detach: false });
        start = limit;
    }
    if outs.len() != count || start != extent {
        return Err(
            call.unsupported(&format!("{count} parts of a dimension of {extent}"), "another number of parts")
        );
    }
    Ok(outs)
}

fn dim_and_extent(call: &Call) -> Result<(usize, usize)> {
    let shape = shape_of(call, "self")?;
    let dim = call.wrap(call.int("dim", 0)?, shape.len())?;
    match shape.get(dim) {
        Some(&extent) => Ok((dim, extent)),
        None => Err(call.unsupported("a dimension", "a scalar")),
    }
}

/// Parts of `size`, the last one smaller.
fn even(extent: usize, size: usize) -> impl Iterator<Item = usize> {
    let count = if extent == 0 { 1 } else { extent.div_ceil(size.max(1)) };
    (0..count).map(move |part| size.min(extent - (part * size).min(extent)))
}

fn split(call: &mut Call) -> Outs {
    let (dim, extent) = dim_and_extent(call)?;
    let size = usize::try_from(call.required_int("split_size")?).ok().filter(|&size| size > 0 || extent == 0);
    let size = size.ok_or_else(|| call.unsupported("parts of at least 1", "another size"))?;
    parts(call, dim, even(extent, size.min(extent.max(1))))
}

fn split_with_sizes(call: &mut Call, name: &str) -> Outs {
    let (dim, _) = dim_and_extent(call)?;
    let sizes: Option<Vec<usize>> =
        call.ints(name)?.into_iter().map(|size| usize::try_from(size).ok()).collect();
    let sizes = sizes.ok_or_else(|| call.unsupported("sizes of at least 0", "a negative size"))?;
    parts(call, dim, sizes.into_iter())
}

fn chunk(call: &mut Call) -> Outs {
    let (dim, extent) = dim_and_extent(call)?;
    let count = usize::try_from(call.required_int("chunks")?).ok().filter(|&count| count > 0);
    let count = count.ok_or_else(|| call.unsupported("at least one part", "another number"))?;
    parts(call, dim, even(extent, extent.div_ceil(count).max(1)))
}

fn unbind(call: &mut Call) -> Outs {
    let (dim, extent) = dim_and_extent(call)?;
    if extent != call.result_count() {
        return Err(call.unsupported(&format!("{} parts", call.result_count()), extent.to_string()));
    }
    let of = call.reference("self")?;
    let shape = call.type_of(of).shape;
    let view = |at| Out::View { of, views: index_views(&shape, dim, at), detach: false };
    Ok((0..extent).map(view).collect())
}

fn cat(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let mut pieces = Vec::new();
    for x in call.tensors("tensors")? {
        // ATen skips empty lines whatever the other shapes are.
        if call.shape(x) != [0] {
            pieces.push(convert(call, x, dtype)?);
        }
    }
    let Some(&first) = pieces.first() else { return Err(call.unsupported("at least one tensor", "none")) };
    let dim = call.wrap(call.int("dim", 0)?, call.shape(first).len())?;
    one(if pieces.len() == 1 { first } else { call.b().concatenate(&pieces, dim)? })
}

fn stack(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let pieces = call.tensors("tensors")?;
    let Some(&first) = pieces.first() else { return Err(call.unsupported("at least one tensor", "none")) };
    let mut shape = call.shape(first);
    let dim = call.wrap(call.int("dim", 0)?, shape.len() + 1)?;
    shape.insert(dim, 1);
    let mut rows = Vec::with_capacity(pieces.len());
    for x in pieces {
        let x = convert(call, x, dtype)?;
        rows.push(call.b().reshape(x, &shape)?);
    }
    one(call.b().concatenate(&rows, dim)?)
}

/// The whole tensor several times along each dimension.
fn repeat(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let mut own = call.shape(x);
    let name = if call.has("repeats") { "repeats" } else { "dims" };
    let mut counts = call.extents(&call.ints(name)?)?;
    while counts.len() < own.len() {
        counts.insert(0, 1);
    }
    while own.len() < counts.len() {
        own.insert(0, 1);
    }
    // Each dimension becomes (count, extent), then both are joined.
    let mut apart = Vec::new();
    let mut joined = Vec::new();
    for (&count, &extent) in counts.iter().zip(&own) {
        apart.extend([count, extent]);
        joined.push(count.saturating_mul(extent));
    }
    call.check_size(&joined)?;
    let dims: Vec<usize> = (0..own.len()).map(|dim| 2 * dim + 1).collect();
    let x = call.b().reshape(x, &own)?;
    let x = call.b().broadcast_in_dim(x, &apart, &dims)?;
    one(call.b().reshape(x, &joined)?)
}

/// Each element several times in a row along a dimension.
fn repeat_interleave(call: &mut Call) -> Outs {
    let mut x = call.tensor("self")?;
    let count = call.extents(&[call.required_int("repeats")?])?[0];
    let dim = match call.maybe_int("dim")? {
        Some(dim) => call.wrap(dim, call.shape(x).len())?,
        None => {
            let flat = call.shape(x).iter().product();
            x = call.b().reshape(x, &[flat])?;
            0
        }
    };
    let shape = call.shape(x);
    if dim >= shape.len() {
        return Err(call.unsupported("a dimension", "a scalar"));
    }
    let mut joined = shape.clone();
    joined[dim] = joined[dim].saturating_mul(count);
    call.check_size(&joined)?;
    let mut apart = shape.clone();
    apart.insert(dim + 1, count);
    let dims: Vec<usize> = (0..apart.len()).filter(|&d| d != dim + 1).collect();
    let x = call.b().broadcast_in_dim(x, &apart, &dims)?;
    one(call.b().reshape(x, &joined)?)
}

fn flip(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let dims = call.wrap_all(&call.ints("dims")?, call.shape(x).len())?;
    one(call.b().push1(Reverse { dims }, &[x])?)
}

fn roll(call: &mut Call) -> Outs {
    let mut x = call.tensor("self")?;
    let shape = call.shape(x);
    let (shifts, dims) = (call.ints("shifts")?, call.maybe_ints("dims")?.unwrap_or_default());
    if dims.is_empty() {
        let flat: usize = shape.iter().product();
        x = call.b().reshape(x, &[flat])?;
        x = rolled(call, x, 0, shifts.first().copied().unwrap_or(0))?;
        return one(call.b().reshape(x, &shape)?);
    }
    let dims = call.wrap_all(&dims, shape.len())?;
    for (dim, shift) in dims.into_iter().zip(shifts) {
        x = rolled(call, x, dim, shift)?;
    }
    one(x)
}

fn rolled(call: &mut Call, x: ValueId, dim: usize, shift: i64) -> Result<ValueId> {
    let extent = call.shape(x).get(dim).copied().unwrap_or(0);
    if extent == 0 {
        return Ok(x);
    }
    let cut = (-shift.rem_euclid(extent as i64)).rem_euclid(extent as i64) as usize;
    if cut == 0 {
        return Ok(x);
    }
    let head = call.b().slice_dim(x, dim, 0, cut)?;
    let tail = call.b().slice_dim(x, dim, cut, extent)?;
    call.b().concatenate(&[tail, head], dim)
}

/// Padding with a number: pairs of (low, high), the last dimension first; negative edges cut.
fn pad(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let mode = call.text("mode", "constant")?;
    if mode != "constant" {
        return Err(call.unsupported("padding with a number", format!("mode {mode:?}")));
    }
    let shape = call.shape(x);
    let edges = call.ints("pad")?;
    if edges.len() % 2 == 1 || edges.len() / 2 > shape.len() {
        return Err(call.unsupported("a pair for each of the last dimensions", format!("{edges:?}")));
    }
    let (mut low, mut high) = (vec![0; shape.len()], vec![0; shape.len()]);
    let mut padded = shape.clone();
    for (pair, dim) in edges.chunks(2).zip((0..shape.len()).rev()) {
        (low[dim], high[dim]) = (pair[0], pair[1]);
        let extent = (shape[dim] as i64).checked_add(pair[0]).and_then(|e| e.checked_add(pair[1]));
        let extent = extent.and_then(|extent| usize::try_from(extent).ok());
        padded[dim] =
            extent.ok_or_else(|| call.unsupported("edges that leave something", format!("{edges:?}")))?;
    }
    call.check_size(&padded)?;
    let value = call.float("value", 0.0)?;
    let value = call.b().scalar(dtype, value);
    let interior = vec![0; shape.len()];
    one(call.b().push1(Pad { low, high, interior }, &[x, value])?)
}

/// `[.., c r r, h, w] -> [.., c, h r, w r]`: channels become pixels.
fn pixel_shuffle(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let own = call.shape(x);
    let factor = call.extents(&[call.required_int("upscale_factor")?])?[0];
    let square = factor.saturating_mul(factor);
    let Some(outer) = own.len().checked_sub(3).filter(|&at| square > 0 && own[at].is_multiple_of(square))
    else {
        return Err(
            call.unsupported("channels that are a multiple of the squared factor", format!("{own:?}"))
        );
    };
    let (c, h, w) = (own[outer] / square, own[outer + 1], own[outer + 2]);
    let apart = [&own[..outer], &[c, factor, factor, h, w]].concat();
    let x = call.b().reshape(x, &apart)?;
    let order: Vec<usize> = (0..=outer).chain([3, 1, 4, 2].map(|at| outer + at)).collect();
    let x = call.b().transpose(x, &order)?;
    let joined = [&own[..outer], &[c, h * factor, w * factor]].concat();
    one(call.b().reshape(x, &joined)?)
}

/// `self` with the elements of a slice, or of one index, replaced by `src`.
fn scattered(call: &mut Call, by_index: bool) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (x, source) = (operand(call, "self", dtype)?, operand(call, "src", dtype)?);
    let (dim, extent) = dim_and_extent(call)?;
    let shape = call.shape(x);
    let mut part = shape.clone();
    let views = if by_index {
        part.remove(dim);
        index_views(&shape, dim, index_within(call, "index", extent)?)
    } else {
        let (start, limit, step) = bounds(call, extent)?;
        part[dim] = (limit - start).div_ceil(step);
        vec![View::Slice { dim, start, limit, step }]
    };
    let source = call.spread(source, &part)?;
    one(put_back(call.b(), x, &views, source)?)
}
