//! Random step graphs on several ranks: whatever the options, the program computes in its arena
//! what the graphs compute, and its memory map passes the checks (`lower` runs them).

use crate::common::*;
use partita_base::DType;
use partita_ir::ops::{BinaryKind, Direction, Reshape, Reverse, UnaryKind};
use partita_ir::port::cotangent_name;
use partita_ir::{Graph, GraphBuilder, Phase, Role, TensorType, ValueId};
use partita_program::{LowerOptions, counts, counts_of_graph};

const ROWS: usize = 6;
const COLUMNS: usize = 4;

/// A value that every rank has in full, or a shard of its rows.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Full,
    Shard,
}

/// A random step; with `cotangents`, the last two of its inputs are given at a pause.
fn random_step(seed: u64, rank: usize, extents: &[usize], cotangents: bool) -> Graph {
    let random = &mut Random(seed.wrapping_mul(77).wrapping_add(5));
    let group: Vec<usize> = (0..extents.len()).collect();
    let mut b = GraphBuilder::new("random");
    let ty = |kind| match kind {
        Kind::Full => f32s(&[ROWS, COLUMNS]),
        Kind::Shard => f32s(&[extents[rank], COLUMNS]),
    };
    let mut values: Vec<(ValueId, Kind)> = Vec::new();
    let mut input_kinds = Vec::new();
    let is_cotangent = |number: usize| cotangents && number > 2;
    for number in 0..5 {
        let kind = if number % 2 == 0 { Kind::Shard } else { Kind::Full };
        let role = [Role::Param, Role::Input, Role::Activation][random.below(3)].clone();
        input_kinds.push(kind);
        let (name, role) = match is_cotangent(number) {
            true => (cotangent_name(&format!("out{number}")), Role::Input),
            false => (format!("in{number}"), role),
        };
        values.push((b.input(&name, ty(kind), role), kind));
    }
    let bias = b.input("bias", f32s(&[COLUMNS]), Role::Param);
    let count = 10 + random.below(40);
    for step in 0..count {
        b.phase = match 4 * step / count {
            0 => Phase::Forward,
            1 | 2 => [Phase::InputGrad, Phase::WeightGrad][random.below(2)],
            _ => Phase::Update,
        };
        b.path = format!("layers.{}.part{}", random.below(3), random.below(2));
        // Prefers recent values.
        let pick = |random: &mut Random, values: &[(ValueId, Kind)], kind: Kind| {
            let of_kind: Vec<ValueId> = values.iter().filter(|v| v.1 == kind).map(|v| v.0).collect();
            of_kind[of_kind.len() - 1 - random.below(of_kind.len()).min(random.below(of_kind.len()))]
        };
        let kind = [Kind::Full, Kind::Shard][random.below(2)];
        let x = pick(random, &values, kind);
        let y = pick(random, &values, kind);
        let shape = b.shape(x);
        let halved = |b: &mut GraphBuilder, v| b.scale(v, 0.25).unwrap();
        let new = match random.below(20) {
            0..=2 => {
                let op = [BinaryKind::Add, BinaryKind::Subtract, BinaryKind::Maximum][random.below(3)];
                (b.binary(op, x, y).unwrap(), kind)
            }
            3 => (b.unary([UnaryKind::Negate, UnaryKind::Abs][random.below(2)], x).unwrap(), kind),
            4 => {
                let predicate = b.compare(Direction::Lt, x, y).unwrap();
                (b.select(predicate, y, x).unwrap(), kind)
            }
            5 => {
                let y = halved(&mut b, y);
                (b.offset(y, 1.5).unwrap(), kind)
            }
            6 => {
                // Adds a row vector to every row.
                let row = b.slice_dim(pick(random, &values, Kind::Full), 0, 2, 3).unwrap();
                let row = b.reshape(row, &[COLUMNS]).unwrap();
                let rows = b.broadcast_in_dim(row, &shape, &[1]).unwrap();
                (b.add(x, rows).unwrap(), kind)
            }
            7 => {
                let sums = b.reduce_sum(x, &[1]).unwrap();
                let sums = b.scale(sums, 0.125).unwrap();
                (b.broadcast_in_dim(sums, &shape, &[0]).unwrap(), kind)
            }
            16 => {
                // Subtracts the largest element from each row, by way of a dimension of one
                // element.
                let peaks = b.reduce_max(y, &[1]).unwrap();
                let column = b.push1(Reshape { shape: vec![shape[0], 1] }, &[peaks]).unwrap();
                let column = b.negate(column).unwrap();
                let wide = b.broadcast_in_dim(column, &shape, &[0, 1]).unwrap();
                (b.add(x, wide).unwrap(), kind)
            }
            17 => {
                // Two reductions of rows, of this value and of another one.
                let (sums, peaks) = (b.reduce_sum(x, &[1]).unwrap(), b.reduce_max(y, &[1]).unwrap());
                let both = b.maximum(sums, peaks).unwrap();
                let both = b.scale(both, 0.25).unwrap();
                let wide = b.broadcast_in_dim(both, &shape, &[0]).unwrap();
                (b.subtract(wide, y).unwrap(), kind)
            }
            8 => {
                // Needs a copy: transposed elements under another shape.
                let turned = b.transpose(x, &[1, 0]).unwrap();
                // Not `b.reshape`, which omits a reshape that is the identity on this rank.
                (b.push1(Reshape { shape }, &[turned]).unwrap(), kind)
            }
            9 => (b.push1(Reverse { dims: vec![random.below(2)] }, &[x]).unwrap(), kind),
            10 => {
                let w = b.slice_dim(pick(random, &values, Kind::Full), 0, 1, 5).unwrap();
                let product = matmul(&mut b, x, w);
                (b.scale(product, 1.0 / 64.0).unwrap(), kind)
            }
            11 => {
                let places = b.iota(TensorType::new(DType::F32, shape.clone()), 1).unwrap();
                (b.minimum(x, places).unwrap(), kind)
            }
            12 => {
                let x = pick(random, &values, Kind::Full);
                let x = halved(&mut b, x);
                (all_reduce(&mut b, x, &[&group]), Kind::Full)
            }
            13 => {
                let x = pick(random, &values, Kind::Shard);
                (all_gather(&mut b, x, 0, &group, extents), Kind::Full)
            }
            14 => {
                let x = pick(random, &values, Kind::Full);
                let x = halved(&mut b, x);
                (reduce_scatter(&mut b, x, 0, &group, extents, rank), Kind::Shard)
            }
            15 => {
                let x = pick(random, &values, Kind::Full);
                let pairs: Vec<(usize, usize)> = group.windows(2).map(|w| (w[0], w[1])).collect();
                (permute(&mut b, x, &pairs), Kind::Full)
            }
            18 | 19 => {
                // A bias add, which later readers recompute.
                let rows = b.broadcast_in_dim(bias, &shape, &[1]).unwrap();
                let product = b.transpose(x, &[1, 0]).unwrap();
                let product = matmul(&mut b, product, y);
                let product = b.broadcast_in_dim(product, &[shape[0], COLUMNS, COLUMNS], &[1, 2]).unwrap();
                let product = b.reduce_max(product, &[1]).unwrap();
                let product = b.scale(product, 1.0 / 256.0).unwrap();
                (b.binary([BinaryKind::Add, BinaryKind::Multiply][step % 2], product, rows).unwrap(), kind)
            }
            other => unreachable!("{other} is not drawn"),
        };
        values.push(new);
    }
    let mut outputs = Vec::new();
    let mut aliases = Vec::new();
    for (position, &kind) in input_kinds.iter().enumerate() {
        let of_kind: Vec<ValueId> = values.iter().filter(|v| v.1 == kind).map(|v| v.0).collect();
        let value = of_kind[of_kind.len() - 1 - random.below(of_kind.len().min(5))];
        if random.below(3) > 0 && !is_cotangent(position) {
            aliases.push((position, outputs.len()));
        }
        outputs.push((format!("out{position}"), value));
    }
    outputs.push(("last".into(), values.last().unwrap().0));
    let mut graph = b.finish_named(outputs);
    graph.aliases = aliases;
    graph
}

