//! The trait that every op implements, and the macro that turns the list of ops into code.

use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::ops::Groups;
use crate::rule::{FactorId, Rule};
use crate::text::OpPrinter;
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, Result};

pub use crate::ops::Op;

/// Work of one op application.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Floating-point (or integer) operations.
    pub flops: f64,
    /// Bytes read and written, each operand and result once.
    pub bytes: f64,
}

/// The arguments of an op's gradient: it builds cotangents of the operands from cotangents of the
/// results.
pub struct GradientContext<'a> {
    /// The builder for the gradient's nodes.
    pub builder: &'a mut GraphBuilder,
    /// The op's operands.
    pub operands: &'a [ValueId],
    /// The op's results.
    pub results: &'a [ValueId],
    /// The cotangent of each result; `None` means zero.
    pub cotangents: &'a [Option<ValueId>],
    /// For each operand, whether its cotangent is needed.
    pub wanted: &'a [bool],
}

/// The arguments of the local rewriting of an op for one rank's shards. The operands already have
/// the layout that the rule requires; the op emits nodes into the local graph and returns its local
/// results.
pub trait LocalContext {
    /// The local graph.
    fn builder(&mut self) -> &mut GraphBuilder;
    /// The local operands.
    fn operands(&self) -> &[ValueId];
    /// The type of an operand of the global op.
    fn global_operand(&self, operand: usize) -> &TensorType;
    /// The type of a result of the global op.
    fn global_result(&self, result: usize) -> &TensorType;
    /// The type this rank's shard of a result must have.
    fn local_result(&self, result: usize) -> TensorType;
    /// Whether the local graph is that of a rank. A piece of a batch is sharded later: an op that would become its exchanges
    /// with other ranks stays what it is.
    fn is_of_rank(&self) -> bool {
        true
    }
    /// Whether any mesh axis is assigned to the factor.
    fn is_sharded(&self, factor: FactorId) -> bool;
    /// The offset of this rank's shard of an operand's dimension in the global tensor: an i64 scalar.
    fn operand_offset(&mut self, operand: usize, dim: usize) -> Result<ValueId>;
    /// The offset of this rank's shard of a result's dimension in the global tensor: an i64 scalar.
    fn result_offset(&mut self, result: usize, dim: usize) -> Result<ValueId>;
    /// An i1 scalar: whether this rank is the first along all axes assigned to these factors (the
    /// leader). If results are summed over ranks, only the leader may contribute terms that count
    /// once.
    fn leader(&mut self, factors: &[FactorId]) -> Result<ValueId>;
    /// The ranks among which a factor is sharded; `None` if each holds all of it.
    fn peers(&mut self, _factor: FactorId) -> Option<Peers> {
        None
    }
    /// The ranks among which a dimension of an operand is sharded along a factor, with the extents of that operand.
    fn operand_peers(&mut self, _factor: FactorId, _operand: usize, _dim: usize) -> Option<Peers> {
        None
    }
    /// The extents of the shards of a dimension of a result, in the order of the [`Peers`] of its factor.
    fn result_extents(&mut self, _result: usize, _dim: usize) -> Vec<usize> {
        Vec::new()
    }
    /// The entry of a list at this rank's position among the [`Peers`] of a factor, as a number in the form of the op: ranks
    /// with different entries have local graphs of their own.
    fn own_entry(&mut self, _factor: FactorId, entries: &[usize]) -> Result<usize> {
        Ok(entries[0])
    }
    /// What an earlier op received for this piece of a halo.
    fn received(&mut self, _piece: &HaloPiece) -> Option<ValueId> {
        None
    }
    /// Remembers what this op received for a piece of a halo.
    fn remember(&mut self, _piece: HaloPiece, _received: ValueId) {}
    /// The entry of a list at this rank's position among the [`Peers`] of a factor: an i64 scalar.
    fn by_position(&mut self, _factor: FactorId, entries: &[i64]) -> Result<ValueId> {
        Ok(self.builder().scalar(DType::I64, entries[0] as f64))
    }
}

