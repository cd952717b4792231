//! Tests of collectives: evaluation on several ranks, gradients, uneven groups, errors.

use super::*;
use crate::graph::Role;
use crate::interpret::evaluate_ranks;
use crate::testing::random;
use partita_base::DType;
use partita_mesh::Combiner;

/// Runs an op on every rank with declared result shapes.
fn run(op: impl Into<Op>, inputs: &[Literal], shapes: &[&[usize]]) -> Result<Vec<Literal>> {
    let op = op.into();
    let calls: Vec<RankCall> = inputs
        .iter()
        .zip(shapes)
        .map(|(x, shape)| RankCall {
            op: &op,
            operands: vec![x],
            results: vec![x.ty.with_shape(shape.to_vec())],
        })
        .collect();
    Ok(op.evaluate_ranks(&calls)?.into_iter().flatten().collect())
}

fn groups() -> Vec<Vec<usize>> {
    vec![vec![3, 0, 1], vec![4, 2, 6]]
}

/// Element `[i, j]` of a matrix.
fn at(x: &Literal, i: usize, j: usize) -> f64 {
    x.to_f64()[i * x.ty.shape[1] + j]
}

#[test]
fn groups_combine_and_a_rank_in_none_keeps_its_own() {
    let inputs: Vec<Literal> = (0..7).map(|r| random(r, &[2, 3])).collect();
    for (combiner, function) in
        [(Combiner::Sum, (|a, b| a + b) as fn(f64, f64) -> f64), (Combiner::Max, f64::max)]
    {
        let op = AllReduce { groups: groups().into(), combiner };
        let got = run(op, &inputs, &[&[2, 3][..]; 7]).unwrap();
        for group in groups().into_iter().chain([vec![5]]) {
            for &member in &group {
                for e in 0..6 {
                    let expected = group.iter().map(|&m| inputs[m].to_f64()[e]).reduce(function).unwrap();
                    assert!((got[member].to_f64()[e] - expected).abs() < 1e-12);
                }
            }
        }
    }
}

#[test]
fn gathers_join_unequal_pieces_in_group_order() {
    // Rank 3 brings 2 columns, rank 0 none, rank 1 one.
    let shapes: [&[usize]; 4] = [&[2, 0], &[2, 1], &[2, 3], &[2, 2]];
    let inputs: Vec<Literal> = shapes.iter().zip(1..).map(|(s, seed)| random(seed, s)).collect();
    let op = AllGather { dim: 1, groups: vec![vec![3, 0, 1]].into(), extents: vec![2, 0, 1] };
    let got = run(op.clone(), &inputs, &[&[2, 3][..]; 4]).unwrap();
    for rank in [0, 1, 3] {
        for i in 0..2 {
            assert_eq!(at(&got[rank], i, 0), at(&inputs[3], i, 0));
            assert_eq!(at(&got[rank], i, 1), at(&inputs[3], i, 1));
            assert_eq!(at(&got[rank], i, 2), at(&inputs[1], i, 0));
        }
    }
    assert_eq!(got[2], inputs[2]);
    assert_eq!(run(op, &inputs, &[&[2, 4][..]; 4]).unwrap_err().code, "E118");
    let wrong = AllGather { dim: 1, groups: vec![vec![3, 0, 1]].into(), extents: vec![0, 2, 1] };
    assert_eq!(run(wrong, &inputs, &[&[2, 3][..]; 4]).unwrap_err().code, "E118");
}

