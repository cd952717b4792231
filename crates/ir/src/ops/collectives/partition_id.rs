//! A rank's number.

use super::super::ParseOp;
use super::super::checks::operand_count;
use super::super::control::shapes_of;
use super::not_manual;
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, RankCall, TextForm};
use crate::rule::Rule;
use crate::text::{OpParser, OpPrinter};
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

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(PARTITION_ID))
    }
}

// ---- text ----

/// The op of this file by name.
pub(super) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.partition_id", parse_partition_id)];

impl TextForm for PartitionId {
    /// `stablehlo.partition_id : tensor<ui32>`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.push("stablehlo.partition_id");
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
    op.finish(PartitionId)
}
