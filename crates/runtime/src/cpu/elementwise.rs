//! Elementwise regions as fused chains.

use partita_base::DType;
use partita_ir::ops::{BinaryKind, CompareType, Direction, UnaryKind};
use partita_ir::{Graph, Op, ValueId};
use partita_kernels as kernels;
use partita_kernels::{ElementwiseProgram, EwInstr, EwOp, View, ViewMut};

use super::{Kernel, splat};
use crate::arena::{Memory, Place, Span};

/// The kernel's function, where it has one.
fn unary(kind: UnaryKind) -> Option<kernels::Unary> {
    use kernels::Unary;
    Some(match kind {
        UnaryKind::Negate => Unary::Neg,
        UnaryKind::Abs => Unary::Abs,
        UnaryKind::Sign => Unary::Sign,
        UnaryKind::Exponential => Unary::Exp,
        UnaryKind::ExponentialMinusOne => Unary::Expm1,
        UnaryKind::Log => Unary::Log,
        UnaryKind::LogPlusOne => Unary::Log1p,
        UnaryKind::Sqrt => Unary::Sqrt,
        UnaryKind::Rsqrt => Unary::Rsqrt,
        UnaryKind::Cbrt => Unary::Cbrt,
        UnaryKind::Tanh => Unary::Tanh,
        UnaryKind::Logistic => Unary::Logistic,
        UnaryKind::Sine => Unary::Sine,
        UnaryKind::Cosine => Unary::Cosine,
        UnaryKind::Tan => Unary::Tan,
        UnaryKind::Floor => Unary::Floor,
        UnaryKind::Ceil => Unary::Ceil,
        UnaryKind::RoundNearestAfz => Unary::RoundHalfAway,
        UnaryKind::RoundNearestEven => Unary::RoundHalfEven,
        UnaryKind::Not => Unary::Not,
        UnaryKind::IsFinite => Unary::IsFinite,
        UnaryKind::Erf => Unary::Erf,
        UnaryKind::Erfc => Unary::Erfc,
        UnaryKind::ErfInv => Unary::ErfInv,
        // A product; and nobody counts bits in a hurry.
        UnaryKind::Square | UnaryKind::Popcnt => return None,
    })
}

/// The kernel's function.
fn binary(kind: BinaryKind) -> kernels::Binary {
    use kernels::Binary;
    match kind {
        BinaryKind::Add => Binary::Add,
        BinaryKind::Subtract => Binary::Sub,
        BinaryKind::Multiply => Binary::Mul,
        BinaryKind::Divide => Binary::Div,
        BinaryKind::Maximum => Binary::Max,
        BinaryKind::Minimum => Binary::Min,
        BinaryKind::Remainder => Binary::Rem,
        BinaryKind::Power => Binary::Pow,
        BinaryKind::Atan2 => Binary::Atan2,
        BinaryKind::And => Binary::And,
        BinaryKind::Or => Binary::Or,
        BinaryKind::Xor => Binary::Xor,
        BinaryKind::ShiftLeft => Binary::ShiftLeft,
        BinaryKind::ShiftRightLogical => Binary::ShiftRightLogical,
        BinaryKind::ShiftRightArithmetic => Binary::ShiftRightArithmetic,
    }
}

fn direction(direction: Direction) -> kernels::Direction {
    match direction {
        Direction::Eq => kernels::Direction::Eq,
        Direction::Ne => kernels::Direction::Ne,
        Direction::Lt => kernels::Direction::Lt,
        Direction::Le => kernels::Direction::Le,
        Direction::Gt => kernels::Direction::Gt,
        Direction::Ge => kernels::Direction::Ge,
    }
}

