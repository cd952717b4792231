//! Static windows, padding and joining.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

/// `result[i] = operand[start + i * stride]` for `start <= . < limit`.
#[derive(Clone, PartialEq, Debug)]
pub struct Slice {
    /// First index of each dimension.
    pub start: Vec<usize>,
    /// One past the last index of each dimension.
    pub limit: Vec<usize>,
    /// Step of each dimension, at least 1.
    pub stride: Vec<usize>,
}

/// Joins the operands along a dimension.
#[derive(Clone, PartialEq, Debug)]
pub struct Concatenate {
    /// The dimension.
    pub dim: usize,
}

/// Adds `low` and `high` elements of the padding value (operand 1) at the edges, `interior` ones between
/// elements; negative edges cut.
#[derive(Clone, PartialEq, Debug)]
pub struct Pad {
    /// Elements added before each dimension.
    pub low: Vec<i64>,
    /// Elements added after each dimension.
    pub high: Vec<i64>,
    /// Elements added between neighbours of each dimension.
    pub interior: Vec<usize>,
}

impl Operation for Slice {
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

impl Operation for Concatenate {
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

impl Operation for Pad {
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
