//! Runs a partitioned graph on virtual ranks with the reference interpreter, for `verify` and the
//! tests.

use crate::partition::Partitioned;
use crate::specialise::{specialise, specialise_class};
use partita_base::{Diagnostic, Result};
use partita_ir::builder::identity;
use partita_ir::{ClassGraph, Graph, Literal, TensorType, interpret};
use partita_mesh::{Combiner, Mesh, Sharding};

/// The shard of a global value that a rank holds. For a partial layout, the first rank along its
/// partial axes holds the value and the others the combiner's identity.
pub fn distribute(value: &Literal, sharding: &Sharding, mesh: &Mesh, rank: usize) -> Literal {
    let shape = sharding.local_shape(mesh, &value.ty.shape, rank);
    let local = value.window(&sharding.local_offset(mesh, &value.ty.shape, rank), &shape);
    match sharding.combiner() {
        Some(combiner) if mesh.position(rank, &sharding.partial_axes()) != 0 => {
            let nothing = identity(combiner, value.ty.dtype).to_f64()[0];
            Literal::splat(&local.ty, nothing)
        }
        _ => local,
    }
}

/// The global value of the ranks' shards; partial shards are combined in f64. E230 if copies that
/// should be equal differ.
pub fn collect(ty: &TensorType, sharding: &Sharding, mesh: &Mesh, locals: &[&Literal]) -> Result<Literal> {
    let mut sums: Option<Literal> = None;
    if sharding.is_partial() {
        // One global value for each position along the partial axes, combined in order.
        let axes = sharding.partial_axes();
        let combiner = sharding.combiner().expect("partial");
        let mut whole = sharding.clone();
        whole.partial.clear();
        let ways = mesh.axes_size(&axes);
        for position in 0..ways {
            let mut part = Literal::zeros(ty);
            for (rank, local) in locals.iter().enumerate() {
                if mesh.position(rank, &axes) == position {
                    part.set_window(&whole.local_offset(mesh, &ty.shape, rank), local);
                }
            }
            sums = Some(match sums {
                None => part,
                Some(sum) => combine(combiner, &sum, &part),
            });
        }
        return Ok(sums.expect("at least one position"));
    }
    let mut global = Literal::zeros(ty);
    let mut written = vec![false; ty.element_count()];
    let strides = ty.strides();
    for (rank, local) in locals.iter().enumerate() {
        let offset = sharding.local_offset(mesh, &ty.shape, rank);
        for (from, index) in partita_ir::literal::indices(&local.ty.shape).enumerate() {
            let to: usize = index.iter().zip(&offset).zip(&strides).map(|((i, o), s)| (i + o) * s).sum();
            if written[to] {
                let same = global.data.pick([to].into_iter());
                let mine = local.data.pick([from].into_iter());
                let bits = |s: partita_ir::Storage| Literal::new([1], s).to_bytes();
                if bits(same) != bits(mine) {
                    return Err(Diagnostic::new("E230", "copies of one value differ between ranks")
                        .found(format!("rank {rank} at element {to} of {ty}")));
                }
            }
            global.data.put(to, &local.data, from);
            written[to] = true;
        }
    }
    if written.contains(&false) {
        return Err(Diagnostic::new("E230", format!("no rank holds some elements of {ty}")));
    }
    Ok(global)
}

fn combine(combiner: Combiner, a: &Literal, b: &Literal) -> Literal {
    let pairs = a.to_f64().into_iter().zip(b.to_f64());
    Literal::from_f64(
        &a.ty,
        pairs.map(|(x, y)| match combiner {
            Combiner::Sum => x + y,
            Combiner::Prod => x * y,
            Combiner::Max => x.max(y),
            Combiner::Min => x.min(y),
            Combiner::And => ((x as i64) & (y as i64)) as f64,
            Combiner::Or => ((x as i64) | (y as i64)) as f64,
        }),
    )
}

