//! Op traits (as in MLIR): the kind of an op for lowering and execution. Code outside `ops/` asks
//! an op for its traits instead of listing ops by name, so that a new op is handled by what it
//! declares.

use crate::graph::{Graph, Node, ValueId};
use crate::op::{Op, Operation};
use crate::ops::{
    AllGather, AllReduce, AllToAll, BinaryKind, CollectiveBroadcast, CollectivePermute, Compare, Constant,
    RankConstant, ReduceScatter, UnaryKind,
};

/// The kind of one application of an op. A kind that none of these describes needs a new variant,
/// which every match on traits must then handle.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Traits<'a> {
    /// Computes each result element from the operand elements at the same position: may be fused.
    Elementwise(Elementwise<'a>),
    /// Known at compile time: a splat is cloned into regions, any other constant is a buffer that
    /// is filled once.
    Constant(ConstantOp<'a>),
    /// Counts along a dimension, without operands: cloned into fused regions, otherwise a region of
    /// its own.
    Iota {
        /// The dimension.
        dim: usize,
    },
    /// Moves no data: another view of the first operand.
    View(ViewMap<'a>),
    /// Ranks communicate.
    Collective(CollectiveRef<'a>),
    /// None of these: runs by itself, on a kernel if the device has one, otherwise on the
    /// interpreter.
    Opaque,
    /// Must be rewritten before a graph is lowered.
    Refused,
}

/// The element type in which an op computes under [mixed precision](crate::precision).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// The narrow type: a sum of products, whose terms are added in a wider type.
    Product,
    /// Its own type: in few bits its results would lose their meaning.
    Own,
    /// The widest type of its operands.
    Operands,
}

/// The function of an elementwise op that devices know by name. An op with another function is
/// opaque until it has a variant here.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Elementwise<'a> {
    /// A function of one operand.
    Unary(UnaryKind),
    /// A function of two operands.
    Binary(BinaryKind),
    /// A comparison.
    Compare(&'a Compare),
    /// The second operand if the first is true, else the third.
    Select,
    /// The second operand clamped to the limits in the first and the third.
    Clamp,
    /// The same number as another element type.
    Convert,
    /// The same bits as another element type.
    Bitcast,
}

/// A constant, of all ranks or of each rank of a class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ConstantOp<'a> {
    /// One literal on every rank.
    OfAll(&'a Constant),
    /// A literal for each rank of a class.
    ByRank(&'a RankConstant),
}

impl ConstantOp<'_> {
    /// The constant as an op.
    pub fn op(self) -> Op {
        match self {
            ConstantOp::OfAll(constant) => constant.clone().into(),
            ConstantOp::ByRank(constant) => constant.clone().into(),
        }
    }
}

/// Which element of its first operand a view shows at each position of its result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ViewMap<'a> {
    /// The element at the same position; with several operands, result `i` shows operand `i`.
    Identity,
    /// Operand dimension `i` is result dimension `dims[i]`; elements repeat if its extent is 1, and
    /// along other result dimensions.
    Broadcast {
        /// For each operand dimension, the result's.
        dims: &'a [usize],
    },
    /// The elements in row-major order under another shape.
    Reshape,
    /// Result dimension `i` is operand dimension `permutation[i]`.
    Transpose {
        /// For each result dimension, the operand's.
        permutation: &'a [usize],
    },
    /// Every `stride`-th element from `start` on, in each dimension.
    Slice {
        /// Of each dimension.
        start: &'a [usize],
        /// Of each dimension.
        stride: &'a [usize],
    },
    /// Some dimensions reversed.
    Reverse {
        /// These.
        dims: &'a [usize],
    },
    /// A window of these sizes at the start given by the other operands, which are known constants,
    /// clamped to fit.
    Window {
        /// Of each dimension.
        sizes: &'a [usize],
    },
}

macro_rules! collectives {
    ($($op:ident: $name:literal),* $(,)?) => {
        /// The operation of a collective.
        #[allow(missing_docs)]
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum CollectiveRef<'a> { $($op(&'a $op)),* }

        impl CollectiveRef<'_> {
            /// The short names of all collectives.
            pub const NAMES: &'static [&'static str] = &[$($name),*];
        }
    };
}

collectives! {
    AllReduce: "all_reduce",
    AllGather: "all_gather",
    ReduceScatter: "reduce_scatter",
    AllToAll: "all_to_all",
    CollectivePermute: "collective_permute",
    CollectiveBroadcast: "collective_broadcast",
}

impl<'a> Traits<'a> {
    /// Whether it is elementwise.
    pub fn is_elementwise(self) -> bool {
        matches!(self, Traits::Elementwise(_))
    }

    /// Whether it moves no data.
    pub fn is_view(self) -> bool {
        matches!(self, Traits::View(_))
    }

    /// The collective, if it is one.
    pub fn collective(self) -> Option<CollectiveRef<'a>> {
        if let Traits::Collective(op) = self { Some(op) } else { None }
    }

    /// Whether two ops are of one kind, whatever their attributes.
    pub fn is_like(self, other: Traits) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl Graph {
    /// The traits of a node of this graph.
    pub fn traits<'a>(&self, node: &'a Node) -> Traits<'a> {
        node.op.traits(self, node)
    }

    /// The constant of a value, the same on all ranks or one per rank of a class.
    pub fn constant(&self, value: ValueId) -> Option<ConstantOp<'_>> {
        let (definition, _) = self.value(value).definition?;
        if let Traits::Constant(constant) = self.traits(self.node(definition)) {
            Some(constant)
        } else {
            None
        }
    }
}
