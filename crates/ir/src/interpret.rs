//! The reference interpreter: evaluates graphs node by node, on one device or on all ranks in lock
//! step. It is slow and defines what the ops mean.

use crate::graph::{Graph, NodeId, ValueId};
use crate::literal::Literal;
use crate::op::{Operation, RankCall};
use partita_base::{Diagnostic, Result};

/// Evaluates a graph on one device. E130 if the inputs do not fit the graph.
pub fn evaluate(graph: &Graph, inputs: &[Literal]) -> Result<Vec<Literal>> {
    let mut results = evaluate_ranks(&[graph], &[inputs.to_vec()])?;
    Ok(results.pop().expect("one rank in, one rank out"))
}

/// Evaluates one graph per rank in lock step, node by node, so that collectives see all ranks. The graphs may
/// differ in shapes and attributes but must agree in structure: node `i` is the same kind of op everywhere.
pub fn evaluate_ranks(graphs: &[&Graph], inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>> {
    Ok(outputs(graphs, evaluate_ranks_all(graphs, inputs, None)?))
}

/// A callback with the operations of each evaluated node (see [`work`]) over all ranks.
pub type Watch<'a> = Option<&'a dyn Fn(f64)>;

/// [`evaluate_ranks`] for large graphs: reports progress, and drops a value after its last read.
pub fn evaluate_ranks_lean(
    graphs: &[&Graph],
    inputs: &[Vec<Literal>],
    watch: Watch,
) -> Result<Vec<Vec<Literal>>> {
    Ok(outputs(graphs, run(graphs, inputs, false, watch)?))
}

fn outputs(graphs: &[&Graph], environments: Vec<Vec<Option<Literal>>>) -> Vec<Vec<Literal>> {
    graphs
        .iter()
        .zip(environments)
        .map(|(graph, environment)| {
            graph
                .outputs
                .iter()
                .map(|v| environment[v.index()].clone().expect("outputs are defined"))
                .collect()
        })
        .collect()
}

/// [`evaluate_ranks`] that returns every value of every rank by value id; `verify` compares these.
pub fn evaluate_ranks_all(
    graphs: &[&Graph],
    inputs: &[Vec<Literal>],
    watch: Watch,
) -> Result<Vec<Vec<Option<Literal>>>> {
    run(graphs, inputs, true, watch)
}

/// The work of evaluating a graph on one rank.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Nodes.
    pub nodes: usize,
    /// Operations on elements, as the ops estimate them; at least one for each result element.
    pub operations: f64,
    /// The most bytes of live values; a value lives from its definition to its last read.
    pub peak_bytes: u64,
    /// The bytes of all values.
    pub bytes: u64,
}

/// The work of evaluating a graph on one rank.
pub fn work(graph: &Graph) -> Work {
    let bytes = |v: ValueId| graph.ty(v).bytes() as u64;
    let inputs: u64 = graph.inputs.iter().map(|&v| bytes(v)).sum();
    let mut work = Work { nodes: graph.nodes.len(), peak_bytes: inputs, bytes: inputs, operations: 0.0 };
    let mut held = inputs;
    for (id, dead) in graph.node_ids().zip(last_reads(graph)) {
        let results: u64 = graph.node(id).results.iter().map(|&v| bytes(v)).sum();
        held += results;
        work.bytes += results;
        work.peak_bytes = work.peak_bytes.max(held);
        work.operations += operations(graph, id);
        held -= dead.into_iter().map(bytes).sum::<u64>();
    }
    work
}

fn operations(graph: &Graph, id: NodeId) -> f64 {
    let node = graph.node(id);
    let results = graph.result_types(node);
    let elements: usize = results.iter().map(|ty| ty.element_count()).sum();
    node.op.cost(&graph.operand_types(node), &results).flops.max(elements as f64)
}

/// For each node, the values whose last read it is.
fn last_reads(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut seen = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|v| seen[v.index()] = true);
    let mut dead = vec![Vec::new(); graph.nodes.len()];
    for (node, dead) in graph.nodes.iter().zip(&mut dead).rev() {
        for &value in node.results.iter().chain(&node.operands) {
            if !std::mem::replace(&mut seen[value.index()], true) {
                dead.push(value);
            }
        }
    }
    dead
}

/// The values of every rank by value id: all of them, or only the outputs.
fn run(
    graphs: &[&Graph],
    inputs: &[Vec<Literal>],
    keep_all: bool,
    watch: Watch,
) -> Result<Vec<Vec<Option<Literal>>>> {
    let mut evaluation = Evaluation::new(graphs, keep_all);
    for (rank, (graph, inputs)) in graphs.iter().zip(inputs).enumerate() {
        if graph.inputs.len() != inputs.len() {
            return Err(Diagnostic::new("E130", "wrong number of inputs")
                .at(format!("rank {rank} of `{}`", graph.name))
                .expected(graph.inputs.len().to_string())
                .found(inputs.len().to_string()));
        }
        for (position, literal) in inputs.iter().enumerate() {
            evaluation.feed(rank, position, literal.clone())?;
        }
    }
    evaluation.advance(watch)?;
    Ok(evaluation.into_values())
}

/// The evaluation of one graph per rank in lock step, as far as inputs are available: nodes that
/// depend on a missing input wait for it.
pub struct Evaluation<'a> {
    graphs: Vec<&'a Graph>,
    values: Vec<Vec<Option<Literal>>>,
    /// The number of reads left for each value; one more for an output.
    reads: Vec<usize>,
    keeps_all: bool,
    /// Nodes not yet evaluated, in order.
    open: Vec<NodeId>,
}

