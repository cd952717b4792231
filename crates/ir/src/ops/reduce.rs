//! Combination along dimensions.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use partita_mesh::Combiner;

/// How elements are combined.
#[derive(Clone, PartialEq, Debug)]
pub enum Reducer {
    /// A known associative combiner (Sum, Max, Min, Prod, And, Or).
    Combiner(Combiner),
    /// A general body: a graph from (accumulators.., elements..) scalars to accumulators.
    Body(Box<Graph>),
}

/// Operands (inputs.., initial values..), both of the same count; combines along `dims`.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduce {
    /// The dimensions that disappear, ascending.
    pub dims: Vec<usize>,
    /// The combiner or body.
    pub reducer: Reducer,
}

impl Operation for Reduce {
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
