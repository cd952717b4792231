//! Edge cases of the input: wrong input gives the right error, unusual input works.

use crate::common::{check, check_specialised, numbers};
use partita_base::DType;
use partita_ir::composites::SOFTMAX;
use partita_ir::{Annotation, Graph, GraphBuilder, Literal, Role, TensorType, evaluate};
use partita_mesh::{AxisList, AxisRef, Combiner, Mesh, Sharding, Step};
use partita_spmd::{Options, Partitioned, partition};
use std::collections::BTreeMap;

fn annotation(sharding: Sharding) -> Annotation {
    let open = vec![false; sharding.dims.len()];
    Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() }
}

fn run(graph: &Graph, mesh: &Mesh) -> Partitioned {
    let numbered = graph.inputs.iter().enumerate();
    let inputs: Vec<Literal> =
        numbered.map(|(i, &v)| numbers(&graph.ty(v).shape, i as u64, graph.ty(v).dtype)).collect();
    let expected = evaluate(graph, &inputs).expect("a valid graph");
    let partitioned = check(graph, mesh, &Options::default(), &inputs, &expected)
        .unwrap_or_else(|(code, text)| panic!("{code}: {text}"));
    check_specialised(&partitioned, &inputs).unwrap_or_else(|(_, text)| panic!("{text}"));
    partitioned
}

/// `negate(x)` of this shape, with an annotated `x`.
fn negated(shape: &[usize], pinned: Annotation) -> Graph {
    let mut b = GraphBuilder::new("main");
    let x = b.input("x", TensorType::new(DType::F64, shape), Role::Input);
    b.annotate(x, pinned);
    let y = b.negate(x).unwrap();
    b.finish(vec![y])
}

#[test]
fn layouts_that_do_not_fit_are_told_apart() {
    let mesh = Mesh::new("mesh", &[("x", 2), ("y", 3)]);
    let (x, y) = (mesh.full_axis(0), mesh.full_axis(1));
    let code = |annotation: Annotation| {
        let error = partition(&negated(&[4, 6], annotation), &mesh, &Options::default()).unwrap_err();
        assert!(error.at.is_some(), "{error}");
        error.code
    };
    let two = || Sharding::replicated(2);
    assert_eq!(code(annotation(Sharding::replicated(1))), "E210");
    assert_eq!(code(annotation(Sharding::replicated(3).with_dim(2, [x]))), "E210");
    assert_eq!(code(annotation(two().with_dim(0, [x]).with_dim(1, [x]))), "E210");
    assert_eq!(code(annotation(two().with_dim(0, [AxisRef { axis: 7, pre: 1, size: 2 }]))), "E210");
    assert_eq!(code(Annotation { mesh: 3, ..annotation(two().with_dim(0, [x])) }), "E216");
    let mut contradicting = negated(&[4, 6], annotation(two().with_dim(0, [x])));
    let mut b = GraphBuilder::from_graph(std::mem::take(&mut contradicting));
    let operand = b.graph().outputs[0];
    let asked = annotation(two().with_dim(0, [y]));
    let result = b.push1(partita_ir::ops::ShardingConstraint { annotation: asked }, &[operand]).unwrap();
    b.annotate(result, annotation(two().with_dim(1, [y])));
    let error = partition(&b.finish(vec![result]), &mesh, &Options::default()).unwrap_err();
    assert_eq!(error.code, "E215", "{error}");
}

#[test]
fn a_split_is_fixed_by_the_name_of_a_value() {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    let mut graph = negated(&[4, 6], annotation(Sharding::replicated(2)));
    let y = graph.outputs[0];
    graph.value_mut(y).name = "negative".to_string();
    let fixed_for = |name: &str| {
        let split = vec![AxisList::new(), AxisList::from_elem(mesh.full_axis(0), 1)];
        let options = Options { fixed: BTreeMap::from([(name.to_string(), split)]), ..Options::default() };
        partition(&graph, &mesh, &options)
    };
    // The operand is sliced along its last dimension, and the result gathered again.
    let moves = fixed_for("negative").unwrap_or_else(|error| panic!("{error}")).moves;
    let steps: Vec<&Step> = moves.iter().map(|moved| &moved.step.step).collect();
    assert!(matches!(steps[..], [Step::Slice { dim: 1, .. }, Step::AllGather { dim: 1, .. }]), "{steps:?}");
    let error = fixed_for("negatve").map(|_| ()).unwrap_err();
    assert_eq!((error.code, error.help.as_deref()), ("E475", Some("did you mean `negative`?")));
    // An input is computed by no op.
    assert_eq!(fixed_for("x").map(|_| ()).unwrap_err().code, "E475");
}

