//! Where layouts spread to, where data moves, and why: small graphs whose answer is known.

mod common;

use common::{check, numbers};
use partita_base::DType;
use partita_ir::composites::GELU;
use partita_ir::ops::{AllReduce, ManualComputation, ShardingConstraint};
use partita_ir::{
    Annotation, Graph, GraphBuilder, Literal, Op, Operation, Phase, Role, TensorType, ValueId, evaluate,
};
use partita_mesh::{Combiner, Mesh, Sharding};
use partita_spmd::{Cause, Options, Partitioned, propagate};

fn f64s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F64, shape)
}

/// `"tp . dp,fsdp"`: per dimension its axes, `.` for none; a `?` after them leaves the dimension open.
fn layout(mesh: &Mesh, text: &str) -> Annotation {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut sharding = Sharding::replicated(words.len());
    for (dim, word) in words.iter().enumerate() {
        let names = word.trim_end_matches('?').split(',').filter(|name| *name != ".");
        sharding = sharding.with_dim(dim, names.map(|name| mesh.find_axis(name).expect("a mesh axis")));
    }
    let open = words.iter().map(|word| word.ends_with('?')).collect();
    Annotation { mesh: 0, sharding, open, replicated: vec![], origin: format!("pin {text}") }
}

/// Partitions with these inputs pinned, checks the numbers, and returns the partition with the collectives in order:
/// `all_reduce [8, 4]`, the shape being that of the local result.
fn moves(graph: &Graph, mesh: &Mesh) -> (Partitioned, Vec<String>) {
    let inputs: Vec<Literal> = graph
        .inputs
        .iter()
        .enumerate()
        .map(|(i, &v)| numbers(&graph.ty(v).shape, i as u64, graph.ty(v).dtype))
        .collect();
    let expected = evaluate(graph, &inputs).expect("a valid graph");
    let partitioned = check(graph, mesh, &Options::default(), &inputs, &expected)
        .unwrap_or_else(|(code, text)| panic!("{code}: {text}"));
    let local = partitioned.local(0);
    let collectives = local.nodes.iter().filter(|n| n.op.is_collective()).map(|n| {
        let name = n.op.name().trim_start_matches("stablehlo.");
        format!("{name} {:?}", local.ty(n.results[0]).shape)
    });
    let collectives = collectives.collect();
    (partitioned, collectives)
}

fn pin(b: &mut GraphBuilder, value: ValueId, mesh: &Mesh, text: &str) {
    b.annotate(value, layout(mesh, text));
}

fn input(b: &mut GraphBuilder, mesh: &Mesh, name: &str, shape: &[usize], pinned: &str) -> ValueId {
    let value = b.input(name, f64s(shape), if name.starts_with('w') { Role::Param } else { Role::Input });
    if !pinned.is_empty() {
        pin(b, value, mesh, pinned);
    }
    value
}

fn shown(graph: &Graph, mesh: &Mesh, value: ValueId) -> String {
    propagate(graph, mesh).expect("layouts fit").sharding(value).display(mesh)
}

#[test]
fn columns_then_rows_need_one_all_reduce() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let mut b = GraphBuilder::new("mlp");
    let x = input(&mut b, &mesh, "x", &[8, 4], "dp .");
    let up = input(&mut b, &mesh, "w.up", &[16, 4], "tp .");
    let down = input(&mut b, &mesh, "w.down", &[4, 16], ". tp");
    let hidden = b.linear(x, up).unwrap();
    let active = b.composite(&GELU, &[], &[hidden]).unwrap();
    let y = b.linear(active, down).unwrap();
    let graph = b.finish(vec![y]);
    assert_eq!(shown(&graph, &mesh, hidden), "[{dp}, {tp}]");
    assert_eq!(shown(&graph, &mesh, active), "[{dp}, {tp}]");
    assert_eq!(shown(&graph, &mesh, y), "[{dp}, {}]");
    assert_eq!(moves(&graph, &mesh).1, ["all_reduce [4, 4]"]);
}

#[test]
fn of_two_layouts_the_smaller_tensor_moves() {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    let dot = |rows: usize, inner: usize, columns: usize| {
        let mut b = GraphBuilder::new("dot");
        let left = input(&mut b, &mesh, "left", &[rows, inner], "x .");
        let right = input(&mut b, &mesh, "right", &[columns, inner], ". .");
        let product = b.linear(left, right).unwrap();
        pin(&mut b, product, &mesh, ". x");
        moves(&b.finish(vec![product]), &mesh).1
    };
    // A large product is made where it stays; a small one is made where its operand lies, and then moves.
    assert_eq!(dot(64, 2, 64), ["all_gather [64, 2]"]);
    assert_eq!(dot(64, 512, 2), ["all_to_all [64, 1]"]);
}

