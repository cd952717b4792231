//! What fusion tells of itself: which elementwise ops run apart, and why.

mod common;

use common::*;
use partita_ir::{Graph, GraphBuilder, Phase, Role, ValueId};
use partita_program::{Fusion, LowerOptions, Why, fusion, lower};

/// The fusion of a step on one rank that reads `x` [3, 3].
fn fused(options: LowerOptions, body: impl Fn(&mut GraphBuilder, ValueId) -> ValueId) -> Fusion {
    let graphs: Vec<Graph> = build(1, |_, b| {
        let x = b.input("x", f32s(&[3, 3]), Role::Input);
        let y = body(b, x);
        vec![("y".to_string(), y)]
    });
    let fusion = fusion(&graphs, &options, &Sizes).unwrap();
    let set = lower(&graphs, &options, &Sizes).unwrap();
    let regions = set.programs[0].regions.iter();
    let elementwise = regions.filter(|region| region.kind == partita_program::RegionKind::Elementwise);
    assert_eq!(elementwise.count(), fusion.regions.len(), "it tells of the program that is made");
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
    assert_eq!(chain.to_string(), "fusion: 2 elementwise ops in 1 regions, 1 of several\n");
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
