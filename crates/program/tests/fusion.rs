//! What fusion tells of itself: which elementwise ops run apart, and why.

mod common;

use common::*;
use partita_ir::ops::UnaryKind;
use partita_ir::{ClassGraph, Graph, GraphBuilder, Op, Phase, Role, ValueId};
use partita_program::{Fusion, LowerOptions, RegionKind, Why, fusion, lower};

/// The fusion of a step on one rank that reads `x` [3, 3].
fn fused(options: LowerOptions, body: impl Fn(&mut GraphBuilder, ValueId) -> ValueId) -> Fusion {
    let graphs: Vec<Graph> = build(1, |_, b| {
        let x = b.input("x", f32s(&[3, 3]), Role::Input);
        let y = body(b, x);
        vec![("y".to_string(), y)]
    });
    let fusion = fusion(&ClassGraph::each(graphs.clone()), &options, &Sizes).unwrap();
    let set = lower(&ClassGraph::each(graphs.clone()), &options, &Sizes).unwrap();
    let regions = set.programs[0].regions.iter();
    let joined = regions.filter(|region| region.kind == RegionKind::Fused);
    assert_eq!(joined.count(), fusion.regions.len(), "it tells of the program that is made");
    fusion
}

fn why(fusion: &Fusion) -> Vec<(&str, &str, &Why)> {
    fusion.apart.iter().map(|a| (a.reader.0.as_str(), a.maker.0.as_str(), &a.why)).collect()
}

#[test]
fn a_chain_has_nothing_to_tell() {
    let chain = fused(LowerOptions::default(), |b, x| {
        let y = b.multiply(x, x).unwrap();
        b.add(y, x).unwrap()
    });
    assert_eq!((chain.regions.as_slice(), chain.apart.as_slice()), (&[2][..], &[][..]));
    assert_eq!(chain.to_string(), "fusion: 2 ops in 1 regions, 1 of several\n");
}

#[test]
fn what_keeps_ops_apart_is_told() {
    let turned = fused(LowerOptions::default(), |b, x| {
        let y = b.multiply(x, x).unwrap();
        let turned = b.transpose(y, &[1, 0]).unwrap();
        b.add(turned, x).unwrap()
    });
    assert_eq!(why(&turned), [("add", "multiply", &Why::View)]);
    let product = fused(LowerOptions::default(), |b, x| {
        let y = b.multiply(x, x).unwrap();
        let z = matmul(b, y, x);
        b.add(y, z).unwrap()
    });
    assert_eq!(why(&product), [("add", "multiply", &Why::ReadBefore("dot_general".to_string()))]);
    let shapes = fused(LowerOptions::default(), |b, x| {
        let y = b.multiply(x, x).unwrap();
        let row = b.slice_dim(y, 0, 0, 1).unwrap();
        b.add(row, row).unwrap()
    });
    assert_eq!(why(&shapes), [("add", "multiply", &Why::Shape)]);
    let phases = fused(LowerOptions::default(), |b, x| {
        let y = b.multiply(x, x).unwrap();
        in_phase(b, Phase::Update, "optimizer", |b| b.add(y, x).unwrap())
    });
    assert_eq!(why(&phases), [("add", "multiply", &Why::Phase)]);
    let alone = fused(LowerOptions { fused_ops: 1, ..LowerOptions::default() }, |b, x| {
        let y = b.multiply(x, x).unwrap();
        b.add(y, x).unwrap()
    });
    assert_eq!(why(&alone), [("add", "multiply", &Why::Limit("ops", 1))]);
    assert!(alone.to_string().contains("together they would have more than 1 ops"), "{alone}");
}

/// Rows less their mean, as anybody would write it.
fn centred(b: &mut GraphBuilder, x: ValueId) -> ValueId {
    let sums = b.reduce_sum(x, &[1]).unwrap();
    let mean = b.scale(sums, 1.0 / 3.0).unwrap();
    let mean = b.broadcast_in_dim(mean, &[3, 3], &[0]).unwrap();
    b.subtract(x, mean).unwrap()
}

