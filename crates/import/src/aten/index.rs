//! Lookups and updates by index: indexing with tensors, gather and scatter.

use super::compare::select;
use super::{Rows, convert, one, operand};
use crate::pt2::call::{Call, Outs};
use partita_base::{DType, Result};
use partita_ir::ops::{Direction, Gather, GatherDims, Reducer, Scatter, ScatterDims, Update};
use partita_ir::{Op, TensorType, ValueId};
use partita_mesh::Combiner;

pub const ROWS: Rows = &[
    ("aten.index.Tensor", index),
    ("aten.index_select.default", index_select),
    ("aten.gather.default", gather),
    ("aten.take_along_dim.default", take_along_dim),
    ("aten.index_put.default", index_put),
    ("aten.index_add.default", index_add),
    ("aten.scatter.src", |c| scatter(c, false)),
    ("aten.scatter.value", |c| scatter(c, false)),
    ("aten.scatter_add.default", |c| scatter(c, true)),
    ("aten.one_hot.default", one_hot),
];

/// Indices that count from the end made to count from the start.
fn from_start(call: &mut Call, index: ValueId, extent: usize) -> Result<ValueId> {
    if call.ty(index).dtype.is_unsigned_integer() {
        return convert(call, index, DType::I64);
    }
    let index = convert(call, index, DType::I64)?;
    let zero = call.b().full_like(index, 0.0)?;
    let is_negative = call.b().compare(Direction::Lt, index, zero)?;
    let moved = call.b().offset(index, extent as f64)?;
    call.b().select(is_negative, moved, index)
}

/// Index tensors of `index.Tensor` and `index_put`: the dimensions they address, the shape they
/// broadcast to, and one tensor `[shape.., mapped]` of index vectors.
struct Addressed {
    dims: Vec<usize>,
    shape: Vec<usize>,
    /// Of these, the dimensions that the components of the vectors address.
    mapped: Vec<usize>,
    /// The other ones, each with the dimension of the index that counts along it, as in `x[arange(rows), i]`: there an
    /// element of the index addresses its own position.
    batching: Vec<(usize, usize)>,
    vectors: ValueId,
}

/// The dimension along which a tensor counts from 0, if its elements are the positions along it.
fn counts_along(call: &mut Call, value: ValueId) -> Option<usize> {
    let graph = call.b().graph();
    let (node, _) = graph.value(value).definition?;
    let node = graph.node(node);
    if let Op::Iota(iota) = &node.op {
        return Some(iota.dim);
    }
    let &[operand] = &node.operands[..] else { return None };
    let (from, to) = (graph.ty(operand).shape.clone(), graph.ty(value).shape.clone());
    let moved = if let Op::BroadcastInDim(op) = &node.op { Some(op.dims.clone()) } else { None };
    // Floats and small integers may not have all positions.
    let has_all =
        |value: ValueId| graph.ty(value).dtype.is_integer() && graph.ty(value).dtype.size_bytes() >= 4;
    let keeps_numbers = has_all(operand) && has_all(value);
    let is_form = matches!(node.op, Op::Reshape(_)) || matches!(node.op, Op::Convert(_)) && keeps_numbers;
    if moved.is_none() && !is_form {
        return None;
    }
    let along = counts_along(call, operand)?;
    match moved {
        Some(dims) => (to[dims[along]] == from[along]).then_some(dims[along]),
        None if from == to => Some(along),
        // Dimensions of one element come or go.
        None => {
            let many =
                |shape: &[usize]| shape.iter().copied().filter(|&extent| extent != 1).collect::<Vec<_>>();
            let place = from[..along].iter().filter(|&&extent| extent != 1).count();
            let is_same = many(&from) == many(&to) && from[along] != 1;
            is_same.then(|| (0..to.len()).filter(|&d| to[d] != 1).nth(place)).flatten()
        }
    }
}

