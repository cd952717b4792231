//! Converts a program set's collectives to transport specs.

use partita_comm::{BoxMove, CollectiveSpec, Exchange, Moves};
use partita_program::{Collective, CollectiveOp, ProgramSet, Transfer};

/// One tensor of a bucket. An extent along a dimension becomes the number of elements below it.
fn exchange(transfer: &Transfer) -> Exchange {
    let first = &transfer.inputs[0];
    let (dtype, shape) = (first.dtype, &first.shape);
    let outer = |dim: usize| shape[..dim].iter().product::<usize>();
    let under = |dim: usize, extents: &[usize]| -> Vec<usize> {
        let inner: usize = shape[dim + 1..].iter().product();
        extents.iter().map(|extent| extent * inner).collect()
    };
    let bytes = |types: &[partita_ir::TensorType]| types.iter().map(|ty| ty.bytes()).collect::<Vec<usize>>();
    let whole = |pairs: &[(usize, usize)]| {
        Exchange::collective_permute(pairs, &bytes(&transfer.inputs), &bytes(&transfer.outputs))
    };
    match &transfer.exchange {
        CollectiveOp::AllReduce { combiner: c } => Exchange::all_reduce(*c, dtype, first.element_count()),
        CollectiveOp::AllGather { dim, extents } => {
            let row_bytes: Vec<usize> = under(*dim, extents).iter().map(|n| n * dtype.size_bytes()).collect();
            Exchange::all_gather(outer(*dim), &row_bytes)
        }
        CollectiveOp::ReduceScatter { combiner: c, dim, extents } => {
            Exchange::reduce_scatter(*c, dtype, outer(*dim), under(*dim, extents))
        }
        CollectiveOp::AllToAll { split_dim, concat_dim, split_extents, concat_extents } => {
            Exchange::all_to_all(
                dtype.size_bytes(),
                shape,
                *split_dim,
                *concat_dim,
                split_extents,
                concat_extents,
            )
        }
        CollectiveOp::CollectivePermute { pairs } => whole(pairs),
        CollectiveOp::CollectiveBroadcast { has_root: true } => {
            whole(&(0..transfer.outputs.len()).map(|target| (0, target)).collect::<Vec<_>>())
        }
        CollectiveOp::CollectiveBroadcast { has_root: false } => whole(&[]),
        CollectiveOp::Send { boxes } => {
            let shapes = |types: &[partita_ir::TensorType]| types.iter().map(|ty| ty.shape.clone()).collect();
            Exchange::Moves(Moves {
                element_bytes: dtype.size_bytes(),
                input_shapes: shapes(&transfer.inputs),
                output_shapes: shapes(&transfer.outputs),
                boxes: boxes.iter().map(box_move).collect(),
                zero_fill: vec![false; transfer.outputs.len()],
            })
        }
    }
}

fn box_move(moved: &partita_mesh::BoxMove) -> BoxMove {
    BoxMove {
        source: moved.source,
        target: moved.target,
        source_start: moved.source_start.clone(),
        target_start: moved.target_start.clone(),
        extents: moved.extents.clone(),
    }
}

/// The transport specs of a program set's collectives, by id.
pub fn collective_specs(programs: &ProgramSet) -> Vec<CollectiveSpec> {
    let spec = |collective: &Collective| {
        let exchanges = collective.transfers.iter().map(exchange).collect();
        CollectiveSpec::new(collective.label.clone(), collective.members.to_vec(), exchanges)
    };
    programs.collectives.iter().map(spec).collect()
}
