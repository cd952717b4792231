//! The ops, one file per op or small family: semantics, type inference, factor rule, cost,
//! gradient, reference evaluation, local rewriting, text form and tests.

pub(crate) mod checks;

use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, RankCall, TextForm, ops};
use crate::rule::Rule;
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::Result;

/// Parses what follows an op's name, appends its node and returns its results.
pub(crate) type ParseOp = fn(&mut crate::text::OpParser) -> Result<Vec<ValueId>>;

// The only list of ops. A new op needs its file and a line here.
ops! {
    elementwise read by parsers {
        Unary: "Elementwise function of one operand.",
        Binary: "Elementwise function of two operands.";
        also BinaryKind, UnaryKind
    }
    compare {
        Compare: "Elementwise comparison.",
        Select: "Elementwise choice.",
        Clamp: "Elementwise limits.";
        also CompareType, Direction
    }
    convert {
        Convert: "Element type conversion.",
        BitcastConvert: "Reinterpretation of bits.",
    }
    constant { Constant: "A literal.", Iota: "Indices along a dimension." }
    rank_constant { RankConstant: "A literal for each rank of a class." }
    shape {
        BroadcastInDim: "Repetition along new dimensions.",
        Reshape: "Same elements, other shape.",
        Transpose: "Permutation of dimensions.",
        Reverse: "Order along dimensions reversed.",
    }
    slice {
        Slice: "A static window.",
        Concatenate: "Concatenation along a dimension.",
        Pad: "Edges added or removed.",
    }
    dynamic_slice {
        DynamicSlice: "A window at a computed place.",
        DynamicUpdateSlice: "A window replaced at a computed place.",
    }
    dot_general { DotGeneral: "Generalised matrix product." }
    reduce { Reduce: "Combination along dimensions."; also Reducer }
    reduce_window { ReduceWindow: "Combination over sliding windows." }
    gather { Gather: "Windows collected at given indices."; also GatherDims }
    scatter { Scatter: "Windows combined into given indices."; also ScatterDims, Update }
    sort { Sort: "Sorting along a dimension." }
    control {
        While: "A loop.",
        Case: "A choice among branches.",
        OptimizationBarrier: "Identity that orders computation.",
    }
    collectives read by parsers {
        AllReduce: "Combination across ranks.",
        AllGather: "Concatenation across ranks.",
        ReduceScatter: "Combination across ranks, each keeping a shard.",
        AllToAll: "Exchange of shards.",
        CollectivePermute: "Point-to-point transfer of values.",
        CollectiveBroadcast: "One rank's value for all.",
        PartitionId: "This rank's number.";
        also Groups
    }
    manual {
        ShardingConstraint: "A layout requested in the middle of a graph.",
        ManualComputation: "A body written for one shard over named axes.",
    }
    composite { Composite: "A named subgraph." }
}

/// The names of all ops in text: `stablehlo.add`.
pub fn names() -> impl Iterator<Item = &'static str> {
    parsers().map(|(name, _)| name)
}

/// StableHLO and CHLO ops that are not supported.
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
