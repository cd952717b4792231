//! Tests of `gather`.

use super::*;
use crate::testing::{apply, check_gradient, check_rule, random, random_values};

fn indices_within(seed: u64, shape: &[usize], low: i32, high: i32) -> Literal {
    let count = shape.iter().product();
    let spread = (high - low) as f64 / 2.0;
    let values = random_values(seed, count).into_iter().map(|v| low + ((v + 1.0) * spread) as i32);
    Literal::new(shape, values.collect::<Vec<i32>>())
}

/// Rows of a table; pairs of batches; windows of two indexed dimensions with the index vector in front; rows
/// whose dimension of extent 1 stays. Some indices are out of range.
fn cases() -> Vec<(Gather, Vec<Literal>)> {
    let op = |dims, slice_sizes| Gather { dims, slice_sizes, indices_are_sorted: false };
    let rows = GatherDims {
        offset_dims: vec![2],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 2,
        ..GatherDims::default()
    };
    let batches = GatherDims {
        offset_dims: vec![2],
        collapsed_slice_dims: vec![1],
        operand_batching_dims: vec![0],
        start_indices_batching_dims: vec![0],
        start_index_map: vec![1],
        index_vector_dim: 2,
    };
    let windows = GatherDims {
        offset_dims: vec![0, 2],
        collapsed_slice_dims: vec![2],
        start_index_map: vec![2, 0],
        index_vector_dim: 0,
        ..GatherDims::default()
    };
    let kept = GatherDims {
        offset_dims: vec![1, 2],
        start_index_map: vec![0],
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    vec![
        (op(rows, vec![1, 3]), vec![random(1, &[5, 3]), indices_within(2, &[2, 4], -1, 7)]),
        (op(batches, vec![1, 1, 2]), vec![random(3, &[3, 5, 2]), indices_within(4, &[3, 4, 1], -1, 7)]),
        (op(windows, vec![2, 5, 1]), vec![random(5, &[4, 5, 6]), indices_within(6, &[2, 3], -2, 8)]),
        (op(kept, vec![1, 2]), vec![random(7, &[6, 2]), indices_within(8, &[5, 1], -1, 8)]),
    ]
}

/// The specification, element by element.
fn naive(op: &Gather, operand: &Literal, index: &Literal, result: &TensorType) -> Vec<f64> {
    let flat =
        |ty: &TensorType, at: &[usize]| at.iter().zip(ty.strides()).map(|(i, s)| i * s).sum::<usize>();
    let (values, index_values) = (operand.to_f64(), index.to_i64());
    let element = |at: Vec<usize>| {
        let batch: Vec<usize> =
            (0..at.len()).filter(|d| !op.dims.offset_dims.contains(d)).map(|d| at[d]).collect();
        let mut place = vec![0; operand.ty.rank()];
        for (component, &dim) in op.dims.start_index_map.iter().enumerate() {
            let mut vector_at = batch.clone();
            if op.dims.index_vector_dim < index.ty.rank() {
                vector_at.insert(op.dims.index_vector_dim, component);
            }
            let last = (operand.ty.shape[dim] - op.slice_sizes[dim]) as i64;
            place[dim] = index_values[flat(&index.ty, &vector_at)].clamp(0, last) as usize;
        }
        for (&o, &i) in op.dims.operand_batching_dims.iter().zip(&op.dims.start_indices_batching_dims) {
            place[o] += batch[if i > op.dims.index_vector_dim { i - 1 } else { i }];
        }
        let mut window = op.dims.offset_dims.iter();
        for (dim, place) in place.iter_mut().enumerate() {
            if !op.dims.collapsed_slice_dims.contains(&dim)
                && !op.dims.operand_batching_dims.contains(&dim)
            {
                *place += at[*window.next().unwrap()];
            }
        }
        values[flat(&operand.ty, &place)]
    };
    indices(&result.shape).map(element).collect()
}

#[test]
fn windows_come_from_where_the_specification_says() {
    for (op, inputs) in cases() {
        let got = apply(op.clone(), &inputs).remove(0);
        assert_eq!(got.to_f64(), naive(&op, &inputs[0], &inputs[1], &got.ty));
    }
}

#[test]
fn shards_add_up_to_the_whole() {
    for (op, inputs) in cases() {
        check_rule(op, &inputs);
    }
}

#[test]
fn gradients_match_finite_differences() {
    for (op, inputs) in cases() {
        check_gradient(op, inputs, &[true, false]);
    }
}

#[test]
fn looked_up_rows_may_be_cut_along_every_dimension() {
    let (op, inputs) = cases().remove(0);
    let result = op.infer(&[&inputs[0].ty, &inputs[1].ty]).unwrap();
    let rule = op.rule(&[&inputs[0].ty, &inputs[1].ty], &[&result[0]]);
    let kind = |factors: &[FactorId]| rule.factors[factors[0]].kind;
    assert_eq!(kind(&rule.operands[0][0]), FactorKind::Reduce(Combiner::Sum));
    assert_eq!(kind(&rule.operands[0][1]), FactorKind::Pass);
    assert_eq!(rule.results[0][2], rule.operands[0][1]);
    assert_eq!(rule.results[0][..2], rule.operands[1][..2]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (op, inputs) = cases().remove(0);
    let (operand, index) = (inputs[0].ty.clone(), inputs[1].ty.clone());
    let code = |op: &Gather| op.infer(&[&operand, &index]).unwrap_err().code;
    assert_eq!(op.infer(&[&operand]).unwrap_err().code, "E101");
    assert_eq!(op.infer(&[&operand, &operand]).unwrap_err().code, "E103");
    assert_eq!(code(&Gather { slice_sizes: vec![1], ..op.clone() }), "E105");
    assert_eq!(code(&Gather { slice_sizes: vec![1, 4], ..op.clone() }), "E106");
    assert_eq!(code(&Gather { slice_sizes: vec![2, 3], ..op.clone() }), "E106");
    assert_eq!(code(&Gather { slice_sizes: vec![0, 3], ..op.clone() }), "E106");
    let bad = |dims| Gather { dims, ..op.clone() };
    assert_eq!(code(&bad(GatherDims { offset_dims: vec![3], ..op.dims.clone() })), "E105");
    assert_eq!(code(&bad(GatherDims { index_vector_dim: 3, ..op.dims.clone() })), "E105");
    assert_eq!(code(&bad(GatherDims { index_vector_dim: 1, ..op.dims.clone() })), "E105");
    assert_eq!(code(&bad(GatherDims { operand_batching_dims: vec![0], ..op.dims.clone() })), "E105");
    let paired = GatherDims {
        operand_batching_dims: vec![0],
        start_indices_batching_dims: vec![0],
        collapsed_slice_dims: vec![],
        start_index_map: vec![1],
        ..op.dims.clone()
    };
    assert_eq!(code(&bad(paired)), "E104");
}
