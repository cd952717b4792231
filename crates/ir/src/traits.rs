//! What ops are to those who lower and run them: MLIR calls such answers traits. Code outside `ops/` asks an op for its
//! traits instead of listing ops by name, so that a new op is treated as what it says it is.

use crate::graph::{Graph, Node, ValueId};
use crate::op::{Op, Operation};
use crate::ops::{
    AllGather, AllReduce, AllToAll, BinaryKind, CollectiveBroadcast, CollectivePermute, Compare, Constant,
    RankConstant, ReduceScatter, UnaryKind,
};

/// What one application of an op is. A kind that none of these describes is a new variant, which every place that
/// decides by traits then has to answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Traits<'a> {
    /// Computes each result element from the operand elements at the same place: may be fused.
    Elementwise(Elementwise<'a>),
    /// Known in advance: cloned into regions where it is one number, otherwise a buffer filled once.
    Constant(ConstantOp<'a>),
    /// Counts along a dimension, from nothing: cloned into fused regions, otherwise a region of its own.
    Iota {
        /// The dimension.
        dim: usize,
    },
    /// Moves nothing: another way to look at the first operand.
    View(ViewMap<'a>),
    /// Ranks exchange data.
    Collective(CollectiveRef<'a>),
    /// None of these: runs by itself, on a kernel where the device has one, otherwise on the interpreter.
    Opaque,
    /// Must have been rewritten before a graph is lowered.
    Refused,
}

/// What an elementwise op computes, of what devices know by name. An op that computes something else is opaque until a
/// variant is added for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Elementwise<'a> {
    /// A function of one operand.
    Unary(UnaryKind),
    /// A function of two operands.
    Binary(BinaryKind),
    /// A comparison.
    Compare(&'a Compare),
    /// The second operand where the first is true, else the third.
    Select,
    /// The second operand within the limits that the first and the third are.
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

/// Which element of its first operand a view shows at each place of its result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ViewMap<'a> {
    /// The element at the same place; of several operands, each result shows the one with its number.
    Identity,
    /// Operand dimension `i` is result dimension `dims[i]`; where its extent is 1, and along other result dimensions,
    /// elements repeat.
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
    /// Some dimensions backwards.
    Reverse {
        /// These.
        dims: &'a [usize],
    },
    /// A window of these sizes that begins where the other operands say, which are known constants, and is moved to lie
    /// within the first.
    Window {
        /// Of each dimension.
        sizes: &'a [usize],
    },
}

macro_rules! collectives {
    ($($op:ident: $name:literal),* $(,)?) => {
        /// What ranks do in a collective.
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

    /// Whether it moves nothing.
    pub fn is_view(self) -> bool {
        matches!(self, Traits::View(_))
    }

    /// The collective it is.
    pub fn collective(self) -> Option<CollectiveRef<'a>> {
        if let Traits::Collective(op) = self { Some(op) } else { None }
    }

    /// Whether two ops are of one kind, whatever their attributes.
    pub fn is_like(self, other: Traits) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl Graph {
    /// What a node of this graph is to those who lower and run it.
    pub fn traits<'a>(&self, node: &'a Node) -> Traits<'a> {
        node.op.traits(self, node)
    }

    /// The constant that a value is, of all ranks or of each rank of a class.
    pub fn constant(&self, value: ValueId) -> Option<ConstantOp<'_>> {
        let (definition, _) = self.value(value).definition?;
        if let Traits::Constant(constant) = self.traits(self.node(definition)) {
            Some(constant)
        } else {
            None
        }
    }
}