impl<'a> Evaluation<'a> {
    /// Starts before the first node. Values are dropped after their last read unless `keep_all`.
    pub fn new(graphs: &[&'a Graph], keep_all: bool) -> Evaluation<'a> {
        let first = graphs.first().expect("at least one rank");
        let mut reads = vec![0; first.values.len()];
        let read = first.nodes.iter().flat_map(|node| &node.operands).chain(&first.outputs);
        read.for_each(|value| reads[value.index()] += 1);
        Evaluation {
            graphs: graphs.to_vec(),
            values: graphs.iter().map(|graph| vec![None; graph.values.len()]).collect(),
            reads,
            keeps_all: keep_all,
            open: first.node_ids().collect(),
        }
    }

    /// Feeds an input of a rank. E130 if it does not fit.
    pub fn feed(&mut self, rank: usize, position: usize, literal: Literal) -> Result<()> {
        let graph = self.graphs[rank];
        let id = graph.inputs[position];
        if graph.ty(id) != &literal.ty {
            return Err(Diagnostic::new(
                "E130",
                format!("input `{}` has the wrong type", graph.describe(id)),
            )
            .at(format!("rank {rank} of `{}`", graph.name))
            .expected(graph.ty(id).to_string())
            .found(literal.ty.to_string()));
        }
        self.values[rank][id.index()] = Some(literal);
        Ok(())
    }

    /// The value on each rank; `None` if it is not computed yet.
    pub fn value(&self, select: impl Fn(&Graph) -> ValueId) -> Option<Vec<&Literal>> {
        self.graphs
            .iter()
            .zip(&self.values)
            .map(|(graph, values)| values[select(graph).index()].as_ref())
            .collect()
    }

    /// Evaluates every node whose operands are available. Returns whether all nodes are done.
    pub fn advance(&mut self, watch: Watch) -> Result<bool> {
        let first = self.graphs[0];
        for id in std::mem::take(&mut self.open) {
            match first.node(id).operands.iter().all(|v| self.values[0][v.index()].is_some()) {
                true => self.step(id, watch)?,
                false => self.open.push(id),
            }
        }
        Ok(self.open.is_empty())
    }

    fn step(&mut self, id: NodeId, watch: Watch) -> Result<()> {
        let first = self.graphs[0];
        let calls: Vec<RankCall> = self
            .graphs
            .iter()
            .zip(&self.values)
            .map(|(graph, values)| {
                let node = graph.node(id);
                let value = |v: &ValueId| values[v.index()].as_ref().expect("nodes stand in execution order");
                RankCall {
                    op: &node.op,
                    operands: node.operands.iter().map(value).collect(),
                    results: graph.result_types(node).into_iter().cloned().collect(),
                }
            })
            .collect();
        let results = first.node(id).op.evaluate_ranks(&calls).map_err(|mut error| {
            error.notes.push(format!("while evaluating {}", first.describe(first.node(id).results[0])));
            error
        })?;
        for ((graph, values), results) in self.graphs.iter().zip(&mut self.values).zip(results) {
            for (&value, literal) in graph.node(id).results.iter().zip(results) {
                debug_assert_eq!(graph.ty(value), &literal.ty, "{}", graph.describe(value));
                values[value.index()] = Some(literal);
            }
        }
        let node = first.node(id);
        node.operands.iter().for_each(|value| self.reads[value.index()] -= 1);
        for value in node.operands.iter().chain(&node.results) {
            if !self.keeps_all && self.reads[value.index()] == 0 {
                self.values.iter_mut().for_each(|values| values[value.index()] = None);
            }
        }
        if let Some(watch) = watch {
            watch(self.graphs.iter().map(|graph| operations(graph, id)).sum());
        }
        Ok(())
    }

    /// The values of every rank by value id, as far as they were kept.
    pub fn into_values(self) -> Vec<Vec<Option<Literal>>> {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::graph::Role;
    use crate::types::TensorType;
    use partita_base::DType;
    use std::cell::Cell;

    /// `(x + x) x w^T` of 2 x 3 and 4 x 3, and an unused value.
    fn chain() -> Graph {
        let mut b = GraphBuilder::new("chain");
        let x = b.input("x", TensorType::new(DType::F32, [2, 3]), Role::Input);
        let w = b.input("w", TensorType::new(DType::F32, [4, 3]), Role::Input);
        let sum = b.add(x, x).unwrap();
        b.negate(sum).unwrap();
        let product = b.linear(sum, w).unwrap();
        let last = b.negate(product).unwrap();
        b.finish(vec![last])
    }

    #[test]
    fn the_work_of_a_graph_is_counted_exactly() {
        // Live: x w | x w sum | w sum (unread) | w sum matmul | matmul last, in elements of four
        // bytes.
        let expected = Work {
            nodes: 4,
            operations: 6.0 + 6.0 + 2.0 * 8.0 * 3.0 + 8.0,
            peak_bytes: 4 * (12 + 6 + 8),
            bytes: 4 * (6 + 12 + 6 + 6 + 8 + 8),
        };
        assert_eq!(work(&chain()), expected);
    }

    #[test]
    fn a_lean_evaluation_gives_the_same_and_tells_all_its_work() {
        let graph = chain();
        let literal = |input: usize| {
            let ty = graph.ty(graph.inputs[input]);
            Literal::from_f64(ty, (0..ty.element_count()).map(|i| i as f64 - 2.0))
        };
        let inputs = vec![literal(0), literal(1)];
        let done = Cell::new(0.0);
        let watch = |operations: f64| done.set(done.get() + operations);
        let lean =
            evaluate_ranks_lean(&[&graph, &graph], &[inputs.clone(), inputs.clone()], Some(&watch)).unwrap();
        let expected = evaluate(&graph, &inputs).unwrap();
        assert_eq!(lean, [expected.clone(), expected]);
        assert_eq!(done.get(), 2.0 * work(&graph).operations);
    }
}
