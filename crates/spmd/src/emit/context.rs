//! The context in which an op rewrites itself for the shards of one rank class.

use super::shards::Shards;
use super::steps::lookup;
use crate::assign::Assignment;
use partita_base::{DType, Result};
use partita_ir::{FactorId, Graph, GraphBuilder, LocalContext, NodeId, Peers, Rule, TensorType, ValueId};
use partita_mesh::{AxisList, AxisRef, DimSharding, Sharding};
use std::collections::BTreeMap;

/// What an op can access while it is rewritten for one class.
pub(super) struct NodeContext<'a> {
    pub(super) graph: &'a Graph,
    pub(super) node: NodeId,
    pub(super) rule: &'a Rule,
    pub(super) shards: &'a Shards<'a>,
    pub(super) assignment: &'a Assignment,
    pub(super) rank: usize,
    pub(super) builder: &'a mut GraphBuilder,
    pub(super) tables: &'a mut BTreeMap<(DType, usize), ValueId>,
    pub(super) operands: Vec<ValueId>,
    pub(super) local_results: Vec<TensorType>,
}

impl NodeContext<'_> {
    fn offset(&mut self, sharding: &Sharding, shape: &[usize], dim: usize) -> Result<ValueId> {
        let pieces = self.shards.pieces(&sharding.dims[dim], shape[dim]);
        lookup(self.builder, self.tables, DType::I64, &pieces.offsets)
    }

    /// The split of an operand's dimension of only this factor, and the size of the factor; `None` if it is not sharded.
    fn split_of(&self, factor: FactorId) -> Option<(DimSharding, usize)> {
        let operands = self.rule.operands.iter().zip(&self.assignment.required);
        let mut splits = operands.flat_map(|(dims, sharding)| dims.iter().zip(&sharding.dims));
        let (_, split) = splits.find(|(factors, split)| **factors == [factor] && !split.axes.is_empty())?;
        Some((split.clone(), self.rule.factors[factor].size))
    }
}

impl LocalContext for NodeContext<'_> {
    fn builder(&mut self) -> &mut GraphBuilder {
        self.builder
    }
    fn operands(&self) -> &[ValueId] {
        &self.operands
    }
    fn global_operand(&self, operand: usize) -> &TensorType {
        self.graph.ty(self.graph.node(self.node).operands[operand])
    }
    fn global_result(&self, result: usize) -> &TensorType {
        self.graph.ty(self.graph.node(self.node).results[result])
    }
    fn local_result(&self, result: usize) -> TensorType {
        self.local_results[result].clone()
    }
    fn is_sharded(&self, factor: FactorId) -> bool {
        debug_assert!(factor < self.rule.factors.len(), "rank {}", self.rank);
        !self.assignment.factors[factor].is_empty()
    }
    fn operand_offset(&mut self, operand: usize, dim: usize) -> Result<ValueId> {
        let shape = self.global_operand(operand).shape.clone();
        let sharding = self.assignment.required[operand].clone();
        self.offset(&sharding, &shape, dim)
    }
    fn result_offset(&mut self, result: usize, dim: usize) -> Result<ValueId> {
        let shape = self.global_result(result).shape.clone();
        let sharding = self.assignment.produced[result].clone();
        self.offset(&sharding, &shape, dim)
    }
    fn leader(&mut self, factors: &[FactorId]) -> Result<ValueId> {
        let axes: Vec<AxisRef> =
            factors.iter().flat_map(|&f| self.assignment.factors[f].iter().copied()).collect();
        lookup(self.builder, self.tables, DType::Bool, &self.shards.leads(&axes))
    }
    fn peers(&mut self, factor: FactorId) -> Option<Peers> {
        let (split, size) = self.split_of(factor)?;
        Some(Peers { groups: self.shards.groups(&split.axes), extents: split.extents(size) })
    }
    fn by_position(&mut self, factor: FactorId, entries: &[i64]) -> Result<ValueId> {
        let axes = self.split_of(factor).map_or(AxisList::new(), |(split, _)| split.axes);
        lookup(self.builder, self.tables, DType::I64, &self.shards.at_position(&axes, entries))
    }
}
