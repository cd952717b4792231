//! Branches.

use super::{disagreement, each_alone, graph_cost, holds_collective, shapes_of, total_bytes, unify};
use crate::graph::{Graph, Node, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, RankCall, TextForm, localise_same};
use crate::ops::Convert;
use crate::ops::checks::{element_type, shapes};
use crate::ops::reduce::{refused, region_signature};
use crate::rule::Rule;
use crate::text::{Capture, OpParser, OpPrinter, Value, join, quote};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};

/// Operands (index, captured values..): runs branch `index`, or the last one if it is out of range.
/// Branches take the captured values, which must be replicated.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The branches.
    pub branches: Vec<Graph>,
}

const CASE: &str = "stablehlo.case";

impl Case {
    /// The branch that this index selects.
    fn chosen(&self, index: &Literal) -> &Graph {
        let last = self.branches.len() - 1;
        let index = usize::try_from(index.to_i64()[0]).unwrap_or(last);
        &self.branches[index.min(last)]
    }
}

impl Operation for Case {
    fn name(&self) -> &str {
        CASE
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        let (Some(index), Some(first)) = (operands.first(), self.branches.first()) else {
            return Err(Diagnostic::new("E101", format!("`{CASE}` needs an index and a branch"))
                .expected("at least one operand and one branch")
                .found(format!("{} operands and {} branches", operands.len(), self.branches.len())));
        };
        element_type(CASE, index.dtype == DType::I32, "i32", index.dtype)?;
        shapes(index.shape.is_empty(), "a branch index is a scalar", "tensor<i32>", index.to_string())?;
        let captured: Vec<TensorType> = operands[1..].iter().map(|&ty| ty.clone()).collect();
        let results: Vec<TensorType> = first.outputs.iter().map(|&v| first.ty(v).clone()).collect();
        for (number, branch) in self.branches.iter().enumerate() {
            region_signature(CASE, &format!("branch {number}"), branch, &captured, &results)?;
        }
        Ok(results)
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    /// The costliest branch.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let costs = self.branches.iter().map(graph_cost);
        let most =
            costs.fold(Cost::default(), |most, cost| if cost.flops > most.flops { cost } else { most });
        Cost { flops: most.flops, bytes: most.bytes + total_bytes(operands, results) }
    }

    /// E120.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(CASE, "a data-dependent branch"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        let captured: Vec<Literal> = operands[1..].iter().map(|&x| x.clone()).collect();
        interpret::evaluate(self.chosen(operands[0]), &captured)
    }

    /// In lock step if a branch contains collectives.
    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        if !self.is_collective() {
            return each_alone(ranks);
        }
        let index = ranks[0].operands[0].to_i64();
        if ranks.iter().any(|rank| rank.operands[0].to_i64() != index) {
            return Err(disagreement(CASE));
        }
        let branches: Vec<&Graph> = ranks
            .iter()
            .map(|rank| match rank.op {
                Op::Case(op) => op.chosen(rank.operands[0]),
                _ => unreachable!("ranks agree in structure"),
            })
            .collect();
        let captured: Vec<Vec<Literal>> =
            ranks.iter().map(|rank| rank.operands[1..].iter().map(|&x| x.clone()).collect()).collect();
        interpret::evaluate_ranks(&branches, &captured)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, self.branches[0].outputs.len())
    }

    fn regions(&self) -> Vec<&Graph> {
        self.branches.iter().collect()
    }

    fn is_collective(&self) -> bool {
        self.branches.iter().any(holds_collective)
    }
}

/// The graph's values in the order in which its text mentions them.
fn mentions(graph: &Graph) -> Vec<ValueId> {
    let mut all = Vec::new();
    for node in &graph.nodes {
        match &node.op {
            Op::Case(case) => {
                all.push(node.operands[0]);
                all.extend(case.mentioned().into_iter().map(|i| node.operands[1 + i]));
                all.extend(&node.operands[1..]);
            }
            _ => all.extend(&node.operands),
        }
    }
    all.extend(&graph.outputs);
    all
}

