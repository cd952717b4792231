//! Composites: named subgraphs with a decomposition into primitives, which always says what they mean.
//!
//! A composite may have a fast kernel (found by name when a program is lowered), a gradient of its own (another
//! composite) and a rule of its own; without these, the gradient and the rule are derived from the decomposition.

use crate::graph::Graph;
use crate::rule::Rule;
use indexmap::IndexMap;
use partita_base::DType;
use std::sync::Arc;

/// A composite attribute.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Debug)]
pub enum Attribute {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Ints(Vec<i64>),
    DType(DType),
}

/// Attributes by name, in order.
pub type Attributes = IndexMap<String, Attribute>;

/// How a composite is differentiated.
#[derive(Clone, PartialEq, Debug)]
pub enum CompositeGradient {
    /// Reverse mode through the decomposition, outlined again as the composite `<name>.vjp` over
    /// (operands.., cotangents..).
    Derived,
    /// Inline the decomposition and differentiate what is there.
    Inline,
}

/// A composite's meaning and its answers.
#[derive(Clone, PartialEq, Debug)]
pub struct CompositeDefinition {
    /// `partita.softmax`.
    pub name: String,
    /// What it computes.
    pub decomposition: Graph,
    /// How it is differentiated.
    pub gradient: CompositeGradient,
    /// A rule of its own; `None` derives one from the decomposition.
    pub rule: Option<Rule>,
}

/// The composites known to a compilation, by name: consulted by the parser, the schedule and lowering. A value,
/// never a global.
#[derive(Clone, Default, Debug)]
pub struct Registry {
    /// Builders of definitions for composites met in text: from attributes and operand types.
    pub known: IndexMap<String, Arc<CompositeDefinition>>,
}
