//! Ops in which ranks exchange data. Groups are explicit lists of ranks; a rank in no group takes part alone.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use partita_mesh::Combiner;

/// Combines the operands of each group elementwise, in group order; every member gets the result.
#[derive(Clone, PartialEq, Debug)]
pub struct AllReduce {
    /// The groups, each in combination order.
    pub groups: Vec<Vec<usize>>,
    /// The combiner.
    pub combiner: Combiner,
}

/// Joins the operands of each group along `dim`, in group order.
#[derive(Clone, PartialEq, Debug)]
pub struct AllGather {
    /// The dimension joined along.
    pub dim: usize,
    /// The groups, each in joining order.
    pub groups: Vec<Vec<usize>>,
    /// The extent along `dim` that each member brings, by position in the group.
    pub extents: Vec<usize>,
}

/// Combines as [`AllReduce`]; member `i` keeps the `i`-th piece along `dim`.
#[derive(Clone, PartialEq, Debug)]
pub struct ReduceScatter {
    /// The dimension cut.
    pub dim: usize,
    /// The groups, each in combination order.
    pub groups: Vec<Vec<usize>>,
    /// The combiner.
    pub combiner: Combiner,
    /// The extent along `dim` that each member keeps.
    pub extents: Vec<usize>,
}

/// Every member cuts its operand along `split_dim`, sends piece `j` to member `j`, and joins what it receives
/// along `concat_dim`.
#[derive(Clone, PartialEq, Debug)]
pub struct AllToAll {
    /// The dimension cut.
    pub split_dim: usize,
    /// The dimension joined along.
    pub concat_dim: usize,
    /// The groups.
    pub groups: Vec<Vec<usize>>,
    /// The extent along `split_dim` of the piece for each member.
    pub split_extents: Vec<usize>,
    /// The extent along `concat_dim` that each member brings.
    pub concat_extents: Vec<usize>,
}

/// Sends whole values: each pair is (source, target); who receives nothing has zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectivePermute {
    /// The pairs; no target twice.
    pub pairs: Vec<(usize, usize)>,
}

/// The first member of each group gives its value to the others; who is in no group has zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectiveBroadcast {
    /// The groups.
    pub groups: Vec<Vec<usize>>,
}

/// This rank's number, a u32 scalar.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionId;

impl Operation for AllReduce {
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

impl Operation for AllGather {
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

impl Operation for ReduceScatter {
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

impl Operation for AllToAll {
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

impl Operation for CollectivePermute {
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

impl Operation for CollectiveBroadcast {
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

impl Operation for PartitionId {
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
