//! Properties of lowering that the files below `tests/files` cannot express: ranks of different
//! structure, and the measured overlap.

use crate::common::*;
use partita_ir::{ClassGraph, Phase, Role};
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