#[test]
fn scattered_sums_are_pieces_of_the_sum() {
    let inputs: Vec<Literal> = (0..3).map(|r| random(r, &[5, 2])).collect();
    let op = ReduceScatter {
        dim: 0,
        groups: vec![vec![2, 0, 1]].into(),
        combiner: Combiner::Sum,
        extents: vec![2, 2, 1],
    };
    let got = run(op, &inputs, &[&[2, 2], &[1, 2], &[2, 2]]).unwrap();
    let sum = |i: usize, j| inputs.iter().map(|x| at(x, i, j)).sum::<f64>();
    for (rank, start, extent) in [(2, 0, 2), (0, 2, 2), (1, 4, 1)] {
        for i in 0..extent {
            for j in 0..2 {
                assert!((at(&got[rank], i, j) - sum(start + i, j)).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn exchanges_move_a_cut_from_one_dimension_to_another_and_back() {
    // A 4 x 5 matrix sharded in rows 3 + 1 becomes sharded in columns 2 + 3.
    let whole = random(1, &[4, 5]);
    let rows = [cut(&whole, 0, 0, 3), cut(&whole, 0, 3, 1)];
    let columns = [cut(&whole, 1, 0, 2), cut(&whole, 1, 2, 3)];
    let there = AllToAll {
        split_dim: 1,
        concat_dim: 0,
        groups: vec![vec![0, 1]].into(),
        split_extents: vec![2, 3],
        concat_extents: vec![3, 1],
    };
    assert_eq!(run(there.clone(), &rows, &[&[4, 2], &[4, 3]]).unwrap(), columns);
    let back = AllToAll {
        split_dim: 0,
        concat_dim: 1,
        groups: vec![vec![0, 1]].into(),
        split_extents: vec![3, 1],
        concat_extents: vec![2, 3],
    };
    assert_eq!(run(back, &columns, &[&[3, 5], &[1, 5]]).unwrap(), rows);
}

#[test]
fn permutes_and_broadcasts_leave_zeros_where_nothing_arrives() {
    let inputs: Vec<Literal> = (0..4).map(|r| random(r, &[2])).collect();
    let zero = Literal::zeros(&inputs[0].ty);
    let shapes: [&[usize]; 4] = [&[2]; 4];
    let op = CollectivePermute { pairs: vec![(0, 2), (2, 1), (3, 3)] };
    let got = run(op, &inputs, &shapes).unwrap();
    assert_eq!(got, [zero.clone(), inputs[2].clone(), inputs[0].clone(), inputs[3].clone()]);
    let op = CollectiveBroadcast { groups: vec![vec![3, 0], vec![1]].into() };
    let got = run(op, &inputs, &shapes).unwrap();
    assert_eq!(got, [inputs[3].clone(), inputs[1].clone(), zero, inputs[3].clone()]);
}

#[test]
fn ranks_know_their_number() {
    let mut b = GraphBuilder::new("f");
    let id = b.push1(PartitionId, &[]).unwrap();
    let graph = b.finish(vec![id]);
    let got = evaluate_ranks(&[&graph; 3], &[vec![], vec![], vec![]]).unwrap();
    assert_eq!(got.concat(), (0..3u32).map(|r| Literal::new([], vec![r])).collect::<Vec<_>>());
}

/// `<weights, op(inputs)>` summed over ranks has the transposed op's result as its gradient: for a linear op,
/// `<w, A x> = <A' w, x>`.
fn check_transpose(op: impl Into<Op>, inputs: &[Literal], shapes: &[&[usize]]) {
    let op = op.into();
    let outputs = run(op.clone(), inputs, shapes).unwrap();
    let weights: Vec<Literal> = shapes.iter().zip(90..).map(|(s, seed)| random(seed, s)).collect();
    let graphs: Vec<_> = (0..inputs.len())
        .map(|rank| {
            let mut b = GraphBuilder::new("f");
            let x = b.input("x", inputs[rank].ty.clone(), Role::Input);
            let w = b.input("w", weights[rank].ty.clone(), Role::Input);
            let mut context = GradientContext {
                builder: &mut b,
                operands: &[x],
                results: &[w],
                cotangents: &[Some(w)],
                wanted: &[true],
            };
            let gradient = op.gradient(&mut context).unwrap()[0].unwrap();
            b.finish(vec![gradient])
        })
        .collect();
    let feeds: Vec<Vec<Literal>> =
        inputs.iter().zip(&weights).map(|(x, w)| vec![x.clone(), w.clone()]).collect();
    let gradients = evaluate_ranks(&graphs.iter().collect::<Vec<_>>(), &feeds).unwrap().concat();
    let dot = |a: &[Literal], b: &[Literal]| -> f64 {
        let pairs = a.iter().zip(b).flat_map(|(a, b)| a.to_f64().into_iter().zip(b.to_f64()));
        pairs.map(|(a, b)| a * b).sum()
    };
    assert!((dot(&weights, &outputs) - dot(&gradients, inputs)).abs() < 1e-10, "{}", op.name());
}

#[test]
fn gradients_are_the_transposed_exchanges() {
    let inputs: Vec<Literal> = (0..3).map(|r| random(r, &[3, 4])).collect();
    let groups = vec![vec![2, 0, 1]];
    let even: [&[usize]; 3] = [&[3, 4]; 3];
    check_transpose(AllReduce { groups: groups.clone().into(), combiner: Combiner::Sum }, &inputs, &even);
    check_transpose(CollectivePermute { pairs: vec![(0, 1), (1, 2)] }, &inputs, &even);
    let pieces: Vec<Literal> = [2, 1, 1].iter().zip(5..).map(|(&n, seed)| random(seed, &[3, n])).collect();
    let gather = AllGather { dim: 1, groups: groups.clone().into(), extents: vec![1, 2, 1] };
    check_transpose(gather, &pieces, &even);
    let scatter = ReduceScatter {
        dim: 1,
        groups: groups.clone().into(),
        combiner: Combiner::Sum,
        extents: vec![1, 2, 1],
    };
    check_transpose(scatter, &inputs, &[&[3, 2], &[3, 1], &[3, 1]]);
    let exchange = AllToAll {
        split_dim: 1,
        concat_dim: 0,
        groups: groups.into(),
        split_extents: vec![1, 2, 1],
        concat_extents: vec![3, 3, 3],
    };
    check_transpose(exchange, &inputs, &[&[9, 2], &[9, 1], &[9, 1]]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let ty = TensorType::new(DType::F32, [4, 6]);
    let code = |op: Op| op.infer(&[&ty]).unwrap_err().code;
    let twice = vec![vec![0, 1], vec![1, 2]];
    assert_eq!(code(AllReduce { groups: twice.into(), combiner: Combiner::Sum }.into()), "E110");
    assert_eq!(code(AllReduce { groups: vec![].into(), combiner: Combiner::Or }.into()), "E103");
    let gather = |dim, extents| AllGather { dim, groups: vec![vec![0, 1]].into(), extents };
    assert_eq!(code(gather(2, vec![4, 4]).into()), "E105");
    assert_eq!(code(gather(0, vec![4]).into()), "E110");
    assert_eq!(code(gather(0, vec![3, 3]).into()), "E106");
    let scatter =
        |extents| ReduceScatter { dim: 1, groups: vec![vec![0, 1]].into(), combiner: Combiner::Sum, extents };
    assert_eq!(code(scatter(vec![3, 2]).into()), "E106");
    let uneven = Op::from(scatter(vec![4, 2])).infer(&[&ty]).unwrap_err();
    assert_eq!((uneven.code, uneven.help.unwrap().contains("push_typed")), ("E118", true));
    assert_eq!(Op::from(scatter(vec![3, 3])).infer(&[&ty]).unwrap()[0].shape, [4, 3]);
    assert_eq!(code(CollectivePermute { pairs: vec![(0, 1), (2, 1)] }.into()), "E110");
    let inputs = [random(1, &[2]), random(2, &[2])];
    let far = AllReduce { groups: vec![vec![0, 2]].into(), combiner: Combiner::Sum };
    assert_eq!(run(far, &inputs, &[&[2], &[2]]).unwrap_err().code, "E110");
}
