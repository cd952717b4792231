//! Properties of lowering that the files below `tests/files` cannot express: ranks of different
//! structure, and the measured overlap.

use crate::common::*;
use partita_base::DType;
use partita_ir::ops::DynamicSlice;
use partita_ir::{ClassGraph, Phase, Role, TensorType};
use partita_program::*;

#[test]
fn ranks_of_different_structure_are_refused() {
    let graphs = build(2, |rank, b| {
        let x = b.input("x", f32s(&[3]), Role::Activation);
        let y = if rank == 0 { b.negate(x) } else { b.exponential(x) };
        vec![("y".into(), y.unwrap())]
    });
    assert_eq!(
        lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap_err().code,
        "E400"
    );
}

#[test]
fn work_behind_a_bucket_of_gradients_is_counted() {
    let graphs = build(2, |_, b| {
        let x = b.input("x", f32s(&[3, 3]), Role::Input);
        let sum = in_phase(b, Phase::WeightGrad, "layer", |b| all_reduce(b, x, &[&[0, 1]]));
        let product = in_phase(b, Phase::InputGrad, "layer", |b| matmul(b, x, x));
        let y = in_phase(b, Phase::Update, "optimizer", |b| b.add(sum, product).unwrap());
        vec![("y".to_string(), y)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let overlaps = gradient_overlap(&set, 1);
    // A multiplication and an addition for each of 3 * 3 * 3 terms. The sum of both comes after.
    let found: Vec<_> = overlaps.iter().map(|o| (o.kind, o.tensors, o.bytes, o.flops)).collect();
    assert_eq!(found, [(CollectiveKind::AllReduce, 1, 36, 54.0)], "{}", set.display(1));
}

/// An op that reads a part of an operand moves the bytes of that part, not those of the whole operand.
#[test]
fn a_part_of_a_tensor_costs_the_bytes_of_the_part() {
    let graphs = build(1, |_, b| {
        let table = b.input("table", f32s(&[1000, 8]), Role::Param);
        let row = b.input("row", TensorType::scalar(DType::I64), Role::Input);
        let zero = b.scalar(DType::I64, 0.0);
        let rows = b.push1(DynamicSlice { sizes: vec![2, 8] }, &[table, row, zero]).unwrap();
        vec![("y".to_string(), rows)]
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let program = &set.programs[0];
    let costs = program.instructions.iter().filter_map(|instruction| match &instruction.action {
        Action::Compute(compute) => Some(program.cost(compute).bytes),
        _ => None,
    });
    // Two rows of eight are read and written.
    assert_eq!(costs.collect::<Vec<f64>>(), [2.0 * 2.0 * 8.0 * 4.0], "{}", set.display(0));
}
