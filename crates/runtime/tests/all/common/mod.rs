//! Small step graphs of several ranks, and helpers that run them.
#![allow(dead_code)]

use partita_base::{DType, Result};
use partita_ir::ops::{AllGather, AllReduce, AllToAll, CollectivePermute, DotGeneral, ReduceScatter};
use partita_ir::{ClassGraph, Graph, GraphBuilder, Literal, Role, TensorType, ValueId};
use partita_mesh::Combiner;
use partita_program::{LowerOptions, ProgramSet, Reference, lower};
use partita_runtime::{Cpu, Runner, RunnerOptions};

/// Random numbers from a seed: small integers divided by four, whose sums and products are exact in any
/// order.
pub fn literal(seed: &mut u64, ty: &TensorType) -> Literal {
    let values = (0..ty.element_count()).map(|_| {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((*seed >> 33) % 33) as f64 / 4.0 - 4.0
    });
    Literal::from_f64(ty, values.collect::<Vec<_>>().into_iter())
}

pub fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

pub fn all_reduce(b: &mut GraphBuilder, x: ValueId, group: &[usize]) -> ValueId {
    let ty = b.ty(x).clone();
    b.push_typed(AllReduce { groups: vec![group.to_vec()].into(), combiner: Combiner::Sum }, &[x], vec![ty])
        [0]
}

pub fn all_gather(
    b: &mut GraphBuilder,
    x: ValueId,
    dim: usize,
    group: &[usize],
    extents: &[usize],
) -> ValueId {
    let mut shape = b.shape(x);
    shape[dim] = extents.iter().sum();
    let ty = b.ty(x).with_shape(shape);
    let op = AllGather { dim, groups: vec![group.to_vec()].into(), extents: extents.to_vec() };
    b.push_typed(op, &[x], vec![ty])[0]
}

pub fn reduce_scatter(
    b: &mut GraphBuilder,
    x: ValueId,
    dim: usize,
    group: &[usize],
    extents: &[usize],
    rank: usize,
) -> ValueId {
    let mut shape = b.shape(x);
    shape[dim] = extents[rank];
    let ty = b.ty(x).with_shape(shape);
    let groups = vec![group.to_vec()].into();
    let op = ReduceScatter { dim, groups, combiner: Combiner::Sum, extents: extents.to_vec() };
    b.push_typed(op, &[x], vec![ty])[0]
}

pub fn all_to_all(
    b: &mut GraphBuilder,
    x: ValueId,
    group: &[usize],
    split: &[usize],
    concat: &[usize],
    rank: usize,
) -> ValueId {
    let ty = b.ty(x).with_shape([split[rank], concat.iter().sum()]);
    let op = AllToAll {
        split_dim: 0,
        concat_dim: 1,
        groups: vec![group.to_vec()].into(),
        split_extents: split.to_vec(),
        concat_extents: concat.to_vec(),
    };
    b.push_typed(op, &[x], vec![ty])[0]
}

pub fn permute(b: &mut GraphBuilder, x: ValueId, pairs: &[(usize, usize)]) -> ValueId {
    let ty = b.ty(x).clone();
    b.push_typed(CollectivePermute { pairs: pairs.to_vec() }, &[x], vec![ty])[0]
}

pub fn matmul(b: &mut GraphBuilder, x: ValueId, y: ValueId, contracted: [usize; 2]) -> ValueId {
    let dims = DotGeneral {
        lhs_contracting: vec![contracted[0]],
        rhs_contracting: vec![contracted[1]],
        ..DotGeneral::default()
    };
    b.dot_general(x, y, dims).unwrap()
}

/// A data-parallel step of a linear model over uneven shards of the batch: inputs `x`, `w` (updated), `rate`;
/// outputs `loss`, `w` and the results of collectives.
pub fn step_graphs(ranks: usize) -> Vec<Graph> {
    let group: Vec<usize> = (0..ranks).collect();
    let extents: Vec<usize> = (0..ranks).map(|rank| 3 + rank % 2).collect();
    let graph = |rank: usize| {
        let mut b = GraphBuilder::new("step");
        b.path = "model.linear".into();
        let x = b.input("x", f32s(&[extents[rank], 8]), Role::Input);
        let w = b.input("w", f32s(&[8, 5]), Role::Param);
        let rate = b.input("rate", f32s(&[]), Role::Input);
        let y = matmul(&mut b, x, w, [1, 0]);
        let squares = b.multiply(y, y).unwrap();
        let loss = b.reduce_sum(squares, &[0, 1]).unwrap();
        b.path = "loss".into();
        let loss = all_reduce(&mut b, loss, &group);
        let loss = b.scale(loss, 0.001).unwrap();
        b.path = "model.linear".into();
        let gradient = matmul(&mut b, x, y, [0, 0]);
        let gradient = all_reduce(&mut b, gradient, &group);
        let rate = b.broadcast_scalar(rate, &[8, 5]).unwrap();
        let change = b.multiply(gradient, rate).unwrap();
        let updated = b.subtract(w, change).unwrap();
        // All other collectives.
        b.path = "exchange".into();
        let part = reduce_scatter(&mut b, change, 0, &group, &split(8, ranks), rank);
        let joined = all_gather(&mut b, part, 0, &group, &split(8, ranks));
        let turned = all_to_all_of(&mut b, y, &group, &extents, rank);
        let pairs: Vec<(usize, usize)> = group.windows(2).map(|w| (w[0], w[1])).collect();
        let moved = permute(&mut b, updated, &pairs);
        let names = ["loss", "w", "moved", "turned", "joined"];
        let mut graph = b.finish_named(
            names.iter().map(|n| n.to_string()).zip([loss, updated, moved, turned, joined]).collect(),
        );
        graph.aliases = vec![(1, 1)];
        graph
    };
    (0..ranks).map(graph).collect()
}

