//! Shared by the tests: random numbers, a builder of the same graph for several ranks, and a naive
//! lock-step evaluator with an independent implementation of the collectives.

use partita_base::DType;
use partita_ir::ops::{AllGather, AllReduce, CollectivePermute, Composite, DotGeneral, ReduceScatter};
use partita_ir::{
    ClassGraph, Graph, GraphBuilder, Literal, Op, Operation, Phase, Role, Target, TensorType, ValueId,
};
use partita_mesh::Combiner;
use partita_program::{LowerOptions, ProgramSet, Reference, Region, RegionTarget, View, lower};

/// Numbers that depend on nothing but the seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    /// Small multiples of 1/4, so that sums and products of a few are exact in any order.
    pub fn literal(&mut self, ty: &TensorType) -> Literal {
        let values: Vec<f64> =
            (0..ty.element_count()).map(|_| (self.below(33) as f64 - 16.0) / 4.0).collect();
        Literal::from_f64(ty, values.into_iter())
    }
}

/// A few bytes of scratch memory for every region that is not elementwise.
pub struct Sizes;

impl Target for Sizes {
    fn has_kernel(&self, _: &Composite) -> bool {
        false
    }
}

impl RegionTarget for Sizes {
    fn workspace_bytes(&self, region: &Region, _: &[View]) -> usize {
        if region.single().is_some() { 100 } else { 0 }
    }
}

pub fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Builds one graph per rank. `extents` are each rank's extents of a sharded dimension.
pub fn build(ranks: usize, body: impl Fn(usize, &mut GraphBuilder) -> Vec<(String, ValueId)>) -> Vec<Graph> {
    let graph = |rank| {
        let mut builder = GraphBuilder::new("step");
        let outputs = body(rank, &mut builder);
        builder.finish_named(outputs)
    };
    (0..ranks).map(graph).collect()
}

pub fn all_reduce(b: &mut GraphBuilder, x: ValueId, groups: &[&[usize]]) -> ValueId {
    let groups = groups.iter().map(|g| g.to_vec()).collect::<Vec<_>>().into();
    let ty = b.ty(x).clone();
    b.push_typed(AllReduce { groups, combiner: Combiner::Sum }, &[x], vec![ty])[0]
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
    b.push_typed(
        AllGather { dim, groups: vec![group.to_vec()].into(), extents: extents.to_vec() },
        &[x],
        vec![ty],
    )[0]
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
    let op = ReduceScatter {
        dim,
        groups: vec![group.to_vec()].into(),
        combiner: Combiner::Sum,
        extents: extents.to_vec(),
    };
    b.push_typed(op, &[x], vec![ty])[0]
}

pub fn permute(b: &mut GraphBuilder, x: ValueId, pairs: &[(usize, usize)]) -> ValueId {
    let ty = b.ty(x).clone();
    b.push_typed(CollectivePermute { pairs: pairs.to_vec() }, &[x], vec![ty])[0]
}

/// `a[m, k] * b[k, n]`.
pub fn matmul(b: &mut GraphBuilder, x: ValueId, y: ValueId) -> ValueId {
    let dims = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
    b.dot_general(x, y, dims).unwrap()
}

pub fn in_phase<T>(
    b: &mut GraphBuilder,
    phase: Phase,
    path: &str,
    body: impl FnOnce(&mut GraphBuilder) -> T,
) -> T {
    let before = (b.phase, b.path.clone());
    (b.phase, b.path) = (phase, path.to_string());
    let result = body(b);
    (b.phase, b.path) = before;
    result
}

/// Random inputs of every rank. Inputs with one shape on all ranks get one value.
pub fn inputs(graphs: &[Graph], seed: u64) -> Vec<Vec<Literal>> {
    let of = |graph: &Graph| {
        let mut random = Random(seed);
        graph.inputs.iter().map(|&v| random.literal(graph.ty(v))).collect()
    };
    graphs.iter().map(of).collect()
}

fn sum(literals: &[&Literal]) -> Literal {
    let mut total = literals[0].to_f64();
    for literal in &literals[1..] {
        total.iter_mut().zip(literal.to_f64()).for_each(|(a, b)| *a = (*a as f32 + b as f32) as f64);
    }
    Literal::from_f64(&literals[0].ty, total.into_iter())
}

fn joined(pieces: &[&Literal], dim: usize) -> Literal {
    let mut ty = pieces[0].ty.clone();
    ty.shape[dim] = pieces.iter().map(|p| p.ty.shape[dim]).sum();
    let element = |mut index: Vec<usize>| {
        for piece in pieces {
            if index[dim] < piece.ty.shape[dim] {
                let strides = piece.ty.strides();
                return piece.to_f64()[index.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>()];
            }
            index[dim] -= piece.ty.shape[dim];
        }
        unreachable!("an index of the whole is in one piece")
    };
    let values: Vec<f64> = partita_ir::literal::indices(&ty.shape).map(element).collect();
    Literal::from_f64(&ty, values.into_iter())
}

