//! A named subgraph with a meaning of its own.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use crate::composite::{Attributes, CompositeDefinition};
use std::sync::Arc;

/// An application of a composite: what it computes is its definition's decomposition, always.
#[derive(Clone, PartialEq, Debug)]
pub struct Composite {
    /// Attributes, as text shows them and kernels read them.
    pub attributes: Attributes,
    /// Name, decomposition, gradient and rule.
    pub definition: Arc<CompositeDefinition>,
}

impl Operation for Composite {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}
