//! Windows collected at computed indices.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

/// The dimension numbers of StableHLO's `gather`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GatherDims {
    /// Result dimensions that run over a window.
    pub offset_dims: Vec<usize>,
    /// Operand dimensions of slice size 1 that disappear.
    pub collapsed_slice_dims: Vec<usize>,
    /// Operand dimensions paired with `start_indices_batching_dims`.
    pub operand_batching_dims: Vec<usize>,
    /// Index dimensions paired with `operand_batching_dims`.
    pub start_indices_batching_dims: Vec<usize>,
    /// Operand dimension that each component of an index vector addresses.
    pub start_index_map: Vec<usize>,
    /// Dimension of the indices that holds the index vector; its rank means an implicit trailing 1.
    pub index_vector_dim: usize,
}

/// Operands (operand, start_indices). Start indices are clamped so that each window fits.
#[derive(Clone, PartialEq, Debug)]
pub struct Gather {
    /// Dimension numbers.
    pub dims: GatherDims,
    /// Extents of the window, one per operand dimension.
    pub slice_sizes: Vec<usize>,
    /// The caller promises ascending indices.
    pub indices_are_sorted: bool,
}

impl Operation for Gather {
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
