//! Layouts asked for inside a graph, and bodies written for one shard.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use crate::graph::Annotation;
use partita_mesh::Sharding;

/// The identity; the result is asked to have a layout. Its gradient asks the same of the cotangent.
#[derive(Clone, PartialEq, Debug)]
pub struct ShardingConstraint {
    /// The layout.
    pub annotation: Annotation,
}

/// A body that sees one shard of each operand over the manual axes and may hold explicit collectives over them.
#[derive(Clone, PartialEq, Debug)]
pub struct ManualComputation {
    /// Index into the graph's meshes.
    pub mesh: usize,
    /// Layout of each operand; only manual axes count.
    pub in_shardings: Vec<Sharding>,
    /// Layout of each result; only manual axes count.
    pub out_shardings: Vec<Sharding>,
    /// Names of the axes the body handles itself.
    pub manual_axes: Vec<String>,
    /// Global types of the results.
    pub result_types: Vec<TensorType>,
    /// The body over local shapes.
    pub body: Box<Graph>,
}

impl Operation for ShardingConstraint {
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

impl Operation for ManualComputation {
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
