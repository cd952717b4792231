//! Outlined composites without a template as one elementwise kernel, against the reference interpreter.

use std::sync::Arc;

use partita_base::{DType, Result};
use partita_ir::composites as templates;
use partita_ir::ops::*;
use partita_ir::{CustomOp, Graph, GraphBuilder, Literal, Role, Target, TensorType, ValueId};
use partita_program::RegionKind;

use super::Cpu;
use super::tests::{Random, check};

/// A graph of one composite, as in a region.
fn region(op: &CustomOp, types: &[TensorType]) -> Graph {
    let composite = op.instantiate(types).unwrap();
    assert_eq!(Cpu::default().fusible(&composite), Ok(()), "{op:?}");
    assert!(Cpu::default().has_kernel(&composite));
    let mut b = GraphBuilder::new("region");
    let operands: Vec<ValueId> = types.iter().map(|ty| b.input("", ty.clone(), Role::Activation)).collect();
    let results = b.push(composite, &operands).unwrap();
    b.finish(results)
}

/// Checks on three sets of strides that one kernel gives the interpreter's numbers.
fn check_op(op: &CustomOp, types: &[TensorType], random: &mut Random) {
    let inputs: Vec<Literal> = types.iter().map(|ty| random.literal(ty)).collect();
    let is_slow = check(&region(op, types), RegionKind::Single, &inputs, &format!("{op:?} on {types:?}"));
    assert!(!is_slow);
}

/// One random step of model code: a value of shape `shape` from the given ones, which all have that shape
/// except `vector`, a vector along its last dimension.
fn grow(b: &mut GraphBuilder, values: &[ValueId], vector: ValueId, random: &mut Random) -> Result<ValueId> {
    let shape = b.shape(values[0]);
    let rank = shape.len();
    let x = values[random.below(values.len())];
    let y = values[random.below(values.len())];
    match random.below(12) {
        0 => b.add(x, y),
        1 => b.multiply(x, y),
        2 => b.maximum(x, y),
        3 => b.unary(UnaryKind::Tanh, x),
        4 => b.unary(UnaryKind::Square, x),
        5 => b.offset(x, 0.25),
        6 => {
            let wide = b.broadcast_trailing(vector, &shape)?;
            b.subtract(x, wide)
        }
        7 => {
            // An elementwise op on the vector before it is broadcast.
            let scaled = b.scale(vector, -0.5)?;
            let wide = b.broadcast_in_dim(scaled, &shape, &[rank - 1])?;
            b.multiply(x, wide)
        }
        8 => {
            let is_less = b.compare(Direction::Lt, x, y)?;
            b.select(is_less, x, y)
        }
        9 => {
            // Through another order of the dimensions, and one more dimension.
            let order: Vec<usize> = (0..rank).rev().collect();
            let turned = b.transpose(x, &order)?;
            let turned = b.unary(UnaryKind::Sine, turned)?;
            let mut longer: Vec<usize> = b.shape(turned);
            longer.insert(1, 1);
            let longer = b.reshape(turned, &longer)?;
            let shorter: Vec<usize> = order.iter().map(|&d| shape[d]).collect();
            let back = b.reshape(longer, &shorter)?;
            b.transpose(back, &order)
        }
        10 => {
            let ty = b.ty(x).clone();
            let places = b.iota(ty, random.below(rank))?;
            let places = b.scale(places, 0.125)?;
            b.add(x, places)
        }
        _ => b.composite(&templates::SILU, &[], &[x]),
    }
}

