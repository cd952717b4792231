//! Reductions along dimensions, cumulative sums, and positions of extrema.

use super::{Rows, broadcast_pair, convert, one, operand, operands, wide};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::{DType, Result};
use partita_ir::builder::identity;
use partita_ir::ops::{BinaryKind, Direction, ReduceWindow, Reducer, UnaryKind};
use partita_ir::{TensorType, ValueId};
use partita_mesh::Combiner;

pub const ROWS: Rows = &[
    ("aten.sum.default", |c| reduce(c, Combiner::Sum)),
    ("aten.sum.dim_IntList", |c| reduce(c, Combiner::Sum)),
    ("aten.prod.default", |c| reduce(c, Combiner::Prod)),
    ("aten.prod.dim_int", |c| reduce(c, Combiner::Prod)),
    ("aten.amax.default", |c| reduce(c, Combiner::Max)),
    ("aten.amin.default", |c| reduce(c, Combiner::Min)),
    ("aten.max.default", |c| reduce(c, Combiner::Max)),
    ("aten.min.default", |c| reduce(c, Combiner::Min)),
    ("aten.any.default", |c| reduce(c, Combiner::Or)),
    ("aten.any.dim", |c| reduce(c, Combiner::Or)),
    ("aten.any.dims", |c| reduce(c, Combiner::Or)),
    ("aten.all.default", |c| reduce(c, Combiner::And)),
    ("aten.all.dim", |c| reduce(c, Combiner::And)),
    ("aten.all.dims", |c| reduce(c, Combiner::And)),
    ("aten.mean.default", mean),
    ("aten.mean.dim", mean),
    ("aten.var.correction", |c| variance(c, false, false)),
    ("aten.var.dim", |c| variance(c, false, false)),
    ("aten.var.default", |c| variance(c, false, false)),
    ("aten.std.correction", |c| variance(c, true, false)),
    ("aten.std.dim", |c| variance(c, true, false)),
    ("aten.std.default", |c| variance(c, true, false)),
    ("aten.var_mean.correction", |c| variance(c, false, true)),
    ("aten.var_mean.dim", |c| variance(c, false, true)),
    ("aten.std_mean.correction", |c| variance(c, true, true)),
    ("aten.logsumexp.default", logsumexp),
    ("aten.linalg_vector_norm.default", norm),
    ("aten.norm.ScalarOpt_dim", norm),
    ("aten.norm.Scalar", norm),
    ("aten.cosine_similarity.default", cosine_similarity),
    ("aten.cdist.default", distances),
    ("aten._cdist_forward.default", distances),
    ("aten._euclidean_dist.default", distances),
    ("aten.cumsum.default", cumsum),
    ("aten.logcumsumexp.default", log_cumulative),
    ("aten.max.dim", |c| extremum(c, Combiner::Max)),
    ("aten.min.dim", |c| extremum(c, Combiner::Min)),
    ("aten.argmax.default", |c| position(c, Combiner::Max)),
    ("aten.argmin.default", |c| position(c, Combiner::Min)),
];

/// The dimensions of a reduction: all of them if none are given.
fn dims(call: &Call, rank: usize) -> Result<Vec<usize>> {
    let given = call.maybe_ints("dim")?.filter(|dims| !dims.is_empty());
    if rank == 0 {
        return Ok(Vec::new());
    }
    match given {
        Some(dims) => {
            let mut dims = call.wrap_all(&dims, rank)?;
            dims.sort_unstable();
            Ok(dims)
        }
        None => Ok((0..rank).collect()),
    }
}

/// Puts back the reduced dimensions with extent 1 if `keepdim`.
fn shaped(call: &mut Call, reduced: ValueId, own: &[usize], dims: &[usize]) -> Result<ValueId> {
    if !call.flag("keepdim", false)? {
        return Ok(reduced);
    }
    let kept: Vec<usize> =
        own.iter().enumerate().map(|(d, &e)| if dims.contains(&d) { 1 } else { e }).collect();
    call.b().reshape(reduced, &kept)
}

fn reduced(call: &mut Call, combiner: Combiner, x: ValueId, dims: &[usize]) -> Result<ValueId> {
    if dims.is_empty() { Ok(x) } else { call.b().reduce(combiner, x, dims) }
}

