//! Regions with row reductions in complete programs: states updated in place, values with several readers.

use crate::common::*;
use partita_ir::ops::{BinaryKind, UnaryKind};
use partita_ir::{ClassGraph, Graph, GraphBuilder, Node, Op, Role, ValueId};
use partita_program::{LowerOptions, ProgramSet, Region, lower};
use partita_runtime::{Cpu, RunnerOptions};

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// A step with two states and an input of one shape: a few random ops compute new values of the states.
fn random_step(seed: u64, shape: &[usize]) -> Graph {
    let mut random = Random(seed);
    let mut b = GraphBuilder::new("step");
    let ty = f32s(shape);
    let mut values: Vec<ValueId> =
        ["first", "second"].map(|name| b.input(name, ty.clone(), Role::Param)).to_vec();
    values.push(b.input("x", ty, Role::Input));
    let last = shape.len() - 1;
    let rows: Vec<usize> = (0..last).collect();
    let mut stats: Vec<ValueId> = Vec::new();
    let mut sums: Vec<ValueId> = Vec::new();
    for _ in 0..3 + random.below(12) {
        let x = values[values.len() - 1 - random.below(values.len().min(4))];
        let y = values[random.below(values.len())];
        let new = match random.below(7) {
            0 => b.binary([BinaryKind::Add, BinaryKind::Subtract][random.below(2)], x, y).unwrap(),
            1 => b.unary([UnaryKind::Tanh, UnaryKind::Abs][random.below(2)], x).unwrap(),
            2 => {
                let stat =
                    if random.below(2) == 0 { b.reduce_max(x, &[last]) } else { b.reduce_sum(x, &[last]) };
                let stat = b.scale(stat.unwrap(), 0.125).unwrap();
                stats.push(stat);
                let wide = b.broadcast_in_dim(stat, shape, &rows).unwrap();
                b.subtract(y, wide).unwrap()
            }
            3 if !stats.is_empty() => {
                let stat = stats[random.below(stats.len())];
                let stat = b.unary(UnaryKind::Logistic, stat).unwrap();
                let wide = b.broadcast_in_dim(stat, shape, &rows).unwrap();
                b.multiply(x, wide).unwrap()
            }
            4 => {
                // An op over another shape, for which its operand must be stored.
                let turned: Vec<usize> = (0..=last).rev().collect();
                let turned_back = b.transpose(x, &turned).unwrap();
                let tall = b.unary(UnaryKind::Negate, turned_back).unwrap();
                b.transpose(tall, &turned).unwrap()
            }
            5 => {
                // A sum across rows, which sometimes a later op over the rows reads.
                let sum = b.reduce_sum(x, &rows).unwrap();
                sums.push(sum);
                let mean = b.scale(sum, 1.0 / shape[..last].iter().product::<usize>() as f64).unwrap();
                let wide = b.broadcast_in_dim(mean, shape, &[last]).unwrap();
                if random.below(2) == 0 { b.subtract(y, wide).unwrap() } else { b.scale(x, 0.5).unwrap() }
            }
            _ => b.scale(x, 0.75).unwrap(),
        };
        values.push(new);
    }
    let mut outputs = vec![("stat".to_string(), values[values.len() - 1])];
    if let Some(&stat) = stats.last() {
        outputs[0].1 = stat;
    }
    outputs.extend(sums.into_iter().enumerate().map(|(i, sum)| (format!("sum{i}"), sum)));
    for name in ["first", "second"] {
        let back = random.below(values.len().min(3));
        outputs.push((name.to_string(), values[values.len() - 1 - back]));
    }
    let mut graph = b.finish_named(outputs);
    let states = graph.outputs.len() - 2;
    graph.aliases = vec![(0, states), (1, states + 1)];
    graph
}

fn reductions_in_regions(set: &ProgramSet) -> usize {
    set.programs[0].regions.iter().filter(|region| Region::reduces_rows(region)).count()
}

/// The number of those instructions that reduce across rows.
fn reductions_across_rows(set: &ProgramSet) -> usize {
    let across = |node: &Node| matches!(&node.op, Op::Reduce(op) if op.dims.first() == Some(&0));
    let regions = set.programs[0].regions.iter().filter(|region| Region::reduces_rows(region));
    regions.filter(|region| region.graph.nodes.iter().any(across)).count()
}

#[test]
fn programs_with_reductions_of_rows_compute_what_they_say() {
    let (mut regions, mut across) = (0, 0);
    for seed in 0..80 {
        let shape: &[usize] = [&[5, 7][..], &[3, 100, 6], &[1, 300], &[270, 500], &[4, 1]][seed as usize % 5];
        let graphs = [random_step(seed, shape)];
        let set = program(&graphs);
        regions += reductions_in_regions(&set);
        across += reductions_across_rows(&set);
        let inputs = inputs(&graphs, seed);
        let expected = reference(&set, &inputs, 3);
        let options = |threads: usize| RunnerOptions { workers: Some(threads), ..RunnerOptions::default() };
        let found = run(&graphs, &set, options(1), &inputs, 3);
        for (position, (found, expected)) in found[0].iter().zip(&expected[0]).enumerate() {
            let found: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(found);
            for (f, e) in found.iter().zip(expected.to_f64()) {
                let near = (f64::from(*f) - e).abs() <= 1e-4 * e.abs().max(1.0);
                assert!(near || (f.is_nan() && e.is_nan()), "seed {seed}, output {position}: {f} for {e}");
            }
        }
        // Neither threads nor fusion change a bit.
        let device = Cpu { threads: 3, ..Cpu::default() };
        let cut = lower(&ClassGraph::each(graphs.clone()), &LowerOptions::default(), &device).unwrap();
        assert!(
            run(&graphs, &cut, options(3), &inputs, 3) == found,
            "seed {seed}: other bits on three threads"
        );
        let apart = LowerOptions { fused_ops: 1, ..LowerOptions::default() };
        let apart = lower(&ClassGraph::each(graphs.clone()), &apart, &Cpu::default()).unwrap();
        assert_eq!(reductions_in_regions(&apart), 0);
        assert!(run(&graphs, &apart, options(1), &inputs, 3) == found, "seed {seed}: other bits op by op");
        assert_eq!(in_process(set, options(1)).unwrap().slow_ops(), []);
    }
    assert!(regions > 60, "{regions} regions reduced rows");
    assert!(across > 10, "{across} regions reduced across rows");
}