fn addressed(call: &mut Call, own: &[usize]) -> Result<Addressed> {
    let given = call.maybe_tensors("indices")?;
    let mut dims = Vec::new();
    let mut tensors = Vec::new();
    let mut shape = Vec::new();
    for (dim, index) in given.into_iter().enumerate() {
        let Some(index) = index else { continue };
        let ty = call.ty(index);
        if ty.dtype == DType::Bool {
            return Err(call.unsupported(
                "integer indices: a boolean mask selects a number of elements that depends on the data",
                "a boolean mask",
            ));
        }
        if dim >= own.len() || !ty.dtype.is_integer() {
            return Err(call.unsupported("integer indices, at most one for each dimension", ty.to_string()));
        }
        shape = call.joint_shape(&shape, &ty.shape)?;
        dims.push(dim);
        tensors.push(index);
    }
    if dims.is_empty() {
        return Err(call.unsupported("at least one index", "none"));
    }
    let mut column = shape.clone();
    column.push(1);
    let (mut columns, mut mapped, mut batching) = (Vec::new(), Vec::new(), Vec::<(usize, usize)>::new());
    for (&dim, &index) in dims.iter().zip(&tensors) {
        let extents = call.shape(index);
        let along = counts_along(call, index).filter(|&along| extents[along] == own[dim]);
        let along = along.map(|along| along + shape.len() - extents.len());
        let is_free =
            |along: &usize| shape[*along] == own[dim] && batching.iter().all(|(_, other)| other != along);
        // The last one stays: index vectors have a component.
        let is_last = mapped.is_empty() && batching.len() + 1 == dims.len();
        if let Some(along) = along.filter(is_free).filter(|_| !is_last) {
            batching.push((dim, along));
            continue;
        }
        let index = from_start(call, index, own[dim])?;
        let index = call.spread(index, &shape)?;
        mapped.push(dim);
        columns.push(call.b().reshape(index, &column)?);
    }
    let last = shape.len();
    let vectors = if columns.len() == 1 { columns[0] } else { call.b().concatenate(&columns, last)? };
    Ok(Addressed { dims, shape, mapped, batching, vectors })
}

/// Where the dimensions of the index go in the result: to the first addressed dimension if the
/// addressed ones are adjacent, else to the front.
fn index_position(dims: &[usize]) -> usize {
    let adjacent = dims.windows(2).all(|pair| pair[1] == pair[0] + 1);
    if adjacent { dims[0] } else { 0 }
}

fn index(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let own = call.shape(x);
    let Addressed { dims, shape, mapped, batching, vectors } = addressed(call, &own)?;
    let (operand_batching_dims, start_indices_batching_dims) = batching.into_iter().unzip();
    let kept: Vec<usize> = (0..own.len()).filter(|d| !dims.contains(d)).collect();
    let at = index_position(&dims);
    let rank = kept.len() + shape.len();
    let offset_dims: Vec<usize> = (0..rank).filter(|d| !(at..at + shape.len()).contains(d)).collect();
    let result: Vec<usize> = shape.iter().copied().chain(kept.iter().map(|&d| own[d])).collect();
    call.check_size(&result)?;
    let slice_sizes = own.iter().enumerate().map(|(d, &e)| if dims.contains(&d) { 1 } else { e }).collect();
    let gather = Gather {
        dims: GatherDims {
            offset_dims,
            collapsed_slice_dims: mapped.clone(),
            operand_batching_dims,
            start_indices_batching_dims,
            start_index_map: mapped,
            index_vector_dim: shape.len(),
        },
        slice_sizes,
        indices_are_sorted: false,
    };
    one(call.b().push1(gather, &[x, vectors])?)
}

fn index_put(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let own = call.shape(x);
    let Addressed { dims, shape, mapped, batching, vectors } = addressed(call, &own)?;
    let (input_batching_dims, scatter_indices_batching_dims) = batching.into_iter().unzip();
    let kept: Vec<usize> = (0..own.len()).filter(|d| !dims.contains(d)).collect();
    let at = index_position(&dims);
    let mut updates: Vec<usize> = kept.iter().map(|&d| own[d]).collect();
    updates.splice(at..at, shape.iter().copied());
    let values = operand(call, "values", dtype)?;
    let values = call.spread(values, &updates)?;
    let accumulate = call.flag("accumulate", false)?;
    let scatter = Scatter {
        dims: ScatterDims {
            update_window_dims: (0..updates.len()).filter(|d| !(at..at + shape.len()).contains(d)).collect(),
            inserted_window_dims: mapped.clone(),
            input_batching_dims,
            scatter_indices_batching_dims,
            scatter_dims_to_operand_dims: mapped,
            index_vector_dim: shape.len(),
        },
        update: match accumulate {
            true => Update::Combine(Reducer::Combiner(Combiner::Sum)),
            false => Update::Assign,
        },
        indices_are_sorted: false,
        unique_indices: false,
    };
    one(call.b().push1(scatter, &[x, vectors, values])?)
}

