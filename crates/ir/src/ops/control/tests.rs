//! Tests of loops, branches and barriers.

use super::*;
use crate::graph::Role;
use crate::interpret;
use crate::op::{Op, Operation};
use crate::ops::{AllReduce, Direction, PartitionId};
use crate::testing::{apply, check_gradient, check_rule, random};
use partita_base::DType;
use partita_mesh::Combiner;

fn number(value: i32) -> Literal {
    Literal::new([], vec![value])
}

/// Carried (counter, limit, x): doubles x while `counter < limit`, counting by `step`.
fn doubling(step: i32) -> While {
    let inputs = |b: &mut GraphBuilder| {
        let scalar = TensorType::scalar(DType::I32);
        let counter = b.input("counter", scalar.clone(), Role::Input);
        let limit = b.input("limit", scalar, Role::Input);
        (counter, limit, b.input("x", TensorType::new(DType::F32, [2]), Role::Input))
    };
    let mut condition = GraphBuilder::new("condition");
    let (counter, limit, _) = inputs(&mut condition);
    let less = condition.compare(Direction::Lt, counter, limit).unwrap();
    let mut body = GraphBuilder::new("body");
    let (counter, limit, x) = inputs(&mut body);
    let step = body.constant(number(step));
    let next = body.add(counter, step).unwrap();
    let twice = body.add(x, x).unwrap();
    While {
        condition: Box::new(condition.finish(vec![less])),
        body: Box::new(body.finish(vec![next, limit, twice])),
    }
}

#[test]
fn loops_run_while_their_condition_holds() {
    let x = Literal::new([2], vec![1f32, 3.0]);
    let got = apply(doubling(2), &[number(1), number(8), x.clone()]);
    assert_eq!(got, [number(9), number(8), Literal::new([2], vec![16f32, 48.0])]);
    assert_eq!(apply(doubling(1), &[number(5), number(5), x.clone()])[2], x);
}

#[test]
fn loops_that_constants_decide_unroll_to_the_same_values() {
    let op = doubling(3);
    for (limit, trips) in [(8, 3), (1, 1), (0, 0), (-4, 0)] {
        let mut b = GraphBuilder::new("f");
        let x = b.input("x", TensorType::new(DType::F32, [2]), Role::Input);
        let zero = b.constant(number(0));
        // A limit computed from constants counts as constant.
        let half = b.constant(number(limit / 2));
        let limit_value = b.add(half, half).unwrap();
        let out = op.unroll(&mut b, &[zero, limit_value, x]).unwrap().unwrap();
        let limit = limit / 2 * 2;
        assert_eq!(
            op.trip_count(b.graph(), &[zero, limit_value, x]),
            Some(if limit == 0 { 0 } else { trips })
        );
        let graph = b.finish(out);
        assert!(graph.nodes.iter().all(|n| !matches!(n.op, Op::While(_))));
        let x = Literal::new([2], vec![1f32, 3.0]);
        let got = interpret::evaluate(&graph, std::slice::from_ref(&x)).unwrap();
        assert_eq!(got, apply(op.clone(), &[number(0), number(limit), x]));
    }
}

#[test]
fn loops_that_data_decides_or_that_do_not_end_soon_stay() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [2]), Role::Input);
    let fed = b.input("limit", TensorType::scalar(DType::I32), Role::Input);
    let zero = b.constant(number(0));
    let far = b.constant(number(1025));
    let near = b.constant(number(1024));
    assert_eq!(doubling(1).unroll(&mut b, &[zero, fed, x]).unwrap(), None);
    assert_eq!(doubling(1).trip_count(b.graph(), &[zero, far, x]), None);
    assert_eq!(doubling(1).trip_count(b.graph(), &[zero, near, x]), Some(1024));
    assert_eq!(doubling(0).trip_count(b.graph(), &[zero, near, x]), None);
}

#[test]
fn collectives_in_loops_see_all_ranks() {
    let mut op = doubling(1);
    let mut b = GraphBuilder::new("body");
    let inputs: Vec<ValueId> =
        op.body.inputs.iter().map(|&v| b.input("", op.body.ty(v).clone(), Role::Input)).collect();
    let out = b.inline(&op.body, &inputs, false).unwrap();
    let sum = AllReduce { groups: vec![vec![0, 1]].into(), combiner: Combiner::Sum };
    let sum = b.push1(sum, &[out[2]]).unwrap();
    op.body = Box::new(b.finish(vec![out[0], out[1], sum]));
    let op = Op::from(op);
    let run = |limits: [i32; 2]| {
        let values: Vec<Vec<Literal>> = (0..2)
            .map(|r| vec![number(0), number(limits[r]), Literal::new([2], vec![r as f32, 1.0])])
            .collect();
        let calls: Vec<RankCall> = values
            .iter()
            .map(|v| RankCall {
                op: &op,
                operands: v.iter().collect(),
                results: v.iter().map(|x| x.ty.clone()).collect(),
            })
            .collect();
        op.evaluate_ranks(&calls)
    };
    let got = run([2, 2]).unwrap();
    assert_eq!(got[0][2].to_f64(), [8.0, 16.0]);
    assert_eq!(got[0], got[1]);
    assert_eq!(run([2, 3]).unwrap_err().code, "E133");
}