/// Reduces and spreads the result over the reduced dimensions again.
fn spread_back(call: &mut Call, reduced: ValueId, own: &[usize], dims: &[usize]) -> Result<ValueId> {
    let kept: Vec<usize> = (0..own.len()).filter(|d| !dims.contains(d)).collect();
    call.b().broadcast_in_dim(reduced, own, &kept)
}

fn reduce(call: &mut Call, combiner: Combiner) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let own = call.shape(x);
    let dims = dims(call, own.len())?;
    // Sums of narrow floats are accumulated in f32.
    let is_sum = matches!(combiner, Combiner::Sum | Combiner::Prod);
    let x = if is_sum { convert(call, x, wide(dtype))? } else { x };
    let y = reduced(call, combiner, x, &dims)?;
    let y = shaped(call, y, &own, &dims)?;
    one(convert(call, y, dtype)?)
}

/// The mean in the type of sums. E356 for a mean of nothing.
fn mean_of(call: &mut Call, x: ValueId, dims: &[usize]) -> Result<ValueId> {
    let count: usize = dims.iter().map(|&dim| call.shape(x)[dim]).product();
    if count == 0 {
        return Err(call.unsupported("at least one element", "a mean of nothing"));
    }
    let sum = reduced(call, Combiner::Sum, x, dims)?;
    if dims.is_empty() { Ok(sum) } else { call.b().scale(sum, 1.0 / count as f64) }
}

fn mean(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", wide(dtype))?;
    let own = call.shape(x);
    let dims = dims(call, own.len())?;
    let y = mean_of(call, x, &dims)?;
    let y = shaped(call, y, &own, &dims)?;
    one(convert(call, y, dtype)?)
}

fn variance(call: &mut Call, root: bool, with_mean: bool) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", wide(dtype))?;
    let own = call.shape(x);
    let dims = dims(call, own.len())?;
    let correction = match call.flag("unbiased", true)? {
        true => call.float("correction", 1.0)?,
        false => 0.0,
    };
    let mean = mean_of(call, x, &dims)?;
    // Moving the mean changes nothing to first order: distances from it sum to 0.
    let fixed = call.b().stop_gradient(mean)?;
    let spread = spread_back(call, fixed, &own, &dims)?;
    let centred = call.b().subtract(x, spread)?;
    let squares = call.b().multiply(centred, centred)?;
    let sum = reduced(call, Combiner::Sum, squares, &dims)?;
    let count: usize = dims.iter().map(|&dim| own[dim]).product();
    let mut y = call.b().scale(sum, 1.0 / (count as f64 - correction).max(0.0))?;
    if root {
        y = root_of(call, y)?;
    }
    let mut outs = Vec::new();
    for value in if with_mean { vec![y, mean] } else { vec![y] } {
        let value = shaped(call, value, &own, &dims)?;
        outs.push(Out::Value(convert(call, value, dtype)?));
    }
    Ok(outs)
}

/// The square root, with the gradient 0 at 0 instead of an infinite one: the root is taken of 1 there.
fn root_of(call: &mut Call, x: ValueId) -> Result<ValueId> {
    let zero = call.b().full_like(x, 0.0)?;
    let is_zero = call.b().compare(Direction::Eq, x, zero)?;
    let safe = call.b().full_like(x, 1.0)?;
    let safe = call.b().select(is_zero, safe, x)?;
    let root = call.b().unary(UnaryKind::Sqrt, safe)?;
    call.b().select(is_zero, zero, root)
}

/// What exponents are shifted by, the maximum, without a gradient; 0 where that is infinite, since the difference of
/// two infinities is NaN.
fn shift(call: &mut Call, most: ValueId) -> Result<ValueId> {
    let most = call.b().stop_gradient(most)?;
    let is_finite = call.b().unary(UnaryKind::IsFinite, most)?;
    let zero = call.b().full_like(most, 0.0)?;
    call.b().select(is_finite, most, zero)
}

/// `log(sum(exp(x)))`, shifted by the maximum.
fn logsumexp(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", wide(dtype))?;
    let own = call.shape(x);
    let dims = dims(call, own.len())?;
    let most = reduced(call, Combiner::Max, x, &dims)?;
    let most = shift(call, most)?;
    let spread = spread_back(call, most, &own, &dims)?;
    let shifted = call.b().subtract(x, spread)?;
    let grown = call.b().exponential(shifted)?;
    let sum = reduced(call, Combiner::Sum, grown, &dims)?;
    let log = call.b().unary(UnaryKind::Log, sum)?;
    let y = call.b().add(log, most)?;
    let y = shaped(call, y, &own, &dims)?;
    one(convert(call, y, dtype)?)
}

