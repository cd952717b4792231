//! Tests of `shape`.

use super::*;
use crate::testing::{apply, check_gradient, check_rule, random, refusal};
use partita_base::DType;

fn numbers(shape: &[usize]) -> Literal {
    let count: usize = shape.iter().product();
    Literal::new(shape, (0..count).map(|i| i as f64).collect::<Vec<_>>())
}

fn broadcast(shape: &[usize], dims: &[usize]) -> BroadcastInDim {
    BroadcastInDim { shape: shape.to_vec(), dims: dims.to_vec() }
}

/// Factor sizes of the dimensions of a reshape, with `W` before factors that cannot be sharded.
fn reshape_rule(from: &[usize], to: &[usize]) -> String {
    let (from, to) = (TensorType::new(DType::F32, from), TensorType::new(DType::F32, to));
    let rule = Reshape { shape: to.shape.clone() }.rule(&[&from], &[&to]);
    let factor = |&f: &FactorId| match rule.factors[f].kind {
        FactorKind::Pass => format!("{}@{f}", rule.factors[f].size),
        _ => format!("W{}@{f}", rule.factors[f].size),
    };
    let side = |dims: &Vec<Vec<FactorId>>| -> String {
        let dims: Vec<String> =
            dims.iter().map(|dim| dim.iter().map(factor).collect::<Vec<_>>().join("*")).collect();
        dims.join(",")
    };
    format!("{} -> {}", side(&rule.operands[0]), side(&rule.results[0]))
}

