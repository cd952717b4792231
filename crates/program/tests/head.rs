//! Heads in pieces of rows, and products that are added to others in place.

mod common;

use common::*;
use partita_base::DType;
use partita_ir::autodiff::backward;
use partita_ir::composites::CROSS_ENTROPY;
use partita_ir::ops::{Composite, Direction, DotGeneral};
use partita_ir::{
    Attribute, ClassGraph, Graph, GraphBuilder, Literal, Op, Operation, Role, TensorType, ValueId,
};
use partita_program::{
    Action, HeadCut, LowerOptions, ProgramSet, Reference, Region, RegionSizes, View, Whole, fusion, lower,
};

const WORDS: usize = 7;

/// Sums five products at once, and adds a product in place where that is so.
struct Device;

impl RegionSizes for Device {
    fn workspace_bytes(&self, _: &Region, _: &[View]) -> usize {
        0
    }

    fn has_kernel(&self, composite: &Composite) -> bool {
        let definition = &composite.definition;
        let is_short = || {
            let dot = definition.decomposition.nodes.iter().find_map(|node| match &node.op {
                Op::DotGeneral(dot) => Some((dot, node.operands[0])),
                _ => None,
            });
            let (dot, lhs) = dot.expect("it adds a product");
            let lhs = &definition.decomposition.ty(lhs).shape;
            dot.lhs_contracting.iter().map(|&dim| lhs[dim]).product::<usize>() <= 5
        };
        definition.name != "partita.dot_general_add" || is_short()
    }

    fn overwrites(&self, composite: &Composite) -> Vec<(usize, usize)> {
        let name = composite.definition.name.as_str();
        if name == "partita.cross_entropy" { Vec::new() } else { vec![(0, 0)] }
    }

    fn product_block(&self, _: DType, _: usize) -> Option<usize> {
        Some(5)
    }
}

/// What a head is varied by.
#[derive(Clone, Copy, Default, Debug)]
struct Varied {
    /// What scales the gradient depends on all losses.
    scaled_by_loss: bool,
    /// Logits are given back.
    shown: bool,
    /// There is no gradient.
    forward: bool,
    /// The weight is `[features, words]`.
    turned: bool,
    /// Two ranks have some of the batch each.
    meets: bool,
}

/// A head over `[2, length]` rows of three features: its loss, a mean over the labels that count, and its gradients.
fn head(b: &mut GraphBuilder, length: usize, varied: Varied) -> Vec<(String, ValueId)> {
    let hidden = b.input("hidden", f32s(&[2, length, 3]), Role::Activation);
    let weight = b.input("weight", f32s(&if varied.turned { [3, WORDS] } else { [WORDS, 3] }), Role::Param);
    let labels = b.input("labels", TensorType::new(DType::I32, [2, length]), Role::Input);
    let dims = DotGeneral {
        lhs_contracting: vec![2],
        rhs_contracting: vec![usize::from(!varied.turned)],
        ..DotGeneral::default()
    };
    let logits = b.dot_general(hidden, weight, dims).unwrap();
    let ignored = [("ignore_index", Attribute::Int(-1))];
    let losses = b.composite(&CROSS_ENTROPY, &ignored, &[logits, labels]).unwrap();
    let mut sum = b.reduce_sum(losses, &[0, 1]).unwrap();
    let none = b.full_like(labels, -1.0).unwrap();
    let counts = b.compare(Direction::Ne, labels, none).unwrap();
    let counts = b.convert(counts, DType::F32).unwrap();
    let mut count = b.reduce_sum(counts, &[0, 1]).unwrap();
    if varied.meets {
        (sum, count) = (all_reduce(b, sum, &[&[0, 1]]), all_reduce(b, count, &[&[0, 1]]));
    }
    let loss = b.divide(sum, if varied.scaled_by_loss { sum } else { count }).unwrap();
    let mut outputs = vec![("loss".to_string(), loss)];
    if varied.shown {
        outputs.push(("logits".to_string(), logits));
    }
    if !varied.forward {
        let one = b.full_like(loss, 1.0).unwrap();
        let gradients = backward(b, &[(loss, one)], &[hidden, weight]).unwrap();
        outputs.extend(
            ["dhidden", "dweight"].map(String::from).into_iter().zip(gradients.into_iter().flatten()),
        );
    }
    outputs
}

