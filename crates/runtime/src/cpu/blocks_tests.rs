//! Graphs of elementwise ops and row reductions as one kernel: against the reference interpreter, and bit by
//! bit against the kernels of the single nodes.

use partita_base::{DType, Result};
use partita_ir::ops::*;
use partita_ir::{Graph, GraphBuilder, Literal, Op, Role, TensorType, ValueId};
use partita_kernels::KernelOptions;
use partita_mesh::Combiner;
use partita_program::RegionKind;

use super::blocks;
use super::tests::{Random, check, run, run_parts};

/// A graph with inputs of these types.
fn graph_of(
    types: &[TensorType],
    body: impl FnOnce(&mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>>,
) -> Graph {
    let mut b = GraphBuilder::new("rows");
    let inputs: Vec<ValueId> = types.iter().map(|ty| b.input("", ty.clone(), Role::Activation)).collect();
    let outputs = body(&mut b, &inputs).unwrap();
    b.finish(outputs)
}

/// The results of the nodes one by one, each as its own region.
fn one_by_one(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let mut values: Vec<Option<Literal>> = vec![None; graph.values.len()];
    for (input, literal) in graph.inputs.iter().zip(inputs) {
        values[input.index()] = Some(literal.clone());
    }
    for node in &graph.nodes {
        let operands: Vec<Literal> =
            node.operands.iter().map(|v| values[v.index()].clone().unwrap()).collect();
        let result = if let Op::Constant(constant) = &node.op {
            constant.value.clone()
        } else {
            let mut b = GraphBuilder::new("one");
            let constant = |b: &mut GraphBuilder, literal: &Literal| b.constant(literal.clone());
            // A reduction must start from a constant.
            let is_known = |number: usize| number > 0 && matches!(node.op, Op::Reduce(_));
            let places: Vec<ValueId> = operands
                .iter()
                .enumerate()
                .map(|(number, literal)| match is_known(number) {
                    true => constant(&mut b, literal),
                    false => b.input("", literal.ty.clone(), Role::Activation),
                })
                .collect();
            let results = b.push(node.op.clone(), &places).unwrap();
            let given: Vec<Literal> = operands
                .into_iter()
                .enumerate()
                .filter(|(number, _)| !is_known(*number))
                .map(|(_, x)| x)
                .collect();
            let (results, _) = run(&b.finish(results), RegionKind::Single, &given, 0).unwrap();
            results[0].clone()
        };
        values[node.results[0].index()] = Some(result);
    }
    graph.outputs.iter().map(|v| values[v.index()].clone().unwrap()).collect()
}

/// Checks that a graph runs block by block, and its results.
fn check_rows(graph: &Graph, random: &mut Random, what: &str) {
    let inputs: Vec<Literal> = graph.inputs.iter().map(|&v| random.literal(graph.ty(v))).collect();
    assert_eq!(blocks::check(KernelOptions::native(), graph), Ok(()), "{what}");
    assert!(!check(graph, RegionKind::Fused, &inputs, what), "{what} runs on the interpreter");
    let bytes = |literals: Vec<Literal>| literals.iter().map(Literal::to_bytes).collect::<Vec<_>>();
    let expected = bytes(one_by_one(graph, &inputs));
    for parts in [2, 3] {
        let (found, _) = run_parts(graph, RegionKind::Fused, &inputs, 5, parts).unwrap();
        assert!(bytes(found) == expected, "{what} in {parts} parts: other bits than op by op");
    }
}

/// Reduces the last dimension, and broadcasts the result back along it.
fn repeated(b: &mut GraphBuilder, combiner: Combiner, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let dims: Vec<usize> = (0..shape.len() - 1).collect();
    let row = b.reduce(combiner, x, &[shape.len() - 1])?;
    b.broadcast_in_dim(row, &shape, &dims)
}

/// A softmax from primitive ops.
fn softmax(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let peak = repeated(b, Combiner::Max, x)?;
    let shifted = b.subtract(x, peak)?;
    let weights = b.exponential(shifted)?;
    let sum = repeated(b, Combiner::Sum, weights)?;
    b.divide(weights, sum)
}

/// One random step: returns a value of the full shape, and sometimes one with one element per row.
fn grow(
    b: &mut GraphBuilder,
    values: &[ValueId],
    rows: &mut Vec<ValueId>,
    vector: ValueId,
    random: &mut Random,
) -> Result<ValueId> {
    let shape = b.shape(values[0]);
    let last = shape.len() - 1;
    let dims: Vec<usize> = (0..last).collect();
    let x = values[random.below(values.len())];
    let y = values[random.below(values.len())];
    match random.below(10) {
        0 => b.add(x, y),
        1 => b.unary(UnaryKind::Tanh, x),
        2 => b.offset(x, 0.25),
        3 => {
            let wide = b.broadcast_trailing(vector, &shape)?;
            b.multiply(x, wide)
        }
        4 => {
            // An elementwise op on the vector before it is broadcast.
            let scaled = b.scale(vector, -0.5)?;
            let wide = b.broadcast_trailing(scaled, &shape)?;
            b.subtract(x, wide)
        }
        5 => {
            let peak = repeated(b, Combiner::Max, x)?;
            b.subtract(y, peak)
        }
        6 => {
            // Through a dimension of one element.
            let row = b.reduce_sum(x, &[last])?;
            let row = b.scale(row, 1.0 / shape[last].max(1) as f64)?;
            rows.push(row);
            let mut kept = shape.clone();
            kept[last] = 1;
            let row = b.reshape(row, &kept)?;
            let row = b.unary(UnaryKind::Logistic, row)?;
            let all: Vec<usize> = (0..=last).collect();
            let wide = b.broadcast_in_dim(row, &shape, &all)?;
            b.multiply(y, wide)
        }
        7 if !rows.is_empty() => {
            let (a, c) = (rows[random.below(rows.len())], rows[random.below(rows.len())]);
            let row = b.maximum(a, c)?;
            rows.push(row);
            let wide = b.broadcast_in_dim(row, &shape, &dims)?;
            b.add(x, wide)
        }
        8 => {
            let is_less = b.compare(Direction::Lt, x, y)?;
            b.select(is_less, x, y)
        }
        _ => softmax(b, x),
    }
}

#[test]
fn random_graphs_with_reductions_of_rows() {
    let mut random = Random(21);
    for round in 0..70u64 {
        let dtype = [DType::F32, DType::F64, DType::BF16][random.below(3)];
        let rank = 2 + random.below(2);
        let mut shape: Vec<usize> = (0..rank).map(|_| 1 + random.below(30)).collect();
        if round % 7 == 0 {
            shape[random.below(rank)] = [0, 1][random.below(2)];
        }
        if round % 9 == 4 {
            // Several blocks, the last of which is smaller.
            shape[rank - 1] = 3000 + random.below(2000);
        }
        let whole = TensorType::new(dtype, shape.clone());
        let vector = TensorType::new(dtype, [shape[rank - 1]]);
        let graph = graph_of(&[whole.clone(), whole, vector], |b, inputs| {
            let (mut values, mut rows) = (inputs[..2].to_vec(), Vec::new());
            for _ in 0..1 + random.below(6) {
                values.push(grow(b, &values, &mut rows, inputs[2], &mut random)?);
            }
            let last = values[values.len() - 1];
            let normed = softmax(b, last)?;
            let mut results = vec![b.subtract(normed, inputs[0])?];
            results.extend(rows.pop());
            if random.below(2) == 0 && last != inputs[1] {
                results.push(last);
            }
            Ok(results)
        });
        check_rows(&graph, &mut random, &format!("round {round}: {dtype} {shape:?}"));
    }
}

#[test]
fn rows_of_several_dimensions_are_cut_where_they_fit() {
    let mut random = Random(22);
    // Many short rows; few long ones; rows that are blocks by themselves; two dimensions reduced at once.
    for shape in
        [vec![3, 700, 64], vec![2, 5, 9000], vec![3, 100_000], vec![1, 1, 4096, 40], vec![6, 50, 8, 40]]
    {
        let reduced: Vec<usize> =
            (shape.len().max(3) - if shape.len() == 4 { 2 } else { 1 }..shape.len()).collect();
        let reduced = if shape.len() == 2 { vec![1] } else { reduced };
        let kept: Vec<usize> = (0..reduced[0]).collect();
        let graph = graph_of(&[TensorType::new(DType::F32, shape.clone())], |b, x| {
            let square = b.multiply(x[0], x[0])?;
            let sum = b.reduce_sum(square, &reduced)?;
            let root = b.unary(UnaryKind::Sqrt, sum)?;
            let wide = b.broadcast_in_dim(root, &shape, &kept)?;
            Ok(vec![b.divide(x[0], wide)?, root])
        });
        check_rows(&graph, &mut random, &format!("{shape:?} over {reduced:?}"));
    }
}

#[test]
fn random_graphs_with_reductions_across_rows() {
    let mut random = Random(23);
    for round in 0..60u64 {
        let combiner = [Combiner::Sum, Combiner::Max, Combiner::Min, Combiner::Prod][random.below(4)];
        let dtype = [DType::F32, DType::F64, DType::BF16, DType::I32][random.below(4)];
        let rank = 2 + random.below(3);
        let mut shape: Vec<usize> = (0..rank).map(|_| 1 + random.below(4)).collect();
        // Several blocks of rows, or of the reduction's own blocks, whose boundaries may differ.
        shape[0] = [1, 63, 64, 65, 200, 300][random.below(6)];
        shape[rank - 1] = 2 + random.below(if rank == 2 && round % 4 == 0 { 500 } else { 30 });
        if round % 5 == 0 {
            shape[random.below(rank)] = [0, 1][random.below(2)];
        }
        // The result must have more than one element, or there would be no rows.
        shape[rank - 1] = if shape[rank - 1] == 1 { 5 } else { shape[rank - 1] };
        let ty = TensorType::new(dtype, shape.clone());
        let vector = TensorType::new(dtype, [shape[rank - 1]]);
        let lead = 1 + random.below(rank - 1);
        let across = |lead: usize| (0..lead).collect::<Vec<usize>>();
        let graph = graph_of(&[ty.clone(), ty, vector], |b, x| {
            let wide = b.broadcast_trailing(x[2], &shape)?;
            let sum = b.add(x[0], wide)?;
            let product = b.multiply(sum, x[1])?;
            let mut results = vec![b.reduce(combiner, product, &across(lead))?];
            // The rows may be kept or reduced as well, and not all in the same way.
            if random.below(2) == 0 {
                results.push(product);
            }
            if random.below(3) == 0 {
                results.push(b.reduce(combiner, sum, &across(1 + random.below(rank - 1)))?);
            }
            if random.below(3) == 0 && dtype.is_float() {
                let y = softmax(b, product)?;
                results.push(b.reduce_sum(y, &across(rank - 1))?);
                if random.below(2) == 0 {
                    results.push(y);
                }
            }
            if random.below(4) == 0 {
                results.push(b.reduce(combiner, x[1], &across(lead))?);
            }
            Ok(results)
        });
        check_rows(
            &graph,
            &mut random,
            &format!("round {round}: {combiner:?} of {dtype} {shape:?} over {lead}"),
        );
    }
}

#[test]
fn what_does_not_go_row_by_row_says_so() {
    let why = |shape: &[usize], body: fn(&mut GraphBuilder, ValueId) -> Result<Vec<ValueId>>| {
        let graph = graph_of(&[TensorType::new(DType::F32, shape)], |b, x| body(b, x[0]));
        blocks::check(KernelOptions::native(), &graph).unwrap_err()
    };
    assert_eq!(why(&[4, 3], |b, x| Ok(vec![b.reduce_sum(x, &[0, 1])?])), "it reduces its first dimension");
    assert_eq!(why(&[4, 1], |b, x| Ok(vec![b.reduce_sum(x, &[0])?])), "it reduces its first dimension");
    let centred = why(&[4, 3], |b, x| {
        let sum = b.reduce_sum(x, &[0])?;
        let wide = b.broadcast_in_dim(sum, &[4, 3], &[1])?;
        Ok(vec![b.subtract(x, wide)?, sum])
    });
    assert_eq!(centred, "broadcast_in_dim reads a value that is reduced across rows");
    let turned = why(&[3, 3], |b, x| {
        let y = softmax(b, x)?;
        let turned = b.transpose(y, &[1, 0])?;
        Ok(vec![b.add(y, turned)?])
    });
    assert_eq!(turned, "transpose reads the rows in a different order than another op");
    let product = why(&[3, 3], |b, x| {
        let y = softmax(b, x)?;
        Ok(vec![b.linear(y, x)?])
    });
    assert_eq!(product, "dot_general is neither an elementwise op nor a reduction of rows");
    assert_eq!(
        why(&[4, 3], |b, x| Ok(vec![b.reduce_max(x, &[1])?, x])),
        "it returns an input, or one value twice"
    );
}