/// Evaluates the graphs of all ranks node by node.
pub fn oracle(graphs: &[Graph], inputs: &[Vec<Literal>]) -> Vec<Vec<Literal>> {
    let ranks = 0..graphs.len();
    let mut values: Vec<Vec<Option<Literal>>> = graphs.iter().map(|g| vec![None; g.values.len()]).collect();
    for rank in ranks.clone() {
        for (&id, literal) in graphs[rank].inputs.iter().zip(&inputs[rank]) {
            values[rank][id.index()] = Some(literal.clone());
        }
    }
    for node in graphs[0].node_ids() {
        let operand = |rank: usize, number: usize| {
            values[rank][graphs[rank].node(node).operands[number].index()].as_ref().unwrap()
        };
        let group_of = |groups: &[Vec<usize>], rank: usize| {
            groups.iter().find(|g| g.contains(&rank)).cloned().unwrap_or(vec![rank])
        };
        let gathered = |group: &[usize]| group.iter().map(|&r| operand(r, 0)).collect::<Vec<_>>();
        let results: Vec<Vec<Literal>> = ranks
            .clone()
            .map(|rank| {
                let graph = &graphs[rank];
                let node = graph.node(node);
                match &node.op {
                    Op::AllReduce(op) => vec![sum(&gathered(&group_of(&op.groups, rank)))],
                    Op::AllGather(op) => vec![joined(&gathered(&group_of(&op.groups, rank)), op.dim)],
                    Op::ReduceScatter(op) => {
                        let group = group_of(&op.groups, rank);
                        let whole = sum(&gathered(&group));
                        let member = group.iter().position(|&r| r == rank).unwrap();
                        let mut offset = vec![0; whole.ty.rank()];
                        offset[op.dim] = op.extents[..member].iter().sum();
                        vec![whole.window(&offset, &graph.ty(node.results[0]).shape)]
                    }
                    Op::CollectivePermute(op) => match op.pairs.iter().find(|(_, to)| *to == rank) {
                        Some(&(from, _)) => vec![operand(from, 0).clone()],
                        None => vec![Literal::zeros(graph.ty(node.results[0]))],
                    },
                    op => {
                        let operands: Vec<&Literal> =
                            (0..node.operands.len()).map(|i| operand(rank, i)).collect();
                        let types: Vec<TensorType> = graph.result_types(node).into_iter().cloned().collect();
                        op.evaluate(&operands, &types).unwrap()
                    }
                }
            })
            .collect();
        for (rank, results) in results.into_iter().enumerate() {
            for (&id, literal) in graphs[rank].node(node).results.iter().zip(results) {
                values[rank][id.index()] = Some(literal);
            }
        }
    }
    let outputs =
        |rank: usize| graphs[rank].outputs.iter().map(|v| values[rank][v.index()].clone().unwrap()).collect();
    ranks.map(outputs).collect()
}

/// Lowers, then runs two steps both in the arena and on the graphs. Replaced inputs carry over to
/// the second step; the caller gives each other input new values in each step, and touches all ports when they say.
pub fn lower_and_compare(graphs: &[Graph], options: &LowerOptions) -> ProgramSet {
    let set = lower(&ClassGraph::each(graphs.to_vec()), options, &Sizes).unwrap();
    let mut machine = Reference::new(&set);
    let mut state = inputs(graphs, 3);
    let programs = set.each_rank().programs;
    let pauses = programs[0].pauses.len();
    for step in 0..2 {
        let expected = oracle(graphs, &state);
        for moment in 0..=pauses + 1 {
            for (rank, program) in programs.iter().enumerate() {
                for (position, _) in program.outputs.iter().enumerate().filter(|(_, port)| port.at == moment)
                {
                    let name = &program.outputs[position].name;
                    let at = format!("step {step}, rank {rank}, output {name}, moment {moment}");
                    let found = machine.output(rank, position);
                    assert_eq!(found, expected[rank][position], "{at}\n{}", set.display(rank));
                }
                for (position, port) in program.inputs.iter().enumerate() {
                    if port.at == moment && (step == 0 || port.role == Role::Input) {
                        machine.write_input(rank, position, &state[rank][position]).unwrap();
                    }
                }
            }
            if moment <= pauses {
                machine.run_piece(moment).unwrap();
            }
        }
        for (rank, outputs) in expected.iter().enumerate() {
            for (position, expected) in outputs.iter().enumerate() {
                let found = machine.output(rank, position);
                let name = graphs[rank].output_names.get(position);
                assert_eq!(
                    &found,
                    expected,
                    "step {step}, rank {rank}, output {name:?}\n{}",
                    set.display(rank)
                );
            }
            for &(input, output) in &graphs[rank].aliases {
                state[rank][input] = outputs[output].clone();
                assert_eq!(machine.input(rank, input), outputs[output]);
            }
        }
        let fresh = inputs(graphs, 4);
        for ((state, fresh), graph) in state.iter_mut().zip(fresh).zip(graphs) {
            for (position, value) in fresh.into_iter().enumerate() {
                let is_replaced = graph.aliases.iter().any(|&(input, _)| input == position);
                if graph.value(graph.inputs[position]).role == Role::Input && !is_replaced {
                    state[position] = value;
                }
            }
        }
    }
    set
}