#[test]
fn random_composites_over_random_shapes() {
    let mut random = Random(11);
    for round in 0..60u64 {
        let dtype = [DType::F32, DType::F64, DType::BF16][random.below(3)];
        let rank = 1 + random.below(3);
        let mut shape: Vec<usize> = (0..rank).map(|_| 1 + random.below(40)).collect();
        if round % 6 == 0 {
            shape[random.below(rank)] = 0;
        }
        if round % 10 == 1 {
            shape[random.below(rank)] = 1;
        }
        let op = CustomOp::new("mine.random", &["x", "y", "vector"], move |b, args| {
            let mut random = Random(round);
            let mut values = args[..2].to_vec();
            for _ in 0..1 + random.below(8) {
                let value = grow(b, &values, args[2], &mut random)?;
                values.push(value);
            }
            // The last value, and some others, perhaps the same one or an operand.
            let mut results = vec![values[values.len() - 1]];
            for _ in 0..random.below(3) {
                results.push(values[random.below(values.len())]);
            }
            Ok(results)
        });
        let whole = TensorType::new(dtype, shape.clone());
        let vector = TensorType::new(dtype, [shape[rank - 1]]);
        check_op(&op, &[whole.clone(), whole, vector], &mut random);
    }
}

#[test]
fn one_operand_seen_in_two_orders() {
    let mut random = Random(3);
    let op = CustomOp::new("mine.symmetric", &["x"], |b, x| {
        let turned = b.transpose(x[0], &[1, 0])?;
        let sum = b.add(x[0], turned)?;
        // Also the exponential of an intermediate value.
        let exponential = b.exponential(sum)?;
        let turned = b.transpose(exponential, &[1, 0])?;
        Ok(vec![b.multiply(exponential, turned)?, turned])
    });
    for size in [0, 1, 7, 50] {
        check_op(&op, &[TensorType::new(DType::F64, [size, size])], &mut random);
    }
}

#[test]
fn scalars_constants_and_other_types() {
    let mut random = Random(4);
    let op = CustomOp::new("mine.clamped", &["x", "limit", "column"], |b, args| {
        let ty = b.ty(args[0]).clone();
        let zero = b.scalar(ty.dtype, 0.0);
        let x = b.push1(Clamp, &[zero, args[0], args[1]])?;
        // A dimension of one element is repeated.
        let column = b.broadcast_in_dim(args[2], &ty.shape, &[0, 1])?;
        let sum = b.add(x, column)?;
        let is_positive = b.compare(Direction::Gt, sum, column)?;
        let kept = b.stop_gradient(sum)?;
        let both = b.push(OptimizationBarrier, &[kept, is_positive])?;
        let count = b.convert(both[1], DType::I32)?;
        let ones = b.full(&ty, 1.0)?;
        Ok(vec![both[0], both[1], count, count, ones, args[0]])
    });
    for shape in [[3, 5], [0, 5], [1, 1], [40, 70]] {
        let x = TensorType::new(DType::F32, shape);
        let column = TensorType::new(DType::F32, [shape[0], 1]);
        check_op(&op, &[x, TensorType::scalar(DType::F32), column], &mut random);
    }
    let nothing = CustomOp::new("mine.same", &["x"], |_, x| Ok(vec![x[0], x[0]]));
    check_op(&nothing, &[TensorType::new(DType::BF16, [4, 3])], &mut random);
    check_op(&nothing, &[TensorType::scalar(DType::F64)], &mut random);
}

#[test]
fn gradients_that_are_elementwise_are_one_kernel() {
    let mut random = Random(8);
    let op = CustomOp::new("mine.gated", &["x", "y"], |b, args| {
        let gated = b.composite(&templates::SILU, &[], &[args[0]])?;
        Ok(vec![b.multiply(gated, args[1])?])
    });
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for shape in [[3, 5], [0, 5], [33, 70]] {
            let ty = TensorType::new(dtype, shape);
            let composite = op.instantiate(&[ty.clone(), ty.clone()]).unwrap();
            let definition =
                Arc::new(composite.definition.vjp(&composite.attributes, &[0], &[0, 1]).unwrap());
            assert!(Cpu::default().has_kernel(&Composite { definition, ..composite }));
            check_op(&op.gradient(&[0], &[0, 1]), &[ty.clone(), ty.clone(), ty], &mut random);
        }
    }
}
