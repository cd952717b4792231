//! How the work of a region is split among threads.

use super::*;

/// The number of parts of a region for three threads, if the work were long enough.
fn parts(graph: &Graph, kind: RegionKind) -> usize {
    let mut end = 0;
    let mut places = |values: &[ValueId]| -> Vec<Place> {
        let mut place = |&v: &ValueId| {
            let offset = end;
            end += graph.ty(v).bytes().next_multiple_of(64);
            Place::dense(offset, graph.ty(v).dtype, &graph.ty(v).shape)
        };
        values.iter().map(&mut place).collect()
    };
    let (inputs, outputs) = (places(&graph.inputs), places(&graph.outputs));
    let region = Region::new(graph.clone(), kind);
    Cpu::default().compile_parts(&region, inputs, outputs, 3).part_count()
}

#[test]
fn what_takes_time_is_cut_for_threads() {
    let of = |op: Op, types: &[TensorType]| parts(&single(op, types).unwrap(), RegionKind::Single);
    let dot = |lhs: &[usize], rhs: &[usize]| {
        let last = lhs.len() - 1;
        let op = DotGeneral { lhs_contracting: vec![last], rhs_contracting: vec![0], ..Default::default() };
        of(op.into(), &[f32s(lhs), f32s(rhs)])
    };
    // Rows, columns, and neither of at least three.
    assert_eq!([dot(&[9, 4], &[4, 2]), dot(&[2, 4], &[4, 7]), dot(&[2, 4], &[4, 1])], [3, 3, 2]);
    // Long matmuls have several parts per thread for stealing: columns if there are enough, otherwise rows.
    let long = [dot(&[600, 256], &[256, 3072]), dot(&[4608, 64], &[64, 384]), dot(&[384, 600], &[600, 384])];
    assert_eq!(long, [12, 9, 3]);
    let halves = TensorType { dtype: DType::BF16, ..f32s(&[600, 600]) };
    let op = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..Default::default() };
    assert_eq!(of(op.into(), &[halves.clone(), halves]), 3, "each part widens what it reads");
    let attributes = [("causal", Attribute::Bool(true)), ("scale", Attribute::Float(0.5))];
    let heads = f32s(&[3, 2, 4, 8]);
    let (forward, backward) = composite(
        &templates::ATTENTION,
        &attributes,
        &[heads.clone(), heads.clone(), heads.clone()],
        &[0, 1, 2],
    );
    let operands = vec![heads; 4];
    assert_eq!(of(forward.into(), &operands[..3]), 3);
    assert_eq!(of(backward.unwrap().into(), &operands), 3);
    let rows = [f32s(&[6, 5])];
    let (softmax, gradient) = composite(&templates::SOFTMAX, &[], &rows, &[0]);
    assert_eq!(of(softmax.into(), &rows), 3);
    assert_eq!(of(gradient.unwrap().into(), &[f32s(&[6, 5]), f32s(&[6, 5])]), 3);
    // The gradient of a norm is split between blocks of rows, although the gradients of weight and bias sum
    // over all.
    let norm = |shape: &[usize]| {
        let types = [f32s(shape), f32s(&shape[shape.len() - 1..]), f32s(shape)];
        let epsilon = [("epsilon", Attribute::Float(1e-5))];
        let gradient = composite(&templates::LAYER_NORM, &epsilon, &types[..2], &[0, 1]).1.unwrap();
        of(gradient.into(), &types)
    };
    assert_eq!(
        [norm(&[192, 4]), norm(&[1, 3, 64, 2]), norm(&[4, 32, 2]), norm(&[64, 2]), norm(&[5])],
        [3, 3, 2, 1, 1]
    );
    // Rows of experts are cut by rows; sums over rows by the longer side of matrices, whatever rows a group has.
    let grouped = |template, shapes: [&[usize]; 3]| {
        let types = shapes.map(f32s);
        of(composite(template, &[], &types, &[]).0.into(), &types)
    };
    let own: &[usize] = &[6, 2];
    assert_eq!(grouped(&templates::GROUPED_MATMUL, [&[6, 4], &[2, 5, 4], own]), 3);
    assert_eq!(grouped(&templates::GROUPED_OUTER, [&[6, 4], &[6, 5], own]), 3);
    assert_eq!(grouped(&templates::GROUPED_OUTER, [&[6, 2], &[6, 1], own]), 2);
    // The sums of a bias gradient: each part has its columns, more than one. A sum over everything has one
    // part.
    let sum = |columns: usize, dims: &[usize]| {
        let reducer = Reducer::Combiner(Combiner::Sum);
        of(Reduce { dims: dims.to_vec(), reducer }.into(), &[f32s(&[6, columns]), f32s(&[])])
    };
    assert_eq!([sum(6, &[0]), sum(5, &[0]), sum(1, &[0]), sum(5, &[0, 1])], [3, 2, 1, 1]);
    let mut b = GraphBuilder::new("chain");
    let x = b.input("", f32s(&[1, 8, 4]), Role::Activation);
    let y = b.input("", f32s(&[1, 8, 4]), Role::Activation);
    let sum = b.add(x, y).unwrap();
    let product = b.multiply(sum, x).unwrap();
    let chain = b.finish(vec![product]);
    assert_eq!(parts(&chain, RegionKind::Fused), 3);
}

#[test]
fn what_is_soon_done_is_not_cut() {
    let add = |size: usize| {
        let mut b = GraphBuilder::new("chain");
        let x = b.input("", f32s(&[size]), Role::Activation);
        let y = b.add(x, x).unwrap();
        Region::new(b.finish(vec![y]), RegionKind::Fused)
    };
    assert_eq!(cut::part_count(&add(100), 4), 1);
    assert_eq!(cut::part_count(&add(1 << 20), 4), 4);
    assert_eq!(cut::part_count(&add(1 << 20), 1), 1);
}
