//! Tests of `scatter`.

use super::*;
use crate::graph::Role;
use crate::testing::{apply, check_gradient, check_rule, random, random_values};

fn sum() -> Update {
    Update::Combine(Reducer::Combiner(Combiner::Sum))
}

fn indices_within(seed: u64, shape: &[usize], low: i64, high: i64) -> Literal {
    let count = shape.iter().product();
    let spread = (high - low) as f64 / 2.0;
    let values = random_values(seed, count).into_iter().map(|v| low + ((v + 1.0) * spread) as i64);
    Literal::new(shape, values.collect::<Vec<i64>>())
}

/// Rows of a table; pairs of batches; windows of two indexed dimensions with the index vector in front; rows
/// whose dimension of extent 1 stays. Some indices are out of range.
fn cases(update: &Update) -> Vec<(Scatter, Vec<Literal>)> {
    let op =
        |dims| Scatter { dims, update: update.clone(), indices_are_sorted: false, unique_indices: false };
    let rows = ScatterDims {
        update_window_dims: vec![2],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 2,
        ..ScatterDims::default()
    };
    let batches = ScatterDims {
        update_window_dims: vec![2],
        inserted_window_dims: vec![1],
        input_batching_dims: vec![0],
        scatter_indices_batching_dims: vec![0],
        scatter_dims_to_operand_dims: vec![1],
        index_vector_dim: 2,
    };
    let windows = ScatterDims {
        update_window_dims: vec![0, 2],
        inserted_window_dims: vec![2],
        scatter_dims_to_operand_dims: vec![2, 0],
        index_vector_dim: 0,
        ..ScatterDims::default()
    };
    let kept = ScatterDims {
        update_window_dims: vec![1, 2],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
        ..ScatterDims::default()
    };
    vec![
        (op(rows), vec![random(1, &[5, 3]), indices_within(2, &[2, 4], -1, 6), random(3, &[2, 4, 3])]),
        (
            op(batches),
            vec![random(4, &[3, 5, 2]), indices_within(5, &[3, 4, 1], -1, 6), random(6, &[3, 4, 2])],
        ),
        (
            op(windows),
            vec![random(7, &[4, 5, 6]), indices_within(8, &[2, 3], -2, 7), random(9, &[2, 3, 5])],
        ),
        (op(kept), vec![random(10, &[6, 2]), indices_within(11, &[5, 1], -1, 7), random(12, &[5, 1, 2])]),
    ]
}

/// The specification, update element by update element.
fn naive(op: &Scatter, inputs: &[Literal], meet: fn(f64, f64) -> f64) -> Vec<f64> {
    let (operand, index, updates) = (&inputs[0], &inputs[1], &inputs[2]);
    let flat =
        |ty: &TensorType, at: &[usize]| at.iter().zip(ty.strides()).map(|(i, s)| i * s).sum::<usize>();
    let (index_values, update_values) = (index.to_i64(), updates.to_f64());
    let mut result = operand.to_f64();
    for at in indices(&updates.ty.shape) {
        let batch: Vec<usize> =
            (0..at.len()).filter(|d| !op.dims.update_window_dims.contains(d)).map(|d| at[d]).collect();
        let mut place = vec![0i64; operand.ty.rank()];
        for (component, &dim) in op.dims.scatter_dims_to_operand_dims.iter().enumerate() {
            let mut vector_at = batch.clone();
            if op.dims.index_vector_dim < index.ty.rank() {
                vector_at.insert(op.dims.index_vector_dim, component);
            }
            place[dim] = index_values[flat(&index.ty, &vector_at)];
        }
        for (&o, &i) in op.dims.input_batching_dims.iter().zip(&op.dims.scatter_indices_batching_dims) {
            place[o] += batch[if i > op.dims.index_vector_dim { i - 1 } else { i }] as i64;
        }
        let mut window = op.dims.update_window_dims.iter();
        for (dim, place) in place.iter_mut().enumerate() {
            if !op.dims.inserted_window_dims.contains(&dim) && !op.dims.input_batching_dims.contains(&dim)
            {
                *place += at[*window.next().unwrap()] as i64;
            }
        }
        if place.iter().zip(&operand.ty.shape).all(|(&p, &extent)| p >= 0 && p < extent as i64) {
            let place: Vec<usize> = place.into_iter().map(|p| p as usize).collect();
            let to = flat(&operand.ty, &place);
            result[to] = meet(result[to], update_values[flat(&updates.ty, &at)]);
        }
    }
    result
}

