//! Collectives in a program: one group of ranks that exchange one or several tensors.

use crate::counts::full_bytes;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::{
    AllGather, AllReduce, AllToAll, Binary, BinaryKind, CollectiveBroadcast, CollectivePermute, ReduceScatter,
};
use partita_ir::traits::CollectiveRef;
use partita_ir::{Literal, Operation, Phase, TensorType};
use partita_mesh::{BoxMove, Combiner};
use std::sync::Arc;

/// The kind of a collective.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CollectiveKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    CollectivePermute,
    CollectiveBroadcast,
    /// From the ranks of one pipeline stage to those of others.
    Send,
}

impl CollectiveKind {
    /// Every kind, in declaration order.
    pub const ALL: [CollectiveKind; 7] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::CollectivePermute,
        CollectiveKind::CollectiveBroadcast,
        CollectiveKind::Send,
    ];

    /// `all_reduce`, `all_gather`, ...
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::CollectivePermute => "collective_permute",
            CollectiveKind::CollectiveBroadcast => "collective_broadcast",
            CollectiveKind::Send => "send",
        }
    }
}

/// What a collective does to one tensor. It is described by dimensions and member positions, not
/// ranks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CollectiveOp {
    /// Every member receives the combination, formed in member order.
    AllReduce {
        /// How elements are combined.
        combiner: Combiner,
    },
    /// Every member receives all inputs, concatenated along `dim` in member order.
    AllGather {
        /// The dimension of the concatenation.
        dim: usize,
        /// The extent of each member's input along it.
        extents: Vec<usize>,
    },
    /// Combines as `AllReduce`; member `i` keeps shard `i` along `dim`.
    ReduceScatter {
        /// How elements are combined.
        combiner: Combiner,
        /// The dimension that is split.
        dim: usize,
        /// The extent of each member's shard along it.
        extents: Vec<usize>,
    },
    /// Every member splits its input along `split_dim`, sends part `j` to member `j`, and
    /// concatenates the parts that it receives along `concat_dim` in member order.
    AllToAll {
        /// The dimension that is split.
        split_dim: usize,
        /// The dimension of the concatenation.
        concat_dim: usize,
        /// The extent along `split_dim` of the part for each member.
        split_extents: Vec<usize>,
        /// The extent along `concat_dim` of each member's input.
        concat_extents: Vec<usize>,
    },
    /// Full tensors move between members; a member that receives none has zeros.
    CollectivePermute {
        /// (source, target) as member positions.
        pairs: Vec<(usize, usize)>,
    },
    /// Every member receives the input of member 0; zeros if there is no root (a rank in no group).
    CollectiveBroadcast {
        /// Whether member 0 is a root and sends its input.
        has_root: bool,
    },
    /// Boxes of the inputs of the sending members become the outputs of the receiving members. A
    /// receiving member has an input without elements, a sending member an output without elements.
    Send {
        /// The boxes that move; every output element is in exactly one box.
        boxes: Arc<[BoxMove]>,
    },
}

impl CollectiveOp {
    /// The kind of this collective.
    pub fn kind(&self) -> CollectiveKind {
        match self {
            CollectiveOp::AllReduce { .. } => CollectiveKind::AllReduce,
            CollectiveOp::AllGather { .. } => CollectiveKind::AllGather,
            CollectiveOp::ReduceScatter { .. } => CollectiveKind::ReduceScatter,
            CollectiveOp::AllToAll { .. } => CollectiveKind::AllToAll,
            CollectiveOp::CollectivePermute { .. } => CollectiveKind::CollectivePermute,
            CollectiveOp::CollectiveBroadcast { .. } => CollectiveKind::CollectiveBroadcast,
            CollectiveOp::Send { .. } => CollectiveKind::Send,
        }
    }
}

/// One tensor of a collective's bucket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Transfer {
    /// The operation.
    pub exchange: CollectiveOp,
    /// The type of each member's input.
    pub inputs: Arc<[TensorType]>,
    /// The type of each member's output.
    pub outputs: Arc<[TensorType]>,
    /// The result: a name or module path, for messages.
    pub what: String,
}

impl Transfer {
    /// Bytes of the full tensor, as a member sees it; for a send, all bytes that move.
    pub fn full_bytes(&self, member: usize) -> usize {
        let (input, output) = (&self.inputs[member], &self.outputs[member]);
        match &self.exchange {
            CollectiveOp::Send { boxes } => {
                let elements = boxes.iter().map(|moved| moved.extents.iter().product::<usize>());
                elements.sum::<usize>() * input.dtype.size_bytes()
            }
            other => full_bytes(other.kind(), input, output),
        }
    }

    /// As [`Transfer::full_bytes`], of a send only the bytes that the member sends.
    pub fn sent_bytes(&self, member: usize) -> usize {
        match &self.exchange {
            CollectiveOp::Send { boxes } => {
                let own = boxes.iter().filter(|moved| moved.source == member).map(BoxMove::elements);
                own.sum::<usize>() * self.inputs[member].dtype.size_bytes()
            }
            _ => self.full_bytes(member),
        }
    }
}

