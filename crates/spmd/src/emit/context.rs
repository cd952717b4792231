//! The context in which an op rewrites itself for the shards of one rank class.

use super::shards::Shards;
use super::steps::lookup;
use crate::assign::Assignment;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{
    FactorId, Graph, GraphBuilder, HaloPiece, LocalContext, NodeId, Peers, Rule, TensorType, ValueId,
};
use partita_mesh::{AxisList, AxisRef, DimSharding, Sharding};
use std::collections::BTreeMap;

/// What an op can access while it is rewritten for one class.
pub(super) struct NodeContext<'a> {
    pub(super) graph: &'a Graph,
    pub(super) node: NodeId,
    pub(super) rule: &'a Rule,
    pub(super) shards: &'a Shards<'a>,
    pub(super) assignment: &'a Assignment,
    /// The members of this class.
    pub(super) members: &'a [usize],
    /// The parts of this class in which all members have one form of the op, if it has several.
    pub(super) parts: Option<Vec<Vec<usize>>>,
    pub(super) builder: &'a mut GraphBuilder,
    /// What earlier ops received of halos.
    pub(super) halos: &'a mut BTreeMap<HaloPiece, ValueId>,
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
        debug_assert!(factor < self.rule.factors.len(), "rank {}", self.members[0]);
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
    fn operand_peers(&mut self, factor: FactorId, operand: usize, dim: usize) -> Option<Peers> {
        let split = self.assignment.required[operand].dims[dim].clone();
        let size = self.global_operand(operand).shape[dim];
        let is_sharded = self.is_sharded(factor) && !split.axes.is_empty();
        is_sharded.then(|| Peers { groups: self.shards.groups(&split.axes), extents: split.extents(size) })
    }
    fn result_extents(&mut self, result: usize, dim: usize) -> Vec<usize> {
        self.assignment.produced[result].dims[dim].extents(self.global_result(result).shape[dim])
    }
    fn own_entry(&mut self, factor: FactorId, entries: &[usize]) -> Result<usize> {
        let axes = self.split_of(factor).map_or(AxisList::new(), |(split, _)| split.axes);
        let entries: Vec<i64> = entries.iter().map(|&entry| entry as i64).collect();
        let table = self.shards.at_position(&axes, &entries);
        let mut parts: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for &rank in self.members {
            parts.entry(table.values[rank]).or_default().push(rank);
        }
        let own = table.values[self.members[0]] as usize;
        if parts.len() > 1 {
            self.parts = Some(parts.into_values().collect());
            return Err(Diagnostic::new("E219", "the ranks of a class need different forms of an op")
                .help("this is a bug in partita; please report it"));
        }
        Ok(own)
    }
    fn received(&mut self, piece: &HaloPiece) -> Option<ValueId> {
        self.halos.get(piece).copied()
    }
    fn remember(&mut self, piece: HaloPiece, received: ValueId) {
        self.halos.insert(piece, received);
    }
    fn by_position(&mut self, factor: FactorId, entries: &[i64]) -> Result<ValueId> {
        let axes = self.split_of(factor).map_or(AxisList::new(), |(split, _)| split.axes);
        lookup(self.builder, self.tables, DType::I64, &self.shards.at_position(&axes, entries))
    }
}
