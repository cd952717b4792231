//! Windows and diagonals: views whose elements lie at steps of a tensor, and the columns of its windows.

use super::convolution::{Windows, per_dim};
use super::shape::shape_of;
use super::{Rows, one, operand};
use crate::pt2::call::{Call, Outs, View};
use partita_ir::ops::Pad;

pub const ROWS: Rows =
    &[("aten.diagonal.default", diagonal), ("aten.unfold.default", unfold), ("aten.im2col.default", columns)];

/// The diagonal of two dimensions, which becomes the last one: of a square of `k` rows, every `k + 1`-th element.
fn diagonal(call: &mut Call) -> Outs {
    let shape = shape_of(call, "self")?;
    let rank = shape.len();
    let dims = call.wrap_all(&[call.int("dim1", 0)?, call.int("dim2", 1)?], rank)?;
    let [row, column] = dims[..] else { unreachable!("two dimensions were given") };
    if rank < 2 {
        return Err(call.unsupported("a tensor of at least 2 dimensions", format!("{shape:?}")));
    }
    let offset = call.int("offset", 0)?;
    let moved = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    let (first_row, first_column) = if offset < 0 { (moved, 0) } else { (0, moved) };
    let (first_row, first_column) = (first_row.min(shape[row]), first_column.min(shape[column]));
    let count = (shape[row] - first_row).min(shape[column] - first_column);
    let mut order: Vec<usize> = (0..rank).filter(|dim| !dims.contains(dim)).collect();
    let mut flat: Vec<usize> = order.iter().map(|&dim| shape[dim]).collect();
    order.extend([row, column]);
    flat.push(count * count);
    let part = |dim, start| View::Slice { dim, start, limit: start + count, step: 1 };
    call.view(
        "self",
        vec![
            View::Permute(order),
            part(rank - 2, first_row),
            part(rank - 1, first_column),
            View::Reshape(flat),
            View::Slice { dim: rank - 2, start: 0, limit: count * count, step: count + 1 },
        ],
    )
}

/// The windows of `size` elements of a dimension, `step` apart; windows without gaps are a reshape.
fn unfold(call: &mut Call) -> Outs {
    let mut shape = shape_of(call, "self")?;
    let dim = call.wrap(call.required_int("dimension")?, shape.len())?;
    let sizes = call.extents(&[call.required_int("size")?, call.required_int("step")?])?;
    let (size, step) = (sizes[0], sizes[1]);
    let Some(&extent) = shape.get(dim).filter(|&&extent| (1..=extent).contains(&size) && step > 0) else {
        return Err(call.unsupported("windows within a dimension", format!("{size} elements of {shape:?}")));
    };
    let count = (extent - size) / step + 1;
    call.check_size(&[&shape[..dim], &[count, size], &shape[dim + 1..]].concat())?;
    if step < size || count * step > extent {
        call.check_nodes(2 * size)?;
        return call.view("self", vec![View::Windows { dim, size, step, dilation: 1 }]);
    }
    let rank = shape.len();
    shape.splice(dim..=dim, [count, step]);
    let order = (0..=rank).filter(|&d| d != dim + 1).chain([dim + 1]).collect();
    call.view(
        "self",
        vec![
            View::Slice { dim, start: 0, limit: count * step, step: 1 },
            View::Reshape(shape),
            View::Slice { dim: dim + 1, start: 0, limit: size, step: 1 },
            View::Permute(order),
        ],
    )
}

/// `[n, c, h, w] -> [n, c kh kw, windows]`: the elements of each window of the padded images as a column.
fn columns(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let mut x = operand(call, "self", dtype)?;
    let own = call.shape(x);
    let is_single = own.len() == 3;
    if is_single {
        x = call.b().reshape(x, &[&[1], &own[..]].concat())?;
    }
    let [n, c, h, w] = call.shape(x)[..] else {
        return Err(call.unsupported("images [n, c, h, w]", format!("{own:?}")));
    };
    let padding: Vec<(usize, usize)> =
        per_dim(call, "padding", 2, 0)?.into_iter().map(|edge| (edge, edge)).collect();
    let windows = Windows {
        kernel: per_dim(call, "kernel_size", 2, 1)?,
        stride: per_dim(call, "stride", 2, 1)?,
        dilation: per_dim(call, "dilation", 2, 1)?,
        padding,
    };
    let result = windows.result(call, &[h, w])?;
    let (kh, kw, rows, columns) = (windows.kernel[0], windows.kernel[1], result[0], result[1]);
    let shape = [n, c.saturating_mul(kh).saturating_mul(kw), rows.saturating_mul(columns)];
    call.check_size(&shape)?;
    call.check_nodes(kh.saturating_add(kw).saturating_mul(2))?;
    let (h_edge, w_edge) = (windows.padding[0].0 as i64, windows.padding[1].0 as i64);
    let edges = vec![0, 0, h_edge, w_edge];
    let zero = call.b().scalar(dtype, 0.0);
    x = call.b().push1(Pad { low: edges.clone(), high: edges, interior: vec![0; 4] }, &[x, zero])?;
    for dim in 0..2 {
        let (size, step, dilation) = (windows.kernel[dim], windows.stride[dim], windows.dilation[dim]);
        x = View::Windows { dim: dim + 2, size, step, dilation }.apply(call.b(), x)?;
    }
    // [n, c, rows, columns, kh, kw]
    let x = call.b().transpose(x, &[0, 1, 4, 5, 2, 3])?;
    one(call.b().reshape(x, if is_single { &shape[1..] } else { &shape })?)
}
