//! The reference interpreter.

use crate::graph::Graph;
use crate::literal::Literal;
use crate::op::{Operation, RankCall};
use partita_base::{Diagnostic, Result};

/// Evaluates a graph on one device. E130 when the inputs do not fit the graph.
pub fn evaluate(graph: &Graph, inputs: &[Literal]) -> Result<Vec<Literal>> {
    let mut results = evaluate_ranks(&[graph], &[inputs.to_vec()])?;
    Ok(results.pop().expect("one rank in, one rank out"))
}

/// Evaluates one graph per rank in lock step, node by node, so that collectives see all ranks. The graphs may
/// differ in shapes and attributes but must agree in structure: node `i` is the same kind of op everywhere.
pub fn evaluate_ranks(graphs: &[&Graph], inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>> {
    let environments = evaluate_ranks_all(graphs, inputs)?;
    Ok(graphs
        .iter()
        .zip(environments)
        .map(|(graph, environment)| {
            graph
                .outputs
                .iter()
                .map(|v| environment[v.index()].clone().expect("outputs are defined"))
                .collect()
        })
        .collect())
}

/// As [`evaluate_ranks`], returning every value of every rank by value id: what `verify` compares.
pub fn evaluate_ranks_all(graphs: &[&Graph], inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Option<Literal>>>> {
    let first = graphs.first().expect("at least one rank");
    let mut environments: Vec<Vec<Option<Literal>>> = Vec::new();
    for (rank, (graph, inputs)) in graphs.iter().zip(inputs).enumerate() {
        if graph.inputs.len() != inputs.len() {
            return Err(Diagnostic::new("E130", "wrong number of inputs")
                .at(format!("rank {rank} of `{}`", graph.name))
                .expected(graph.inputs.len().to_string())
                .found(inputs.len().to_string()));
        }
        let mut environment = vec![None; graph.values.len()];
        for (&id, literal) in graph.inputs.iter().zip(inputs) {
            if graph.ty(id) != &literal.ty {
                return Err(Diagnostic::new(
                    "E130",
                    format!("input `{}` has the wrong type", graph.describe(id)),
                )
                .at(format!("rank {rank} of `{}`", graph.name))
                .expected(graph.ty(id).to_string())
                .found(literal.ty.to_string()));
            }
            environment[id.index()] = Some(literal.clone());
        }
        environments.push(environment);
    }
    for id in first.node_ids() {
        let calls: Vec<RankCall> = graphs
            .iter()
            .zip(&environments)
            .map(|(graph, environment)| {
                let node = graph.node(id);
                RankCall {
                    op: &node.op,
                    operands: node
                        .operands
                        .iter()
                        .map(|v| environment[v.index()].as_ref().expect("nodes stand in execution order"))
                        .collect(),
                    results: graph.result_types(node).into_iter().cloned().collect(),
                }
            })
            .collect();
        let results = first.node(id).op.evaluate_ranks(&calls).map_err(|mut error| {
            error.notes.push(format!("while evaluating {}", first.describe(first.node(id).results[0])));
            error
        })?;
        for ((graph, environment), results) in graphs.iter().zip(&mut environments).zip(results) {
            for (&value, literal) in graph.node(id).results.iter().zip(results) {
                debug_assert_eq!(graph.ty(value), &literal.ty, "{}", graph.describe(value));
                environment[value.index()] = Some(literal);
            }
        }
    }
    Ok(environments)
}