#[test]
fn reductions_of_rows_belong_to_regions() {
    // Two sums, and what stands before, between and behind them.
    let norm = fused(LowerOptions::default(), |b, x| {
        let x = b.exponential(x).unwrap();
        let y = centred(b, x);
        let squares = b.multiply(y, y).unwrap();
        let sums = b.reduce_sum(squares, &[1]).unwrap();
        let root = b.unary(UnaryKind::Sqrt, sums).unwrap();
        let root = b.broadcast_in_dim(root, &[3, 3], &[0]).unwrap();
        b.divide(y, root).unwrap()
    });
    assert_eq!((norm.regions.as_slice(), norm.apart.as_slice()), (&[8][..], &[][..]));
    // Of what a product makes.
    let product = fused(LowerOptions::default(), |b, x| {
        let x = matmul(b, x, x);
        centred(b, x)
    });
    assert_eq!((product.regions.as_slice(), product.apart.as_slice()), (&[3][..], &[][..]));
}

#[test]
fn reductions_that_run_apart_are_told() {
    let columns = fused(LowerOptions::default(), |b, x| {
        let y = b.multiply(x, x).unwrap();
        b.reduce_sum(y, &[0]).unwrap()
    });
    assert_eq!(why(&columns), [("reduce", "multiply", &Why::AcrossRows)]);
    assert!(columns.to_string().contains("it is reduced across rows"), "{columns}");
    // The mean of a row, seen along a column.
    let turned = fused(LowerOptions::default(), |b, x| {
        let sums = b.reduce_sum(x, &[1]).unwrap();
        let turned = b.broadcast_in_dim(sums, &[3, 3], &[1]).unwrap();
        b.subtract(x, turned).unwrap()
    });
    assert_eq!(why(&turned), [("subtract", "reduce", &Why::View)]);
    let between = fused(LowerOptions::default(), |b, x| {
        let sums = b.reduce_sum(x, &[1]).unwrap();
        let wide = b.broadcast_in_dim(sums, &[3, 3], &[0]).unwrap();
        let product = matmul(b, wide, x);
        b.add(product, wide).unwrap()
    });
    assert_eq!(why(&between), [("add", "reduce", &Why::ReadBefore("dot_general".to_string()))]);
    let long = |columns: usize| {
        let graphs: Vec<Graph> = build(1, |_, b| {
            let x = b.input("x", f32s(&[2, columns]), Role::Input);
            let sums = b.reduce_sum(x, &[1]).unwrap();
            let wide = b.broadcast_in_dim(sums, &[2, columns], &[0]).unwrap();
            vec![("y".to_string(), b.divide(x, wide).unwrap())]
        });
        fusion(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap()
    };
    assert_eq!(long(1 << 16).regions, [2]);
    assert_eq!(why(&long((1 << 16) + 1)), [("divide", "reduce", &Why::Limit("elements in a row", 1 << 16))]);
}

/// The regions with more than one op of a step on `x` [rows, columns], as (ops, outputs), and what runs apart.
fn across(
    shape: [usize; 2],
    body: impl Fn(&mut GraphBuilder, ValueId) -> Vec<ValueId>,
) -> (Vec<(usize, usize)>, Vec<Why>) {
    let graphs: Vec<Graph> = build(1, |_, b| {
        let x = b.input("x", f32s(&shape), Role::Input);
        let outputs = body(b, x).into_iter().enumerate();
        outputs.map(|(i, value)| (format!("out{i}"), value)).collect()
    });
    let set = lower_and_compare(&graphs, &LowerOptions::default());
    let fusion = fusion(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap();
    let regions = set.programs[0].regions.iter();
    let ops = |graph: &Graph| graph.nodes.iter().filter(|node| !is_view(&node.op)).count();
    let fused = regions.filter(|region| region.kind == RegionKind::Fused);
    let sizes = fused.map(|region| (ops(&region.graph), region.graph.outputs.len()));
    (sizes.collect(), fusion.apart.into_iter().map(|apart| apart.why).collect())
}

fn is_view(op: &Op) -> bool {
    matches!(op, Op::Constant(_) | Op::BroadcastInDim(_) | Op::Reshape(_))
}

#[test]
fn reductions_across_many_rows_belong_to_regions() {
    let squares = |b: &mut GraphBuilder, x: ValueId| b.multiply(x, x).unwrap();
    let sums = |b: &mut GraphBuilder, x: ValueId| b.reduce_sum(x, &[0]).unwrap();
    // Of what is kept, or of what is not.
    let kept = across([256, 3], |b, x| {
        let y = squares(b, x);
        vec![y, sums(b, y)]
    });
    assert_eq!(kept, (vec![(2, 2)], vec![]));
    let gone = across([256, 3], |b, x| {
        let y = squares(b, x);
        vec![sums(b, y)]
    });
    assert_eq!(gone, (vec![(2, 1)], vec![]));
    // With reductions of rows.
    let norm = across([256, 3], |b, x| {
        let sum = b.reduce_sum(x, &[1]).unwrap();
        let wide = b.broadcast_in_dim(sum, &[256, 3], &[0]).unwrap();
        let y = b.subtract(x, wide).unwrap();
        vec![sums(b, y), y]
    });
    assert_eq!(norm, (vec![(3, 2)], vec![]));
    // Few rows, long ones, and those of one element.
    let few = across([255, 3], |b, x| {
        let y = squares(b, x);
        vec![sums(b, y)]
    });
    assert_eq!(few, (vec![(1, 1)], vec![Why::AcrossRows]));
    let single = across([256, 1], |b, x| {
        let y = squares(b, x);
        vec![sums(b, y)]
    });
    assert_eq!(single, (vec![(1, 1)], vec![Why::AcrossRows]));
}

#[test]
fn what_is_reduced_across_rows_is_read_by_later_regions_alone() {
    let shape = [256, 3];
    // Rows less their mean over all rows: its reader also reads what the region of the sum makes.
    let centred = |b: &mut GraphBuilder, y: ValueId, sum: ValueId| {
        let mean = b.scale(sum, 1.0 / 256.0).unwrap();
        let wide = b.broadcast_in_dim(mean, &shape, &[1]).unwrap();
        b.subtract(y, wide).unwrap()
    };
    let (regions, _) = across(shape, |b, x| {
        let y = b.multiply(x, x).unwrap();
        let sum = b.reduce_sum(y, &[0]).unwrap();
        vec![centred(b, y, sum)]
    });
    assert_eq!(regions, [(2, 2), (1, 1), (1, 1)]);
    // Directly, and with more of the same shape in between.
    let (regions, _) = across(shape, |b, x| {
        let y = b.multiply(x, x).unwrap();
        let sum = b.reduce_sum(y, &[0]).unwrap();
        let wide = b.broadcast_in_dim(sum, &shape, &[1]).unwrap();
        let z = b.exponential(y).unwrap();
        let w = b.subtract(z, wide).unwrap();
        vec![b.add(w, y).unwrap(), b.reduce_sum(w, &[0]).unwrap()]
    });
    assert_eq!(regions.iter().map(|(ops, _)| ops).sum::<usize>(), 6);
    assert_eq!(regions.len(), 2);
}

#[test]
fn a_reduction_across_rows_goes_early_to_the_region_that_makes_its_operand() {
    // As the gradient of a bias, which comes after a product that reads the same.
    let (regions, apart) = across([256, 3], |b, x| {
        let y = b.multiply(x, x).unwrap();
        let weight = b.reduce_max(x, &[0, 1]).unwrap();
        let weight = b.broadcast_in_dim(weight, &[3, 3], &[]).unwrap();
        let product = matmul(b, y, weight);
        let sum = in_phase(b, Phase::WeightGrad, "bias", |b| b.reduce_sum(y, &[0]).unwrap());
        vec![product, sum]
    });
    assert_eq!((regions, apart), (vec![(1, 1)], vec![Why::Phase]));
    let (regions, apart) = across([256, 3], |b, x| {
        let weight = b.reduce_max(x, &[0, 1]).unwrap();
        let weight = b.broadcast_in_dim(weight, &[3, 3], &[]).unwrap();
        let (y, product) = in_phase(b, Phase::InputGrad, "x", |b| {
            let y = b.multiply(x, x).unwrap();
            (y, matmul(b, y, weight))
        });
        let sum = in_phase(b, Phase::WeightGrad, "bias", |b| b.reduce_sum(y, &[0]).unwrap());
        vec![product, sum]
    });
    assert_eq!((regions, apart), (vec![(2, 2)], vec![]));
}

#[test]
fn rows_are_written_over_what_nobody_looks_at_any_more() {
    let step = |others_read: bool| {
        let mut graphs: Vec<Graph> = build(1, |_, b| {
            let x = b.input("x", f32s(&[3, 3]), Role::Param);
            let sums = b.reduce_sum(x, &[1]).unwrap();
            let wide = b.broadcast_in_dim(sums, &[3, 3], &[0]).unwrap();
            let mut outputs = vec![("x".to_string(), b.subtract(x, wide).unwrap())];
            if others_read {
                outputs.push(("share".to_string(), b.divide(x, wide).unwrap()));
            }
            outputs
        });
        alias(&mut graphs, &[(0, 0)]);
        let set = lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap();
        let program = &set.programs[0];
        program.regions.iter().map(|region| region.kind).collect::<Vec<RegionKind>>()
    };
    assert_eq!(step(false), [RegionKind::Fused]);
    // Whether the shares are computed before is up to who runs the region: `x` is replaced afterwards.
    assert_eq!(step(true), [RegionKind::Fused, RegionKind::Copy]);
}

/// What the fused regions of a step consist of that adds a bias to a product, computes the hyperbolic tangent of the sum
/// and reads the sum in the backward pass, and how many outputs each has.
fn biased(
    more: impl Fn(&mut GraphBuilder, ValueId, ValueId) -> Option<ValueId>,
    bias_of: impl Fn(&mut GraphBuilder, ValueId) -> ValueId,
) -> Vec<(usize, usize)> {
    let graphs: Vec<Graph> = build(1, |_, b| {
        let (x, bias) = (b.input("x", f32s(&[3, 3]), Role::Input), b.input("bias", f32s(&[3]), Role::Param));
        let product = matmul(b, x, x);
        let bias = bias_of(b, bias);
        let wide = b.broadcast_in_dim(bias, &[3, 3], &[1]).unwrap();
        let sum = b.add(product, wide).unwrap();
        let y = b.unary(UnaryKind::Tanh, sum).unwrap();
        let z = in_phase(b, Phase::InputGrad, "backward", |b| b.multiply(sum, y).unwrap());
        let more = more(b, product, sum);
        let outputs = [Some(y), Some(z), more].into_iter().flatten();
        outputs.enumerate().map(|(i, value)| (format!("out{i}"), value)).collect()
    });
    let set = lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Sizes).unwrap();
    let fused = set.programs[0].regions.iter().filter(|region| region.kind == RegionKind::Fused);
    fused.map(|region| (region.graph.nodes.len(), region.graph.outputs.len())).collect()
}

#[test]
fn a_cheap_sum_is_formed_again_rather_than_kept() {
    let plain = |_: &mut GraphBuilder, bias: ValueId| bias;
    let again = [(2, 1), (2, 1)];
    let kept = [(2, 2), (1, 1)];
    assert_eq!(biased(|_, _, _| None, plain), again);
    // The product or the sum are kept anyway.
    assert_eq!(biased(|_, product, _| Some(product), plain), kept);
    assert_eq!(biased(|_, _, sum| Some(sum), plain), kept);
    // Not every reader is elementwise, or the bias would have to be kept too.
    assert_eq!(biased(|b, _, sum| Some(matmul(b, sum, sum)), plain), kept);
    let tripled = biased(|_, _, _| None, |b, bias| b.scale(bias, 3.0).unwrap());
    assert_eq!(tripled, [(3, 1), (2, 2), (1, 1)]);
}

#[test]
fn what_is_made_of_a_repeated_sum_is_not_repeated_itself() {
    // What the forward pass makes is read by the backward pass alone, and that again by the update alone.
    let graphs: Vec<Graph> = build(1, |_, b| {
        let x = b.input("x", f32s(&[3, 3]), Role::Input);
        let product = matmul(b, x, x);
        let halved = b.scale(product, 0.5).unwrap();
        let raised = in_phase(b, Phase::InputGrad, "backward", |b| b.offset(halved, 1.0).unwrap());
        let y = in_phase(b, Phase::Update, "optimizer", |b| b.multiply(raised, x).unwrap());
        vec![("y".to_string(), y)]
    });
    lower_and_compare(&graphs, &LowerOptions::default());
}
