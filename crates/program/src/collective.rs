//! Collectives as programs see them: one group of ranks, one or several tensors.

use partita_base::Id;
use partita_ir::{Phase, TensorType};
use partita_mesh::Combiner;

/// Names a [`Collective`] of a program set.
pub type CollectiveId = Id<Collective>;

/// What kind of exchange a collective is.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CollectiveKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    CollectivePermute,
    CollectiveBroadcast,
    /// From one rank to another.
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

/// What happens to one tensor, in terms of member positions, not ranks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Exchange {
    /// Every member gets the combination, in member order.
    AllReduce {
        /// How elements are combined.
        combiner: Combiner,
    },
    /// Every member gets all inputs joined along `dim` in member order.
    AllGather {
        /// The dimension joined along.
        dim: usize,
        /// What each member brings along it.
        extents: Vec<usize>,
    },
    /// Combined as in `AllReduce`; member `i` keeps the `i`-th piece along `dim`.
    ReduceScatter {
        /// How elements are combined.
        combiner: Combiner,
        /// The dimension cut.
        dim: usize,
        /// What each member keeps along it.
        extents: Vec<usize>,
    },
    /// Every member cuts its input along `split_dim`, gives piece `j` to member `j`, and joins what it gets along
    /// `concat_dim` in member order.
    AllToAll {
        /// The dimension cut.
        split_dim: usize,
        /// The dimension joined along.
        concat_dim: usize,
        /// Extent along `split_dim` of the piece for each member.
        split_extents: Vec<usize>,
        /// Extent along `concat_dim` that each member brings.
        concat_extents: Vec<usize>,
    },
    /// Whole tensors move from member to member; who gets nothing has zeros.
    CollectivePermute {
        /// (source, target), member positions.
        pairs: Vec<(usize, usize)>,
    },
    /// Every member gets the input of member 0; zeros where there is no root (a rank in no group).
    CollectiveBroadcast {
        /// Whether member 0 gives anything.
        has_root: bool,
    },
    /// The input of member 0 becomes the output of member 1.
    Send,
}

impl Exchange {
    /// Its kind.
    pub fn kind(&self) -> CollectiveKind {
        match self {
            Exchange::AllReduce { .. } => CollectiveKind::AllReduce,
            Exchange::AllGather { .. } => CollectiveKind::AllGather,
            Exchange::ReduceScatter { .. } => CollectiveKind::ReduceScatter,
            Exchange::AllToAll { .. } => CollectiveKind::AllToAll,
            Exchange::CollectivePermute { .. } => CollectiveKind::CollectivePermute,
            Exchange::CollectiveBroadcast { .. } => CollectiveKind::CollectiveBroadcast,
            Exchange::Send => CollectiveKind::Send,
        }
    }
}

/// One tensor of a collective's bucket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Transfer {
    /// What happens to it.
    pub exchange: Exchange,
    /// Per member, the type of its input.
    pub inputs: Vec<TensorType>,
    /// Per member, the type of its output.
    pub outputs: Vec<TensorType>,
    /// The value it makes: a name or module path, for messages.
    pub what: String,
}

/// One meeting of some ranks, in which several tensors of one kind may travel together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Collective {
    /// Kind of every transfer.
    pub kind: CollectiveKind,
    /// The ranks that take part. A *member* is a position in this list; reductions run in its order.
    pub members: Vec<usize>,
    /// The tensors.
    pub transfers: Vec<Transfer>,
    /// What messages call it: kind and module path.
    pub label: String,
    /// Part of the step.
    pub phase: Phase,
    /// Microbatch, where the step is cut into several.
    pub microbatch: Option<usize>,
    /// The meetings of the different groups of one collective have the same bucket number.
    pub bucket: usize,
}

impl Collective {
    /// The member position of a rank.
    pub fn member(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|&m| m == rank)
    }
}
