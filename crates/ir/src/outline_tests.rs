//! Tests of outlining, also on random graphs.

use super::*;
use crate::interpret::evaluate;
use crate::testing::random;
use crate::{Annotation, Phase, TensorType, Value, autodiff, graph_edit, text};
use partita_base::DType;
use partita_mesh::{Mesh, Sharding};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const SHAPE: [usize; 2] = [2, 3];

fn matrix() -> TensorType {
    TensorType::new(DType::F64, SHAPE)
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.nodes.iter().map(|node| node.op.name()).collect()
}

fn inputs(count: usize) -> Vec<crate::Literal> {
    (0..count).map(|seed| random(seed as u64, &SHAPE)).collect()
}

/// `(a + b) + y` with `y = c * 2` computed in between.
fn interleaved() -> (Graph, [NodeId; 2]) {
    let mut b = GraphBuilder::new("interleaved");
    let [x, y, z] = ["a", "b", "c"].map(|name| b.input(name, matrix(), Role::Input));
    let sum = b.add(x, y).unwrap();
    let doubled = b.scale(z, 2.0).unwrap();
    let all = b.add(sum, doubled).unwrap();
    let graph = b.finish(vec![all]);
    let node = |v: ValueId| graph.value(v).definition.unwrap().0;
    let nodes = [node(sum), node(all)];
    (graph, nodes)
}

#[test]
fn the_composite_stands_behind_what_it_reads() {
    let (graph, nodes) = interleaved();
    let (outlined, place) = outline(&graph, &nodes, "fused").unwrap();
    let expected = ["stablehlo.constant", "stablehlo.broadcast_in_dim", "stablehlo.multiply", "fused"];
    assert_eq!((names(&outlined), place), (expected.to_vec(), NodeId::new(3)));
    let node = outlined.node(place);
    assert_eq!(node.operands[..2], outlined.inputs[..2], "a and b are used first, then y");
    assert_eq!(evaluate(&outlined, &inputs(3)).unwrap(), evaluate(&graph, &inputs(3)).unwrap());
    assert_eq!(text::parse(&text::print(&outlined)).unwrap(), outlined);
}

#[test]
fn what_depends_on_the_composite_moves_behind_it() {
    let mut b = GraphBuilder::new("followers");
    let [x, y] = ["x", "y"].map(|name| b.input(name, matrix(), Role::Input));
    let first = b.negate(x).unwrap();
    let reader = b.exponential(first).unwrap();
    let stranger = b.add(x, y).unwrap();
    let second = b.multiply(first, y).unwrap();
    let graph = b.finish(vec![reader, stranger, second]);
    let (outlined, place) = outline(&graph, &[NodeId::new(0), NodeId::new(3)], "fused").unwrap();
    assert_eq!(names(&outlined), ["stablehlo.add", "fused", "stablehlo.exponential"]);
    assert_eq!(outlined.node(place).results.len(), 2);
    assert_eq!(evaluate(&outlined, &inputs(2)).unwrap(), evaluate(&graph, &inputs(2)).unwrap());
}

#[test]
fn operands_come_in_the_order_asked_for() {
    let (graph, nodes) = interleaved();
    let (_, place) = outline(&graph, &nodes, "fused").unwrap();
    let plain = outline(&graph, &nodes, "fused").unwrap().0.node(place).operands.clone();
    let mut wanted = Selection::of(&graph, &nodes, "fused").unwrap().reads(&graph);
    wanted.reverse();
    let (outlined, place) = outline_over(&graph, &nodes, "fused", &wanted).unwrap();
    let reversed: Vec<ValueId> = plain.into_iter().rev().collect();
    assert_eq!(outlined.node(place).operands, reversed);
    assert_eq!(evaluate(&outlined, &inputs(3)).unwrap(), evaluate(&graph, &inputs(3)).unwrap());

    // Operands not given follow; one given twice is an operand twice.
    let twice = [wanted[1], wanted[1]];
    let (outlined, place) = outline_over(&graph, &nodes, "fused", &twice).unwrap();
    let expected = [reversed[1], reversed[1], reversed[2], reversed[0]];
    assert_eq!(outlined.node(place).operands, expected);
    assert_eq!(evaluate(&outlined, &inputs(3)).unwrap(), evaluate(&graph, &inputs(3)).unwrap());

    let error = outline_over(&graph, &nodes, "fused", &graph.inputs[2..]).unwrap_err();
    assert_eq!((error.code, error.found.as_deref()), ("E135", Some("c")));
}