fn index_select(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let index = call.tensor("index")?;
    let own = call.shape(x);
    let dim = call.wrap(call.required_int("dim")?, own.len())?;
    let count: usize = call.shape(index).iter().product();
    let Some(&extent) = own.get(dim) else { return Err(call.unsupported("a dimension", "a scalar")) };
    let mut result = own.clone();
    result[dim] = count;
    call.check_size(&result)?;
    let index = from_start(call, index, extent)?;
    one(picked(call, x, index, dim)?)
}

/// The elements of a dimension at these indices, which count from the first.
pub(super) fn picked(call: &mut Call, x: ValueId, index: ValueId, dim: usize) -> Result<ValueId> {
    let own = call.shape(x);
    let count: usize = call.shape(index).iter().product();
    let index = call.b().reshape(index, &[count, 1])?;
    let mut slice_sizes = own.clone();
    slice_sizes[dim] = 1;
    let gather = Gather {
        dims: GatherDims {
            offset_dims: (0..own.len()).filter(|&d| d != dim).collect(),
            collapsed_slice_dims: vec![dim],
            start_index_map: vec![dim],
            index_vector_dim: 1,
            ..GatherDims::default()
        },
        slice_sizes,
        indices_are_sorted: false,
    };
    call.b().push1(gather, &[x, index])
}

/// `self` plus the rows of `source` at `index`.
fn index_add(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (x, mut source) = (operand(call, "self", dtype)?, operand(call, "source", dtype)?);
    let alpha = call.float("alpha", 1.0)?;
    if alpha != 1.0 {
        source = call.b().scale(source, alpha)?;
    }
    let index = call.tensor("index")?;
    let own = call.shape(x);
    let dim = call.wrap(call.required_int("dim")?, own.len())?;
    let Some(&extent) = own.get(dim) else { return Err(call.unsupported("a dimension", "a scalar")) };
    let count: usize = call.shape(index).iter().product();
    let index = from_start(call, index, extent)?;
    let index = call.b().reshape(index, &[count, 1])?;
    let scatter = Scatter {
        dims: ScatterDims {
            update_window_dims: (0..own.len()).filter(|&d| d != dim).collect(),
            inserted_window_dims: vec![dim],
            scatter_dims_to_operand_dims: vec![dim],
            index_vector_dim: 1,
            ..ScatterDims::default()
        },
        update: Update::Combine(Reducer::Combiner(Combiner::Sum)),
        indices_are_sorted: false,
        unique_indices: false,
    };
    one(call.b().push1(scatter, &[x, index, source])?)
}

/// How an index addresses the dimensions of a tensor of the same rank.
struct Aligned {
    /// Dimensions in which both have the same extent: each element of the index addresses its own position.
    batching: Vec<usize>,
    /// The other ones, which the components of the index vectors address.
    mapped: Vec<usize>,
    vectors: ValueId,
}

/// Index vectors for `gather` and `scatter`: each element of `index` addresses its own position, with the coordinate of
/// `dim` replaced. Where the extents allow it, that is said by the dimensions and not by coordinates, so that ranks and
/// microbatches can divide them.
fn aligned(call: &mut Call, index: ValueId, dim: usize, own: &[usize]) -> Result<Aligned> {
    let index = from_start(call, index, own[dim])?;
    let ty = call.ty(index);
    let (batching, mapped): (Vec<usize>, Vec<usize>) =
        (0..ty.rank()).partition(|&d| d != dim && ty.shape[d] == own[d]);
    call.check_size(&[&ty.shape[..], &[mapped.len()]].concat())?;
    let column = [&ty.shape[..], &[1]].concat();
    let mut columns = Vec::new();
    for &d in &mapped {
        let coordinate = if d == dim { index } else { call.b().iota(ty.clone(), d)? };
        columns.push(call.b().reshape(coordinate, &column)?);
    }
    let vectors = if columns.len() == 1 { columns[0] } else { call.b().concatenate(&columns, ty.rank())? };
    Ok(Aligned { batching, mapped, vectors })
}

/// The checked index of `gather` and `scatter` with its dimension.
fn elementwise_index(call: &mut Call, own: &[usize]) -> Result<(ValueId, usize)> {
    let index = call.tensor("index")?;
    let ty = call.ty(index);
    let dim = call.wrap(call.int("dim", 0)?, own.len())?;
    let fits = ty.rank() == own.len()
        && ty.rank() > 0
        && ty.dtype.is_integer()
        && ty.shape.iter().zip(own).enumerate().all(|(d, (index, own))| d == dim || index <= own);
    match fits {
        true => Ok((index, dim)),
        false => Err(call.unsupported(&format!("integer indices that fit {own:?}"), ty.to_string())),
    }
}

