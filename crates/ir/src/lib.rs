//! The tensor program: types, ops, graphs, their StableHLO text, autodiff and the reference
//! interpreter.
//!
//! Knows: what a program means and how each op may be split (its factor rule). Must not know: what
//! executes it, how layouts are chosen, or any file format but its own text.
#![forbid(unsafe_code)]

pub mod autodiff;
pub mod builder;
mod class_graph;
mod complex;
pub mod composite;
pub mod composites;
pub mod custom;
pub mod graph;
pub mod graph_edit;
mod inert;
pub mod interpret;
pub mod literal;
mod offload;
pub mod op;
pub mod ops;
pub mod outline;
mod pairs;
pub mod pass;
mod pieces;
pub mod port;
pub mod precision;
pub mod quantise;
pub mod remat;
pub mod rule;
pub mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod traits;
pub mod types;
mod unroll;
#[cfg(test)]
mod unroll_tests;
pub mod verify;

pub use builder::GraphBuilder;
pub use class_graph::ClassGraph;
pub use composite::{Attribute, Attributes, AttributesExt, CompositeDefinition, Registry};
pub use custom::{CustomOp, Named};
pub use graph::{Annotation, Graph, Location, Node, NodeId, Phase, Role, Value, ValueId};
pub use interpret::{evaluate, evaluate_ranks};
pub use literal::{Literal, Storage};
pub use offload::Offload;
pub use op::{Cost, GradientContext, HaloPiece, LocalContext, Op, Operation, Peers};
pub use pairs::{complex_as_pairs, has_complex};
pub use pieces::Pieces;
pub use port::{InputKind, OutputKind};
pub use quantise::F8;
pub use rule::{Factor, FactorId, FactorKind, LinearGroup, Rule, Window};
pub use target::Target;
pub use traits::{Precision, Traits};
pub use types::TensorType;
pub use unroll::unroll_loops;
pub use verify::runnable;
