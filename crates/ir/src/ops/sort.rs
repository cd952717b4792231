//! Sorting along a dimension.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

/// Sorts all operands together along `dim` by a comparator over (a_0, b_0, a_1, b_1, ...) scalars.
#[derive(Clone, PartialEq, Debug)]
pub struct Sort {
    /// The dimension.
    pub dim: usize,
    /// Keep the order of equals.
    pub is_stable: bool,
    /// A graph to an i1 scalar: whether a comes before b.
    pub comparator: Box<Graph>,
}

impl Operation for Sort {
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
