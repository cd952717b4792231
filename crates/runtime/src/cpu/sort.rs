//! `sort` by a comparator of comparisons, choices and logic, and `top_k`.

use partita_base::DType;
use partita_ir::ops::{BinaryKind, CompareType, Sort, UnaryKind};
use partita_ir::{Graph, Op};
use partita_kernels::{self as kernels, Comparator, SortStep};

use super::windows::direction;
use super::{Kernel, Value};
use crate::arena::Place;

/// A comparator as steps on registers; `None` if it has other ops.
fn comparator(graph: &Graph) -> Option<Comparator> {
    let mut registers: Vec<Option<usize>> = vec![None; graph.values.len()];
    for (register, &input) in graph.inputs.iter().enumerate() {
        registers[input.index()] = Some(register);
    }
    let mut steps = Vec::new();
    for node in &graph.nodes {
        let mut from = [0; 3];
        for (from, operand) in from.iter_mut().zip(&node.operands) {
            *from = registers[operand.index()]?;
        }
        let dtype = node.operands.first().map(|&operand| graph.ty(operand).dtype);
        let [a, b, c] = from;
        let logic = dtype == Some(DType::Bool);
        steps.push(match &node.op {
            Op::Compare(op) => {
                let (dtype, way) = (dtype?, direction(op.direction));
                match op.compare_type {
                    Some(CompareType::TotalOrder) if dtype.is_float() => SortStep::Total(way, a, b),
                    None | Some(CompareType::Float) if dtype.is_float() => SortStep::Floats(way, a, b),
                    None => SortStep::Integers(way, a, b),
                    Some(CompareType::Signed) if dtype.is_signed_integer() => SortStep::Integers(way, a, b),
                    Some(CompareType::Unsigned) if !dtype.is_float() && !dtype.is_signed_integer() => {
                        SortStep::Integers(way, a, b)
                    }
                    Some(_) => return None,
                }
            }
            Op::Select(_) => SortStep::Select(a, b, c),
            Op::Binary(op) if logic && op.kind == BinaryKind::And => SortStep::And(a, b),
            Op::Binary(op) if logic && op.kind == BinaryKind::Or => SortStep::Or(a, b),
            Op::Binary(op) if logic && op.kind == BinaryKind::Xor => SortStep::Xor(a, b),
            Op::Unary(op) if logic && op.kind == UnaryKind::Not => SortStep::Not(a),
            Op::Constant(op) => SortStep::Constant(Comparator::bits(
                op.value.ty.dtype,
                &op.value.data.pick(std::iter::once(0)).bytes(),
            )),
            _ => return None,
        });
        registers[node.results[0].index()] = Some(graph.inputs.len() + steps.len() - 1);
    }
    // The result is the last step; a step that follows it has no effect.
    let result = registers[graph.outputs.first()?.index()]?;
    steps.truncate((result + 1).checked_sub(graph.inputs.len())?);
    Comparator::new(graph.inputs.len() / 2, steps)
}

pub(super) fn sort(op: &Sort, operands: Vec<Value>, outputs: Vec<Place>) -> Option<Kernel> {
    let (comparator, dim) = (comparator(&op.comparator)?, op.dim);
    let extent = outputs[0].shape[dim];
    if u32::try_from(extent).is_err() {
        return None;
    }
    let workspace_bytes = kernels::sort_workspace_bytes(operands.len(), extent);
    Some(Kernel::new(workspace_bytes, move |memory, workspace| {
        let workspace = memory.bytes_mut(workspace);
        let operand = |number: usize| operands[number].view(memory);
        kernels::sort(&comparator, dim, operand, |number| memory.view_mut(&outputs[number]), workspace);
        Ok(())
    }))
}

pub(super) fn top_k(operands: Vec<Value>, outputs: Vec<Place>) -> Kernel {
    let extent = operands[0].shape().last().copied().unwrap_or(0);
    let workspace_bytes = kernels::top_k_workspace_bytes(extent);
    Kernel::new(workspace_bytes, move |memory, workspace| {
        let (mut values, mut positions) = (memory.view_mut(&outputs[0]), memory.view_mut(&outputs[1]));
        kernels::top_k(&operands[0].view(memory), &mut values, &mut positions, memory.bytes_mut(workspace));
        Ok(())
    })
}