/// What each rank takes from the rank at some distance, of one dimension of one local value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HaloPiece {
    /// The shards.
    pub value: ValueId,
    /// The sharded dimension.
    pub dim: usize,
    /// How many ranks away the shard is, by position.
    pub distance: i64,
    /// The first element that is taken of it and their number, by position of the rank that takes.
    pub taken: Vec<(usize, usize)>,
    /// The element beyond the first and the last rank; `None` for zero.
    pub fill: Option<ValueId>,
}

/// The ranks among which a factor is sharded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peers {
    /// Groups of ranks that share the factor, each in the order of their shards.
    pub groups: Groups,
    /// The extent of each shard, in that order.
    pub extents: Vec<usize>,
}

/// One rank's view of a collective in the lock-step interpreter: its op, operands and result types.
pub struct RankCall<'a> {
    /// The rank's op (attributes may differ by rank class).
    pub op: &'a Op,
    /// Its operands.
    pub operands: Vec<&'a Literal>,
    /// Its result types.
    pub results: Vec<TensorType>,
}

/// The interface of an op. One implementation per op, in one file of `ops/`.
pub trait Operation {
    /// The name in text: `stablehlo.add`.
    fn name(&self) -> &str;

    /// The name after the first dot: `add`.
    fn short_name(&self) -> &str {
        self.name().split_once('.').map_or(self.name(), |(_, short)| short)
    }

    /// Result types from operand types. Diagnostics E101 to E119.
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>>;

    /// The factor rule for these types (already inferred, so valid).
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule;

    /// Work on these types.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|t| t.bytes()).sum();
        let flops: usize = results.iter().map(|t| t.element_count()).sum();
        Cost { flops: flops as f64, bytes: bytes as f64 }
    }

    /// Cotangents of the operands; `None` for zero or if not `wanted`. E120 if the op has no
    /// gradient.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>>;

    /// Whether the cotangents of all operands come from one node, whose work they share. If not, those of weights get nodes
    /// of their own, which can come later.
    fn has_one_gradient(&self) -> bool {
        false
    }

    /// The results for these operands: the reference semantics, slow and simple.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>>;

    /// The results on every rank at once. Only collectives look across ranks.
    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        ranks.iter().map(|rank| rank.op.evaluate(&rank.operands, &rank.results)).collect()
    }

    /// Emits this op for one rank's shards. Ops whose attributes hold sizes, offsets or indices
    /// adjust them.
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>>;

    /// The traits of the op for lowering and execution. `node` is its application in `graph`.
    fn traits(&self, graph: &Graph, node: &Node) -> Traits<'_>;

    /// The element type in which it computes under [mixed precision](crate::precision).
    fn precision(&self) -> Precision {
        Precision::Operands
    }

    /// A view op with a result of this shape, for a part of its operand; `None` if that needs
    /// another op.
    fn onto_shape(&self, _shape: &[usize]) -> Option<Op> {
        None
    }

    /// Whether the other op, on its operands, does the same to tensors of other extents and element
    /// types. `None`: only equal ops do.
    fn is_alike(&self, _own: &[&TensorType], _other: &Op, _others: &[&TensorType]) -> Option<bool> {
        None
    }

    /// (operand, result) positions of results that are mostly the unchanged operand, so that the op
    /// may run in place.
    fn overwrites(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Graphs inside the op: loop bodies, combiners, decompositions.
    fn regions(&self) -> Vec<&Graph> {
        Vec::new()
    }

    /// Whether this is a collective.
    fn is_collective(&self) -> bool {
        false
    }
}

/// The text form of an op, from its name to its types. The matching parser is in the same file
/// (`ops::parsers`).
pub(crate) trait TextForm {
    /// Appends the text of the printer's node.
    fn print(&self, printer: &mut OpPrinter);
}

