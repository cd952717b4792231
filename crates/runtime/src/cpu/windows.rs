//! `reduce_window` and `select_and_scatter` with combiners and comparisons that have kernels.

use partita_ir::ops::{self, ReduceWindow, Reducer, SelectAndScatter};
use partita_kernels::{self as kernels, Direction, KernelOptions, Window};
use partita_mesh::Combiner;

use super::reduce::reduction;
use super::{Kernel, Value};
use crate::arena::Place;

pub(super) fn reduce(
    options: KernelOptions,
    op: &ReduceWindow,
    operands: Vec<Value>,
    outputs: &[Place],
) -> Option<Kernel> {
    let Reducer::Combiner(combiner) = op.reducer else { return None };
    let ([x, initial], [out]) = (operands.as_slice(), outputs) else { return None };
    if out.shape.is_empty() || (out.dtype.is_float() && matches!(combiner, Combiner::And | Combiner::Or)) {
        return None;
    }
    let window = |d: usize| Window {
        size: op.window[d],
        stride: op.strides[d],
        base_dilation: op.base_dilation[d],
        window_dilation: op.window_dilation[d],
        low: op.padding[d].0,
    };
    let windows: Vec<Window> = (0..out.shape.len()).map(window).collect();
    let (x, initial, out, reduction) = (x.clone(), initial.clone(), out.clone(), reduction(combiner));
    Some(Kernel::plain(move |memory| {
        let initial = initial.scalar(memory);
        let (x, mut out) = (x.view(memory), memory.view_mut(&out));
        kernels::reduce_window(options, reduction, &windows, &x, &initial, &mut out);
    }))
}

/// The kernels' relation.
pub(super) fn direction(direction: ops::Direction) -> Direction {
    match direction {
        ops::Direction::Eq => Direction::Eq,
        ops::Direction::Ne => Direction::Ne,
        ops::Direction::Lt => Direction::Lt,
        ops::Direction::Le => Direction::Le,
        ops::Direction::Gt => Direction::Gt,
        ops::Direction::Ge => Direction::Ge,
    }
}

pub(super) fn select_and_scatter(op: &SelectAndScatter, operands: Vec<Value>, out: Place) -> Option<Kernel> {
    let Reducer::Combiner(combiner) = op.scatter else { return None };
    let [x, source, initial] = operands.as_slice() else { return None };
    let stays = direction(op.relation()?);
    if out.dtype.is_float() && matches!(combiner, Combiner::And | Combiner::Or) {
        return None;
    }
    let window = |d: usize| Window {
        size: op.window[d],
        stride: op.strides[d],
        base_dilation: 1,
        window_dilation: 1,
        low: op.padding[d].0,
    };
    let windows: Vec<Window> = (0..out.shape.len()).map(window).collect();
    let (x, source, initial) = (x.clone(), source.clone(), initial.clone());
    let reduction = reduction(combiner);
    Some(Kernel::plain(move |memory| {
        let initial = initial.scalar(memory);
        let (x, source, mut out) = (x.view(memory), source.view(memory), memory.view_mut(&out));
        kernels::select_and_scatter(stays, reduction, &windows, &x, &source, &initial, &mut out);
    }))
}