/// What is told of the one head.
fn told(graphs: &[Graph], logits_bytes: usize) -> HeadCut {
    let options = LowerOptions { logits_bytes, ..LowerOptions::default() };
    let [head] = &fusion(&ClassGraph::each(graphs.to_vec()), &options, &Device).unwrap().heads[..] else {
        panic!("one head")
    };
    head.clone()
}

/// Lowers with pieces where logits take more than `logits_bytes`, compares what the programs compute with what the graphs
/// do, and gives the rows of each piece of rank 0, as many as are told of.
fn pieces(graphs: &[Graph], logits_bytes: usize) -> Vec<usize> {
    let set = lower(
        &ClassGraph::each(graphs.to_vec()),
        &LowerOptions { logits_bytes, ..LowerOptions::default() },
        &Device,
    )
    .unwrap();
    let count = single(&set, "partita.cross_entropy").len();
    assert_eq!(told(graphs, logits_bytes).pieces.unwrap_or(1), count);
    let mut inputs = inputs(graphs, 5);
    for (graph, inputs) in graphs.iter().zip(&mut inputs) {
        let labels = graph.inputs.iter().position(|&v| graph.value(v).name == "labels").unwrap();
        let ty = inputs[labels].ty.clone();
        // One in seven does not count.
        let values = (0..ty.element_count()).map(|i| (i * 5 % 7) as f64 - 1.0);
        inputs[labels] = Literal::from_f64(&ty, values.collect::<Vec<_>>().into_iter());
    }
    let mut machine = Reference::new(&set);
    for (rank, inputs) in inputs.iter().enumerate() {
        for (position, literal) in inputs.iter().enumerate() {
            machine.write_input(rank, position, literal).unwrap();
        }
    }
    machine.step().unwrap();
    for (rank, outputs) in oracle(graphs, &inputs).iter().enumerate() {
        for (position, expected) in outputs.iter().enumerate() {
            let (found, expected) = (machine.output(rank, position).to_f64(), expected.to_f64());
            let error = found.iter().zip(&expected).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
            assert!(error < 1e-5, "rank {rank}, output {position}: off by {error}");
        }
    }
    single(&set, "partita.cross_entropy").iter().map(|graph| graph.ty(graph.inputs[0]).shape[0]).collect()
}

/// The regions of rank 0 that are this composite.
fn single<'a>(set: &'a ProgramSet, name: &str) -> Vec<&'a Graph> {
    let is_named = |region: &&Region| region.single().is_some_and(|node| node.op.name() == name);
    set.programs[0].regions.iter().filter(is_named).map(|region| &region.graph).collect()
}

#[test]
fn heads_run_in_pieces_where_nothing_else_needs_the_whole() {
    let of = |length: usize, varied: Varied| pieces(&build(1, |_, b| head(b, length, varied)), 0);
    let plain = Varied::default();
    assert_eq!(of(6, plain), [5, 5, 2]);
    assert_eq!(of(5, plain), [5, 5]);
    assert_eq!(of(6, Varied { turned: true, ..plain }), [5, 5, 2]);
    assert_eq!(of(6, Varied { forward: true, ..plain }), [5, 5, 2]);
    // The whole, [2, length, words].
    assert_eq!(of(2, plain), [2], "the product sums four rows at once anyway");
    assert_eq!(of(6, Varied { shown: true, ..plain }), [2], "logits are an output");
    assert_eq!(of(6, Varied { scaled_by_loss: true, ..plain }), [2], "the gradient needs all losses first");
}

#[test]
fn only_logits_above_the_limit_are_cut() {
    let graphs = build(1, |_, b| head(b, 6, Varied::default()));
    let bytes = 2 * 6 * WORDS * 4;
    assert_eq!(pieces(&graphs, bytes), [2]);
    // Pieces have as many blocks as are not larger, or one.
    let block = 5 * WORDS * 4;
    assert_eq!(pieces(&graphs, bytes - 1), [10, 2]);
    assert_eq!(pieces(&graphs, 2 * block), [10, 2]);
    assert_eq!(pieces(&graphs, 2 * block - 1), [5, 5, 2]);
    assert_eq!(pieces(&graphs, block - 1), [5, 5, 2]);
}

