//! Why values have their layouts. Where layouts spread to and where data moves is said by files below `tests/files`.

use partita_base::DType;
use partita_ir::{Annotation, GraphBuilder, Op, Role, TensorType, ValueId};
use partita_mesh::{Mesh, Sharding};
use partita_spmd::{Cause, propagate};

/// An input [rows, columns] with its first dimension over an axis, and its second one open where that is asked for.
fn input(
    b: &mut GraphBuilder,
    mesh: &Mesh,
    name: &str,
    shape: [usize; 2],
    pinned: Option<(&str, bool)>,
) -> ValueId {
    let role = if name.starts_with('w') { Role::Param } else { Role::Input };
    let value = b.input(name, TensorType::new(DType::F64, shape), role);
    if let Some((axis, is_open)) = pinned {
        let axis = mesh.find_axis(axis).expect("a mesh axis");
        let sharding = Sharding::replicated(2).with_dim(0, [axis]);
        let (open, origin) = (vec![false, is_open], format!("pin {name}"));
        b.annotate(value, Annotation { mesh: 0, sharding, open, replicated: vec![], origin });
    }
    value
}

#[test]
fn every_split_dimension_leads_back_to_what_somebody_asked_for() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let mut b = GraphBuilder::new("main");
    let x = input(&mut b, &mesh, "x", [8, 4], Some(("dp", true)));
    let mut y = x;
    let mut weights = Vec::new();
    for layer in 0..3 {
        let pinned = (layer == 1).then_some(("tp", false));
        let w = input(&mut b, &mesh, &format!("w{layer}"), [4, 4], pinned);
        weights.push(w);
        y = b.linear(y, w).unwrap();
        y = b.unary(partita_ir::ops::UnaryKind::Tanh, y).unwrap();
    }
    let loss = b.reduce_sum(y, &[0, 1]).unwrap();
    let one = b.scalar(DType::F64, 1.0);
    let gradients = partita_ir::autodiff::backward(&mut b, &[(loss, one)], &weights).unwrap();
    let graph = b.finish(gradients.into_iter().map(|g| g.unwrap()).collect());
    let layouts = propagate(&graph, &mesh).unwrap();
    let mut chains = 0;
    for id in graph.value_ids() {
        for sharding in &layouts.sharding(id).dims {
            let Some(&axis) = sharding.axes.first() else { continue };
            let (mut value, mut steps) = (id, 0);
            loop {
                // The dimension that has the axis, and who gave it.
                let dims = &layouts.sharding(value).dims;
                let dim = dims.iter().position(|d| d.axes.contains(&axis)).expect("the giver has the axis");
                match layouts.causes[value.index()][dim].as_ref().expect("a cause") {
                    Cause::Pinned(origin) => {
                        assert!(origin.starts_with("pin "), "{origin}");
                        break;
                    }
                    Cause::Through { node, from } => {
                        let node = graph.node(*node);
                        let ties = |v: ValueId| node.operands.contains(&v) || node.results.contains(&v);
                        assert!(ties(value) && ties(*from), "the node ties both");
                        value = *from;
                    }
                    Cause::GradientOf(of) | Cause::RematOf(of) | Cause::Alias(of) => value = *of,
                }
                steps += 1;
                assert!(steps < graph.values.len(), "the chain of {} ends", graph.describe(id));
            }
            chains += 1;
        }
    }
    assert!(chains > 20, "{chains}");
    assert!(graph.nodes.iter().any(|n| matches!(n.op, Op::DotGeneral(_))));
}