#[test]
fn updates_land_where_the_specification_says() {
    let mut body = GraphBuilder::new("body");
    let a = body.input("a", TensorType::scalar(DType::F64), Role::Input);
    let b = body.input("b", TensorType::scalar(DType::F64), Role::Input);
    let difference = body.subtract(a, b).unwrap();
    let body = Update::Combine(Reducer::Body(Box::new(body.finish(vec![difference]))));
    let updates: [(Update, fn(f64, f64) -> f64); 4] = [
        (Update::Assign, |_, b| b),
        (sum(), |a, b| a + b),
        (Update::Combine(Reducer::Combiner(Combiner::Max)), f64::max),
        (body, |a, b| a - b),
    ];
    for (update, meet) in updates {
        for (op, inputs) in cases(&update) {
            let expected = naive(&op, &inputs, meet);
            let got = apply(op, &inputs)[0].to_f64();
            assert!(
                got.iter().zip(&expected).all(|(g, e)| (g - e).abs() < 1e-12),
                "{got:?} {expected:?}"
            );
        }
    }
}

#[test]
fn shards_combine_to_the_whole() {
    for update in [
        Update::Assign,
        sum(),
        Update::Combine(Reducer::Combiner(Combiner::Max)),
        Update::Combine(Reducer::Combiner(Combiner::Prod)),
    ] {
        for (op, inputs) in cases(&update) {
            check_rule(op, &inputs);
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    for update in [Update::Assign, sum()] {
        for (op, inputs) in cases(&update) {
            check_gradient(op, inputs, &[true, false, true]);
        }
    }
    let rows = cases(&Update::Assign).remove(0);
    let unique = Literal::new([2, 4], vec![4i64, -1, 0, 2, 9, 1, 3, 7]);
    let op = Scatter { unique_indices: true, ..rows.0 };
    check_gradient(op, vec![rows.1[0].clone(), unique, rows.1[2].clone()], &[true, false, true]);
}

#[test]
fn combinations_without_a_gradient_say_so() {
    let (op, inputs) = cases(&Update::Combine(Reducer::Combiner(Combiner::Max))).remove(0);
    let mut builder = GraphBuilder::new("f");
    let operands: Vec<ValueId> =
        inputs.iter().map(|x| builder.input("x", x.ty.clone(), Role::Input)).collect();
    let results = builder.push(op.clone(), &operands).unwrap();
    let mut context = GradientContext {
        builder: &mut builder,
        operands: &operands,
        results: &results,
        cotangents: &[Some(operands[0])],
        wanted: &[true, false, true],
    };
    assert_eq!(op.gradient(&mut context).unwrap_err().code, "E120");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (op, inputs) = cases(&sum()).remove(0);
    let types: Vec<TensorType> = inputs.iter().map(|x| x.ty.clone()).collect();
    let code = |op: &Scatter, change: &dyn Fn(&mut Vec<TensorType>)| {
        let mut types = types.clone();
        change(&mut types);
        op.infer(&types.iter().collect::<Vec<_>>()).unwrap_err().code
    };
    assert_eq!(code(&op, &|types| drop(types.pop())), "E101");
    assert_eq!(code(&op, &|types| types[2].dtype = DType::F32), "E102");
    assert_eq!(code(&op, &|types| types[1].dtype = DType::F32), "E103");
    assert_eq!(code(&op, &|types| types[2].shape = vec![2, 5, 3]), "E104");
    assert_eq!(code(&op, &|types| types[2].shape = vec![2, 3]), "E104");
    assert_eq!(code(&op, &|types| types[2].shape = vec![2, 4, 4]), "E106");
    let bad = |dims| Scatter { dims, ..op.clone() };
    let map = bad(ScatterDims { scatter_dims_to_operand_dims: vec![0, 1], ..op.dims.clone() });
    assert_eq!(code(&map, &|_| ()), "E105");
    let covered = bad(ScatterDims { inserted_window_dims: vec![], ..op.dims.clone() });
    assert_eq!(code(&covered, &|_| ()), "E105");
    let body = GraphBuilder::new("body").finish(vec![]);
    let body = Scatter { update: Update::Combine(Reducer::Body(Box::new(body))), ..op.clone() };
    assert_eq!(code(&body, &|_| ()), "E107");
}