#[test]
fn programs_compute_what_their_graphs_compute() {
    for seed in 0..300 {
        let extents: &[usize] = [&[3, 3][..], &[4, 2], &[6, 0], &[3, 1, 2]][seed as usize % 4];
        let cotangents = seed % 3 == 2;
        let graphs: Vec<Graph> =
            (0..extents.len()).map(|rank| random_step(seed, rank, extents, cotangents)).collect();
        let options = LowerOptions {
            bucket_cap_bytes: [64, 200, 25 << 20][seed as usize % 3],
            prefetch: seed % 2 == 0,
            fused_ops: [1, 3, 64][seed as usize / 3 % 3],
            ..LowerOptions::default()
        };
        let set = lower_and_compare(&graphs, &options);
        for program in &set.programs {
            assert_eq!(program.pauses.len(), usize::from(cotangents));
            assert!(program.arena_bytes >= program.persistent_bytes());
        }
        let (bucketed, plain) = (counts(&set, 0), counts_of_graph(&graphs[0]));
        for ((_, bucketed), (_, plain)) in bucketed.phases().into_iter().zip(plain.phases()) {
            assert!(bucketed.total().count <= bucketed.total().logical);
            // Dead nodes do not count. What follows from a cotangent counts to the backward pass.
            assert!(cotangents || bucketed.total().logical <= plain.total().logical);
        }
    }
}
