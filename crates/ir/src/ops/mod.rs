//! The ops, one file per op or tight family: semantics, type inference, factor rule, cost, gradient, reference
//! evaluation, local rewriting, text form and tests together.

mod checks;
mod collectives;
mod compare;
mod composite;
mod constant;
mod control;
mod convert;
mod dot_general;
mod dynamic_slice;
mod elementwise;
mod gather;
mod manual;
mod reduce;
mod reduce_window;
mod scatter;
mod shape;
mod slice;
mod sort;

pub use collectives::{
    AllGather, AllReduce, AllToAll, CollectiveBroadcast, CollectivePermute, PartitionId, ReduceScatter,
};
pub use compare::{Clamp, Compare, CompareType, Direction, Select};
pub use composite::Composite;
pub use constant::{Constant, Iota};
pub use control::{Case, OptimizationBarrier, While};
pub use convert::{BitcastConvert, Convert};
pub use dot_general::DotGeneral;
pub use dynamic_slice::{DynamicSlice, DynamicUpdateSlice};
pub use elementwise::{Binary, BinaryKind, Unary, UnaryKind};
pub use gather::{Gather, GatherDims};
pub use manual::{ManualComputation, ShardingConstraint};
pub use reduce::{Reduce, Reducer};
pub use reduce_window::ReduceWindow;
pub use scatter::{Scatter, ScatterDims, Update};
pub use shape::{BroadcastInDim, Reshape, Reverse, Transpose};
pub use slice::{Concatenate, Pad, Slice};
pub use sort::Sort;