/// The 1-, 2- or infinity-norm.
fn norm(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let mut x = call.tensor("self")?;
    if call.ty(x).dtype.is_complex() {
        x = call.b().unary(UnaryKind::Abs, x)?;
    }
    let x = convert(call, x, wide(dtype))?;
    let own = call.shape(x);
    let dims = dims(call, own.len())?;
    let order = if call.has("ord") { call.float("ord", 2.0)? } else { call.float("p", 2.0)? };
    let y = if order == 2.0 {
        let squares = call.b().multiply(x, x)?;
        let sum = reduced(call, Combiner::Sum, squares, &dims)?;
        root_of(call, sum)?
    } else if order == 1.0 || order == f64::INFINITY {
        let size = call.b().unary(UnaryKind::Abs, x)?;
        reduced(call, if order == 1.0 { Combiner::Sum } else { Combiner::Max }, size, &dims)?
    } else {
        return Err(call.unsupported("the 1-, 2- or infinity-norm", order.to_string()));
    };
    let y = shaped(call, y, &own, &dims)?;
    one(convert(call, y, dtype)?)
}

/// `sum(a b) / (max(|a|, eps) max(|b|, eps))`
fn cosine_similarity(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [a, b] = operands(call, ["x1", "x2"], wide(dtype))?;
    let dim = call.wrap(call.int("dim", 1)?, call.shape(a).len())?;
    let epsilon = call.float("eps", 1e-8)?;
    if call.shape(a).is_empty() {
        return Err(call.unsupported("a dimension", "scalars"));
    }
    let product = call.b().multiply(a, b)?;
    let mut y = call.b().reduce_sum(product, &[dim])?;
    for x in [a, b] {
        let squares = call.b().multiply(x, x)?;
        let sum = call.b().reduce_sum(squares, &[dim])?;
        let least = call.b().full_like(sum, epsilon * epsilon)?;
        let sum = call.b().maximum(sum, least)?;
        let inverse = call.b().unary(UnaryKind::Rsqrt, sum)?;
        y = call.b().multiply(y, inverse)?;
    }
    one(convert(call, y, dtype)?)
}

/// A sum over windows that end at each element.
fn cumsum(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let shape = call.shape(x);
    let dim = call.wrap(call.required_int("dim")?, shape.len())?;
    let Some(&extent) = shape.get(dim).filter(|&&extent| extent > 1) else { return one(x) };
    let ones = vec![1; shape.len()];
    let (mut window, mut padding) = (ones.clone(), vec![(0, 0); shape.len()]);
    window[dim] = extent;
    padding[dim] = (extent as i64 - 1, 0);
    let op = ReduceWindow {
        window,
        strides: ones.clone(),
        base_dilation: ones.clone(),
        window_dilation: ones,
        padding,
        reducer: Reducer::Combiner(Combiner::Sum),
    };
    let start = call.b().constant(identity(Combiner::Sum, dtype));
    one(call.b().push1(op, &[x, start])?)
}

/// The Euclidean distance of each row of `x1[.., p, d]` from each row of `x2[.., r, d]`; the gradient of a distance
/// of 0 is 0, as in PyTorch.
fn distances(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    if call.float("p", 2.0)? != 2.0 {
        return Err(call.unsupported("Euclidean distances, p = 2", "another norm"));
    }
    let mut rows = Vec::new();
    for (name, apart) in [("x1", 1), ("x2", 2)] {
        let x = operand(call, name, wide(dtype))?;
        let mut shape = call.shape(x);
        let Some(at) = shape.len().checked_sub(apart).filter(|_| shape.len() >= 2) else {
            return Err(call.unsupported("rows [.., rows, features]", format!("{shape:?}")));
        };
        shape.insert(at, 1);
        rows.push(call.b().reshape(x, &shape)?);
    }
    let [a, b] = broadcast_pair(call, rows[0], rows[1])?;
    let apart = call.b().subtract(a, b)?;
    let squares = call.b().multiply(apart, apart)?;
    let last = call.shape(squares).len() - 1;
    let sum = call.b().reduce_sum(squares, &[last])?;
    let y = root_of(call, sum)?;
    one(convert(call, y, dtype)?)
}

