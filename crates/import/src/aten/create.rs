//! New tensors: constants, ranges, triangles, copies and conversions.

use super::{Rows, constant, convert, one, operand};
use crate::pt2::call::{Call, Out, Outs, Scalar, View};
use partita_base::{DType, Result};
use partita_ir::ops::Direction;
use partita_ir::{TensorType, ValueId};

pub const ROWS: Rows = &[
    ("aten.zeros.default", |c| filled(c, Scalar::Int(0))),
    ("aten.ones.default", |c| filled(c, Scalar::Int(1))),
    ("aten.new_zeros.default", |c| filled(c, Scalar::Int(0))),
    ("aten.new_ones.default", |c| filled(c, Scalar::Int(1))),
    ("aten.full.default", |c| filled_with_argument(c)),
    ("aten.new_full.default", |c| filled_with_argument(c)),
    ("aten.zeros_like.default", |c| filled_like(c, Scalar::Int(0))),
    ("aten.ones_like.default", |c| filled_like(c, Scalar::Int(1))),
    ("aten.empty_like.default", |c| filled_like(c, Scalar::Int(0))),
    ("aten.empty.memory_format", |c| filled(c, Scalar::Int(0))),
    ("aten.new_empty.default", |c| filled(c, Scalar::Int(0))),
    ("aten.full_like.default", |c| {
        let value = c.number("fill_value")?;
        filled_like(c, value)
    }),
    ("aten.fill.Scalar", |c| {
        let value = c.number("value")?;
        filled_like(c, value)
    }),
    ("aten.fill.Tensor", |c| copied_onto(c, "value")),
    ("aten.zero.default", |c| filled_like(c, Scalar::Int(0))),
    ("aten.copy.default", |c| copied_onto(c, "src")),
    ("aten.scalar_tensor.default", scalar_tensor),
    ("aten.arange.default", arange),
    ("aten.arange.start", arange),
    ("aten.arange.start_step", arange),
    ("aten.linspace.default", linspace),
    ("aten.eye.default", eye),
    ("aten.eye.m", eye),
    ("aten.tril.default", |c| triangle(c, Direction::Ge)),
    ("aten.triu.default", |c| triangle(c, Direction::Le)),
    ("aten.clone.default", |c| same(c, "self")),
    ("aten.lift_fresh_copy.default", |c| same(c, "self")),
    ("aten.alias.default", |c| c.view("self", Vec::new())),
    ("aten.detach.default", detach),
    ("aten.detach_.default", |c| {
        Ok(vec![Out::View { of: c.detach("self")?, views: Vec::new(), detach: true }])
    }),
    ("aten.contiguous.default", |c| c.dense("self")),
    ("aten.to.dtype", |c| conversion(c)),
    ("aten.to.dtype_layout", |c| conversion(c)),
    ("aten.to.device", |c| conversion(c)),
    ("aten.to.other", |c| conversion(c)),
    ("aten.type_as.default", |c| conversion(c)),
    ("aten._to_copy.default", |c| conversion(c)),
    ("aten._assert_tensor_metadata.default", nothing),
    ("aten._assert_scalar.default", nothing),
    ("aten._assert_async.default", nothing),
    ("aten._assert_async.msg", nothing),
];

/// A check that PyTorch makes when it runs; the types were checked by the import.
fn nothing(_: &mut Call) -> Outs {
    Ok(Vec::new())
}

fn full(call: &mut Call, ty: &TensorType, value: Scalar) -> Result<ValueId> {
    call.check_size(&ty.shape)?;
    let scalar = constant(call, ty.dtype, value);
    call.b().broadcast_scalar(scalar, &ty.shape)
}

fn filled(call: &mut Call, value: Scalar) -> Outs {
    let shape = call.extents(&call.ints("size")?)?;
    let ty = TensorType::new(call.result_dtype(0)?, shape);
    one(full(call, &ty, value)?)
}

fn filled_with_argument(call: &mut Call) -> Outs {
    let value = call.number("fill_value")?;
    filled(call, value)
}

fn filled_like(call: &mut Call, value: Scalar) -> Outs {
    let like = call.reference("self")?;
    let ty = call.type_of(like).with_dtype(call.result_dtype(0)?);
    one(full(call, &ty, value)?)
}