/// The chain that a graph describes over `shape`; `None` where it holds anything else.
fn chain(graph: &Graph, shape: &[usize]) -> Option<ElementwiseProgram> {
    let mut registers: Vec<DType> = graph.inputs.iter().map(|&v| graph.ty(v).dtype).collect();
    let mut register: Vec<Option<usize>> = vec![None; graph.values.len()];
    let mut is_constant = vec![false; graph.values.len()];
    for (position, input) in graph.inputs.iter().enumerate() {
        register[input.index()] = Some(position);
    }
    let mut instructions = Vec::new();
    for node in &graph.nodes {
        let result = node.results[0];
        let ty = graph.ty(result);
        let mut args: Vec<usize> =
            node.operands.iter().map(|v| register[v.index()]).collect::<Option<_>>()?;
        let op = match &node.op {
            Op::Constant(constant) => {
                is_constant[result.index()] = true;
                EwOp::Constant(splat(&constant.value)?)
            }
            // One number looks the same in every shape.
            Op::BroadcastInDim(_) | Op::Reshape(_) if is_constant[node.operands[0].index()] => {
                is_constant[result.index()] = true;
                register[result.index()] = Some(args[0]);
                continue;
            }
            Op::Iota(iota) if ty.shape == shape => EwOp::Iota { dim: iota.dim },
            Op::Unary(op) if op.kind == UnaryKind::Square => {
                args.push(args[0]);
                EwOp::Binary(kernels::Binary::Mul)
            }
            Op::Unary(op) => EwOp::Unary(unary(op.kind)?),
            Op::Binary(op) => EwOp::Binary(binary(op.kind)),
            Op::Compare(op) => EwOp::Compare {
                direction: direction(op.direction),
                total_order: op.compare_type == Some(CompareType::TotalOrder),
            },
            Op::Select(_) => EwOp::Select,
            Op::Clamp(_) => EwOp::Clamp,
            Op::Convert(_) => EwOp::Convert,
            Op::BitcastConvert(_) if ty.shape == graph.ty(node.operands[0]).shape => EwOp::Bitcast,
            _ => return None,
        };
        register[result.index()] = Some(registers.len());
        instructions.push(EwInstr { op, args, out: registers.len() });
        registers.push(ty.dtype);
    }
    let outputs = graph.outputs.iter().map(|v: &ValueId| register[v.index()]).collect::<Option<Vec<_>>>()?;
    ElementwiseProgram::new(registers, graph.inputs.len(), instructions, outputs).ok()
}

pub(super) fn compile(graph: &Graph, inputs: &[Place], outputs: &[Place]) -> Option<Kernel> {
    let shape = outputs.first()?.shape.clone();
    if outputs.iter().any(|place| place.shape != shape) {
        return None;
    }
    // A scalar among the inputs is repeated.
    let spread = |place: &Place| match place.shape.as_slice() {
        own if own == shape => Some(place.clone()),
        [] => Some(Place { shape: shape.clone(), strides: vec![0; shape.len()], ..place.clone() }),
        _ => None,
    };
    let inputs: Vec<Place> = inputs.iter().map(spread).collect::<Option<_>>()?;
    let outputs = outputs.to_vec();
    let program = chain(graph, &shape)?;
    let workspace_bytes = kernels::elementwise_workspace_bytes(&program);
    Some(Kernel::new(workspace_bytes, move |memory: &Memory<'_>, workspace: Span| {
        let nothing = View::contiguous(&[], DType::U8, &[0]);
        let inputs_at: [View<'_>; ElementwiseProgram::MAX_INPUTS] =
            std::array::from_fn(|i| inputs.get(i).map_or(nothing, |place| memory.view(place)));
        let mut outputs_at: [ViewMut<'_>; ElementwiseProgram::MAX_OUTPUTS] = std::array::from_fn(|i| {
            let place = outputs.get(i);
            place.map_or_else(|| ViewMut::contiguous(&mut [], DType::U8, &[0]), |p| memory.view_mut(p))
        });
        kernels::run_elementwise(
            &program,
            &inputs_at[..inputs.len()],
            &mut outputs_at[..outputs.len()],
            &shape,
            memory.bytes_mut(workspace),
        );
        Ok(())
    }))
}
