//! The op that returns a rank's number.

use super::super::checks::operand_count;
use super::super::control::shapes_of;
use super::super::{Binary, BinaryKind, Case, Constant, ParseOp, While};
use super::{not_manual, processes};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, RankCall, TextForm};
use crate::rule::Rule;
use crate::text::{OpParser, OpPrinter};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Result};

/// This rank's number, a u32 scalar.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionId;

const PARTITION_ID: &str = "stablehlo.partition_id";

impl Operation for PartitionId {
    fn name(&self) -> &str {
        PARTITION_ID
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(PARTITION_ID, operands, 0)?;
        Ok(vec![TensorType::scalar(DType::U32)])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        Cost::default()
    }

    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(Vec::new())
    }

    /// Rank 0.
    fn evaluate(&self, _: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![Literal::new([], vec![0u32])])
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        Ok((0..ranks.len()).map(|rank| vec![Literal::new([], vec![rank as u32])]).collect())
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Refused
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(PARTITION_ID))
    }
}

impl Op {
    /// Whether [`Op::on_rank`] may differ from rank to rank.
    pub fn is_by_rank(&self) -> bool {
        matches!(self, Op::PartitionId(_) | Op::While(_) | Op::Case(_) | Op::RankConstant(_))
    }

    /// The op for this rank: the rank's number becomes a constant, in loops and branches too.
    pub fn on_rank(&self, rank: usize) -> Op {
        match self {
            Op::PartitionId(_) => Constant { value: Literal::new([], vec![rank as u32]) }.into(),
            Op::RankConstant(op) => op.on_rank(rank).map_or_else(|| self.clone(), Op::from),
            _ => self.with_inner_ops(&|op| op.on_rank(rank)),
        }
    }

    /// The op with its ranks renumbered by the order-preserving `name`, in loops and branches too.
    pub fn renumbered(&self, name: &dyn Fn(usize) -> usize) -> Op {
        match self {
            Op::RankConstant(op) => op.renumbered(name).into(),
            _ => self.with_inner_ops(&|op| op.renumbered(name)),
        }
    }

    /// The op with the ops in its loops and branches replaced.
    fn with_inner_ops(&self, map: &dyn Fn(&Op) -> Op) -> Op {
        let inner = |graph: &Graph| {
            let mut graph = graph.clone();
            graph.nodes.iter_mut().for_each(|node| node.op = map(&node.op));
            graph
        };
        match self {
            Op::While(op) => {
                While { condition: Box::new(inner(&op.condition)), body: Box::new(inner(&op.body)) }.into()
            }
            Op::Case(op) => Case { branches: op.branches.iter().map(inner).collect() }.into(),
            other => other.clone(),
        }
    }
}

// ---- text ----

/// The op of this file by name.
pub(super) const PARSERS: &[(&str, ParseOp)] =
    &[("stablehlo.partition_id", parse_partition_id), ("stablehlo.replica_id", parse_replica_id)];

impl TextForm for PartitionId {
    /// `stablehlo.partition_id : tensor<ui32>`; `replica_id` if ranks are replicas.
    fn print(&self, printer: &mut OpPrinter) {
        let replicas = printer.printer.ranks_are_replicas();
        printer.push(if replicas { "stablehlo.replica_id" } else { PARTITION_ID });
        printer.attributes();
        let results = printer.result_types();
        printer.push(&format!(" : {}", results[0]));
    }
}

fn parse_partition_id(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.types()?;
    }
    op.arity(0)?;
    let own = processes(op)?;
    match (own.replicas, own.partitions) {
        (2.., Some(partitions)) => of_rank(op, BinaryKind::Remainder, partitions),
        _ => op.finish(PartitionId),
    }
}

/// The number of the replica; 0 in a program of one.
fn parse_replica_id(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.types()?;
    }
    op.arity(0)?;
    let own = processes(op)?;
    match (own.replicas, own.partitions) {
        (2.., Some(1)) => op.finish(PartitionId),
        (2.., Some(partitions)) => of_rank(op, BinaryKind::Divide, partitions),
        _ => op.finish(Constant { value: Literal::new([], vec![0u32]) }),
    }
}

/// The rank's number combined with the number of partitions. E146 unless the result is a ui32.
fn of_rank(op: &mut OpParser, kind: BinaryKind, partitions: usize) -> Result<Vec<ValueId>> {
    let ty = TensorType::scalar(DType::U32);
    if op.result_type()? != ty {
        return Err(op.error("E146", format!("`{}` yields {ty}", op.name)));
    }
    let rank = op.emit(PartitionId, &[])?[0];
    let count = op.emit(Constant { value: Literal::new([], vec![partitions as u32]) }, &[])?[0];
    op.emit(Binary { kind }, &[rank, count])
}