/// The local graph of each rank class, with values that depend on rank numbers folded.
pub fn class_graphs(partitioned: &Partitioned) -> Result<Vec<ClassGraph>> {
    let members = |class: usize| -> Vec<usize> {
        let of_class = |rank: &usize| partitioned.class_of_rank[*rank] == class;
        (0..partitioned.class_of_rank.len()).filter(of_class).collect()
    };
    let graphs = partitioned.locals.iter().enumerate();
    graphs.map(|(class, graph)| specialise_class(graph, &members(class))).collect()
}

/// Each rank's local graph, with its number folded in.
pub fn rank_graphs(partitioned: &Partitioned) -> Result<Vec<Graph>> {
    (0..partitioned.mesh.rank_count()).map(|rank| specialise(partitioned.local(rank), rank)).collect()
}

/// Evaluates the program of all ranks that [`uniform`](crate::uniform()) writes, on global inputs, and returns global
/// outputs. In the pads of its inputs is what no result may depend on: NaN, or -1.
pub fn interpret_uniform(
    partitioned: &Partitioned,
    program: &Graph,
    inputs: &[Literal],
) -> Result<Vec<Literal>> {
    let Partitioned { mesh, graph, .. } = partitioned;
    let padded = |value: Literal, ty: &TensorType| {
        let mut padded = Literal::splat(ty, if ty.dtype.is_float() { f64::NAN } else { -1.0 });
        padded.set_window(&vec![0; ty.rank()], &value);
        padded
    };
    let of_rank = |rank| -> Vec<Literal> {
        let shards = inputs
            .iter()
            .zip(&partitioned.inputs)
            .map(|(value, layout)| distribute(value, layout, mesh, rank));
        shards.zip(&program.inputs).map(|(shard, &input)| padded(shard, program.ty(input))).collect()
    };
    let locals: Vec<Vec<Literal>> = (0..mesh.rank_count()).map(of_rank).collect();
    let results = interpret::evaluate_ranks_lean(&vec![program; mesh.rank_count()], &locals, None)?;
    let outputs = graph.outputs.iter().zip(&partitioned.outputs).enumerate();
    outputs
        .map(|(position, (&value, layout))| {
            let ty = graph.ty(value);
            let shard = |(rank, results): (usize, &Vec<Literal>)| {
                results[position].window(&vec![0; ty.rank()], &layout.local_shape(mesh, &ty.shape, rank))
            };
            let shards: Vec<Literal> = results.iter().enumerate().map(shard).collect();
            collect(ty, layout, mesh, &shards.iter().collect::<Vec<_>>())
        })
        .collect()
}

/// Evaluates the partitioned graph on global inputs and returns global outputs.
pub fn interpret(partitioned: &Partitioned, inputs: &[Literal]) -> Result<Vec<Literal>> {
    interpret_watched(partitioned, inputs, &|_| ())
}

/// As [`interpret()`]; after each node, `watch` receives its number of operations over all ranks.
pub fn interpret_watched(
    partitioned: &Partitioned,
    inputs: &[Literal],
    watch: &dyn Fn(f64),
) -> Result<Vec<Literal>> {
    let graph = &partitioned.graph;
    let ranks = partitioned.mesh.rank_count();
    let locals: Vec<Vec<Literal>> = (0..ranks)
        .map(|rank| {
            inputs
                .iter()
                .zip(&partitioned.inputs)
                .map(|(value, sharding)| distribute(value, sharding, &partitioned.mesh, rank))
                .collect()
        })
        .collect();
    let graphs: Vec<&Graph> = (0..ranks).map(|r| partitioned.local(r)).collect();
    let results = interpret::evaluate_ranks_lean(&graphs, &locals, Some(watch))?;
    graph
        .outputs
        .iter()
        .enumerate()
        .map(|(position, &value)| {
            let locals: Vec<&Literal> = results.iter().map(|r| &r[position]).collect();
            collect(graph.ty(value), &partitioned.outputs[position], &partitioned.mesh, &locals)
        })
        .collect()
}