#[test]
fn broadcasts_repeat_along_new_and_unit_dimensions() {
    let row = apply(broadcast(&[2, 3], &[1]), &[numbers(&[3])]).remove(0);
    assert_eq!(row.to_f64(), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    let column = apply(broadcast(&[2, 3], &[0, 1]), &[numbers(&[2, 1])]).remove(0);
    assert_eq!(column.to_f64(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    let crossed = apply(broadcast(&[3, 2], &[1, 0]), &[numbers(&[2, 3])]).remove(0);
    assert_eq!(crossed.to_f64(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let scalar = apply(broadcast(&[2], &[]), &[Literal::new([], vec![7i32])]).remove(0);
    assert_eq!(scalar, Literal::new([2], vec![7, 7]));
}

#[test]
fn elements_move_to_their_places() {
    let x = numbers(&[2, 3]);
    let turned = apply(Transpose { permutation: vec![1, 0] }, std::slice::from_ref(&x)).remove(0);
    assert_eq!(turned, Literal::new([3, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    let deep = apply(Transpose { permutation: vec![2, 0, 1] }, &[numbers(&[2, 3, 4])]).remove(0);
    assert_eq!(deep.ty.shape, [4, 2, 3]);
    // [3, 1, 2] of the result is [1, 2, 3] of the operand.
    assert_eq!(deep.to_f64()[3 * 6 + 3 + 2], 12.0 + 8.0 + 3.0);
    let back = apply(Reverse { dims: vec![1] }, std::slice::from_ref(&x)).remove(0);
    assert_eq!(back.to_f64(), [2.0, 1.0, 0.0, 5.0, 4.0, 3.0]);
    let same = apply(Reshape { shape: vec![3, 2] }, std::slice::from_ref(&x)).remove(0);
    assert_eq!((same.to_f64(), same.ty.shape), (x.to_f64(), vec![3, 2]));
}

#[test]
fn inference_refuses_shapes_that_do_not_fit() {
    let ty = TensorType::new(DType::F32, [2, 3]);
    let one = std::slice::from_ref(&ty);
    assert!(refusal(broadcast(&[2, 4], &[0, 1]), one).contains("E104"));
    assert!(refusal(broadcast(&[2, 3], &[0]), one).contains("E105"));
    assert!(refusal(broadcast(&[2, 3], &[0, 2]), one).contains("E105"));
    assert!(refusal(broadcast(&[2, 3], &[1, 1]), one).contains("E105"));
    let text = refusal(Reshape { shape: vec![4, 2] }, one);
    assert!(
        text.contains("E104") && text.contains("6 elements") && text.contains("8 elements"),
        "{text}"
    );
    assert!(refusal(Transpose { permutation: vec![0] }, one).contains("E105"));
    assert!(refusal(Transpose { permutation: vec![0, 0] }, one).contains("E105"));
    assert!(refusal(Reverse { dims: vec![2] }, one).contains("E105"));
    assert!(refusal(Reverse { dims: vec![0] }, &[]).contains("E101"));
}

#[test]
fn reshape_factors_are_the_common_refinement() {
    assert_eq!(reshape_rule(&[6, 4], &[24]), "6@0,4@1 -> 6@0*4@1");
    assert_eq!(reshape_rule(&[24], &[6, 4]), "6@0*4@1 -> 6@0,4@1");
    assert_eq!(reshape_rule(&[2, 6], &[4, 3]), "2@0,2@1*3@2 -> 2@0*2@1,3@2");
    assert_eq!(reshape_rule(&[1, 5], &[5, 1, 1]), ",5@0 -> 5@0,,");
    assert_eq!(reshape_rule(&[8, 128, 4, 16], &[8, 128, 64]), "8@0,128@1,4@2,16@3 -> 8@0,128@1,4@2*16@3");
    assert_eq!(reshape_rule(&[], &[1]), " -> ");
}

#[test]
fn a_block_without_common_refinement_stays_whole() {
    assert_eq!(reshape_rule(&[5, 4, 3], &[5, 6, 2]), "5@0,W4@1,W3@2 -> 5@0,W6@3,W2@4");
    assert_eq!(reshape_rule(&[2, 3, 7], &[3, 2, 7]), "W2@0,W3@1,7@4 -> W3@2,W2@3,7@4");
    assert_eq!(reshape_rule(&[4, 0, 3], &[4, 3, 0, 5]), "4@0,W0@1,W3@3 -> 4@0,W3@2,W0@4,W5@5");
}

#[test]
fn gradients_undo_the_movement() {
    check_gradient(broadcast(&[2, 3], &[1]), vec![random(1, &[3])], &[true]);
    check_gradient(broadcast(&[2, 3, 4], &[2, 0]), vec![random(2, &[4, 2])], &[true]);
    check_gradient(broadcast(&[2, 3, 4], &[0, 2]), vec![random(3, &[1, 4])], &[true]);
    check_gradient(broadcast(&[3, 1, 2], &[2, 1, 0]), vec![random(3, &[2, 1, 1])], &[true]);
    check_gradient(broadcast(&[3, 2], &[]), vec![random(4, &[])], &[true]);
    check_gradient(Reshape { shape: vec![3, 4] }, vec![random(5, &[2, 6])], &[true]);
    check_gradient(Transpose { permutation: vec![2, 0, 1] }, vec![random(6, &[2, 3, 4])], &[true]);
    check_gradient(Reverse { dims: vec![0, 2] }, vec![random(7, &[2, 3, 4])], &[true]);
}

#[test]
fn rules_hold_on_shards_and_partial_operands() {
    check_rule(broadcast(&[5, 3, 4], &[2, 0]), &[random(1, &[4, 5])]);
    check_rule(broadcast(&[5, 3, 4], &[0, 2]), &[random(2, &[5, 1])]);
    check_rule(broadcast(&[3, 1], &[1]), &[random(2, &[1])]);
    check_rule(broadcast(&[3, 2], &[]), &[random(3, &[])]);
    for (from, to) in [
        (vec![6, 4], vec![24]),
        (vec![5, 6], vec![5, 2, 3]),
        (vec![2, 6], vec![4, 3]),
        (vec![5, 4, 3], vec![5, 1, 6, 2]),
        (vec![3, 0], vec![3, 0, 2]),
    ] {
        check_rule(Reshape { shape: to }, &[random(4, &from)]);
    }
    check_rule(Transpose { permutation: vec![2, 0, 1] }, &[random(5, &[2, 3, 4])]);
    check_rule(Reverse { dims: vec![1] }, &[random(6, &[5, 3])]);
    let ty = TensorType::new(DType::F32, [5, 3]);
    let rule = Reverse { dims: vec![1] }.rule(&[&ty], &[&ty]);
    assert_eq!([0, 1].map(|f| rule.factors[f].kind), [FactorKind::Pass, FactorKind::Shift]);
}
