//! A class graph made into one rank's: its number becomes a constant and what follows from it is computed.

use partita_base::Result;
use partita_ir::ops::{Constant, Slice};
use partita_ir::{Graph, GraphBuilder, Literal, Op, Operation, TensorType, ValueId, graph_edit};

/// What is known of a value while a class graph is made into one rank's. It must not depend on the rank which of these
/// a value is, or the ranks' graphs would come apart: the sizes of shards never decide.
#[derive(Clone)]
enum Known {
    /// Computed by the step.
    Nothing,
    /// A constant; its shape may be that of a shard.
    Constant(Literal),
    /// A constant of the same shape on every rank: a scalar, or computed from such.
    Fixed(Literal),
    /// The rank itself, under some element type: what indexes tables over ranks.
    Rank(Literal),
}

impl Known {
    fn literal(&self) -> Option<&Literal> {
        match self {
            Known::Nothing => None,
            Known::Constant(value) | Known::Fixed(value) | Known::Rank(value) => Some(value),
        }
    }

    fn is_fixed(&self) -> bool {
        matches!(self, Known::Fixed(_) | Known::Rank(_))
    }
}

/// Replaces `partition_id` by `rank`, looks up tables over ranks, and computes what follows for places and offsets; a
/// dynamic slice at known places becomes a slice. Nodes stay one to one, so that all ranks' graphs keep one structure.
pub fn specialise(graph: &Graph, rank: usize) -> Result<Graph> {
    let mut known: Vec<Known> = Vec::new();
    graph_edit::rebuild(graph, |builder, _, index, operands| {
        let (results, what) = emit(builder, graph, index, operands, rank, &known)?;
        known.resize(builder.graph().values.len(), Known::Nothing);
        if let [result] = results[..] {
            known[result.index()] = what;
        }
        Ok(Some(results))
    })
}

fn emit(
    builder: &mut GraphBuilder,
    graph: &Graph,
    index: usize,
    operands: &[ValueId],
    rank: usize,
    known: &[Known],
) -> Result<(Vec<ValueId>, Known)> {
    let node = &graph.nodes[index];
    let nothing = Known::Nothing;
    let of = |v: &ValueId| known.get(v.index()).unwrap_or(&nothing);
    let types = || node.results.iter().map(|&v| graph.ty(v).clone()).collect::<Vec<TensorType>>();
    let place = |builder: &mut GraphBuilder, op: Op, operands: &[ValueId]| {
        builder.enter(node);
        builder.push_typed(op, operands, types())
    };
    let fixed: Vec<bool> = operands.iter().map(|v| of(v).is_fixed()).collect();
    let values: Option<Vec<&Literal>> = operands.iter().map(|v| of(v).literal()).collect();
    let fold = match &node.op {
        Op::PartitionId(_) | Op::While(_) | Op::Case(_) => {
            let op = node.op.on_rank(rank);
            let what = match &op {
                Op::Constant(constant) => Known::Rank(constant.value.clone()),
                _ => Known::Nothing,
            };
            return Ok((place(builder, op, operands), what));
        }
        Op::Constant(constant) => {
            let value = constant.value.clone();
            let what = if value.ty.rank() == 0 { Known::Fixed(value) } else { Known::Constant(value) };
            return Ok((graph_edit::push_copy(builder, graph, index, operands), what));
        }
        Op::DynamicSlice(slice) => {
            let lookup = matches!(operands, [_, start] if matches!(of(start), Known::Rank(_)));
            let starts: Option<Vec<i64>> =
                operands[1..].iter().map(|v| of(v).literal().map(|l| l.to_i64()[0])).collect();
            if let (Some(starts), false) = (starts, lookup) {
                let shape = builder.shape(operands[0]);
                let start: Vec<usize> = starts
                    .iter()
                    .zip(&shape)
                    .zip(&slice.sizes)
                    .map(|((&s, &extent), &size)| s.clamp(0, (extent - size) as i64) as usize)
                    .collect();
                let limit = start.iter().zip(&slice.sizes).map(|(a, b)| a + b).collect();
                let op = Slice { start, limit, stride: vec![1; shape.len()] };
                return Ok((place(builder, op.into(), &operands[..1]), Known::Nothing));
            }
            lookup
        }
        // Elementwise on a fixed shape, the other operand being a constant of that shape.
        Op::Binary(_) | Op::Compare(_) => fixed.contains(&true),
        Op::Convert(_) | Op::Reshape(_) | Op::Concatenate(_) | Op::Select(_) => !fixed.contains(&false),
        _ => false,
    };
    let Some(values) = values.filter(|_| fold) else {
        return Ok((graph_edit::push_copy(builder, graph, index, operands), Known::Nothing));
    };
    let value = node.op.evaluate(&values, &types())?.remove(0);
    let is_rank = matches!(node.op, Op::Convert(_)) && matches!(of(&operands[0]), Known::Rank(_));
    let what = if is_rank { Known::Rank(value.clone()) } else { Known::Fixed(value.clone()) };
    Ok((place(builder, Constant { value }.into(), &[]), what))
}
