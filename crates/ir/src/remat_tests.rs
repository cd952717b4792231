//! Tests of rematerialisation: which values are stored, which are recomputed, and that no number
//! changes.

use super::*;
use crate::ops::UnaryKind;
use crate::{TensorType, autodiff, text};
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
