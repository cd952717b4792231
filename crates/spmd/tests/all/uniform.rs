//! The one program of all ranks: what it adds to the local graphs, exactly, and what it refuses.

use partita_base::DType;
use partita_ir::ops::Reverse;
use partita_ir::{Annotation, Graph, GraphBuilder, Op, Role, TensorType};
use partita_mesh::{Mesh, Sharding};
use partita_spmd::{Options, Partitioned, partition, uniform};

/// The sum of the products of two vectors of `size` elements, split over three ranks.
fn product(size: usize) -> Partitioned {
    let mesh = Mesh::new("mesh", &[("x", 3)]);
    let mut b = GraphBuilder::new("product");
    let ty = TensorType::new(DType::F32, [size]);
    let x = b.input("x", ty.clone(), Role::Input);
    let y = b.input("y", ty, Role::Input);
    let z = b.multiply(x, y).unwrap();
    let sum = b.reduce_sum(z, &[0]).unwrap();
    let mut graph = b.finish(vec![z, sum]);
    for input in graph.inputs.clone() {
        let sharding = Sharding::replicated(1).with_dim(0, mesh.axis_named("x"));
        let annotation =
            Annotation { mesh: 0, sharding, open: vec![false], replicated: vec![], origin: "test".into() };
        graph.value_mut(input).annotation = Some(annotation);
    }
    partition(&graph, &mesh, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.nodes.iter().map(|node| partita_ir::Operation::short_name(&node.op)).collect()
}

#[test]
fn equal_shards_need_nothing_and_pads_one_mask_where_they_are_summed() {
    let even = product(6);
    assert_eq!(even.locals.len(), 1);
    let program = uniform(&even).unwrap();
    assert_eq!(names(&program), names(&even.locals[0]));
    assert_eq!(program.name, "main");

    let uneven = product(4);
    assert_eq!(uneven.locals.len(), 2, "ranks hold 2, 1 and 1 elements");
    let program = uniform(&uneven).unwrap();
    assert!(program.inputs.iter().all(|&input| program.ty(input).shape == [2]));
    let looked_up =
        ["constant", "partition_id", "convert", "constant", "dynamic_slice", "reshape", "reshape"];
    let mask =
        ["iota", "broadcast_in_dim", "compare", "broadcast_in_dim", "constant", "broadcast_in_dim", "select"];
    let local = names(&uneven.locals[0]);
    let at = local.iter().position(|name| *name == "reduce").expect("a sum");
    let expected = [&local[..at], &looked_up, &mask, &local[at..]].concat();
    assert_eq!(names(&program), expected);
}

#[test]
fn an_op_that_moves_elements_between_shards_and_pads_is_refused() {
    let mut partitioned = product(4);
    for local in &mut partitioned.locals {
        let node = local.nodes.iter_mut().find(|node| node.operands.len() == 2).expect("the product");
        node.operands.pop();
        node.op = Op::from(Reverse { dims: vec![0] });
    }
    let error = uniform(&partitioned).unwrap_err();
    assert_eq!(error.code, "E275");
    let text = error.to_string();
    assert!(text.contains("stablehlo.reverse") && text.contains("dimension 0 of tensor<2xf32>"), "{text}");
}
