//! Initial values compared with the interpreter's evaluation of the random composites.

use partita_base::DType;
use partita_ir::composites::{NORMAL, UNIFORM};
use partita_ir::{GraphBuilder, Literal, Role, TensorType, evaluate};
use partita_nn::init::{Init, stream_of};

fn drawn(normal: bool, seed: u64, stream: u64, shape: &[usize]) -> Vec<f64> {
    let mut b = GraphBuilder::new("draw");
    let seed_input = b.input("seed", TensorType::scalar(DType::U64), Role::Input);
    let template = if normal { &NORMAL } else { &UNIFORM };
    let draw = b.random(template, seed_input, stream, shape, DType::F64).unwrap();
    let graph = b.finish(vec![draw]);
    evaluate(&graph, &[Literal::new([], vec![seed])]).unwrap()[0].to_f64()
}

#[test]
fn host_values_equal_the_random_composites() {
    let stream = stream_of("layers.0.attn.q_proj.weight");
    for (seed, shape) in [(0u64, vec![5, 7]), (u64::MAX - 3, vec![4]), (42, vec![2, 3, 4]), (9, vec![])] {
        let zeros = vec![0; shape.len()];
        let normal = Init::Normal { std: 1.0 }.values(seed, stream, &shape, &zeros, &shape);
        assert_eq!(normal, drawn(true, seed, stream, &shape));
        let uniform = Init::Uniform { bound: 1.0 }.values(seed, stream, &shape, &zeros, &shape);
        let expected: Vec<f64> = drawn(false, seed, stream, &shape).iter().map(|u| 2.0 * u - 1.0).collect();
        assert_eq!(uniform, expected);
    }
}

#[test]
fn a_shard_equals_its_window_of_the_whole() {
    let shape = [6, 5, 4];
    for init in [Init::Normal { std: 0.02 }, Init::KaimingUniform { fan_in: 20 }, Init::Constant(3.0)] {
        let whole = Literal::new(shape, init.values(3, 8, &shape, &[0; 3], &shape));
        for (offset, extent) in
            [([2, 1, 0], [3, 2, 4]), ([0, 0, 3], [6, 5, 1]), ([5, 4, 3], [1, 1, 1]), ([0; 3], [0, 5, 4])]
        {
            let shard = init.values(3, 8, &shape, &offset, &extent);
            assert_eq!(shard, whole.window(&offset, &extent).to_f64(), "{init:?} {offset:?} {extent:?}");
        }
    }
}

#[test]
fn values_have_the_moments_their_name_says() {
    let shape = [200, 100];
    let n = 20_000.0;
    let normal = Init::Normal { std: 0.5 }.values(1, 2, &shape, &[0, 0], &shape);
    let mean = normal.iter().sum::<f64>() / n;
    let variance = normal.iter().map(|v| v * v).sum::<f64>() / n;
    assert!(mean.abs() < 0.02 && (variance - 0.25).abs() < 0.01, "{mean} {variance}");
    let uniform = Init::KaimingUniform { fan_in: 100 }.values(1, 2, &shape, &[0, 0], &shape);
    assert!(uniform.iter().all(|v| v.abs() < 0.1));
    let variance = uniform.iter().map(|v| v * v).sum::<f64>() / n;
    assert!((variance - 0.01 / 3.0).abs() < 1e-4, "{variance}");
    assert_ne!(normal, Init::Normal { std: 0.5 }.values(2, 2, &shape, &[0, 0], &shape));
    assert_ne!(normal, Init::Normal { std: 0.5 }.values(1, 3, &shape, &[0, 0], &shape));
}

#[test]
fn the_stream_of_a_name_is_fnv_1a() {
    // Published test vectors of the function.
    assert_eq!(stream_of(""), 0xcbf29ce484222325);
    assert_eq!(stream_of("a"), 0xaf63dc4c8601ec8c);
    assert_eq!(stream_of("foobar"), 0x85944171f73967e8);
}
