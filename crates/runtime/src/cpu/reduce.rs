//! `reduce` with a combiner that has a kernel.

use partita_ir::ops::{Reduce, Reducer};
use partita_ir::{Graph, Node, Op};
use partita_kernels::{self as kernels, KernelOptions, Reduction};
use partita_mesh::Combiner;

use super::{Kernel, Value};
use crate::arena::Place;

pub(super) fn reduction(combiner: Combiner) -> Reduction {
    match combiner {
        Combiner::Sum => Reduction::Sum,
        Combiner::Prod => Reduction::Prod,
        Combiner::Max => Reduction::Max,
        Combiner::Min => Reduction::Min,
        Combiner::And => Reduction::And,
        Combiner::Or => Reduction::Or,
    }
}

/// A reduction across rows, if the node is one.
pub(super) fn rows_across<'g>(graph: &'g Graph, node: &'g Node) -> Option<&'g Reduce> {
    let Op::Reduce(op) = &node.op else { return None };
    let &[x, _] = &node.operands[..] else { return None };
    op.across_rows(&graph.ty(x).shape).map(|_| op)
}

pub(super) fn compile(
    options: KernelOptions,
    op: &Reduce,
    operands: Vec<Value>,
    outputs: &[Place],
) -> Option<Kernel> {
    let Reducer::Combiner(combiner) = op.reducer else { return None };
    let ([x, initial], [out]) = (operands.as_slice(), outputs) else { return None };
    let x = x.place()?.clone();
    if x.dtype.is_float() && matches!(combiner, Combiner::And | Combiner::Or) {
        return None;
    }
    let (initial, out, reduction) = (initial.clone(), out.clone(), reduction(combiner));
    let reduced: Vec<bool> = (0..x.shape.len()).map(|d| op.dims.contains(&d)).collect();
    Some(Kernel::plain(move |memory| {
        let initial = initial.scalar(memory);
        kernels::reduce(options, reduction, &memory.view(&x), &reduced, &initial, &mut memory.view_mut(&out));
    }))
}
