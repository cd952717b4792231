//! Matrix products of groups of rows, as layers of experts call them, and the histogram that counts the rows of groups.

use super::contract::matmul;
use super::{Rows, constant, convert, one, operand};
use crate::pt2::call::{Call, Outs, Scalar};
use partita_base::{DType, Result};
use partita_ir::ops::{BinaryKind, Direction, DotGeneral, UnaryKind};
use partita_ir::{TensorType, ValueId};

pub const ROWS: Rows = &[
    ("aten._grouped_mm.default", |c| product(c, "self", "mat2")),
    ("transformers.grouped_mm_fallback.default", |c| product(c, "input", "weight")),
    ("aten.histc.default", histogram),
];

/// `x[m, k] weight[g, k, n] -> [m, n]`: rows `offs[i - 1]..offs[i]` are multiplied by `weight[i]`, those behind the last
/// are 0. Each row is laid out once for each group, with zeros in all but its own, so that the product is a single one over
/// groups and `k`: extents do not depend on data. Without `offs`, stacks of matrices.
fn product(call: &mut Call, x: &str, weight: &str) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (x, w) = (operand(call, x, dtype)?, operand(call, weight, dtype)?);
    if call.has("bias") {
        return Err(call.unsupported("no bias", "a bias"));
    }
    let offsets = call.maybe("offs")?;
    let (shape, stack) = (call.shape(x), call.shape(w));
    let (Some(offsets), &[m, k], &[g, inner, _]) = (offsets, &shape[..], &stack[..]) else {
        return match (offsets, shape.len(), stack.len()) {
            (None, 3, 3) => one(matmul(call, x, w)?),
            _ => Err(call.unsupported(
                "rows [m, k] in groups with a stack [g, k, n], or two stacks",
                format!("{shape:?} and {stack:?}"),
            )),
        };
    };
    if k != inner || call.shape(offsets) != [g] {
        return Err(
            call.unsupported("x[m, k], weight[g, k, n] and offs[g]", format!("{shape:?} and {stack:?}"))
        );
    }
    let laid_out = [m, g, k];
    call.check_size(&laid_out)?;
    let is_own = membership(call, offsets, m, g)?;
    let is_own = call.b().broadcast_in_dim(is_own, &laid_out, &[0, 1])?;
    let rows = call.b().broadcast_in_dim(x, &laid_out, &[0, 2])?;
    let nothing = call.b().full_like(rows, 0.0)?;
    let rows = call.b().select(is_own, rows, nothing)?;
    let dims =
        DotGeneral { lhs_contracting: vec![1, 2], rhs_contracting: vec![0, 1], ..DotGeneral::default() };
    one(call.b().dot_general(rows, w, dims)?)
}

/// `[m, g]`: whether a row is in a group, from the ends of the groups.
fn membership(call: &mut Call, ends: ValueId, m: usize, g: usize) -> Result<ValueId> {
    let ty = TensorType::new(DType::I64, [m, g]);
    let ends = convert(call, ends, DType::I64)?;
    let zero = constant(call, DType::I64, Scalar::Int(0));
    let first = call.b().broadcast_scalar(zero, &[1])?;
    let starts = call.b().concatenate(&[first, ends], 0)?;
    let starts = call.b().slice_dim(starts, 0, 0, g)?;
    let row = call.b().iota(ty, 0)?;
    let (starts, ends) = (call.spread(starts, &[m, g])?, call.spread(ends, &[m, g])?);
    let has_begun = call.b().compare(Direction::Ge, row, starts)?;
    let is_before_end = call.b().compare(Direction::Lt, row, ends)?;
    call.b().binary(BinaryKind::And, has_begun, is_before_end)
}

/// The number of elements in each of `bins` equal parts of `min..=max`; others are not counted.
fn histogram(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let x = operand(call, "self", dtype)?;
    let count = call.shape(x).iter().product();
    let bins = call.extents(&[call.int("bins", 100)?])?[0];
    let (min, max) = (call.float("min", 0.0)?, call.float("max", 0.0)?);
    if !(min < max && min.is_finite() && max.is_finite() && bins > 0) {
        return Err(
            call.unsupported("min below max, and at least one bin", format!("{min} to {max}, {bins} bins"))
        );
    }
    call.check_size(&[count, bins])?;
    let x = call.b().reshape(x, &[count])?;
    let x = call.b().stop_gradient(x)?;
    let offset = call.b().offset(x, -min)?;
    let scaled = call.b().scale(offset, bins as f64 / (max - min))?;
    let bin = call.b().unary(UnaryKind::Floor, scaled)?;
    // The upper end belongs to the last bin; an element beyond it has none.
    let last = call.b().full_like(bin, (bins - 1) as f64)?;
    let top = call.b().full_like(x, max)?;
    let is_top = call.b().compare(Direction::Eq, x, top)?;
    let is_beyond = call.b().compare(Direction::Gt, x, top)?;
    let nowhere = call.b().full_like(bin, -1.0)?;
    let bin = call.b().select(is_top, last, bin)?;
    let bin = call.b().select(is_beyond, nowhere, bin)?;
    let number = call.b().iota(TensorType::new(dtype, [count, bins]), 1)?;
    let bin = call.b().broadcast_in_dim(bin, &[count, bins], &[0])?;
    let hit = call.b().compare(Direction::Eq, bin, number)?;
    let hit = convert(call, hit, dtype)?;
    one(call.b().reduce_sum(hit, &[0])?)
}