impl Case {
    /// Positions of the captured values in the order in which the branches' text mentions them.
    fn mentioned(&self) -> Vec<usize> {
        let mut order = Vec::new();
        for branch in &self.branches {
            let mut position = vec![None; branch.values.len()];
            for (i, input) in branch.inputs.iter().enumerate() {
                position[input.index()] = Some(i);
            }
            for i in mentions(branch).into_iter().filter_map(|v| position[v.index()]) {
                if !order.contains(&i) {
                    order.push(i);
                }
            }
        }
        order
    }
}

impl TextForm for Case {
    /// `"stablehlo.case"(%index) ({..}, {..}) : (tensor<i32>) -> T`. Branches have no arguments:
    /// they name the captured values; `partita.captured` gives their order if it is not that of
    /// their first mention.
    fn print(&self, printer: &mut OpPrinter) {
        let captured: Vec<String> = (1..printer.node.operands.len()).map(|i| printer.operand(i)).collect();
        let mentioned: Vec<String> = self.mentioned().into_iter().map(|i| captured[i].clone()).collect();
        if mentioned != captured {
            let quoted: Vec<String> = captured.iter().map(|name| quote(name)).collect();
            printer.attributes.push(("partita.captured".to_string(), format!("[{}]", join(&quoted))));
        }
        printer.push(&format!("\"stablehlo.case\"({}) (", printer.operand(0)));
        for (number, branch) in self.branches.iter().enumerate() {
            let mut names = vec![String::new(); branch.values.len()];
            for (input, name) in branch.inputs.iter().zip(&captured) {
                names[input.index()] = name.clone();
            }
            printer.push(if number > 0 { ", {\n" } else { "{\n" });
            printer.statements(branch, &mut names, "stablehlo.return");
            printer.push("}");
        }
        printer.push(")");
        printer.attributes();
        let (operands, results) = (printer.operand_types(), printer.result_types());
        printer.push(&format!(" : ({}) -> {}", operands[0], crate::text::print_results(&results)));
    }
}

pub(super) fn parse_case(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic_with(Capture::All)? {
        return Err(op.error("E140", "`stablehlo.case` must be written in the generic form"));
    }
    op.arity(1)?;
    if op.regions.is_empty() {
        return Err(op.error("E140", "`stablehlo.case` needs at least one branch"));
    }
    op.check_operands()?;
    let mut first = Vec::new();
    if let Some(Value::List(names)) = op.attributes.get("partita.captured").cloned() {
        for name in names {
            let Value::Text(name) = name else { continue };
            // The order is only cosmetic: names that another tool changed are skipped.
            first.extend(op.parser.resolve(&name, op.at).ok());
        }
    }
    let regions = std::mem::take(&mut op.regions);
    let (branches, captured) = unify(op, regions, 0, first)?;
    op.operands.extend(captured);
    op.operand_types = None;
    op.finish(Case { branches })
}

/// `"stablehlo.if"(%p) ({..}, {..})`: a case over the predicate as a number, the branches in the other order.
pub(super) fn parse_if(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic_with(Capture::All)? {
        return Err(op.error("E140", "`stablehlo.if` must be written in the generic form"));
    }
    op.arity(1)?;
    if op.regions.len() != 2 {
        return Err(op.error("E140", "`stablehlo.if` must have two branches"));
    }
    op.check_operands()?;
    op.regions.reverse();
    let regions = std::mem::take(&mut op.regions);
    let (branches, captured) = unify(op, regions, 0, Vec::new())?;
    let predicate = op.operands[0];
    op.operands = op.emit(Convert { dtype: DType::I32 }, &[predicate])?;
    op.operands.extend(captured);
    op.operand_types = None;
    op.finish(Case { branches })
}