#[test]
fn a_path_that_leaves_and_comes_back_is_refused() {
    let mut b = GraphBuilder::new("around");
    let x = b.input("x", matrix(), Role::Input);
    let first = b.negate(x).unwrap();
    let between = b.scope("between", |b| b.exponential(first)).unwrap();
    let second = b.multiply(first, between).unwrap();
    let graph = b.finish(vec![second]);
    let error = outline(&graph, &[NodeId::new(0), NodeId::new(2)], "fused").unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E135", Some("between")));
    assert!(error.found.as_deref().unwrap().contains("stablehlo.exponential"), "{error}");

    assert_eq!(outline(&graph, &[], "fused").unwrap_err().code, "E135");
    let mut dead = GraphBuilder::from_graph(graph);
    dead.negate(x).unwrap();
    let outputs = dead.graph().outputs.clone();
    let dead = dead.finish(outputs);
    assert_eq!(outline(&dead, &[NodeId::new(3)], "fused").unwrap_err().code, "E135");
}

#[test]
fn shared_constants_are_repeated_and_not_handed_out() {
    let mut b = GraphBuilder::new("shared");
    let x = b.input("x", matrix(), Role::Input);
    let two = b.full_like(x, 2.0).unwrap();
    let inside = b.multiply(x, two).unwrap();
    let outside = b.add(inside, two).unwrap();
    let graph = b.finish(vec![outside]);
    let nodes: Vec<NodeId> = (0..3).map(NodeId::new).collect();
    let (outlined, place) = outline(&graph, &nodes, "fused").unwrap();
    let expected = ["stablehlo.constant", "stablehlo.broadcast_in_dim", "fused", "stablehlo.add"];
    assert_eq!(names(&outlined), expected);
    assert_eq!(outlined.node(place).operands, outlined.inputs);
    assert_eq!(outlined.node(place).results.len(), 1);
}

#[test]
fn what_a_graph_knows_of_its_values_and_nodes_carries_over() {
    let mut b = GraphBuilder::new("facts");
    let x = b.input("x", matrix(), Role::Param);
    b.graph_mut().meshes.push(Mesh::new("mesh", &[("tp", 2)]));
    let sum = b.scope("layers.0.mlp", |b| b.add(x, x)).unwrap();
    b.phase = Phase::WeightGrad;
    b.microbatch = Some(1);
    let result = b.scope("layers.0.norm", |b| b.multiply(sum, x)).unwrap();
    let annotation = Annotation {
        mesh: 0,
        sharding: Sharding::replicated(2),
        open: vec![true, false],
        replicated: Vec::new(),
        origin: "a plan".into(),
    };
    b.annotate(result, annotation.clone());
    b.graph_mut().value_mut(result).name = "gradient".into();
    b.graph_mut().value_mut(result).role = Role::GradOf(x);
    let mut graph = b.finish_named(vec![("out".into(), result)]);
    graph.aliases.push((0, 0));
    let (outlined, place) = outline(&graph, &[NodeId::new(0), NodeId::new(1)], "fused").unwrap();
    let node = outlined.node(place);
    assert_eq!((node.path.as_str(), node.phase, node.microbatch), ("layers.0", Phase::WeightGrad, Some(1)));
    let result = outlined.outputs[0];
    let value = Value {
        ty: matrix(),
        definition: Some((place, 0)),
        name: "gradient".into(),
        role: Role::GradOf(outlined.inputs[0]),
        annotation: Some(annotation),
        group: None,
    };
    assert_eq!(outlined.value(result), &value);
    assert_eq!((&outlined.aliases, &outlined.output_names), (&graph.aliases, &graph.output_names));
    assert_eq!(outlined.meshes, graph.meshes);
}

#[test]
fn module_paths_share_whole_components() {
    for (a, b, shared) in [
        ("layers.1", "layers.10", "layers"),
        ("a.b", "a.b", "a.b"),
        ("a.b.c", "a.b", "a.b"),
        ("a", "b", ""),
        ("", "a", ""),
    ] {
        assert_eq!(common_path(a, b), shared);
    }
}

/// How to build a random graph and which of its nodes to outline.
#[derive(Clone, Debug)]
struct Recipe {
    /// Op and two earlier values, each modulo the number available.
    steps: Vec<(u8, usize, usize)>,
    selected: Vec<bool>,
    outputs: Vec<usize>,
}

