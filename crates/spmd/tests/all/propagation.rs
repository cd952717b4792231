//! Causes of layouts. How layouts propagate and which collectives result is tested by the files
//! below `tests/files`.

use crate::common::{check, numbers};
use partita_base::DType;
use partita_ir::{Annotation, Graph, GraphBuilder, Literal, Op, Role, TensorType, ValueId, evaluate};
use partita_mesh::{Mesh, Sharding};
use partita_spmd::{Cause, Options, propagate};

/// An input [rows, columns] with its first dimension over an axis; its second one may be open.
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
                // The dimension that has the axis, and the origin of its layout.
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
                    Cause::GradientOf(of) | Cause::RematOf(of) | Cause::Alias(of) | Cause::Group(of) => {
                        value = *of
                    }
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

fn shown(graph: &Graph, mesh: &Mesh, value: ValueId) -> String {
    propagate(graph, mesh).expect("layouts fit").sharding(value).display(mesh)
}

/// One addition whose operand has a layout on the second of two meshes.
fn on_second_mesh(first: &str, second: &str, sharding: &str) -> Graph {
    partita_ir::text::parse(&text_on_second_mesh(first, second, sharding)).expect("the text is well formed")
}

fn text_on_second_mesh(first: &str, second: &str, sharding: &str) -> String {
    format!(
        "module {{\n sdy.mesh @first = <{first}>\n sdy.mesh @second = <{second}>\n func.func public @main(%x: \
         tensor<8x12xf64> {{sdy.sharding = #sdy.sharding<@second, {sharding}>}}) -> (tensor<8x12xf64> {{sdy.sharding = \
         #sdy.sharding<@second, {sharding}>}}) {{\n %0 = stablehlo.add %x, %x : tensor<8x12xf64>\n return %0 : \
         tensor<8x12xf64>\n }}\n}}"
    )
}

#[test]
fn layouts_on_another_mesh_are_said_in_the_axes_of_this_one() {
    let (first, second) = (r#"["x"=2, "y"=4]"#, r#"["y"=4, "x"=2]"#);
    for (sharding, expected) in [
        (r#"[{"x"}, {}]"#, "[{y:(2)2}, {}]"),
        (r#"[{"y"}, {}]"#, "[{x, y:(1)2}, {}]"),
        (r#"[{"y":(2)2}, {"x"}]"#, "[{y:(1)2}, {y:(2)2}]"),
        (r#"[{"y", "x"}, {}]"#, "[{x, y}, {}]"),
        (r#"[{}, {?}]"#, "[{}, {}]"),
    ] {
        let graph = on_second_mesh(first, second, sharding);
        let mesh = graph.meshes[0].clone();
        assert_eq!(shown(&graph, &mesh, graph.inputs[0]), expected, "{sharding}");
        let inputs: Vec<Literal> = vec![numbers(&[8, 12], 0, DType::F64)];
        let expected = evaluate(&graph, &inputs).expect("a valid graph");
        let partitioned = check(&graph, &mesh, &Options::default(), &inputs, &expected)
            .unwrap_or_else(|(code, text)| panic!("{code}: {text}"));
        // Every rank holds the shard that the layout on the second mesh gives it.
        let own = &graph.meshes[1];
        let asked = &graph.value(graph.inputs[0]).annotation.as_ref().expect("a layout").sharding;
        for rank in 0..8 {
            let here = partitioned.inputs[0].local_offset(&mesh, &[8, 12], rank);
            assert_eq!(here, asked.local_offset(own, &[8, 12], rank), "{sharding} on rank {rank}");
        }
    }
}

#[test]
fn layouts_that_this_mesh_cannot_say_are_refused() {
    for (first, second, sharding) in [
        (r#"["x"=2, "y"=3]"#, r#"["y"=3, "x"=2]"#, r#"[{"x"}, {}]"#),
        (r#"["x"=4]"#, r#"["x"=4], device_ids=[1, 2, 3, 4]"#, r#"[{"x"}, {}]"#),
        (r#"["x"=4]"#, r#"["x"=2]"#, r#"[{"x"}, {}]"#),
    ] {
        let graph = on_second_mesh(first, second, sharding);
        let error = propagate(&graph, &graph.meshes[0]).unwrap_err();
        assert_eq!(error.code, "E216", "{error}");
    }
    // Meshes of the same devices agree, even if both list them in another order.
    let turned = r#"["x"=4], device_ids=[1, 2, 3, 0]"#;
    let graph = on_second_mesh(turned, turned, r#"[{"x"}, {}]"#);
    assert_eq!(shown(&graph, &graph.meshes[0], graph.inputs[0]), "[{x}, {}]");
}