#[test]
fn a_head_tells_why_it_runs_whole() {
    let of = |length, varied, logits_bytes| {
        let head = told(&build(1, |_, b| head(b, length, varied)), logits_bytes);
        (head.pieces, head.to_string())
    };
    let plain = Varied::default();
    let cases = [
        (6, plain, 0, Ok(3), "in 3 pieces of rows"),
        (
            6,
            plain,
            1 << 20,
            Err(Whole::Small { most_bytes: 1 << 20 }),
            "whole, as they take no more than 1.0 MiB",
        ),
        (2, plain, 0, Err(Whole::Summed), "whole, as products sum all rows at once"),
        (
            6,
            Varied { shown: true, ..plain },
            0,
            Err(Whole::Read),
            "whole, as they or their gradient are read elsewhere",
        ),
        (
            6,
            Varied { scaled_by_loss: true, ..plain },
            0,
            Err(Whole::Late),
            "whole, as their gradient waits for all losses",
        ),
    ];
    for (length, varied, logits_bytes, pieces, text) in cases {
        assert_eq!(
            of(length, varied, logits_bytes),
            (pieces, format!("logits of the step, 0.0 MiB: {text}"))
        );
    }
    let uneven = build(2, |rank, b| head(b, 6 + 2 * rank, Varied { meets: true, ..plain }));
    assert_eq!(told(&uneven, 0).pieces, Err(Whole::Uneven));
    let made = build(1, |_, b| {
        let logits = b.input("logits", f32s(&[6, WORDS]), Role::Input);
        let labels = b.input("labels", TensorType::new(DType::I32, [6]), Role::Input);
        let ignored = [("ignore_index", Attribute::Int(-1))];
        vec![("losses".to_string(), b.composite(&CROSS_ENTROPY, &ignored, &[logits, labels]).unwrap())]
    });
    assert_eq!(told(&made, 0).pieces, Err(Whole::Made));
}

#[test]
fn ranks_cut_into_as_many_pieces_or_not_at_all() {
    let of = |lengths: [usize; 2]| {
        let graphs = build(2, |rank, b| head(b, lengths[rank], Varied { meets: true, ..Varied::default() }));
        pieces(&graphs, 0)
    };
    assert_eq!(of([6, 7]), [5, 5, 2]);
    assert_eq!(of([6, 8]), [2]);
}

/// The count of labels, by which gradients are divided, must not wait for the losses, which travel alike.
#[test]
fn a_piece_is_done_with_before_the_next() {
    let graphs = build(2, |_, b| head(b, 6, Varied { meets: true, ..Varied::default() }));
    let set = lower(
        &ClassGraph::each(graphs.clone()),
        &LowerOptions { logits_bytes: 0, ..LowerOptions::default() },
        &Device,
    )
    .unwrap();
    let mut logits: Vec<(usize, usize)> = set.programs[0]
        .buffers
        .iter()
        .filter(|buffer| buffer.ty.shape.len() == 2 && buffer.ty.shape[1] == WORDS)
        .map(|buffer| (buffer.first, buffer.last))
        .collect();
    logits.sort_unstable();
    assert_eq!(logits.len(), 6, "logits and their gradients");
    assert!(logits.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{logits:?}");
}

#[test]
fn a_product_is_added_to_another_in_its_place() {
    // x a + y b + z c
    let sum = |terms: usize| {
        let graphs = build(1, |_, b| {
            let product = |b: &mut GraphBuilder, name: &str| {
                let x = b.input(name, f32s(&[4, terms]), Role::Input);
                let y = b.input(&format!("{name}'"), f32s(&[terms, 6]), Role::Input);
                matmul(b, x, y)
            };
            let products = ["x", "y", "z"].map(|name| product(b, name));
            let sum = b.add(products[1], products[0]).unwrap();
            let sum = b.add(sum, products[2]).unwrap();
            vec![("sum".to_string(), sum)]
        });
        let set = lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &Device).unwrap();
        lower_and_compare(&graphs, &LowerOptions::default());
        let mut machine = Reference::new(&set);
        let inputs = inputs(&graphs, 5);
        for (position, literal) in inputs[0].iter().enumerate() {
            machine.write_input(0, position, literal).unwrap();
        }
        machine.step().unwrap();
        assert_eq!(machine.output(0, 0), oracle(&graphs, &inputs)[0][0]);
        set
    };
    let short = sum(5);
    let program = &short.programs[0];
    assert_eq!(single(&short, "partita.dot_general_add").len(), 2);
    assert_eq!(program.instructions.len(), 3, "{}", short.display(0));
    let places: Vec<usize> = program
        .instructions
        .iter()
        .map(|instruction| match &instruction.action {
            Action::Compute(compute) => program.buffer(compute.outputs[0]).offset_bytes,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(places, [places[0]; 3], "in place");
    // A longer product is not one sum, and adding that would be another one.
    let long = sum(6);
    assert_eq!(single(&long, "partita.dot_general_add").len(), 0);
}
