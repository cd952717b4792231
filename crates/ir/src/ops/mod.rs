//! The ops, one file per op or tight family: semantics, type inference, factor rule, cost, gradient, reference
//! evaluation, local rewriting, text form and tests together.

pub(crate) mod checks;
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
mod rank_constant;
mod reduce;
mod reduce_window;
mod scatter;
mod shape;
mod slice;
mod sort;

pub use collectives::{
    AllGather, AllReduce, AllToAll, CollectiveBroadcast, CollectivePermute, Groups, PartitionId,
    ReduceScatter,
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
pub use rank_constant::RankConstant;
pub use reduce::{Reduce, Reducer};
pub use reduce_window::ReduceWindow;
pub use scatter::{Scatter, ScatterDims, Update};
pub use shape::{BroadcastInDim, Reshape, Reverse, Transpose};
pub use slice::{Concatenate, Pad, Slice};
pub use sort::Sort;

// ---- text ----

/// Reads what follows an op's name and appends its node; returns its results.
pub(crate) type ParseOp = fn(&mut crate::text::OpParser) -> partita_base::Result<Vec<crate::graph::ValueId>>;

/// How each op of the language is read, by name.
pub(crate) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    let tables = [
        compare::PARSERS,
        composite::PARSERS,
        constant::PARSERS,
        control::PARSERS,
        convert::PARSERS,
        dot_general::PARSERS,
        dynamic_slice::PARSERS,
        gather::PARSERS,
        manual::PARSERS,
        rank_constant::PARSERS,
        reduce::PARSERS,
        reduce_window::PARSERS,
        scatter::PARSERS,
        shape::PARSERS,
        slice::PARSERS,
        sort::PARSERS,
    ];
    tables.into_iter().flatten().copied().chain(collectives::parsers()).chain(elementwise::parsers())
}

/// The names of all ops in text: `stablehlo.add`.
pub fn names() -> impl Iterator<Item = &'static str> {
    parsers().map(|(name, _)| name)
}

/// Ops of StableHLO and CHLO that this language leaves out.
pub(crate) const UNSUPPORTED: &[&str] = &[
    "chlo.acos",
    "chlo.acosh",
    "chlo.asin",
    "chlo.asinh",
    "chlo.atan",
    "chlo.atanh",
    "chlo.bessel_i1e",
    "chlo.conj",
    "chlo.cosh",
    "chlo.digamma",
    "chlo.is_inf",
    "chlo.lgamma",
    "chlo.next_after",
    "chlo.polygamma",
    "chlo.ragged_dot",
    "chlo.sinh",
    "chlo.tan",
    "chlo.top_k",
    "chlo.zeta",
    "sdy.all_gather",
    "sdy.all_reduce",
    "sdy.all_slice",
    "sdy.all_to_all",
    "sdy.collective_permute",
    "sdy.named_computation",
    "sdy.propagation_barrier",
    "sdy.reduce_scatter",
    "sdy.reshard",
    "sdy.sharding_group",
    "stablehlo.after_all",
    "stablehlo.batch_norm_grad",
    "stablehlo.batch_norm_inference",
    "stablehlo.batch_norm_training",
    "stablehlo.broadcast",
    "stablehlo.cholesky",
    "stablehlo.complex",
    "stablehlo.convolution",
    "stablehlo.count_leading_zeros",
    "stablehlo.create_token",
    "stablehlo.dot",
    "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.dynamic_conv",
    "stablehlo.dynamic_gather",
    "stablehlo.dynamic_iota",
    "stablehlo.dynamic_pad",
    "stablehlo.dynamic_reshape",
    "stablehlo.einsum",
    "stablehlo.fft",
    "stablehlo.get_dimension_size",
    "stablehlo.get_tuple_element",
    "stablehlo.imag",
    "stablehlo.infeed",
    "stablehlo.map",
    "stablehlo.outfeed",
    "stablehlo.real",
    "stablehlo.recv",
    "stablehlo.reduce_precision",
    "stablehlo.replica_id",
    "stablehlo.rng",
    "stablehlo.rng_bit_generator",
    "stablehlo.select_and_scatter",
    "stablehlo.send",
    "stablehlo.triangular_solve",
    "stablehlo.tuple",
    "stablehlo.uniform_dequantize",
    "stablehlo.uniform_quantize",
];