/// Generates from the list of ops in `ops/mod.rs` everything that must know all ops: modules,
/// exports, the enum `Op`, its implementations of [`Operation`] and [`TextForm`], and the parser
/// table. Each line names a file, its ops, and the other types it exports.
macro_rules! ops {
    ($(
        $module:ident $(read by $parsers:ident)? {
            $($variant:ident: $doc:literal),+ $(,)? $(; also $($extra:ident),+)?
        }
    )*) => {
        $(mod $module;)*
        $(pub use $module::{$($variant),+ $(, $($extra),+)?};)*

        /// Every op.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Op { $($(#[doc = $doc] $variant($variant)),+),* }

        impl Op {
            /// The names of all variants.
            pub const VARIANTS: &'static [&'static str] = &[$($(stringify!($variant)),+),*];

            /// The name of this variant.
            pub fn variant(&self) -> &'static str {
                match self { $($(Op::$variant(_) => stringify!($variant)),+),* }
            }
        }

        $($(impl From<$variant> for Op {
            fn from(op: $variant) -> Op { Op::$variant(op) }
        })+)*

        /// The parser of each op, by name.
        pub(crate) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
            std::iter::empty()$(.chain(ops!(@parsers $module $($parsers)?)))*
        }

        impl TextForm for Op {
            fn print(&self, printer: &mut crate::text::OpPrinter) {
                ops!(@each [$($($variant)+)*] self, op => op.print(printer))
            }
        }

        impl Operation for Op {
            fn name(&self) -> &str {
                ops!(@each [$($($variant)+)*] self, op => op.name())
            }
            fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
                ops!(@each [$($($variant)+)*] self, op => op.infer(operands))
            }
            fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
                ops!(@each [$($($variant)+)*] self, op => op.rule(operands, results))
            }
            fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
                ops!(@each [$($($variant)+)*] self, op => op.cost(operands, results))
            }
            fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
                ops!(@each [$($($variant)+)*] self, op => op.gradient(context))
            }
            fn has_one_gradient(&self) -> bool {
                ops!(@each [$($($variant)+)*] self, op => op.has_one_gradient())
            }
            fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
                ops!(@each [$($($variant)+)*] self, op => op.evaluate(operands, results))
            }
            fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
                ops!(@each [$($($variant)+)*] self, op => op.evaluate_ranks(ranks))
            }
            fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
                ops!(@each [$($($variant)+)*] self, op => op.localise(context))
            }
            fn traits(&self, graph: &Graph, node: &Node) -> Traits<'_> {
                ops!(@each [$($($variant)+)*] self, op => op.traits(graph, node))
            }
            fn precision(&self) -> Precision {
                ops!(@each [$($($variant)+)*] self, op => op.precision())
            }
            fn onto_shape(&self, shape: &[usize]) -> Option<Op> {
                ops!(@each [$($($variant)+)*] self, op => op.onto_shape(shape))
            }
            fn is_alike(&self, own: &[&TensorType], other: &Op, others: &[&TensorType]) -> Option<bool> {
                ops!(@each [$($($variant)+)*] self, op => op.is_alike(own, other, others))
            }
            fn overwrites(&self) -> &'static [(usize, usize)] {
                ops!(@each [$($($variant)+)*] self, op => op.overwrites())
            }
            fn regions(&self) -> Vec<&Graph> {
                ops!(@each [$($($variant)+)*] self, op => op.regions())
            }
            fn is_collective(&self) -> bool {
                ops!(@each [$($($variant)+)*] self, op => op.is_collective())
            }
        }
    };
    (@parsers $module:ident) => { $module::PARSERS.iter().copied() };
    (@parsers $module:ident $parsers:ident) => { $module::$parsers() };
    (@each [$($variant:ident)+] $self:ident, $op:ident => $answer:expr) => {
        match $self { $(Op::$variant($op) => $answer),+ }
    };
}
pub(crate) use ops;

/// Emits `op` on the local operands with the local types of its `results` results: for ops whose
/// attributes hold for the shards too.
pub(crate) fn localise_same(
    op: impl Into<Op>,
    context: &mut dyn LocalContext,
    results: usize,
) -> Result<Vec<ValueId>> {
    let operands = context.operands().to_vec();
    let types = (0..results).map(|result| context.local_result(result)).collect();
    Ok(context.builder().push_typed(op, &operands, types))
}
