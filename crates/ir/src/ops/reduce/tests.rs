//! Tests of reductions.

use super::*;
use crate::graph::Role;
use crate::interpret;
use crate::ops::BinaryKind;
use crate::testing::{apply, check_gradient, check_rule, random};

fn reduce(combiner: Combiner, dims: &[usize]) -> Reduce {
    Reduce { dims: dims.to_vec(), reducer: Reducer::Combiner(combiner) }
}

/// The larger value and its index, the smaller index on ties.
fn argmax() -> Reduce {
    let mut b = GraphBuilder::new("argmax");
    let scalar = |b: &mut GraphBuilder, name, dtype| b.input(name, TensorType::scalar(dtype), Role::Input);
    let (x, i) = (scalar(&mut b, "x", DType::F32), scalar(&mut b, "i", DType::I32));
    let (y, j) = (scalar(&mut b, "y", DType::F32), scalar(&mut b, "j", DType::I32));
    let keep = b.compare(Direction::Ge, x, y).unwrap();
    let value = b.select(keep, x, y).unwrap();
    let index = b.select(keep, i, j).unwrap();
    Reduce { dims: vec![1], reducer: Reducer::Body(Box::new(b.finish(vec![value, index]))) }
}

#[test]
fn reductions_match_plain_loops() {
    let x = random(1, &[2, 3, 4]);
    let values = x.to_f64();
    let functions: [(Combiner, fn(f64, f64) -> f64); 4] = [
        (Combiner::Sum, |a, b| a + b),
        (Combiner::Prod, |a, b| a * b),
        (Combiner::Max, f64::max),
        (Combiner::Min, f64::min),
    ];
    for (combiner, function) in functions {
        let got = apply(reduce(combiner, &[0, 2]), &[x.clone(), Literal::scalar(DType::F64, 0.25)]);
        assert_eq!(got[0].ty.shape, [3]);
        for middle in 0..3 {
            let mut expected = 0.25;
            for outer in 0..2 {
                for inner in 0..4 {
                    expected = function(expected, values[(outer * 3 + middle) * 4 + inner]);
                }
            }
            assert!((got[0].to_f64()[middle] - expected).abs() < 1e-12, "{combiner}");
        }
    }
}

#[test]
fn integers_wrap_and_bits_combine() {
    let x = Literal::new([3], vec![100u8, 100, 100]);
    let zero = Literal::scalar(DType::U8, 0.0);
    assert_eq!(apply(reduce(Combiner::Sum, &[0]), &[x.clone(), zero.clone()])[0].to_i64(), [44]);
    let x = Literal::new([2], vec![0b1100u8, 0b1010]);
    assert_eq!(apply(reduce(Combiner::Or, &[0]), &[x.clone(), zero])[0].to_i64(), [0b1110]);
    let ones = identity(Combiner::And, DType::U8);
    assert_eq!(apply(reduce(Combiner::And, &[0]), &[x, ones])[0].to_i64(), [0b1000]);
    let flags = Literal::new([2], vec![false, true]);
    let no = Literal::scalar(DType::Bool, 0.0);
    assert_eq!(apply(reduce(Combiner::Or, &[0]), &[flags, no])[0].data, vec![true].into());
}

#[test]
fn not_a_number_wins_and_empty_reductions_are_the_initial_value() {
    let x = Literal::new([3], vec![1f32, f32::NAN, 2.0]);
    let low = identity(Combiner::Max, DType::F32);
    assert!(apply(reduce(Combiner::Max, &[0]), &[x, low])[0].to_f64()[0].is_nan());
    let empty = Literal::new([2, 0], Vec::<f32>::new());
    let got = apply(reduce(Combiner::Sum, &[1]), &[empty, Literal::scalar(DType::F32, 7.0)]);
    assert_eq!(got[0], Literal::new([2], vec![7f32, 7.0]));
}

#[test]
fn a_general_body_folds_several_inputs_in_order() {
    let values = Literal::new([2, 3], vec![1f32, 5.0, 5.0, -1.0, -2.0, -0.5]);
    let numbers = Literal::new([2, 3], vec![0i32, 1, 2, 0, 1, 2]);
    let start = [Literal::scalar(DType::F32, f64::NEG_INFINITY), Literal::scalar(DType::I32, 9.0)];
    let got = apply(argmax(), &[values, numbers, start[0].clone(), start[1].clone()]);
    assert_eq!(got[0], Literal::new([2], vec![5f32, -0.5]));
    assert_eq!(got[1], Literal::new([2], vec![1i32, 2]));
}

#[test]
fn gradients_match_finite_differences() {
    let initial = |value| Literal::scalar(DType::F64, value);
    let x = random(2, &[3, 2, 3]);
    check_gradient(reduce(Combiner::Sum, &[0, 2]), vec![x.clone(), initial(0.5)], &[true, true]);
    check_gradient(reduce(Combiner::Max, &[1]), vec![x.clone(), initial(-9.0)], &[true, false]);
    check_gradient(reduce(Combiner::Min, &[0]), vec![x.clone(), initial(0.1)], &[true, false]);
    check_gradient(reduce(Combiner::Prod, &[2]), vec![x.clone(), initial(2.0)], &[true, false]);
    for zeros in [vec![1], vec![0, 4], vec![0, 1]] {
        let mut values = x.to_f64();
        zeros.into_iter().for_each(|i| values[i] = 0.0);
        let x = Literal::from_f64(&x.ty, values.into_iter());
        check_gradient(reduce(Combiner::Prod, &[2]), vec![x, initial(1.0)], &[true, false]);
    }
}

