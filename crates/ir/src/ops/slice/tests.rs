//! Tests of `slice`.

use super::*;
use crate::testing::{apply, check_gradient, check_rule, gradients, random, refusal};
use partita_base::DType;

fn vector(values: &[f64]) -> Literal {
    Literal::new([values.len()], values.to_vec())
}

fn slice(windows: &[(usize, usize, usize)]) -> Slice {
    Slice {
        start: windows.iter().map(|w| w.0).collect(),
        limit: windows.iter().map(|w| w.1).collect(),
        stride: windows.iter().map(|w| w.2).collect(),
    }
}

fn pad(edges: &[(i64, i64, usize)]) -> Pad {
    Pad {
        low: edges.iter().map(|e| e.0).collect(),
        high: edges.iter().map(|e| e.1).collect(),
        interior: edges.iter().map(|e| e.2).collect(),
    }
}

#[test]
fn slices_take_windows_with_steps() {
    let x = vector(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let window = |start, limit, stride| {
        apply(slice(&[(start, limit, stride)]), std::slice::from_ref(&x))[0].to_f64()
    };
    assert_eq!(window(1, 4, 1), [1.0, 2.0, 3.0]);
    assert_eq!(window(1, 6, 2), [1.0, 3.0, 5.0]);
    assert_eq!(window(0, 5, 3), [0.0, 3.0]);
    assert_eq!(window(3, 3, 1), [0.0; 0]);
    let x = Literal::new([2, 3], vec![0i32, 1, 2, 3, 4, 5]);
    let corner = apply(slice(&[(1, 2, 1), (1, 3, 1)]), &[x]).remove(0);
    assert_eq!(corner, Literal::new([1, 2], vec![4, 5]));
}

#[test]
fn concatenation_joins_along_its_dimension() {
    let (x, y) = (Literal::new([2, 1], vec![0i32, 1]), Literal::new([2, 2], vec![2i32, 3, 4, 5]));
    let joined = apply(Concatenate { dim: 1 }, &[x, y]).remove(0);
    assert_eq!(joined, Literal::new([2, 3], vec![0, 2, 3, 1, 4, 5]));
}

#[test]
fn padding_adds_spreads_and_cuts() {
    let padded = |edges: (i64, i64, usize)| {
        let inputs = [vector(&[1.0, 2.0, 3.0]), Literal::new([], vec![9.0])];
        apply(pad(&[edges]), &inputs).remove(0).to_f64()
    };
    assert_eq!(padded((1, 2, 0)), [9.0, 1.0, 2.0, 3.0, 9.0, 9.0]);
    assert_eq!(padded((0, 0, 1)), [1.0, 9.0, 2.0, 9.0, 3.0]);
    assert_eq!(padded((-1, 1, 1)), [9.0, 2.0, 9.0, 3.0, 9.0]);
    assert_eq!(padded((-2, -1, 0)), [0.0; 0]);
    let x = Literal::new([1, 1], vec![5.0]);
    let ring = apply(pad(&[(1, 0, 0), (0, 1, 0)]), &[x, Literal::new([], vec![0.0])]).remove(0);
    assert_eq!(ring, Literal::new([2, 2], vec![0.0, 0.0, 5.0, 0.0]));
}

#[test]
fn inference_refuses_windows_and_edges_that_do_not_fit() {
    let ty = TensorType::new(DType::F32, [4]);
    let one = std::slice::from_ref(&ty);
    let text = refusal(slice(&[(1, 5, 1)]), one);
    assert!(text.contains("E106") && text.contains("limit <= 4") && text.contains("1:5:1"), "{text}");
    assert!(refusal(slice(&[(3, 2, 1)]), one).contains("E106"));
    assert!(refusal(slice(&[(1, 2, 0)]), one).contains("E106"));
    assert!(refusal(slice(&[]), one).contains("E105"));
    let joined = |operands: &[TensorType]| refusal(Concatenate { dim: 0 }, operands);
    assert!(joined(&[]).contains("E101"));
    assert!(joined(&[ty.clone(), ty.with_dtype(DType::F64)]).contains("E102"));
    assert!(joined(&[ty.with_shape([4, 2]), ty.with_shape([4, 3])]).contains("E104"));
    assert!(joined(&[ty.with_shape([])]).contains("E105"));
    let value = TensorType::scalar(DType::F32);
    assert!(refusal(pad(&[(-3, -2, 0)]), &[ty.clone(), value.clone()]).contains("E106"));
    assert!(refusal(pad(&[]), &[ty.clone(), value.clone()]).contains("E105"));
    assert!(refusal(pad(&[(0, 0, 0)]), &[ty.clone(), ty.clone()]).contains("E104"));
    assert!(refusal(pad(&[(0, 0, 0)]), &[ty, value.with_dtype(DType::I32)]).contains("E102"));
}

#[test]
fn gradients_return_to_where_elements_came_from() {
    for window in [(0, 6, 1), (1, 4, 1), (1, 6, 2), (0, 5, 3), (2, 2, 1), (1, 5, 3)] {
        check_gradient(slice(&[window, (0, 2, 1)]), vec![random(1, &[6, 2])], &[true]);
    }
    let pieces = || vec![random(2, &[2, 1]), random(3, &[2, 3]), random(4, &[2, 2])];
    check_gradient(Concatenate { dim: 1 }, pieces(), &[true, true, true]);
    check_gradient(Concatenate { dim: 1 }, pieces(), &[false, true, false]);
    for edges in [(0, 0, 0), (1, 2, 0), (0, 0, 2), (2, -1, 1), (-1, 1, 1), (-1, -2, 0)] {
        for wanted in [[true, true], [false, true], [true, false]] {
            check_gradient(pad(&[edges, (1, 0, 0)]), vec![random(5, &[4, 2]), random(6, &[])], &wanted);
        }
    }
    let ints = Literal::new([2], vec![1i32, 2]);
    let joined = Literal::new([4], vec![1i32, 2, 1, 2]);
    let found = gradients(Concatenate { dim: 0 }, &[ints.clone(), ints], &[Some(joined)], &[true, true]);
    assert_eq!(found, [None, None]);
}

#[test]
fn rules_hold_on_shards_and_partial_operands() {
    check_rule(slice(&[(0, 5, 1), (1, 3, 1)]), &[random(1, &[5, 4])]);
    check_rule(slice(&[(0, 1, 3), (0, 4, 2)]), &[random(1, &[1, 4])]);
    check_rule(Concatenate { dim: 1 }, &[random(2, &[5, 2]), random(3, &[5, 3])]);
    check_rule(pad(&[(0, 0, 0), (1, -1, 1)]), &[random(4, &[5, 2]), random(5, &[])]);
    let (x, y) = (TensorType::new(DType::F32, [5, 4]), TensorType::new(DType::F32, [5, 2]));
    let rule = slice(&[(0, 5, 1), (1, 3, 1)]).rule(&[&x], &[&y]);
    let kinds: Vec<FactorKind> = rule.factors.iter().map(|factor| factor.kind).collect();
    assert_eq!(kinds, [FactorKind::Pass, FactorKind::Shift, FactorKind::Whole]);
    assert_eq!((&rule.operands[0], &rule.results[0]), (&vec![vec![0], vec![1]], &vec![vec![0], vec![2]]));
}