fn gather(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let (index, dim) = elementwise_index(call, &call.shape(x))?;
    gathered(call, x, index, dim)
}

/// `gather` of tensors that broadcast to each other in all dimensions but one.
fn take_along_dim(call: &mut Call) -> Outs {
    let (x, index) = (call.tensor("self")?, call.tensor("indices")?);
    let (mut own, mut shape) = (call.shape(x), call.shape(index));
    let dim = call.wrap(call.required_int("dim")?, own.len())?;
    if own.len() != shape.len() || own.is_empty() || !call.ty(index).dtype.is_integer() {
        return Err(call.unsupported("integer indices of the same rank", call.ty(index).to_string()));
    }
    let (extent, count) = (std::mem::replace(&mut own[dim], 1), std::mem::replace(&mut shape[dim], 1));
    let mut joint = call.joint_shape(&own, &shape)?;
    joint[dim] = extent;
    let x = call.spread(x, &joint)?;
    joint[dim] = count;
    let index = call.spread(index, &joint)?;
    gathered(call, x, index, dim)
}

/// The elements of `x` at `index` along a dimension, with the other coordinates those of the index.
pub(super) fn gathered(call: &mut Call, x: ValueId, index: ValueId, dim: usize) -> Outs {
    let own = call.shape(x);
    let rank = own.len();
    let Aligned { batching, mapped, vectors } = aligned(call, index, dim, &own)?;
    let gather = Gather {
        dims: GatherDims {
            offset_dims: Vec::new(),
            collapsed_slice_dims: mapped.clone(),
            operand_batching_dims: batching.clone(),
            start_indices_batching_dims: batching,
            start_index_map: mapped,
            index_vector_dim: rank,
        },
        slice_sizes: vec![1; rank],
        indices_are_sorted: false,
    };
    one(call.b().push1(gather, &[x, vectors])?)
}

fn scatter(call: &mut Call, adds: bool) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let own = call.shape(x);
    let (index, dim) = elementwise_index(call, &own)?;
    let rank = own.len();
    let extents = call.shape(index);
    let source = if call.has("src") {
        let source = operand(call, "src", dtype)?;
        let shape = call.shape(source);
        if shape.len() != rank || shape.iter().zip(&extents).any(|(source, index)| source < index) {
            return Err(call.unsupported(&format!("a source of at least {extents:?}"), format!("{shape:?}")));
        }
        let slice =
            partita_ir::ops::Slice { start: vec![0; rank], limit: extents.clone(), stride: vec![1; rank] };
        if shape == extents { source } else { call.b().push1(slice, &[source])? }
    } else {
        let value = operand(call, "value", dtype)?;
        call.spread(value, &extents)?
    };
    let Aligned { batching, mapped, vectors } = aligned(call, index, dim, &own)?;
    let scatter = Scatter {
        dims: ScatterDims {
            update_window_dims: Vec::new(),
            inserted_window_dims: mapped.clone(),
            input_batching_dims: batching.clone(),
            scatter_indices_batching_dims: batching,
            scatter_dims_to_operand_dims: mapped,
            index_vector_dim: rank,
        },
        update: match adds {
            true => Update::Combine(Reducer::Combiner(Combiner::Sum)),
            false => Update::Assign,
        },
        indices_are_sorted: false,
        unique_indices: false,
    };
    one(call.b().push1(scatter, &[x, vectors, source])?)
}

fn one_hot(call: &mut Call) -> Outs {
    let ids = call.tensor("self")?;
    let classes = call.int("num_classes", -1)?;
    if classes < 0 {
        return Err(call.unsupported("a number of classes", "a number that depends on the data"));
    }
    let shape = [&call.shape(ids)[..], &call.extents(&[classes])?].concat();
    call.check_size(&shape)?;
    let ids = convert(call, ids, DType::I64)?;
    let last = shape.len() - 1;
    let iota = call.b().iota(TensorType::new(DType::I64, shape.clone()), last)?;
    let dims: Vec<usize> = (0..last).collect();
    let spread = call.b().broadcast_in_dim(ids, &shape, &dims)?;
    let hit = call.b().compare(Direction::Eq, iota, spread)?;
    let (one_, zero) = (call.b().full_like(iota, 1.0)?, call.b().full_like(iota, 0.0)?);
    one(select(call, hit, one_, zero)?)
}
