//! The ops, one file per op or small family: semantics, type inference, factor rule, cost,
//! gradient, reference evaluation, local rewriting, text form and tests.

pub(crate) mod checks;
mod halo;

use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, RankCall, TextForm, ops};
use crate::rule::Rule;
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::Result;

/// Parses what follows an op's name, appends its node and returns its results.
pub(crate) type ParseOp = fn(&mut crate::text::OpParser) -> Result<Vec<ValueId>>;

// The only list of ops. A new op needs its file and a line here.
ops! {
    elementwise read by parsers {
        Unary: "Elementwise function of one operand.",
        Binary: "Elementwise function of two operands.",
        Special: "Elementwise function that devices do not know by name.";
        also BinaryKind, SpecialKind, UnaryKind
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
    select_and_scatter { SelectAndScatter: "Elements combined into the chosen one of each window." }
    convolution {
        Convolution: "Products with a sliding kernel.";
        also ConvolutionSide, ConvolutionWindow
    }
    gather { Gather: "Windows collected at given indices."; also GatherDims }
    scatter { Scatter: "Windows combined into given indices."; also ScatterDims, Update }
    sort { Sort: "Sorting along a dimension." }
    top_k { TopK: "The largest elements of each row." }
    reduce_precision { ReducePrecision: "Rounding to fewer bits." }
    fft { Fft: "Fourier transform."; also FftKind }
    linalg {
        Cholesky: "Triangular factor of a matrix.",
        TriangularSolve: "Solution of a triangular system.";
        also TransposeKind
    }
    rng_bit_generator { RngBitGenerator: "Random bits from a state." }
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
    manual read by parsers {
        ShardingConstraint: "A layout requested in the middle of a graph.",
        ManualComputation: "A body written for one shard over named axes.",
    }
    propagation_barrier { PropagationBarrier: "A limit to the propagation of layouts." }
    ring_attention {
        RingAttention: "Attention of a sequence that ranks share.",
        RingAttentionGradient: "Its gradients.";
        also RingOptions
    }
    experts {
        Experts: "Networks of experts, each for its own tokens.",
        ExpertsGradient: "Its gradients.",
    }
    composite {
        Composite: "A named subgraph.";
        also GROUPS
    }
}

/// The names of all ops in text: `stablehlo.add`.
pub fn names() -> impl Iterator<Item = &'static str> {
    parsers().map(|(name, _)| name)
}

/// StableHLO and CHLO ops that are not supported.
pub(crate) const UNSUPPORTED: &[&str] = &[
    "chlo.ragged_dot",
    "stablehlo.after_all",
    "stablehlo.batch_norm_grad",
    "stablehlo.batch_norm_inference",
    "stablehlo.batch_norm_training",
    "stablehlo.create_token",
    "stablehlo.einsum",
    "stablehlo.get_tuple_element",
    "stablehlo.infeed",
    "stablehlo.outfeed",
    "stablehlo.recv",
    "stablehlo.rng",
    "stablehlo.send",
    "stablehlo.tuple",
    "stablehlo.uniform_dequantize",
    "stablehlo.uniform_quantize",
];
