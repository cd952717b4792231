use super::*;
use crate::op::{Op, Operation};
use crate::ops::UnaryKind;
use crate::{Literal, TensorType, autodiff, evaluate, text};
use partita_base::DType;

/// `loss = sum(tanh(exp(tanh(x * w)) * w))`, each factor of it under a path of its own.
fn forward() -> Graph {
    let mut b = GraphBuilder::new("forward");
    let ty = TensorType::new(DType::F64, [3, 2]);
    let x = b.input("x", ty.clone(), Role::Input);
    let w = b.input("w", ty, Role::Param);
    let first = b.scope("first", |b| {
        let product = b.multiply(x, w).unwrap();
        let tanh = b.unary(UnaryKind::Tanh, product).unwrap();
        b.exponential(tanh).unwrap()
    });
    let second = b.scope("second", |b| {
        let product = b.multiply(first, w).unwrap();
        b.unary(UnaryKind::Tanh, product).unwrap()
    });
    let loss = b.reduce_sum(second, &[0, 1]).unwrap();
    b.finish_named(vec![("loss".into(), loss)])
}

/// The forward nodes of these modules.
fn inside(graph: &Graph, module: &str) -> Vec<NodeId> {
    graph.node_ids().filter(|&id| graph.node(id).path == module).collect()
}

fn gradient(forward: &Graph) -> Graph {
    let (w, loss) = (forward.input_named("w").unwrap(), forward.outputs[0]);
    let mut b = GraphBuilder::from_graph(forward.clone());
    b.phase = Phase::InputGrad;
    let one = b.scalar(DType::F64, 1.0);
    let gradients = autodiff::backward(&mut b, &[(loss, one)], &[w]).unwrap();
    let outputs = vec![("loss".into(), loss), ("grad.w".into(), gradients[0].unwrap())];
    graph_edit::prune(b.finish_named(outputs))
}

fn numbers(graph: &Graph) -> Vec<Literal> {
    let ty = TensorType::new(DType::F64, [3, 2]);
    let ramp = |from: f64| Literal::from_f64(&ty, (0..6).map(|i| from + 0.3 * f64::from(i)));
    evaluate(graph, &[ramp(-0.8), ramp(0.5)]).unwrap()
}

/// (path, op) of the nodes computed again, in order.
fn repeated(graph: &Graph) -> Vec<(&str, &str)> {
    let again = |node: &&Node| matches!(graph.value(node.results[0]).role, Role::RematOf(_));
    graph.nodes.iter().filter(again).map(|node| (node.path.as_str(), node.op.name())).collect()
}

#[test]
fn a_group_keeps_what_leaves_it_and_repeats_what_its_gradient_reads() {
    let mut graph = forward();
    let nodes = inside(&graph, "first");
    mark(&mut graph, nodes).unwrap();
    let plain = gradient(&forward());
    let before = gradient(&graph);
    let after = rematerialise(before.clone()).unwrap();
    // The gradient of exp reads its result, which leaves the group; that of tanh its own, which does not.
    let names = ["stablehlo.multiply", "stablehlo.tanh"];
    assert_eq!(repeated(&after), names.map(|name| ("first", name)));
    assert!(after.nodes.iter().all(|node| node.remat.is_none()));
    assert_eq!(after.nodes.len(), plain.nodes.len() + 2);
    assert_eq!(numbers(&after), numbers(&plain));

    // They stand together, right before the gradient of tanh, and are what its gradient reads.
    let is_again = |node: &Node| matches!(after.value(node.results[0]).role, Role::RematOf(_));
    let first = after.nodes.iter().position(is_again).unwrap();
    let tanh = &after.nodes[first + 1];
    assert!(is_again(tanh) && tanh.phase == Phase::InputGrad);
    assert_eq!(tanh.operands, after.nodes[first].results);
    let Role::RematOf(original) = after.value(tanh.results[0]).role else { panic!("computed again") };
    let readers = |value| after.uses()[ValueId::index(value)].clone();
    let [(exponential, 0)] = readers(original)[..] else { panic!("one forward reader") };
    assert_eq!(after.node(exponential).phase, Phase::Forward);
    assert!(readers(tanh.results[0]).iter().all(|(id, _)| after.node(*id).phase.is_backward()));
    assert_eq!(readers(tanh.results[0])[0].0.index(), first + 2);
}

