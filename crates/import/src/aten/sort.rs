//! Sorting and the largest elements. The order is found without a gradient; the elements are then
//! gathered by their indices, through which gradients flow back to where they were.

use super::index::gathered;
use super::reduce::position_along;
use super::{Rows, one};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::{DType, Result};
use partita_ir::ops::{BinaryKind, Compare, CompareType, Direction, Sort};
use partita_ir::{GraphBuilder, Role, TensorType, ValueId};
use partita_mesh::Combiner;

pub const ROWS: Rows = &[
    ("aten.sort.default", sort),
    ("aten.sort.stable", sort),
    ("aten.argsort.default", argsort),
    ("aten.argsort.stable", argsort),
    ("aten.topk.default", topk),
    ("aten.median.default", median_of_all),
    ("aten.median.dim", median),
];

/// The indices that sort `self` along a dimension, with that dimension.
fn order(call: &mut Call, descending: bool) -> Result<(ValueId, ValueId, usize)> {
    let mut x = call.tensor("self")?;
    if call.shape(x).is_empty() {
        x = call.b().reshape(x, &[1])?;
    }
    let dim = call.wrap(call.int("dim", -1)?, call.shape(x).len())?;
    Ok((x, order_of(call, x, dim, descending)?, dim))
}

/// The indices that sort a tensor along a dimension.
fn order_of(call: &mut Call, x: ValueId, dim: usize, descending: bool) -> Result<ValueId> {
    let ty = call.ty(x);
    let index = call.b().iota(ty.with_dtype(DType::I64), dim)?;
    // Whether the first of two elements comes before the second.
    let mut comparator = GraphBuilder::new("comparator");
    let mut scalar = |name: &str, dtype| comparator.input(name, TensorType::scalar(dtype), Role::Activation);
    let (a, b) = (scalar("a", ty.dtype), scalar("b", ty.dtype));
    scalar("index_of_a", DType::I64);
    scalar("index_of_b", DType::I64);
    let direction = if descending { Direction::Gt } else { Direction::Lt };
    let before = if ty.dtype.is_float() {
        // In the total order of keys: both zeros are one, and NaN is larger than all numbers, so it is
        // last in ascending order and first in descending order.
        let zero = comparator.scalar(ty.dtype, 0.0);
        let nan = comparator.scalar(ty.dtype, f64::NAN);
        let mut keys = Vec::with_capacity(2);
        for x in [a, b] {
            let is_zero = comparator.compare(Direction::Eq, x, zero)?;
            let key = comparator.select(is_zero, zero, x)?;
            let is_nan = comparator.compare(Direction::Ne, x, x)?;
            keys.push(comparator.select(is_nan, nan, key)?);
        }
        comparator.push1(Compare { direction, compare_type: Some(CompareType::TotalOrder) }, &keys)?
    } else {
        comparator.push1(Compare { direction, compare_type: None }, &[a, b])?
    };
    let sort = Sort { dim, is_stable: true, comparator: Box::new(comparator.finish(vec![before])) };
    let keys = call.b().stop_gradient(x)?;
    Ok(call.b().push(sort, &[keys, index])?[1])
}

/// Values and indices in the shape of `self`.
fn results(call: &mut Call, x: ValueId, index: ValueId, dim: usize) -> Outs {
    let is_scalar = call.type_of(call.reference("self")?).rank() == 0;
    let mut outs = gathered(call, x, index, dim)?;
    outs.push(Out::Value(index));
    if !is_scalar {
        return Ok(outs);
    }
    let mut scalars = Vec::new();
    for out in outs {
        let Out::Value(value) = out else { continue };
        scalars.push(Out::Value(call.b().reshape(value, &[])?));
    }
    Ok(scalars)
}

fn sort(call: &mut Call) -> Outs {
    let descending = call.flag("descending", false)?;
    let (x, index, dim) = order(call, descending)?;
    results(call, x, index, dim)
}

fn argsort(call: &mut Call) -> Outs {
    let mut outs = sort(call)?;
    Ok(vec![outs.swap_remove(1)])
}

fn topk(call: &mut Call) -> Outs {
    let largest = call.flag("largest", true)?;
    let (x, index, dim) = order(call, largest)?;
    let extent = call.shape(x)[dim];
    let count = usize::try_from(call.required_int("k")?).ok().filter(|&count| count <= extent);
    let count =
        count.ok_or_else(|| call.unsupported(&format!("at most {extent} elements"), "another number"))?;
    let index = call.b().slice_dim(index, dim, 0, count)?;
    results(call, x, index, dim)
}

/// The index of the lower of the two middle elements of a dimension that has elements, or of the first NaN; of
/// extent 1 there.
fn middle(call: &mut Call, x: ValueId, dim: usize) -> Result<ValueId> {
    let Some(last) = call.shape(x)[dim].checked_sub(1) else {
        return Err(call.unsupported("at least one element", "a median of nothing"));
    };
    let index = order_of(call, x, dim, false)?;
    let index = call.b().slice_dim(index, dim, last / 2, last / 2 + 1)?;
    if !call.ty(x).dtype.is_float() {
        return Ok(index);
    }
    let fixed = call.b().stop_gradient(x)?;
    let most = call.b().reduce(Combiner::Max, fixed, &[dim])?;
    let first = position_along(call, fixed, most, dim)?;
    let shape = call.shape(index);
    let (first, most) = (call.b().reshape(first, &shape)?, call.b().reshape(most, &shape)?);
    let is_nan = call.b().compare(Direction::Ne, most, most)?;
    call.b().select(is_nan, first, index)
}

fn median(call: &mut Call) -> Outs {
    let mut x = call.tensor("self")?;
    if call.shape(x).is_empty() {
        x = call.b().reshape(x, &[1])?;
    }
    let dim = call.wrap(call.required_int("dim")?, call.shape(x).len())?;
    let index = middle(call, x, dim)?;
    if call.flag("keepdim", false)? {
        return results(call, x, index, dim);
    }
    let mut shape = call.shape(index);
    shape.remove(dim);
    let mut outs = Vec::new();
    for out in results(call, x, index, dim)? {
        let Out::Value(value) = out else { continue };
        outs.push(Out::Value(call.b().reshape(value, &shape)?));
    }
    Ok(outs)
}

/// The median of all elements. Elements that equal it share its gradient: it is the largest of them.
fn median_of_all(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    let count = call.shape(x).iter().product();
    let x = call.b().reshape(x, &[count])?;
    let index = middle(call, x, 0)?;
    let fixed = call.b().stop_gradient(x)?;
    let mut outs = gathered(call, fixed, index, 0)?;
    let Some(Out::Value(value)) = outs.pop() else { unreachable!("one value") };
    if !call.ty(x).dtype.is_float() {
        return one(call.b().reshape(value, &[])?);
    }
    let spread = call.spread(value, &[count])?;
    let (equal, is_nan) =
        (call.b().compare(Direction::Eq, x, spread)?, call.b().compare(Direction::Ne, x, x)?);
    let hit = call.b().binary(BinaryKind::Or, equal, is_nan)?;
    let least = call.b().full_like(x, f64::NEG_INFINITY)?;
    let hits = call.b().select(hit, x, least)?;
    one(call.b().reduce(Combiner::Max, hits, &[0])?)
}