#[test]
fn heads_are_not_cut() {
    let mesh = Mesh::new("mesh", &[("tp", 3)]);
    let mut b = GraphBuilder::new("heads");
    let x = input(&mut b, &mesh, "x", &[2, 16], ". .");
    let w = input(&mut b, &mesh, "w", &[32, 16], "tp .");
    let y = b.linear(x, w).unwrap();
    let heads = b.reshape(y, &[2, 4, 8]).unwrap();
    let graph = b.finish(vec![heads]);
    let (partitioned, collectives) = moves(&graph, &mesh);
    let rows: Vec<usize> =
        (0..3).map(|rank| partitioned.inputs[1].local_shape(&mesh, &[32, 16], rank)[0]).collect();
    assert_eq!(rows, [16, 8, 8], "2, 1 and 1 heads of 8");
    assert_eq!(collectives, [""; 0]);
    assert_eq!(shown(&graph, &mesh, heads), "[{}, {tp}, {}]");
    assert_eq!(partitioned.class_of_rank, [0, 1, 1]);
}

#[test]
fn a_unit_that_is_asked_for_holds_wherever_the_layout_spreads() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let mut b = GraphBuilder::new("unit");
    let x = b.input("x", f64s(&[12]), Role::Input);
    let mut asked = layout(&mesh, "tp");
    asked.sharding = asked.sharding.with_unit(0, 4);
    b.annotate(x, asked);
    let y = b.negate(x).unwrap();
    let (partitioned, _) = moves(&b.finish(vec![y]), &mesh);
    for sharding in [&partitioned.inputs[0], &partitioned.outputs[0]] {
        assert_eq!(sharding.dims[0].extents(12), [8, 4]);
    }
}

#[test]
fn a_sum_that_is_sliced_is_reduce_scattered() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    for (pinned, expected) in [("tp .", "reduce_scatter [4, 6]"), (". .", "all_reduce [8, 6]")] {
        let mut b = GraphBuilder::new("rows");
        let x = input(&mut b, &mesh, "x", &[8, 4], ". tp");
        let w = input(&mut b, &mesh, "w", &[6, 4], ". tp");
        let y = b.linear(x, w).unwrap();
        pin(&mut b, y, &mesh, pinned);
        assert_eq!(moves(&b.finish(vec![y]), &mesh).1, [expected]);
    }
}

#[test]
fn partial_sums_are_added_before_they_are_completed() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let mut b = GraphBuilder::new("sums");
    let product = |b: &mut GraphBuilder, number: usize| {
        let x = input(b, &mesh, &format!("x{number}"), &[8, 4], ". tp");
        let w = input(b, &mesh, &format!("w{number}"), &[6, 4], ". tp");
        b.linear(x, w).unwrap()
    };
    let (one, two) = (product(&mut b, 1), product(&mut b, 2));
    let sum = b.add(one, two).unwrap();
    assert_eq!(moves(&b.finish(vec![sum]), &mesh).1, ["all_reduce [8, 6]"]);
}

#[test]
fn a_row_parallel_bias_counts_once() {
    let mesh = Mesh::new("mesh", &[("tp", 4)]);
    let mut b = GraphBuilder::new("bias");
    let x = input(&mut b, &mesh, "x", &[8, 4], ". tp");
    let w = input(&mut b, &mesh, "w", &[6, 4], ". tp");
    let bias = input(&mut b, &mesh, "w.bias", &[6], ".");
    let y = b.linear(x, w).unwrap();
    let wide = b.broadcast_trailing(bias, &[8, 6]).unwrap();
    let y = b.add(y, wide).unwrap();
    // `moves` compares the numbers; a bias added on every rank would be four times too large.
    assert_eq!(moves(&b.finish(vec![y]), &mesh).1, ["all_reduce [8, 6]"]);
}

#[test]
fn a_fully_sharded_weight_is_gathered_once_for_each_phase() {
    let mesh = Mesh::new("mesh", &[("fsdp", 2)]);
    let mut b = GraphBuilder::new("fsdp");
    let x = input(&mut b, &mesh, "x", &[8, 4], "fsdp .");
    let w = input(&mut b, &mesh, "w", &[4, 4], "fsdp .");
    let mut y = x;
    for phase in [Phase::Forward, Phase::Forward, Phase::InputGrad, Phase::InputGrad] {
        b.phase = phase;
        let whole = ShardingConstraint { annotation: layout(&mesh, ". .") };
        let whole = b.push1(whole, &[w]).unwrap();
        y = b.linear(y, whole).unwrap();
    }
    let (partitioned, collectives) = moves(&b.finish(vec![y]), &mesh);
    assert_eq!(collectives, ["all_gather [4, 4]", "all_gather [4, 4]"]);
    let phases: Vec<Phase> =
        partitioned.local(0).nodes.iter().filter(|n| n.op.is_collective()).map(|n| n.phase).collect();
    assert_eq!(phases, [Phase::Forward, Phase::InputGrad]);
}