#[test]
fn an_annotation_without_flags_is_closed() {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    let pinned = annotation(Sharding::replicated(1).with_dim(0, [mesh.full_axis(0)]));
    run(&negated(&[5], Annotation { open: vec![], ..pinned }), &mesh);
}

#[test]
fn axes_of_one_rank_change_nothing() {
    let mesh = Mesh::new("mesh", &[("one", 1), ("x", 2), ("uno", 1)]);
    let axes = || (0..3).map(|axis| mesh.full_axis(axis));
    let sharding = Sharding::replicated(2).with_dim(0, axes()).with_dim(1, [mesh.full_axis(0)]);
    let open = Annotation { open: vec![true; 2], ..annotation(sharding) };
    let partitioned = run(&negated(&[4, 6], open), &mesh);
    assert_eq!(partitioned.inputs[0].display(&mesh), "[{x}, {}]");
    let single = Mesh::new("mesh", &[("x", 1)]);
    run(&negated(&[4], annotation(Sharding::replicated(1).with_dim(0, [single.full_axis(0)]))), &single);
    run(&negated(&[4], annotation(Sharding::replicated(1))), &Mesh::new("mesh", &[]));
}

#[test]
fn tensors_without_elements_and_scalars_are_split_too() {
    let mesh = Mesh::new("mesh", &[("x", 3)]);
    let over = |shape: &[usize], dim| {
        negated(shape, annotation(Sharding::replicated(shape.len()).with_dim(dim, [mesh.full_axis(0)])))
    };
    run(&over(&[0, 4], 0), &mesh);
    run(&over(&[0, 4], 1), &mesh);
    run(&negated(&[], annotation(Sharding::replicated(0))), &mesh);
}

#[test]
fn graphs_need_no_nodes() {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    run(&GraphBuilder::new("empty").finish(vec![]), &mesh);
    let mut b = GraphBuilder::new("inputs");
    let x = b.input("x", TensorType::new(DType::F64, [4]), Role::Input);
    let y = b.input("y", TensorType::new(DType::F64, [4]), Role::Param);
    b.annotate(x, annotation(Sharding::replicated(1).with_dim(0, [mesh.full_axis(0)])));
    b.annotate(y, annotation(Sharding::replicated(1)));
    let mut graph = b.finish(vec![x, y, x]);
    run(&graph, &mesh);
    // The next step's x is this step's y, and vice versa: each is resharded to the other's layout.
    graph.aliases = vec![(0, 1), (1, 0)];
    let partitioned = run(&graph, &mesh);
    assert_eq!(partitioned.outputs[0], partitioned.inputs[1]);
    assert_eq!(partitioned.outputs[1], partitioned.inputs[0]);
}

#[test]
fn a_value_may_be_both_operands() {
    let mesh = Mesh::new("mesh", &[("x", 2), ("y", 2)]);
    let mut b = GraphBuilder::new("main");
    let x = b.input("x", TensorType::new(DType::F64, [4, 4]), Role::Input);
    b.annotate(
        x,
        annotation(Sharding::replicated(2).with_dim(0, [mesh.full_axis(0)]).with_dim(1, [mesh.full_axis(1)])),
    );
    let gram = b.linear(x, x).unwrap();
    let square = b.multiply(gram, gram).unwrap();
    let twice = b.concatenate(&[square, square], 0).unwrap();
    run(&b.finish(vec![twice, gram, gram]), &mesh);
}

/// More combinations of axes and dimensions than are tried.
#[test]
fn many_axes_in_many_places_still_have_an_answer() {
    let names = ["a", "b", "c", "d", "e"];
    let axes: Vec<(&str, usize)> = names.iter().map(|&name| (name, 2)).collect();
    let mesh = Mesh::new("mesh", &axes);
    let shape = [2, 2, 2, 2, 2];
    let mut b = GraphBuilder::new("main");
    let mut sum = None;
    for turn in 0..5 {
        let x = b.input(&format!("x{turn}"), TensorType::new(DType::F64, shape), Role::Input);
        let mut sharding = Sharding::replicated(5);
        for dim in 0..5 {
            sharding = sharding.with_dim(dim, [mesh.full_axis((dim + turn) % 5)]);
        }
        b.annotate(x, annotation(sharding));
        sum = Some(match sum {
            Some(sum) => b.add(sum, x).unwrap(),
            None => x,
        });
    }
    run(&b.finish(vec![sum.unwrap()]), &mesh);
}