#[test]
fn ranks_know_their_number_in_loops_and_branches() {
    // Rank r adds its number r times, and reads it in a branch.
    let mut b = GraphBuilder::new("body");
    let scalar = TensorType::scalar(DType::U32);
    let (i, x) = (b.input("i", scalar.clone(), Role::Input), b.input("x", scalar.clone(), Role::Input));
    let one = b.scalar(DType::U32, 1.0);
    let rank = b.push1(PartitionId, &[]).unwrap();
    let (next, sum) = (b.add(i, one).unwrap(), b.add(x, rank).unwrap());
    let body = b.finish(vec![next, sum]);
    let mut b = GraphBuilder::new("condition");
    let (i, _) = (b.input("i", scalar.clone(), Role::Input), b.input("x", scalar.clone(), Role::Input));
    let rank = b.push1(PartitionId, &[]).unwrap();
    let more = b.compare(Direction::Lt, i, rank).unwrap();
    let condition = b.finish(vec![more]);
    let mut b = GraphBuilder::new("branch");
    let rank = b.push1(PartitionId, &[]).unwrap();
    let branch = b.finish(vec![rank]);

    let mut b = GraphBuilder::new("f");
    let zero = b.scalar(DType::U32, 0.0);
    let op = While { condition: Box::new(condition), body: Box::new(body) };
    let looped = b.push(op, &[zero, zero]).unwrap()[1];
    let index = b.scalar(DType::I32, 0.0);
    let branched = b.push1(Case { branches: vec![branch] }, &[index]).unwrap();
    let graph = b.finish(vec![looped, branched]);
    let got = interpret::evaluate_ranks(&[&graph; 3], &[vec![], vec![], vec![]]).unwrap();
    for (rank, got) in got.iter().enumerate() {
        assert_eq!(got[0].to_i64(), [(rank * rank) as i64]);
        assert_eq!(got[1].to_i64(), [rank as i64]);
    }
}

#[test]
fn the_index_chooses_the_branch_and_the_last_takes_the_rest() {
    let branch = |factor| {
        let mut b = GraphBuilder::new("branch");
        let x = b.input("x", TensorType::scalar(DType::F32), Role::Input);
        let y = b.scale(x, factor).unwrap();
        b.finish(vec![y])
    };
    let op = Case { branches: vec![branch(1.0), branch(10.0), branch(100.0)] };
    for (index, expected) in [(0, 3.0), (1, 30.0), (2, 300.0), (3, 300.0), (-1, 300.0)] {
        let got = apply(op.clone(), &[number(index), Literal::scalar(DType::F32, 3.0)]);
        assert_eq!(got[0].to_f64(), [expected]);
    }
}

#[test]
fn barriers_change_nothing() {
    let inputs = vec![random(1, &[2, 3]), random(2, &[4])];
    assert_eq!(apply(OptimizationBarrier, &inputs), inputs);
    check_rule(OptimizationBarrier, &inputs);
    check_gradient(OptimizationBarrier, inputs, &[true, false]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (scalar, x) = (TensorType::scalar(DType::I32), TensorType::new(DType::F32, [2]));
    let loop_code = |types: &[&TensorType]| doubling(1).infer(types).unwrap_err().code;
    assert_eq!(loop_code(&[&scalar, &scalar]), "E107");
    assert_eq!(loop_code(&[&scalar, &scalar, &scalar]), "E107");
    let case =
        Case { branches: vec![doubling(1).body.as_ref().clone(), doubling(1).condition.as_ref().clone()] };
    let case_code = |types: &[&TensorType]| case.infer(types).unwrap_err().code;
    assert_eq!(case_code(&[]), "E101");
    assert_eq!(case_code(&[&x]), "E103");
    assert_eq!(case_code(&[&x.with_dtype(DType::I32)]), "E104");
    assert_eq!(case_code(&[&scalar, &scalar, &scalar, &x]), "E107");
}