#[test]
fn shards_combine_to_the_whole() {
    let x = random(3, &[3, 2, 4]);
    check_rule(reduce(Combiner::Sum, &[0, 2]), &[x.clone(), Literal::scalar(DType::F64, 0.0)]);
    for combiner in [Combiner::Prod, Combiner::Max, Combiner::Min] {
        check_rule(reduce(combiner, &[0, 2]), &[x.clone(), Literal::scalar(DType::F64, 0.5)]);
    }
    let start = [Literal::scalar(DType::F32, f64::NEG_INFINITY), Literal::scalar(DType::I32, 9.0)];
    let values = Literal::new([3, 2], vec![1f32, 5.0, 5.0, -1.0, -2.0, -0.5]);
    let numbers = Literal::new([3, 2], vec![0i32, 1, 0, 1, 0, 1]);
    check_rule(argmax(), &[values, numbers, start[0].clone(), start[1].clone()]);
}

#[test]
fn cut_sums_count_their_initial_value_once() {
    let op = Reduce { dims: vec![0], reducer: Reducer::Combiner(Combiner::Prod) };
    check_rule(op, &[random(4, &[5]), Literal::scalar(DType::F64, 3.0)]);
}

#[test]
fn ties_share_the_gradient() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", TensorType::new(DType::F64, [4]), Role::Input);
    let y = b.reduce_max(x, &[0]).unwrap();
    let Op::Reduce(op) = b.graph().nodes.last().unwrap().op.clone() else { panic!("a reduce") };
    let initial = b.graph().nodes.last().unwrap().operands[1];
    let one = b.scalar(DType::F64, 1.0);
    let gradients = op
        .gradient(&mut GradientContext {
            builder: &mut b,
            operands: &[x, initial],
            results: &[y],
            cotangents: &[Some(one)],
            wanted: &[true, false],
        })
        .unwrap();
    let graph = b.finish(vec![gradients[0].unwrap()]);
    let got = interpret::evaluate(&graph, &[Literal::new([4], vec![1f64, 3.0, 3.0, 2.0])]).unwrap();
    assert_eq!(got[0].to_f64(), [0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn bodies_of_one_op_are_recognised() {
    let body = |kind, dtype, swap: bool, twice: bool| {
        let mut b = GraphBuilder::new("body");
        let x = b.input("x", TensorType::scalar(dtype), Role::Input);
        let y = b.input("y", TensorType::scalar(dtype), Role::Input);
        let r = if swap { b.binary(kind, y, x) } else { b.binary(kind, x, if twice { x } else { y }) };
        b.finish(vec![r.unwrap()])
    };
    assert_eq!(Reducer::from_body(&body(BinaryKind::Add, DType::F32, false, false)), Some(Combiner::Sum));
    assert_eq!(Reducer::from_body(&body(BinaryKind::Maximum, DType::F32, true, false)), Some(Combiner::Max));
    assert_eq!(Reducer::from_body(&body(BinaryKind::Or, DType::Bool, false, false)), Some(Combiner::Or));
    assert_eq!(Reducer::from_body(&body(BinaryKind::Add, DType::F32, false, true)), None);
    assert_eq!(Reducer::from_body(&body(BinaryKind::Subtract, DType::F32, false, false)), None);
}

#[test]
fn canonical_reductions_start_from_the_identity() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [2, 3]), Role::Input);
    let seven = b.scalar(DType::F32, 7.0);
    let y = b.reduce_with_init(Combiner::Sum, x, seven, &[1]).unwrap();
    let zero = b.scalar(DType::F32, 0.0);
    let nodes = b.graph().nodes.len();
    let z = b.reduce_with_init(Combiner::Sum, x, zero, &[1]).unwrap();
    assert_eq!(b.graph().nodes.len(), nodes + 1, "the identity adds nothing");
    let graph = b.finish(vec![y, z]);
    let x = Literal::new([2, 3], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let got = interpret::evaluate(&graph, &[x]).unwrap();
    assert_eq!(got[0].to_f64(), [13.0, 22.0]);
    assert_eq!(got[1].to_f64(), [6.0, 15.0]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let ty = TensorType::new(DType::F32, [2, 3]);
    let scalar = TensorType::scalar(DType::F32);
    let code = |op: Reduce, operands: &[&TensorType]| op.infer(operands).unwrap_err().code;
    assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty]), "E101");
    assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty, &ty, &scalar, &scalar]), "E101");
    assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty, &TensorType::scalar(DType::F64)]), "E102");
    assert_eq!(code(reduce(Combiner::And, &[0]), &[&ty, &scalar]), "E103");
    assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty, &ty]), "E104");
    assert_eq!(code(reduce(Combiner::Sum, &[2]), &[&ty, &scalar]), "E105");
    assert_eq!(code(reduce(Combiner::Sum, &[1, 0]), &[&ty, &scalar]), "E105");
    assert_eq!(code(argmax(), &[&ty, &ty, &scalar, &scalar]), "E107");
}