/// One collective of one group of ranks. A bucket carries several tensors of one kind.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Collective {
    /// The kind of every transfer.
    pub kind: CollectiveKind,
    /// The ranks that take part. A *member* is a position in this list; reductions run in its
    /// order.
    pub members: Arc<[usize]>,
    /// The tensors. Groups with equal types share one list.
    pub transfers: Arc<[Transfer]>,
    /// Name in messages: kind and module path.
    pub label: String,
    /// The part of the step.
    pub phase: Phase,
    /// The microbatch, if the step has several.
    pub microbatch: Option<usize>,
    /// The collectives of the different groups of one bucket have the same bucket number.
    pub bucket: usize,
    /// For a send, the edge between stages that it serves.
    pub edge: Option<usize>,
}

impl Collective {
    /// The member position of a rank.
    pub fn member(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|&m| m == rank)
    }
}

/// The groups of ranks that take part in a collective op, in member order. Each rank that the op
/// does not name forms a group of its own. E400 if a rank does not exist or is in two groups.
pub(crate) fn meetings(op: CollectiveRef, rank_count: usize) -> Result<Vec<Vec<usize>>> {
    let (groups, pairs) = groups(op);
    let mut groups = if pairs.is_empty() { groups.to_vec() } else { connected(pairs) };
    groups.retain(|group| !group.is_empty());
    let mut taken = vec![false; rank_count];
    for &rank in groups.iter().flatten() {
        if taken.get(rank).is_none_or(|&taken| taken) {
            return Err(Diagnostic::new("E400", format!("{} has wrong groups", kind(op).name()))
                .expected(format!("each rank below {rank_count} at most once"))
                .found(format!("{groups:?}")));
        }
        taken[rank] = true;
    }
    groups.extend((0..rank_count).filter(|&rank| !taken[rank]).map(|rank| vec![rank]));
    Ok(groups)
}

/// The groups or the (source, target) pairs of a collective op. Ops that agree in both have equal
/// [`meetings`].
pub(crate) fn groups(op: CollectiveRef<'_>) -> (&[Vec<usize>], &[(usize, usize)]) {
    match op {
        CollectiveRef::AllReduce(AllReduce { groups, .. })
        | CollectiveRef::AllGather(AllGather { groups, .. })
        | CollectiveRef::ReduceScatter(ReduceScatter { groups, .. })
        | CollectiveRef::AllToAll(AllToAll { groups, .. })
        | CollectiveRef::CollectiveBroadcast(CollectiveBroadcast { groups }) => (groups, &[]),
        CollectiveRef::CollectivePermute(CollectivePermute { pairs }) => (&[], pairs),
    }
}

/// The connected sets of ranks of a list of pairs, each ascending.
fn connected(pairs: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for &(a, b) in pairs {
        let (mut joined, rest): (Vec<_>, Vec<_>) =
            sets.into_iter().partition(|set| set.contains(&a) || set.contains(&b));
        joined.push(vec![a, b]);
        let mut set = joined.concat();
        set.sort_unstable();
        set.dedup();
        sets = rest;
        sets.push(set);
    }
    sets.sort();
    sets
}

/// The kind of a collective op.
pub(crate) fn kind(op: CollectiveRef) -> CollectiveKind {
    match op {
        CollectiveRef::AllReduce(_) => CollectiveKind::AllReduce,
        CollectiveRef::AllGather(_) => CollectiveKind::AllGather,
        CollectiveRef::ReduceScatter(_) => CollectiveKind::ReduceScatter,
        CollectiveRef::AllToAll(_) => CollectiveKind::AllToAll,
        CollectiveRef::CollectivePermute(_) => CollectiveKind::CollectivePermute,
        CollectiveRef::CollectiveBroadcast(_) => CollectiveKind::CollectiveBroadcast,
    }
}

/// What a collective op does among these members, one of its [`meetings`]. The op and the type of
/// its operand are those of one member.
pub(crate) fn exchange(op: CollectiveRef, members: &[usize], operand: &TensorType) -> CollectiveOp {
    // The op states the extents for its groups; a rank in no group has only its own extent.
    let extents = |dim: usize, extents: &[usize]| {
        if members.len() == 1 { vec![operand.shape[dim]] } else { extents.to_vec() }
    };
    let is_in = |groups: &[Vec<usize>]| groups.iter().flatten().any(|r| members.contains(r));
    match op {
        CollectiveRef::AllReduce(op) => CollectiveOp::AllReduce { combiner: op.combiner },
        CollectiveRef::AllGather(op) => {
            CollectiveOp::AllGather { dim: op.dim, extents: extents(op.dim, &op.extents) }
        }
        CollectiveRef::ReduceScatter(op) => {
            let extents = extents(op.dim, &op.extents);
            CollectiveOp::ReduceScatter { combiner: op.combiner, dim: op.dim, extents }
        }
        CollectiveRef::AllToAll(op) => CollectiveOp::AllToAll {
            split_dim: op.split_dim,
            concat_dim: op.concat_dim,
            split_extents: extents(op.split_dim, &op.split_extents),
            concat_extents: extents(op.concat_dim, &op.concat_extents),
        },
        CollectiveRef::CollectivePermute(op) => {
            let member = |rank: usize| members.iter().position(|&m| m == rank);
            let pairs = op.pairs.iter().filter_map(|&(a, b)| Some((member(a)?, member(b)?))).collect();
            CollectiveOp::CollectivePermute { pairs }
        }
        CollectiveRef::CollectiveBroadcast(op) => {
            CollectiveOp::CollectiveBroadcast { has_root: is_in(&op.groups) }
        }
    }
}