impl Recipe {
    fn graph(&self) -> Graph {
        let mut b = GraphBuilder::new("random");
        let mut values: Vec<ValueId> =
            (0..3).map(|i| b.input(&format!("x{i}"), matrix(), Role::Input)).collect();
        for &(op, first, second) in &self.steps {
            let (x, y) = (values[first % values.len()], values[second % values.len()]);
            values.push(match op {
                0 => b.add(x, y).unwrap(),
                1 => b.multiply(x, y).unwrap(),
                2 => b.unary(crate::ops::UnaryKind::Tanh, x).unwrap(),
                3 => b.scale(x, 0.5).unwrap(),
                _ => b.full(&matrix(), 1.5).unwrap(),
            });
        }
        let outputs = self.outputs.iter().map(|o| values[o % values.len()]).collect();
        b.finish(outputs)
    }
}

fn readers(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let results = &graph.node(id).results;
    graph.node_ids().filter(|n| graph.node(*n).operands.iter().any(|v| results.contains(v))).collect()
}

/// The selected nodes with results used outside: constants and broadcasts that others inside read
/// are duplicated outside instead.
fn handing_out(graph: &Graph, nodes: &[NodeId]) -> Vec<NodeId> {
    let repeated = |id: &NodeId| {
        let cheap = ["stablehlo.constant", "stablehlo.broadcast_in_dim"].contains(&graph.node(*id).op.name());
        cheap && readers(graph, *id).iter().any(|reader| nodes.contains(reader))
    };
    nodes.iter().copied().filter(|id| !repeated(id)).collect()
}

/// Whether a path leaves the selected nodes and re-enters, by walking every path.
fn comes_back(graph: &Graph, nodes: &[NodeId]) -> bool {
    let starts = handing_out(graph, nodes);
    let mut frontier: Vec<NodeId> = starts.into_iter().flat_map(|id| readers(graph, id)).collect();
    frontier.retain(|id| !nodes.contains(id));
    while let Some(id) = frontier.pop() {
        if nodes.contains(&id) {
            return true;
        }
        frontier.extend(readers(graph, id));
    }
    false
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let steps = prop::collection::vec((0..5u8, any::<usize>(), any::<usize>()), 1..10);
    let outputs = prop::collection::vec(any::<usize>(), 1..3);
    (steps, prop::collection::vec(any::<bool>(), 30), outputs).prop_map(|(steps, selected, outputs)| Recipe {
        steps,
        selected,
        outputs,
    })
}

fn check(recipe: &Recipe) -> Result<bool, TestCaseError> {
    let graph = recipe.graph();
    let nodes: Vec<NodeId> = graph.node_ids().filter(|id| recipe.selected[id.index()]).collect();
    let (outlined, place) = match outline(&graph, &nodes, "fused") {
        Ok(outlined) => outlined,
        Err(error) => {
            let escapes = |id: &NodeId| {
                graph.outputs.contains(&graph.node(*id).results[0])
                    || readers(&graph, *id).iter().any(|reader| !nodes.contains(reader))
            };
            prop_assert_eq!(error.code, "E135");
            let fair = comes_back(&graph, &nodes) || !handing_out(&graph, &nodes).iter().any(escapes);
            prop_assert!(fair, "refused without reason: {error}");
            return Ok(false);
        }
    };
    prop_assert!(!comes_back(&graph, &nodes));
    let values = inputs(3);
    let expected = evaluate(&graph, &values).unwrap();
    prop_assert_eq!(&evaluate(&outlined, &values).unwrap(), &expected);
    let opened = graph_edit::open_composites(&outlined, &|_| true).unwrap();
    prop_assert_eq!(&evaluate(&opened, &values).unwrap(), &expected);
    prop_assert!(matches!(outlined.node(place).op, Op::Composite(_)));

    let outputs: Vec<usize> = (0..graph.outputs.len()).collect();
    let gradients = |graph: &Graph| {
        let vjp = autodiff::vjp(graph, &outputs, &[0, 1, 2]).unwrap();
        let mut values = values.clone();
        values.extend(outputs.iter().map(|&o| random(100 + o as u64, &SHAPE)));
        evaluate(&vjp, &values).unwrap()
    };
    for (found, expected) in gradients(&outlined).iter().zip(gradients(&graph)) {
        // Cotangents may be added in another order.
        crate::testing::assert_close(found, &expected, "gradient");
    }
    Ok(true)
}

#[test]
fn outlining_changes_no_number_and_no_gradient() {
    let config = Config { cases: 1000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
    let outlined = std::cell::Cell::new(0);
    TestRunner::new_with_rng(config, rng)
        .run(&recipes(), |recipe| {
            outlined.set(outlined.get() + check(&recipe)? as usize);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert!((200..1000).contains(&outlined.get()), "{} of 1000 were outlined", outlined.get());
}
