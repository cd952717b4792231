//! The optimization barrier.

use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::text::{OpParser, OpPrinter, print_types};
use crate::traits::{Traits, ViewMap};
use crate::types::TensorType;
use partita_base::Result;

/// The identity; no optimisation moves code across it.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimizationBarrier;

const BARRIER: &str = "stablehlo.optimization_barrier";

impl Operation for OptimizationBarrier {
    fn name(&self) -> &str {
        BARRIER
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        Ok(operands.iter().map(|&ty| ty.clone()).collect())
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let mut rule = Rule::default();
        for ty in operands {
            let dims: Vec<Vec<usize>> =
                ty.shape.iter().map(|&size| vec![rule.factor(size, FactorKind::Pass)]).collect();
            rule.operands.push(dims.clone());
            rule.results.push(dims);
        }
        // All results are partial together, so all operands must be.
        rule.transparent_in(&(0..operands.len()).collect::<Vec<_>>())
    }

    /// No data moves.
    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        Cost::default()
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(context.cotangents.iter().zip(context.wanted).map(|(ct, &w)| ct.filter(|_| w)).collect())
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(operands.iter().map(|&x| x.clone()).collect())
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Identity)
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let results = context.operands().len();
        localise_same(self.clone(), context, results)
    }
}

impl TextForm for OptimizationBarrier {
    /// `stablehlo.optimization_barrier %0, %1 : T, U`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.push(&format!("stablehlo.optimization_barrier {}", printer.operands()));
        printer.attributes();
        let types = printer.operand_types();
        printer.push(&format!(" : {}", print_types(&types)));
    }
}

pub(super) fn parse_optimization_barrier(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.at_least(1)?;
    op.finish(OptimizationBarrier)
}
