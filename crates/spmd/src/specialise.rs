//! A class graph made into one rank's: its number becomes a constant and what follows from it is computed.

use partita_base::Result;
use partita_ir::ops::{Constant, Slice};
use partita_ir::{Graph, Literal, Op, Operation, TensorType, graph_edit};

/// Results larger than this are not folded: places and offsets are scalars, big constants are better computed.
const MOST_FOLDED_BYTES: usize = 1024;

/// Replaces `partition_id` by `rank` and folds small computations on constants; a dynamic slice at constant places
/// becomes a slice. Nodes stay one to one, so that all ranks' graphs keep one structure.
pub fn specialise(graph: &Graph, rank: usize) -> Result<Graph> {
    let mut known: Vec<Option<Literal>> = Vec::new();
    graph_edit::rebuild(graph, |builder, _, index, operands| {
        let node = &graph.nodes[index];
        let results = emit(builder, graph, index, operands, rank, &known)?;
        known.resize(builder.graph().values.len(), None);
        if let (Op::Constant(c), [result]) =
            (&builder.graph().nodes.last().expect("emitted").op, &results[..])
            && c.value.ty.bytes() <= 64 * MOST_FOLDED_BYTES
        {
            known[result.index()] = Some(c.value.clone());
        }
        debug_assert_eq!(results.len(), node.results.len());
        Ok(Some(results))
    })
}

fn emit(
    builder: &mut partita_ir::GraphBuilder,
    graph: &Graph,
    index: usize,
    operands: &[partita_ir::ValueId],
    rank: usize,
    known: &[Option<Literal>],
) -> Result<Vec<partita_ir::ValueId>> {
    let node = &graph.nodes[index];
    let constant = |v: &partita_ir::ValueId| known.get(v.index()).and_then(Option::as_ref);
    let types: Vec<TensorType> = node.results.iter().map(|&v| graph.ty(v).clone()).collect();
    let place = |builder: &mut partita_ir::GraphBuilder, op: Op, operands: &[partita_ir::ValueId]| {
        builder.path = node.path.clone();
        builder.phase = node.phase;
        builder.location = node.location.clone();
        builder.microbatch = node.microbatch;
        builder.push_typed(op, operands, types.clone())
    };
    if matches!(node.op, Op::PartitionId(_) | Op::While(_) | Op::Case(_)) {
        return Ok(place(builder, node.op.on_rank(rank), operands));
    }
    if let Op::DynamicSlice(slice) = &node.op {
        let starts: Option<Vec<i64>> =
            operands[1..].iter().map(|v| constant(v).map(|l| l.to_i64()[0])).collect();
        if let (Some(starts), None) = (starts, constant(&operands[0])) {
            let shape = builder.shape(operands[0]);
            let start: Vec<usize> = starts
                .iter()
                .zip(&shape)
                .zip(&slice.sizes)
                .map(|((&s, &extent), &size)| s.clamp(0, (extent - size) as i64) as usize)
                .collect();
            let limit = start.iter().zip(&slice.sizes).map(|(a, b)| a + b).collect();
            let op = Slice { start, limit, stride: vec![1; shape.len()] };
            return Ok(place(builder, op.into(), &operands[..1]));
        }
    }
    let foldable = types.len() == 1
        && types[0].bytes() <= MOST_FOLDED_BYTES
        && !operands.is_empty()
        && !node.op.is_collective();
    let values: Option<Vec<&Literal>> = operands.iter().map(constant).collect();
    if let (true, Some(values)) = (foldable, values) {
        let mut results = node.op.evaluate(&values, &types)?;
        let value = results.remove(0);
        return Ok(place(builder, Constant { value }.into(), &[]));
    }
    Ok(graph_edit::push_copy(builder, graph, index, operands))
}