impl CollectiveOp {
    /// Computes all outputs from all members' inputs. This slow form defines the operation.
    pub(crate) fn apply(&self, inputs: &[Literal], outputs: &[TensorType]) -> Result<Vec<Literal>> {
        match self {
            CollectiveOp::AllReduce { combiner } => {
                let sum = combine(*combiner, inputs)?;
                Ok(vec![sum; outputs.len()])
            }
            CollectiveOp::ReduceScatter { combiner, dim, extents } => {
                let sum = combine(*combiner, inputs)?;
                Ok(pieces(&sum, *dim, extents))
            }
            CollectiveOp::AllGather { dim, .. } => {
                Ok(outputs.iter().map(|ty| join(inputs.iter(), *dim, ty)).collect())
            }
            CollectiveOp::AllToAll { split_dim, concat_dim, split_extents, .. } => {
                let cut: Vec<Vec<Literal>> =
                    inputs.iter().map(|input| pieces(input, *split_dim, split_extents)).collect();
                let received =
                    |(to, ty): (usize, &TensorType)| join(cut.iter().map(|p| &p[to]), *concat_dim, ty);
                Ok(outputs.iter().enumerate().map(received).collect())
            }
            CollectiveOp::CollectivePermute { pairs } => {
                let mut results: Vec<Literal> = outputs.iter().map(Literal::zeros).collect();
                for &(from, to) in pairs {
                    results[to] = inputs[from].clone();
                }
                Ok(results)
            }
            CollectiveOp::CollectiveBroadcast { has_root: true } => {
                Ok(vec![inputs[0].clone(); outputs.len()])
            }
            CollectiveOp::CollectiveBroadcast { has_root: false } => {
                Ok(outputs.iter().map(Literal::zeros).collect())
            }
            CollectiveOp::Send { boxes } => {
                let mut results: Vec<Literal> = outputs.iter().map(Literal::zeros).collect();
                for moved in boxes.iter() {
                    let sent = inputs[moved.source].window(&moved.source_start, &moved.extents);
                    results[moved.target].set_window(&moved.target_start, &sent);
                }
                Ok(results)
            }
        }
    }
}

/// Combines literals of one type from the left; 16-bit floats accumulate in f32.
fn combine(combiner: Combiner, inputs: &[Literal]) -> Result<Literal> {
    let kind = match combiner {
        Combiner::Sum => BinaryKind::Add,
        Combiner::Prod => BinaryKind::Multiply,
        Combiner::Max => BinaryKind::Maximum,
        Combiner::Min => BinaryKind::Minimum,
        Combiner::And => BinaryKind::And,
        Combiner::Or => BinaryKind::Or,
    };
    let ty = &inputs[0].ty;
    let wide = if matches!(ty.dtype, DType::F16 | DType::BF16) { DType::F32 } else { ty.dtype };
    let wide = ty.with_dtype(wide);
    let convert = |value: &Literal, to: &TensorType| {
        if &value.ty == to { value.clone() } else { Literal::from_f64(to, value.to_f64().into_iter()) }
    };
    let mut sum = convert(&inputs[0], &wide);
    for input in &inputs[1..] {
        let result =
            Binary { kind }.evaluate(&[&sum, &convert(input, &wide)], std::slice::from_ref(&wide))?;
        sum = result.into_iter().next().expect("a binary op has one result");
    }
    Ok(convert(&sum, ty))
}

fn pieces(value: &Literal, dim: usize, extents: &[usize]) -> Vec<Literal> {
    let mut offset = vec![0; value.ty.rank()];
    let mut shape = value.ty.shape.clone();
    let cut = |&extent: &usize| {
        shape[dim] = extent;
        let piece = value.window(&offset, &shape);
        offset[dim] += extent;
        piece
    };
    extents.iter().map(cut).collect()
}

fn join<'a>(pieces: impl Iterator<Item = &'a Literal>, dim: usize, ty: &TensorType) -> Literal {
    let mut result = Literal::zeros(ty);
    let mut offset = vec![0; ty.rank()];
    for piece in pieces {
        result.set_window(&offset, piece);
        offset[dim] += piece.ty.shape[dim];
    }
    result
}
