//! Unrolled loops compute what the interpreter computes by running the loop.

use crate::graph::Graph;
use crate::literal::Literal;
use crate::op::Op;
use crate::unroll_loops;
use crate::{evaluate, text, verify};

/// A loop over the rows of `%arg0`, from `start` as long as `%i < trips`, that writes into `%stack` what the rows add up to,
/// and a second loop over the stack from its end.
fn program(trips: usize) -> Graph {
    let text = format!(
        r#"func.func public @main(%arg0: tensor<3x2xf32>, %arg1: tensor<2xf32>) -> (tensor<2xf32>, tensor<3x2xf32>) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<3x2xf32>
  %0:4 = stablehlo.while(%rows = %arg0, %i = %zero, %sum = %arg1, %stack = %none) : tensor<3x2xf32>, tensor<i32>, tensor<2xf32>, tensor<3x2xf32>
  cond {{
    %n = stablehlo.constant dense<{trips}> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %o = stablehlo.constant dense<0> : tensor<i32>
    %s = stablehlo.dynamic_slice %rows, %i, %o, sizes = [1, 2] : (tensor<3x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
    %r = stablehlo.reshape %s : (tensor<1x2xf32>) -> tensor<2xf32>
    %t = stablehlo.add %sum, %r : tensor<2xf32>
    %u = stablehlo.reshape %t : (tensor<2xf32>) -> tensor<1x2xf32>
    %w = stablehlo.dynamic_update_slice %stack, %u, %i, %o : (tensor<3x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<3x2xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %rows, %j, %t, %w : tensor<3x2xf32>, tensor<i32>, tensor<2xf32>, tensor<3x2xf32>
  }}
  %1:3 = stablehlo.while(%stack = %0#3, %i = %zero, %product = %arg1) : tensor<3x2xf32>, tensor<i32>, tensor<2xf32>
  cond {{
    %n = stablehlo.constant dense<3> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %o = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.subtract %two, %i : tensor<i32>
    %s = stablehlo.dynamic_slice %stack, %last, %o, sizes = [1, 2] : (tensor<3x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
    %r = stablehlo.reshape %s : (tensor<1x2xf32>) -> tensor<2xf32>
    %p = stablehlo.multiply %product, %r : tensor<2xf32>
    %q = stablehlo.subtract %p, %product : tensor<2xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %stack, %j, %q : tensor<3x2xf32>, tensor<i32>, tensor<2xf32>
  }}
  return %1#2, %0#3 : tensor<2xf32>, tensor<3x2xf32>
}}"#
    );
    let graph = text::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    verify::verify(&graph).unwrap_or_else(|error| panic!("{error}"));
    graph
}

fn inputs() -> Vec<Literal> {
    vec![Literal::new([3, 2], vec![1f32, 2.0, -3.0, 0.5, 4.0, -1.5]), Literal::new([2], vec![0.25f32, -2.0])]
}

fn count(graph: &Graph, is: impl Fn(&Op) -> bool) -> usize {
    graph.nodes.iter().filter(|node| is(&node.op)).count()
}

#[test]
fn an_unrolled_loop_computes_what_the_loop_computes() {
    // With 2 trips, the last row of the stack stays what it was; with 0, nothing is written.
    for trips in 0..=3 {
        let looped = program(trips);
        let unrolled = unroll_loops(&looped, 1000).expect("unrolls");
        verify::verify(&unrolled).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(count(&unrolled, |op| matches!(op, Op::While(_))), 0);
        assert_eq!(
            evaluate(&unrolled, &inputs()).unwrap(),
            evaluate(&looped, &inputs()).unwrap(),
            "{trips} trips"
        );
    }
}

#[test]
fn positions_are_known_and_what_a_loop_wrote_is_read_without_the_stack() {
    let unrolled = unroll_loops(&program(3), 1000).expect("unrolls");
    assert_eq!(count(&unrolled, |op| matches!(op, Op::DynamicSlice(_))), 0);
    // The rows of `%arg0`; the second loop reads what the first one wrote.
    assert_eq!(count(&unrolled, |op| matches!(op, Op::Slice(_))), 3);
    assert_eq!(count(&unrolled, |op| matches!(op, Op::DynamicUpdateSlice(_))), 3);
    assert_eq!(count(&unrolled, |op| matches!(op, Op::Compare(_))), 0);
    // With 2 trips, its last row is read from the constant below them.
    let unrolled = unroll_loops(&program(2), 1000).expect("unrolls");
    assert_eq!(count(&unrolled, |op| matches!(op, Op::Slice(_))), 3);
}

#[test]
fn loops_beyond_the_limit_stay_loops() {
    let looped = program(3);
    let whiles =
        |limit| count(&unroll_loops(&looped, limit).expect("unrolls"), |op| matches!(op, Op::While(_)));
    let bodies = looped
        .nodes
        .iter()
        .filter_map(|node| if let Op::While(op) = &node.op { Some(3 * op.body.nodes.len()) } else { None });
    let [first, second] = bodies.collect::<Vec<usize>>()[..] else { panic!("two loops") };
    assert_eq!(
        [whiles(first - 1), whiles(first), whiles(first + second - 1), whiles(first + second)],
        [2, 1, 1, 0]
    );
    assert_eq!(unroll_loops(&looped, 0).expect("unrolls"), looped);
}