#[test]
fn a_constraint_in_the_middle_holds_between_two_other_layouts() {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    let mut b = GraphBuilder::new("middle");
    let x = input(&mut b, &mesh, "x", &[8, 6], "x .");
    let before = b.negate(x).unwrap();
    let middle = b.push1(ShardingConstraint { annotation: layout(&mesh, ". x") }, &[before]).unwrap();
    let after = b.exponential(middle).unwrap();
    let graph = b.finish(vec![after]);
    for (value, expected) in [(before, "[{x}, {}]"), (middle, "[{}, {x}]"), (after, "[{}, {x}]")] {
        assert_eq!(shown(&graph, &mesh, value), expected);
    }
    assert_eq!(moves(&graph, &mesh).1, ["all_to_all [8, 3]"]);
}

#[test]
fn an_output_is_returned_as_asked_whatever_layout_its_value_has() {
    let mesh = Mesh::new("mesh", &[("x", 2)]);
    let mut b = GraphBuilder::new("outputs");
    let x = input(&mut b, &mesh, "x", &[8, 6], "x .");
    let mut graph = b.finish(vec![x, x, x]);
    let asked = |text| Some(layout(&mesh, text));
    graph.output_annotations = vec![asked("x ."), asked(". x"), asked(". .")];
    let (partitioned, collectives) = moves(&graph, &mesh);
    let outputs: Vec<String> = partitioned.outputs.iter().map(|s| s.display(&mesh)).collect();
    assert_eq!(outputs, ["[{x}, {}]", "[{}, {x}]", "[{}, {}]"]);
    assert_eq!(collectives, ["all_to_all [8, 3]", "all_gather [8, 6]"]);
}

/// A user's own sum over `dp` in a body written for one shard, between ops that are split over `tp` automatically.
#[test]
fn explicit_collectives_stand_beside_automatic_ones() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let dp = mesh.axis_named("dp").unwrap();
    let mut body = GraphBuilder::new("body");
    let shard = body.input("shard", f64s(&[4, 6]), Role::Input);
    let sum = body.reduce_sum(shard, &[0]).unwrap();
    let all = AllReduce { groups: mesh.groups(&[dp]).into(), combiner: Combiner::Sum };
    let all = body.push1(all, &[sum]).unwrap();
    let manual = ManualComputation {
        mesh: 0,
        mesh_value: mesh.clone(),
        in_shardings: vec![layout(&mesh, "dp tp").sharding],
        out_shardings: vec![layout(&mesh, ".").sharding],
        manual_axes: vec!["dp".into()],
        result_types: vec![f64s(&[6])],
        body: Box::new(body.finish(vec![all])),
    };
    let mut b = GraphBuilder::new("manual");
    let x = input(&mut b, &mesh, "x", &[8, 4], "dp .");
    let w = input(&mut b, &mesh, "w", &[6, 4], "tp .");
    let y = b.linear(x, w).unwrap();
    let sums = b.push1(manual, &[y]).unwrap();
    let down = input(&mut b, &mesh, "w.down", &[6, 5], "tp .");
    let sums = b.reshape(sums, &[1, 6]).unwrap();
    let back = b.transpose(down, &[1, 0]).unwrap();
    let z = b.linear(sums, back).unwrap();
    let graph = b.finish(vec![z]);
    assert_eq!(shown(&graph, &mesh, y), "[{dp}, {tp}]");
    // The body sees the columns whole; the product after it is over tp again.
    assert_eq!(moves(&graph, &mesh).1, ["all_gather [4, 6]", "all_reduce [6]", "all_reduce [1, 5]"]);
}

#[test]
fn every_split_dimension_leads_back_to_what_somebody_asked_for() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let mut b = GraphBuilder::new("main");
    let x = input(&mut b, &mesh, "x", &[8, 4], "dp .?");
    let mut y = x;
    let mut weights = Vec::new();
    for layer in 0..3 {
        let w = input(&mut b, &mesh, &format!("w{layer}"), &[4, 4], if layer == 1 { "tp ." } else { "" });
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