fn all_to_all_of(b: &mut GraphBuilder, x: ValueId, group: &[usize], _: &[usize], rank: usize) -> ValueId {
    // [rows of this rank, 5] -> [5, rows] -> a shard of [5, rows of all ranks].
    let rows = b.shape(x)[0];
    let turned = b.transpose(x, &[1, 0]).unwrap();
    let concat: Vec<usize> = group.iter().map(|r| 3 + r % 2).collect();
    assert_eq!(concat[rank], rows);
    all_to_all(b, turned, group, &split(5, group.len()), &concat, rank)
}

/// `size` split into nearly equal parts.
pub fn split(size: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|i| size / parts + usize::from(i < size % parts)).collect()
}

pub fn program(graphs: &[Graph]) -> ProgramSet {
    lower(&ClassGraph::each(graphs.to_vec()), &LowerOptions::default(), &Cpu::default())
        .expect("the graphs can be lowered")
}

/// Inputs of every rank by name. Inputs with the same shape on all ranks get the same value.
pub fn inputs(graphs: &[Graph], seed: u64) -> Vec<Vec<Literal>> {
    let of = |graph: &Graph| {
        graph
            .inputs
            .iter()
            .enumerate()
            .map(|(i, &v)| match graph.value(v).name.as_str() {
                "rate" => Literal::scalar(DType::F32, 1.0 / 1024.0),
                _ => literal(&mut (seed + i as u64), graph.ty(v)),
            })
            .collect()
    };
    graphs.iter().map(of).collect()
}

pub fn feed(runner: &mut Runner, graphs: &[Graph], inputs: &[Vec<Literal>]) {
    for (rank, (graph, inputs)) in graphs.iter().zip(inputs).enumerate() {
        for (&input, literal) in graph.inputs.iter().zip(inputs) {
            runner.write_input(rank, &graph.value(input).name, &literal.to_bytes()).unwrap();
        }
    }
}

/// Every output of every rank after `steps` steps, by the reference executor of the program crate.
pub fn reference(set: &ProgramSet, inputs: &[Vec<Literal>], steps: usize) -> Vec<Vec<Literal>> {
    let mut reference = Reference::new(set);
    for step in 0..steps {
        for (rank, inputs) in inputs.iter().enumerate() {
            for (position, literal) in inputs.iter().enumerate() {
                let is_state = set.programs[rank].outputs.iter().any(|port| port.replaces == Some(position));
                if step == 0 || !is_state {
                    reference.write_input(rank, position, literal).unwrap();
                }
            }
        }
        reference.step().unwrap();
    }
    let outputs = |rank: usize| {
        (0..set.programs[rank].outputs.len()).map(|position| reference.output(rank, position)).collect()
    };
    (0..set.programs.len()).map(outputs).collect()
}

/// Every output of every rank after `steps` steps of a runner, as bytes.
pub fn run(
    graphs: &[Graph],
    set: &ProgramSet,
    options: RunnerOptions,
    inputs: &[Vec<Literal>],
    steps: usize,
) -> Vec<Vec<Vec<u8>>> {
    let mut runner = in_process(set.clone(), options).unwrap();
    feed(&mut runner, graphs, inputs);
    for step in 0..steps {
        if step > 0 {
            for (rank, (graph, inputs)) in graphs.iter().zip(inputs).enumerate() {
                for (&input, literal) in graph.inputs.iter().zip(inputs) {
                    if graph.value(input).role == Role::Input {
                        runner.write_input(rank, &graph.value(input).name, &literal.to_bytes()).unwrap();
                    }
                }
            }
        }
        runner.step().unwrap();
    }
    let outputs = |rank: usize| {
        let names = set.programs[rank].outputs.iter();
        names.map(|port| runner.read_output(rank, &port.name).unwrap()).collect()
    };
    (0..set.programs.len()).map(outputs).collect()
}

/// A runner of all ranks in this process.
pub fn in_process(set: ProgramSet, options: RunnerOptions) -> Result<Runner> {
    let world = options.world(&set)?;
    Runner::new(set, world, options)
}