/// `log(exp(x_0) + .. + exp(x_i))` at each `i`: sums of 1, 2, 4, .. elements, each pair shifted by its maximum.
fn log_cumulative(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let mut y = operand(call, "self", wide(dtype))?;
    let shape = call.shape(y);
    let dim = call.wrap(call.required_int("dim")?, shape.len())?;
    let extent = shape.get(dim).copied().unwrap_or(0);
    let mut reach = 1;
    while reach < extent {
        let head = call.b().slice_dim(y, dim, 0, reach)?;
        let late = call.b().slice_dim(y, dim, reach, extent)?;
        let early = call.b().slice_dim(y, dim, 0, extent - reach)?;
        let most = call.b().maximum(late, early)?;
        let most = shift(call, most)?;
        let mut parts = Vec::with_capacity(2);
        for part in [late, early] {
            let shifted = call.b().subtract(part, most)?;
            parts.push(call.b().exponential(shifted)?);
        }
        let sum = call.b().add(parts[0], parts[1])?;
        let log = call.b().unary(UnaryKind::Log, sum)?;
        let both = call.b().add(log, most)?;
        y = call.b().concatenate(&[head, both], dim)?;
        reach *= 2;
    }
    one(convert(call, y, dtype)?)
}

/// The first position of the extremum along a dimension: the smallest index whose element equals it, or is NaN,
/// for then the extremum is NaN.
pub(super) fn position_along(call: &mut Call, x: ValueId, extremum: ValueId, dim: usize) -> Result<ValueId> {
    let own = call.shape(x);
    let spread = spread_back(call, extremum, &own, &[dim])?;
    let hit = call.b().compare(Direction::Eq, x, spread)?;
    let hit = if call.ty(x).dtype.is_float() {
        let is_nan = call.b().compare(Direction::Ne, x, x)?;
        call.b().binary(BinaryKind::Or, hit, is_nan)?
    } else {
        hit
    };
    let ty = TensorType::new(DType::I64, own.clone());
    let index = call.b().iota(ty.clone(), dim)?;
    let beyond = call.b().full(&ty, own[dim] as f64 - 1.0)?;
    let candidates = call.b().select(hit, index, beyond)?;
    call.b().reduce(Combiner::Min, candidates, &[dim])
}

/// Values and first positions; the gradient goes to that position.
fn extremum(call: &mut Call, combiner: Combiner) -> Outs {
    let x = call.tensor("self")?;
    let own = call.shape(x);
    let dim = call.wrap(call.required_int("dim")?, own.len())?;
    if own.get(dim).is_none_or(|&extent| extent == 0) {
        return Err(call.unsupported("a dimension with elements", format!("{own:?}")));
    }
    let fixed = call.b().stop_gradient(x)?;
    let bound = call.b().reduce(combiner, fixed, &[dim])?;
    let index = position_along(call, fixed, bound, dim)?;
    let spread = spread_back(call, index, &own, &[dim])?;
    let iota = call.b().iota(TensorType::new(DType::I64, own.clone()), dim)?;
    let is_first = call.b().compare(Direction::Eq, iota, spread)?;
    let zero = call.b().full_like(x, 0.0)?;
    let only = call.b().select(is_first, x, zero)?;
    let value = match call.ty(x).dtype {
        DType::Bool => bound,
        _ => call.b().reduce_sum(only, &[dim])?,
    };
    let value = shaped(call, value, &own, &[dim])?;
    let index = shaped(call, index, &own, &[dim])?;
    Ok(vec![Out::Value(value), Out::Value(index)])
}

fn position(call: &mut Call, combiner: Combiner) -> Outs {
    let mut x = call.tensor("self")?;
    let own = call.shape(x);
    let Some(dim) = call.maybe_int("dim")? else {
        let count = own.iter().product();
        x = call.b().reshape(x, &[count])?;
        let bound = call.b().reduce(combiner, x, &[0])?;
        return one(position_along(call, x, bound, 0)?);
    };
    let dim = call.wrap(dim, own.len())?;
    if own.get(dim).is_none_or(|&extent| extent == 0) {
        return Err(call.unsupported("a dimension with elements", format!("{own:?}")));
    }
    let bound = call.b().reduce(combiner, x, &[dim])?;
    let index = position_along(call, x, bound, dim)?;
    one(shaped(call, index, &own, &[dim])?)
}
