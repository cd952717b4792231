//! Combination over sliding windows.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use super::reduce::Reducer;

/// Operands (inputs.., initial values..); combines each window.
#[derive(Clone, PartialEq, Debug)]
pub struct ReduceWindow {
    /// Extent of the window in each dimension.
    pub window: Vec<usize>,
    /// Step between windows.
    pub strides: Vec<usize>,
    /// Dilation of the input.
    pub base_dilation: Vec<usize>,
    /// Dilation of the window.
    pub window_dilation: Vec<usize>,
    /// (low, high) padding of each dimension.
    pub padding: Vec<(i64, i64)>,
    /// The combiner or body.
    pub reducer: Reducer,
}

impl Operation for ReduceWindow {
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
