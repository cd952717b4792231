//! Attention that a lowered step of JAX and a model of PyTorch write out becomes composites, with the same numbers. Small
//! programs, one for each form, are in `tests/files/attention`.

use partita_import::{ImportOptions, Limits, Pt2, recognise_attention};
use partita_ir::{Graph, Literal, Registry, evaluate, text};
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name)
}

/// How often a graph applies this composite.
fn count(graph: &Graph, name: &str) -> usize {
    let is_it = |node: &&partita_ir::Node| node.op.composite().is_some_and(|c| c.definition.name == name);
    graph.nodes.iter().filter(is_it).count()
}

#[test]
fn a_step_of_jax_keeps_its_numbers() {
    let path = file("jax/transformer_step.mlir");
    let source = std::fs::read_to_string(&path).expect("the file is there");
    let graph = text::parse_with(&source, "transformer_step.mlir", &Registry::default()).expect("parses");
    let recognised = recognise_attention(&graph).expect("recognises");
    partita_ir::verify::verify(&recognised).expect("well-formed");
    let counts =
        |graph: &Graph| ["partita.attention", "partita.attention.vjp"].map(|name| count(graph, name));
    assert_eq!((counts(&graph), counts(&recognised)), ([0, 0], [2, 2]));
    let value = |(seed, &input): (usize, &partita_ir::ValueId)| {
        let ty = graph.ty(input);
        let numbers = (0..ty.element_count()).map(|place| {
            let number = (place * 37 + seed * 11) % 61;
            if ty.dtype.is_float() { number as f64 / 100.0 - 0.3 } else { number as f64 }
        });
        Literal::from_f64(ty, numbers.collect::<Vec<_>>().into_iter())
    };
    let inputs: Vec<Literal> = graph.inputs.iter().enumerate().map(value).collect();
    let (expected, found) = (evaluate(&graph, &inputs).unwrap(), evaluate(&recognised, &inputs).unwrap());
    for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
        let (expected, found) = (expected.to_f64(), found.to_f64());
        let largest = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        let difference = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(difference <= 1e-5 * largest, "output {number} differs by {difference:e}");
    }
}

#[test]
fn a_model_of_pytorch_gets_the_composite() {
    let import = |name: &str| {
        let opened = Pt2::open(&file(&format!("pt2/{name}.pt2")), &Limits::default()).expect("opens");
        opened.import(&ImportOptions::default()).expect("imports").model.forward
    };
    let manual = import("gpt_manual");
    assert_eq!(["partita.attention", "partita.softmax"].map(|name| count(&manual, name)), [1, 0]);
    // A mask that is an input stays written out.
    assert_eq!(count(&import("bert"), "partita.attention"), 0);
}
