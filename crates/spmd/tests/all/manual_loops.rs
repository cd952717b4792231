//! Loops in manual computations, as JAX writes `fori_loop` inside `shard_map`: a ring that passes
//! shards around, and a loop whose trip count depends on the rank.

use partita_ir::{Graph, Literal, Op, evaluate, evaluate_ranks, text, verify};
use partita_spmd::{Options, Partitioned, partition, virtual_ranks};

/// A manual computation over `x` = 4 of this body, which yields `%out`.
fn program(body: &str) -> Graph {
    let text = format!(
        r#"module @m {{
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%arg0: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) -> (tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) {{
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{{"x"}}]>] out_shardings=[<@mesh, [{{"x"}}]>] manual_axes={{"x"}} (%mine: tensor<2xf32>) {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
{body}
      sdy.return %out : tensor<2xf32>
    }} : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }}
}}"#
    );
    let graph = text::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    verify::verify(&graph).unwrap_or_else(|error| panic!("{error}"));
    graph
}

/// `%sum` accumulates `%ring` times this rank's number, four times; each trip passes `%ring` on to
/// the next rank.
const RING: &str = r#"      %trips = stablehlo.constant dense<4> : tensor<i32>
      %start = stablehlo.constant dense<0.0> : tensor<2xf32>
      %l:3 = stablehlo.while(%i = %zero, %ring = %mine, %sum = %start) : tensor<i32>, tensor<2xf32>, tensor<2xf32>
      cond {
        %c = stablehlo.compare LT, %i, %trips, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %id = stablehlo.partition_id : tensor<ui32>
        %f = stablehlo.convert %id : (tensor<ui32>) -> tensor<f32>
        %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2xf32>
        %p = stablehlo.multiply %ring, %b : tensor<2xf32>
        %s = stablehlo.add %sum, %p : tensor<2xf32>
        %r = "stablehlo.collective_permute"(%ring) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
        %n = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %n, %r, %s : tensor<i32>, tensor<2xf32>, tensor<2xf32>
      }
      %out = stablehlo.add %l#2, %start : tensor<2xf32>"#;

fn cut(graph: &Graph) -> Partitioned {
    partition(graph, &graph.meshes[0], &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn input() -> Literal {
    Literal::new([8], (0..8).map(|i| 1.0 + i as f32).collect::<Vec<f32>>())
}

/// The results of the program on the whole mesh, on ranks in lock step, and on ranks with their
/// number folded in.
fn results(graph: &Graph) -> [Vec<f64>; 3] {
    let partitioned = cut(graph);
    let ranks = virtual_ranks::rank_graphs(&partitioned).expect("specialises");
    let shards: Vec<Vec<Literal>> = (0..4).map(|rank| vec![input().window(&[2 * rank], &[2])]).collect();
    let apart = evaluate_ranks(&ranks.iter().collect::<Vec<_>>(), &shards).expect("runs");
    [
        evaluate(graph, &[input()]).expect("runs")[0].to_f64(),
        virtual_ranks::interpret(&partitioned, &[input()]).expect("runs")[0].to_f64(),
        apart.iter().flat_map(|outputs| outputs[0].to_f64()).collect(),
    ]
}

#[test]
fn a_ring_in_a_loop_is_written_out_and_passes_every_shard_by_every_rank() {
    let graph = program(RING);
    // Every rank sees all shards: the result is its number times their sum.
    let want = [0.0, 0.0, 16.0, 20.0, 32.0, 40.0, 48.0, 60.0];
    for got in results(&graph) {
        assert_eq!(got, want);
    }
    let partitioned = cut(&graph);
    let nodes = &partitioned.locals[0].nodes;
    assert!(!nodes.iter().any(|node| matches!(node.op, Op::While(_))), "no loop around an exchange");
    assert_eq!(nodes.iter().filter(|node| matches!(node.op, Op::CollectivePermute(_))).count(), 4);
}

#[test]
fn ranks_may_loop_as_often_as_their_number_says_where_they_exchange_nothing() {
    let body = "      %id = stablehlo.partition_id : tensor<ui32>
      %l:2 = stablehlo.while(%i = %zero, %x = %mine) : tensor<i32>, tensor<2xf32>
      cond {
        %id2 = stablehlo.partition_id : tensor<ui32>
        %trips = stablehlo.convert %id2 : (tensor<ui32>) -> tensor<i32>
        %c = stablehlo.compare LT, %i, %trips, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %y = stablehlo.add %x, %x : tensor<2xf32>
        %n = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %n, %y : tensor<i32>, tensor<2xf32>
      }
      %out = stablehlo.add %l#1, %mine : tensor<2xf32>";
    // x 2^rank + x.
    let want = [2.0, 4.0, 9.0, 12.0, 25.0, 30.0, 63.0, 72.0];
    for got in results(&program(body)) {
        assert_eq!(got, want);
    }
}

/// JAX gives a value beside a `shard_map` a mesh without axes: it is whole on every rank.
#[test]
fn a_value_on_a_mesh_without_axes_is_whole() {
    let text = r#"module @m {
  sdy.mesh @empty_mesh = <[]>
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%s: tensor<f32> {sdy.sharding = #sdy.sharding<@empty_mesh, []>}, %a: tensor<8xf32>) -> (tensor<8xf32>) {
    %0 = sdy.manual_computation(%s, %a) in_shardings=[<@mesh, []>, <@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%t: tensor<f32>, %mine: tensor<2xf32>) {
      %b = stablehlo.broadcast_in_dim %t, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %p = stablehlo.multiply %mine, %b : tensor<2xf32>
      sdy.return %p : tensor<2xf32>
    } : (tensor<f32>, tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}"#;
    let graph = text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mesh = graph.meshes.iter().find(|mesh| !mesh.axes.is_empty()).expect("it has one");
    let partitioned = partition(&graph, mesh, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    let inputs = [Literal::scalar(partita_base::DType::F32, 3.0), input()];
    let found = virtual_ranks::interpret(&partitioned, &inputs).unwrap();
    assert_eq!(found[0].to_f64(), (1..=8).map(|n| 3.0 * f64::from(n)).collect::<Vec<_>>());
}
