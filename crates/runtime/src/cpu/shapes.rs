//! Ops that only move elements.

use partita_ir::ops::Pad;
use partita_kernels::{self as kernels, MAX_RANK, View, ViewMut};

use super::cut::{outer_dim, ranges};
use super::{Kernel, Value, integer};
use crate::arena::{Memory, Place};

/// A copy in at most `parts` parts.
pub(super) fn copy(from: &Place, to: &Place, parts: usize) -> Kernel {
    let Some(dim) = outer_dim(&to.shape) else {
        return copy_whole(from.clone(), to.clone());
    };
    let part =
        |range: std::ops::Range<usize>| copy_whole(from.sliced(dim, range.clone()), to.sliced(dim, range));
    Kernel::together(ranges(to.shape[dim], parts).map(part))
}

fn copy_whole(from: Place, to: Place) -> Kernel {
    Kernel::plain(move |memory| kernels::copy(&memory.view(&from), &mut memory.view_mut(&to)))
}

/// A copy of an operand that is viewed with other dimensions.
fn copy_as(value: &Value, shape: &[usize], strides: Vec<isize>, out: Place) -> Option<Kernel> {
    match value {
        Value::Place(place) => {
            Some(copy_whole(Place { shape: shape.to_vec(), strides, ..place.clone() }, out))
        }
        Value::Number(number, _) => {
            let number = *number;
            Some(Kernel::plain(move |memory| kernels::fill(&mut memory.view_mut(&out), &number)))
        }
    }
}

pub(super) fn broadcast(dims: &[usize], value: &Value, out: Place) -> Option<Kernel> {
    let mut strides = vec![0; out.shape.len()];
    for (from, &to) in dims.iter().enumerate() {
        strides[to] = if value.shape()[from] == 1 { 0 } else { value.stride(from) };
    }
    copy_as(value, &out.shape.clone(), strides, out)
}

pub(super) fn reshape(value: &Value, out: Place) -> Option<Kernel> {
    let shape = value.shape().to_vec();
    let strides = (0..shape.len()).map(|d| value.stride(d)).collect();
    // The result is dense, so it can be written in the operand's shape.
    let out = Place::dense(out.offset_bytes, out.dtype, &shape);
    copy_as(value, &shape, strides, out)
}

pub(super) fn transpose(permutation: &[usize], value: &Value, out: Place) -> Option<Kernel> {
    let strides = permutation.iter().map(|&d| value.stride(d)).collect();
    copy_as(value, &out.shape.clone(), strides, out)
}

pub(super) fn concatenate(dim: usize, operands: Vec<Value>, out: Place) -> Kernel {
    Kernel::plain(move |memory| {
        let mut start = 0;
        for operand in &operands {
            let limit = start + operand.shape()[dim];
            kernels::copy(&operand.view(memory), &mut memory.view_mut(&out).slice(dim, start, limit, 1));
            start = limit;
        }
    })
}

/// Along one dimension: operand elements `from..limit` go to result elements `to`, `to + step`, ...
struct Kept {
    from: usize,
    limit: usize,
    to: usize,
    step: usize,
}

pub(super) fn pad(op: &Pad, operands: Vec<Value>, out: Place) -> Kernel {
    let shape = operands[0].shape().to_vec();
    let kept: Vec<Kept> = (0..shape.len())
        .map(|d| {
            let (low, step, size) = (op.low[d], op.interior[d] as i64 + 1, out.shape[d] as i64);
            let from = (-low).max(0).div_ceil_by(step).min(shape[d] as i64);
            let limit = (size - low).max(0).div_ceil_by(step).min(shape[d] as i64).max(from);
            Kept {
                from: from as usize,
                limit: limit as usize,
                to: (low + from * step).max(0) as usize,
                step: step as usize,
            }
        })
        .collect();
    let is_exact = shape == out.shape && kept.iter().all(|k| k.to == 0 && k.step == 1 && k.from == 0);
    let is_empty = kept.iter().any(|k| k.from == k.limit);
    Kernel::plain(move |memory| {
        let mut target = memory.view_mut(&out);
        if !is_exact {
            kernels::fill(&mut target, &operands[1].scalar(memory));
        }
        if is_empty {
            return;
        }
        let mut source = operands[0].view(memory);
        for (d, k) in kept.iter().enumerate() {
            source = source.slice(d, k.from, k.limit, 1);
            target = target.slice(d, k.to, k.to + (k.limit - k.from - 1) * k.step + 1, k.step);
        }
        kernels::copy(&source, &mut target);
    })
}

trait DivCeil {
    fn div_ceil_by(self, divisor: i64) -> i64;
}
impl DivCeil for i64 {
    /// Rounds up; for numbers that are not negative.
    fn div_ceil_by(self, divisor: i64) -> i64 {
        (self + divisor - 1) / divisor
    }
}

/// The start of a window of extents `window`: the start indices, clamped so that it fits.
fn starts(memory: &Memory<'_>, indices: &[Value], shape: &[usize], window: &[usize]) -> [usize; MAX_RANK] {
    std::array::from_fn(|d| match indices.get(d) {
        None => 0,
        Some(index) => integer(index.scalar(memory)).clamp(0, (shape[d] - window[d]) as i64) as usize,
    })
}

pub(super) fn dynamic_slice(operands: Vec<Value>, out: Place) -> Kernel {
    Kernel::plain(move |memory| {
        let mut window: View<'_> = operands[0].view(memory);
        let at = starts(memory, &operands[1..], operands[0].shape(), &out.shape);
        for (d, (&start, &extent)) in at.iter().zip(&out.shape).enumerate() {
            window = window.slice(d, start, start + extent, 1);
        }
        kernels::copy(&window, &mut memory.view_mut(&out));
    })
}

pub(super) fn dynamic_update_slice(operands: Vec<Value>, out: Place) -> Kernel {
    Kernel::plain(move |memory| {
        let update = operands[1].view(memory);
        let at = starts(memory, &operands[2..], &out.shape, update.shape());
        if operands[0].place() != Some(&out) {
            kernels::copy(&operands[0].view(memory), &mut memory.view_mut(&out));
        }
        let mut window: ViewMut<'_> = memory.view_mut(&out);
        for (d, &extent) in update.shape().iter().enumerate() {
            window = window.slice(d, at[d], at[d] + extent, 1);
        }
        kernels::copy(&update, &mut window);
    })
}