#[test]
fn a_chain_of_groups_keeps_only_what_they_read() {
    let mut graph = forward();
    for module in ["first", "second"] {
        let nodes = inside(&graph, module);
        mark(&mut graph, nodes).unwrap();
    }
    let after = rematerialise(gradient(&graph)).unwrap();
    assert_eq!(numbers(&after), numbers(&gradient(&forward())));
    // The last tanh is read by the loss.
    assert_eq!(repeated(&after), ["stablehlo.multiply", "stablehlo.tanh"].map(|name| ("first", name)));

    // Of forward values, the backward pass reads the input of each group alone, and what the second one returns.
    let of_forward = |v: &&ValueId| {
        after.value(**v).definition.is_some_and(|(id, _)| after.node(id).phase == Phase::Forward)
    };
    let backward = after.nodes.iter().filter(|node| node.phase.is_backward());
    let mut kept: Vec<(&str, &str)> = backward
        .flat_map(|node| node.operands.iter().filter(of_forward))
        .map(|v| after.node(after.value(*v).definition.unwrap().0))
        .filter(|node| !matches!(node.op, Op::Constant(_)))
        .map(|node| (node.path.as_str(), node.op.name()))
        .collect();
    kept.sort();
    kept.dedup();
    assert_eq!(kept, [("first", "stablehlo.exponential"), ("second", "stablehlo.tanh")]);
}

#[test]
fn one_group_of_everything_repeats_everything_but_its_results() {
    let mut graph = forward();
    let nodes: Vec<NodeId> = graph.node_ids().collect();
    mark(&mut graph, nodes).unwrap();
    let after = rematerialise(gradient(&graph)).unwrap();
    assert_eq!(numbers(&after), numbers(&gradient(&forward())));
    let (first, second) = (("first", "stablehlo.multiply"), ("second", "stablehlo.multiply"));
    let (tanh, exponential) = ("stablehlo.tanh", "stablehlo.exponential");
    assert_eq!(repeated(&after), [first, ("first", tanh), ("first", exponential), second, ("second", tanh)]);
}

#[test]
fn groups_that_nobody_reads_back_vanish() {
    let mut graph = forward();
    let nodes: Vec<NodeId> = graph.node_ids().collect();
    mark(&mut graph, nodes).unwrap();
    assert_eq!(rematerialise(graph).unwrap(), forward());
    assert_eq!(rematerialise(forward()).unwrap(), forward());
}

#[test]
fn groups_and_what_they_repeat_survive_text() {
    let mut graph = forward();
    for module in ["first", "second"] {
        let nodes = inside(&graph, module);
        mark(&mut graph, nodes).unwrap();
    }
    let parsed = |graph: &Graph| text::parse(&text::print(graph)).unwrap();
    assert!(text::print(&graph).contains("loc(\"forward~1/second\")"));
    assert_eq!(parsed(&graph), text::canonical(&graph));
    let after = rematerialise(gradient(&graph)).unwrap();
    assert!(text::print(&after).contains("partita.role = \"remat_of %"));
    assert_eq!(parsed(&after), text::canonical(&after));
}

#[test]
fn a_node_is_in_one_group_and_of_the_forward_pass() {
    let mut graph = forward();
    let nodes = inside(&graph, "first");
    mark(&mut graph, nodes).unwrap();
    let marked = graph.clone();
    let all: Vec<NodeId> = graph.node_ids().collect();
    let error = mark(&mut graph, all).unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E136", Some("first")));
    assert_eq!(graph, marked, "nothing is marked");

    let mut graph = gradient(&forward());
    let all: Vec<NodeId> = graph.node_ids().collect();
    assert_eq!(mark(&mut graph, all).unwrap_err().code, "E137");
    graph.nodes.last_mut().unwrap().remat = Some(0);
    assert_eq!(rematerialise(graph).unwrap_err().code, "E137");
}