/// The elements of an argument in the type and shape of `self`.
fn copied_onto(call: &mut Call, name: &str) -> Outs {
    let target = call.reference("self")?;
    let ty = call.type_of(target);
    let source = operand(call, name, ty.dtype)?;
    one(call.spread(source, &ty.shape)?)
}

fn scalar_tensor(call: &mut Call) -> Outs {
    let (dtype, value) = (call.result_dtype(0)?, call.number("s")?);
    one(constant(call, dtype, value))
}

/// `start, start + step, ..` below `end`: an iota, scaled and moved.
fn arange(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let start = call.scalar("start")?.unwrap_or(Scalar::Int(0));
    let end = call.number("end")?;
    let step = call.scalar("step")?.unwrap_or(Scalar::Int(1));
    let count = ((end.as_f64() - start.as_f64()) / step.as_f64()).ceil();
    if !(0.0..=call.most_elements() as f64).contains(&count) {
        return Err(call.unsupported("a range that ends", format!("{start:?} to {end:?} by {step:?}")));
    }
    let shape = [count as usize];
    call.check_size(&shape)?;
    let mut range = call.b().iota(TensorType::new(dtype, shape), 0)?;
    if step.as_f64() != 1.0 {
        let factor = constant(call, dtype, step);
        let factor = call.b().broadcast_scalar(factor, &shape)?;
        range = call.b().multiply(range, factor)?;
    }
    if start.as_f64() != 0.0 {
        let offset = constant(call, dtype, start);
        let offset = call.b().broadcast_scalar(offset, &shape)?;
        range = call.b().add(range, offset)?;
    }
    one(range)
}

fn linspace(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (start, end) = (call.number("start")?.as_f64(), call.number("end")?.as_f64());
    let shape = call.extents(&[call.required_int("steps")?])?;
    let range = call.b().iota(TensorType::new(dtype, shape.clone()), 0)?;
    let step = if shape[0] > 1 { (end - start) / (shape[0] - 1) as f64 } else { 0.0 };
    let scaled = call.b().scale(range, step)?;
    one(call.b().offset(scaled, start)?)
}

/// Row and column of each element of the last two dimensions of a shape.
fn row_and_column(call: &mut Call, shape: &[usize]) -> Result<[ValueId; 2]> {
    let ty = TensorType::new(DType::I64, shape);
    let (row, column) = (shape.len() - 2, shape.len() - 1);
    Ok([call.b().iota(ty.clone(), row)?, call.b().iota(ty, column)?])
}

fn eye(call: &mut Call) -> Outs {
    let n = call.required_int("n")?;
    let shape = call.extents(&[n, call.int("m", n)?])?;
    let [row, column] = row_and_column(call, &shape)?;
    let is_diagonal = call.b().compare(Direction::Eq, row, column)?;
    let dtype = call.result_dtype(0)?;
    one(convert(call, is_diagonal, dtype)?)
}

/// The elements whose row is at least (or at most) their column less `diagonal`; 0 elsewhere.
fn triangle(call: &mut Call, direction: Direction) -> Outs {
    let x = call.tensor("self")?;
    let ty = call.ty(x);
    if ty.rank() < 2 {
        return Err(call.unsupported("a tensor of at least 2 dimensions", ty.to_string()));
    }
    let diagonal = call.int("diagonal", 0)?;
    let [row, column] = row_and_column(call, &ty.shape)?;
    let row = call.b().offset(row, diagonal as f64)?;
    let stays = call.b().compare(direction, row, column)?;
    let zero = full(call, &ty, Scalar::Int(0))?;
    one(call.b().select(stays, x, zero)?)
}

/// A copy: the same value with a storage of its own.
fn same(call: &mut Call, name: &str) -> Outs {
    one(call.tensor(name)?)
}

fn detach(call: &mut Call) -> Outs {
    Ok(vec![Out::View { of: call.reference("self")?, views: Vec::new(), detach: true }])
}

/// Another element type; without one, another name of the same tensor.
fn conversion(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let source = call.reference("self")?;
    if call.type_of(source).dtype == dtype
        && !call.op().ends_with("_to_copy.default")
        && !call.flag("copy", false)?
    {
        return call.view("self", Vec::<View>::new());
    }
    let x = call.tensor("self")?;
    // Only here PyTorch drops imaginary parts.
    one(call.b().convert(x, dtype)?)
}
