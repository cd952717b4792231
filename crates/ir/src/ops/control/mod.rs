//! Shared code of loops, branches and barriers, and their parsers.

mod barrier;
mod case;
#[cfg(test)]
mod tests;
mod scan;
mod while_loop;

pub use barrier::OptimizationBarrier;
pub use case::Case;
pub use while_loop::While;

use crate::builder::GraphBuilder;
use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, Operation, RankCall};
use crate::ops::ParseOp;
use crate::text::{OpParser, Region, canonical};
use crate::types::TensorType;
use barrier::parse_optimization_barrier;
use case::{parse_case, parse_if};
use partita_base::{Diagnostic, Result};
use while_loop::parse_while;

/// The shapes of types.
pub(crate) fn shapes_of<'a>(types: &'a [&TensorType]) -> Vec<&'a [usize]> {
    types.iter().map(|ty| &ty.shape[..]).collect()
}

fn total_bytes(operands: &[&TensorType], results: &[&TensorType]) -> f64 {
    operands.iter().chain(results).map(|ty| ty.bytes() as f64).sum()
}

/// Work of all nodes of a graph.
fn graph_cost(graph: &Graph) -> Cost {
    let mut total = Cost::default();
    for node in &graph.nodes {
        let cost = node.op.cost(&graph.operand_types(node), &graph.result_types(node));
        total.flops += cost.flops;
        total.bytes += cost.bytes;
    }
    total
}

/// Whether a graph contains collectives.
fn holds_collective(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| node.op.is_collective())
}

/// Evaluates each rank alone: no collective inside, but `partition_id` is allowed.
fn each_alone(ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
    let alone =
        |(rank, call): (usize, &RankCall)| call.op.on_rank(rank).evaluate(&call.operands, &call.results);
    ranks.iter().enumerate().map(alone).collect()
}

/// E133: ranks disagree about control flow around a collective.
fn disagreement(name: &str) -> Box<Diagnostic> {
    Diagnostic::new(
        "E133",
        format!("ranks take different paths through a `{name}` that contains collectives"),
    )
    .expected("the same condition on every rank")
    .help("compute the condition from values that are equal on all ranks, for instance after an all-reduce")
}

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.while", parse_while),
    ("stablehlo.case", parse_case),
    ("stablehlo.if", parse_if),
    ("stablehlo.optimization_barrier", parse_optimization_barrier),
    ("chlo.scan", scan::parse_scan),
];

/// The regions as graphs over their `declared` inputs and then all outer values that any of them uses, in order of
/// `first` and then of use; with those values. E107 for a region with another number of arguments.
fn unify(
    op: &OpParser,
    regions: Vec<Region>,
    declared: usize,
    first: Vec<ValueId>,
) -> Result<(Vec<Graph>, Vec<ValueId>)> {
    for (number, region) in regions.iter().enumerate() {
        let found = region.graph.inputs.len() - region.captures.len();
        if found != declared {
            return Err(op
                .error("E107", format!("region {number} of `{}` has a wrong number of arguments", op.name))
                .expected(declared.to_string())
                .found(found.to_string()));
        }
    }
    let mut outer = first;
    for &value in regions.iter().flat_map(|r| &r.captures) {
        if !outer.contains(&value) {
            outer.push(value);
        }
    }
    let graphs = regions.into_iter().map(|region| {
        let mut builder = GraphBuilder::from_graph(region.graph);
        let inputs = &mut builder.graph_mut().inputs;
        let own = inputs.split_off(inputs.len().min(declared));
        for (position, value) in outer.iter().enumerate() {
            let used = region
                .captures
                .iter()
                .position(|c| c == value)
                .filter(|_| !outer[..position].contains(value));
            match used {
                Some(used) => builder.graph_mut().inputs.push(own[used]),
                None => {
                    builder.input("", op.parser.graph().ty(*value).clone(), crate::graph::Role::Activation);
                }
            }
        }
        let outputs = builder.graph().outputs.clone();
        canonical(&builder.finish(outputs))
    });
    Ok((graphs.collect(), outer))
}
