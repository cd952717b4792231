//! Windows combined into computed indices.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use super::reduce::Reducer;

/// The dimension numbers of StableHLO's `scatter`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScatterDims {
    /// Update dimensions that run over a window.
    pub update_window_dims: Vec<usize>,
    /// Operand dimensions of window extent 1 that the updates lack.
    pub inserted_window_dims: Vec<usize>,
    /// Operand dimensions paired with `scatter_indices_batching_dims`.
    pub input_batching_dims: Vec<usize>,
    /// Index dimensions paired with `input_batching_dims`.
    pub scatter_indices_batching_dims: Vec<usize>,
    /// Operand dimension that each component of an index vector addresses.
    pub scatter_dims_to_operand_dims: Vec<usize>,
    /// Dimension of the indices that holds the index vector.
    pub index_vector_dim: usize,
}

/// What happens to an element that an update meets.
#[derive(Clone, PartialEq, Debug)]
pub enum Update {
    /// The update replaces it.
    Assign,
    /// Both are combined.
    Combine(Reducer),
}

/// Operands (operand, indices, updates). Updates that fall outside are dropped, others applied in index order.
#[derive(Clone, PartialEq, Debug)]
pub struct Scatter {
    /// Dimension numbers.
    pub dims: ScatterDims,
    /// How an update meets the element there.
    pub update: Update,
    /// The caller promises ascending indices.
    pub indices_are_sorted: bool,
    /// The caller promises that no index occurs twice.
    pub unique_indices: bool,
}

impl Operation for Scatter {
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