/// Extents of five and seven over 8 and 12 ranks: several classes, found one refinement at a time.
#[test]
fn ranks_fall_into_classes_by_their_shapes() {
    for axes in [&[("x", 4), ("y", 2)][..], &[("x", 3), ("y", 4)], &[("x", 8)]] {
        let mesh = Mesh::new("mesh", axes);
        let mut b = GraphBuilder::new("main");
        let x = b.input("x", TensorType::new(DType::F64, [5, 7]), Role::Input);
        let w = b.input("w", TensorType::new(DType::F64, [6, 7]), Role::Param);
        let last = mesh.full_axis(mesh.axes.len() - 1);
        b.annotate(x, annotation(Sharding::replicated(2).with_dim(0, [mesh.full_axis(0)])));
        b.annotate(w, annotation(Sharding::replicated(2).with_dim(0, [last])));
        let y = b.linear(x, w).unwrap();
        let y = b.composite(&SOFTMAX, &[], &[y]).unwrap();
        let partitioned = run(&b.finish(vec![y]), &mesh);
        assert!(partitioned.locals.len() > 1 && partitioned.locals.len() < mesh.rank_count());
        for rank in 0..mesh.rank_count() {
            let local = partitioned.local(rank);
            let shape = partitioned.inputs[0].local_shape(&mesh, &[5, 7], rank);
            assert_eq!(local.ty(local.inputs[0]).shape, shape);
        }
    }
}

#[test]
fn the_same_input_gives_the_same_partition() {
    let mesh = Mesh::new("mesh", &[("x", 2), ("y", 3)]);
    let sharding = Sharding::replicated(2).with_dim(0, [mesh.full_axis(1)]).with_dim(1, [mesh.full_axis(0)]);
    let mut b = GraphBuilder::new("main");
    let x = b.input("x", TensorType::new(DType::F64, [6, 4]), Role::Input);
    b.annotate(x, annotation(sharding));
    let gram = b.linear(x, x).unwrap();
    let y = b.composite(&SOFTMAX, &[], &[gram]).unwrap();
    let graph = b.finish(vec![y]);
    let (one, two) = (run(&graph, &mesh), run(&graph, &mesh));
    assert_eq!((one.locals, one.placements, one.outputs), (two.locals, two.placements, two.outputs));
}

/// `a` times the transposed `b`, with the contracted dimension split over two ranks.
fn product(returned: BTreeMap<String, Sharding>, unreduced: bool) -> Partitioned {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    let x = mesh.full_axis(0);
    let mut b = GraphBuilder::new("main");
    let left = b.input("a", TensorType::new(DType::F64, [3, 4]), Role::Input);
    let right = b.input("b", TensorType::new(DType::F64, [5, 4]), Role::Input);
    b.annotate(left, annotation(Sharding::replicated(2).with_dim(1, [x])));
    let product = b.linear(left, right).unwrap();
    let graph = b.finish_checked(vec![("product".to_string(), product)]).unwrap();
    let inputs = [numbers(&[3, 4], 0, DType::F64), numbers(&[5, 4], 1, DType::F64)];
    let expected = evaluate(&graph, &inputs).unwrap();
    let options = Options { returned, unreduced, ..Options::default() };
    check(&graph, &mesh, &options, &inputs, &expected).unwrap_or_else(|(code, text)| panic!("{code}: {text}"))
}

#[test]
fn outputs_are_returned_as_they_are_computed_or_in_layouts_of_their_own() {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    let x = mesh.full_axis(0);
    let whole = Sharding::replicated(2);
    let rows = whole.clone().with_dim(0, [x]);
    let named = |sharding: &Sharding| BTreeMap::from([("product".to_string(), sharding.clone())]);
    for (returned, unreduced, found, moves) in [
        (BTreeMap::new(), false, whole.clone(), 1),
        (BTreeMap::new(), true, whole.clone().with_partial([x], Combiner::Sum), 0),
        // Complete, then sliced: only an annotation is known where the sum is made.
        (named(&rows), true, rows.clone(), 2),
        (named(&whole), true, whole, 1),
        (named(&rows), false, rows, 2),
    ] {
        let partitioned = product(returned, unreduced);
        assert_eq!((&partitioned.outputs[0], partitioned.moves.len()), (&found, moves));
    }
}
