//! Loops of known trip count over layers with stacked weights, as JAX prints `lax.scan`: unrolled, they are split like the
//! layers written one after the other.

use partita_ir::{Annotation, Graph, Literal, Op, TensorType, evaluate, text, unroll_loops};
use partita_mesh::{Mesh, Sharding};
use partita_spmd::{Options, partition, virtual_ranks};

/// Three layers `x = x + tanh(x up) down` of width 4 and 8 hidden features, on a batch of 4.
const SCAN: &str = r#"func.func public @main(%up: tensor<3x4x8xf32>, %down: tensor<3x8x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:4 = stablehlo.while(%a = %up, %b = %down, %i = %c, %h = %x) : tensor<3x4x8xf32>, tensor<3x8x4xf32>, tensor<i32>, tensor<4x4xf32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %1 = func.call @layer(%a, %b, %i, %h) : (tensor<3x4x8xf32>, tensor<3x8x4xf32>, tensor<i32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %a, %b, %j, %1 : tensor<3x4x8xf32>, tensor<3x8x4xf32>, tensor<i32>, tensor<4x4xf32>
  }
  return %0#3 : tensor<4x4xf32>
}
func.func private @layer(%a: tensor<3x4x8xf32>, %b: tensor<3x8x4xf32>, %i: tensor<i32>, %h: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %a, %i, %z, %z, sizes = [1, 4, 8] : (tensor<3x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
  %2 = stablehlo.dynamic_slice %b, %i, %z, %z, sizes = [1, 8, 4] : (tensor<3x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x4xf32>
  %3 = stablehlo.reshape %2 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
  %4 = stablehlo.dot_general %h, %1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = stablehlo.tanh %4 : tensor<4x8xf32>
  %6 = stablehlo.dot_general %5, %3, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %7 = stablehlo.add %h, %6 : tensor<4x4xf32>
  return %7 : tensor<4x4xf32>
}"#;

/// The program with its inputs split over these dimensions of the only axis.
fn laid_out(mesh: &Mesh, dims: [Option<usize>; 3]) -> Graph {
    let mut graph = unroll_loops(&text::parse(SCAN).expect("parses"), 1000).expect("unrolls");
    graph.meshes = vec![mesh.clone()];
    for (input, dim) in graph.inputs.clone().into_iter().zip(dims) {
        let rank = graph.ty(input).rank();
        let mut sharding = Sharding::replicated(rank);
        if let Some(dim) = dim {
            sharding = sharding.with_dim(dim, [mesh.full_axis(0)]);
        }
        let open = vec![false; rank];
        graph.value_mut(input).annotation =
            Some(Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() });
    }
    graph
}

fn inputs() -> Vec<Literal> {
    let numbers = |shape: &[usize], seed: usize| {
        let ty = TensorType::new(partita_base::DType::F32, shape.to_vec());
        let count = ty.element_count();
        Literal::from_f64(&ty, (0..count).map(|i| ((i * 37 + seed * 11) % 19) as f64 / 19.0 - 0.5))
    };
    vec![numbers(&[3, 4, 8], 1), numbers(&[3, 8, 4], 2), numbers(&[4, 4], 3)]
}

/// The number of collectives of a rank, all-reduces among them, after comparing its results with one device.
fn collectives(axis: &str, dims: [Option<usize>; 3]) -> [usize; 2] {
    let mesh = Mesh::new("mesh", &[(axis, 2)]);
    let graph = laid_out(&mesh, dims);
    let expected = evaluate(&text::parse(SCAN).expect("parses"), &inputs()).expect("runs")[0].to_f64();
    let partitioned = partition(&graph, &mesh, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    let results = virtual_ranks::interpret(&partitioned, &inputs()).expect("runs")[0].to_f64();
    for (got, want) in results.iter().zip(&expected) {
        assert!((got - want).abs() < 1e-5, "{axis}: {got} instead of {want}");
    }
    let nodes = &partitioned.locals[0].nodes;
    let count = |is: &dyn Fn(&Op) -> bool| nodes.iter().filter(|node| is(&node.op)).count();
    [count(&|op| partita_ir::Operation::is_collective(op)), count(&|op| matches!(op, Op::AllReduce(_)))]
}

#[test]
fn a_scan_over_layers_with_split_features_sums_once_a_trip() {
    assert_eq!(collectives("tp", [Some(2), Some(1), None]), [3, 3]);
}

#[test]
fn a_scan_over_layers_with_a_split_batch_communicates_its_result_alone() {
    let [all, sums] = collectives("dp", [None, None, Some(0)]);
    assert_eq!(sums, 0);
    // The output has no layout of its own, so it keeps that of the batch.
    assert_eq!(all, 0);
}
