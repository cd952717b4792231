//! Cuts a step into one graph per stage.
//!
//! Every node belongs to the stage that its [`Node::stage`](partita_ir::Node::stage) names. A value
//! that another stage reads becomes an output of its own stage and an input of the other one: an
//! [`Edge`]. Three kinds of values never cross:
//!
//! - A fed input is fed to every stage that reads it.
//! - Values computed only from fed tensors and constants (masks, positions, random numbers) are
//!   computed by every stage that reads them.
//! - A parameter, with its optimizer states, belongs to the stage that updates it. Another stage
//!   that reads it receives its value over an edge.
//!
//! The float scalars that a step is checked by, such as the loss and the norm of the gradients, go
//! to every stage, so that each can hold back its updates until they are known.

use crate::feed::from_feed;
use partita_ir::{Graph, Node, NodeId, Role, Value, ValueId};

/// A step cut into stages.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cut {
    /// One graph per stage; inputs and outputs have their source and destination.
    pub stages: Vec<StageGraph>,
    /// The values sent between stages, in the order in which the step computes them.
    pub edges: Vec<Edge>,
}

/// The part of a step that one slice of the mesh runs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StageGraph {
    /// Its nodes, in the order of the step.
    pub graph: Graph,
    /// The source of each input.
    pub inputs: Vec<Source>,
    /// The destination of each output.
    pub outputs: Vec<Sink>,
}

/// The source of an input of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The input of the step at this position.
    Step(usize),
    /// Another stage, over the edge with this number.
    Edge(usize),
}

/// The destination of an output of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sink {
    /// The output of the step at this position.
    Step(usize),
    /// Another stage, over the edge with this number.
    Edge(usize),
}

/// A value that one stage computes and another reads. A value that several stages read has an edge
/// to each, since they read it at different times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    /// A name for messages: the value's own, or the op and module that compute it.
    pub name: String,
    /// The value in the step.
    pub value: ValueId,
    /// The stage that computes the value, and the position among its outputs.
    pub from: (usize, usize),
    /// The stage that reads it, and the position among its inputs.
    pub to: (usize, usize),
}

/// Cuts a step into `count` stages: node `n` goes to stage `slice_of[n.stage]`.
pub fn cut(step: &Graph, count: usize, slice_of: &dyn Fn(usize) -> usize) -> Cut {
    if count == 1 {
        let inputs = (0..step.inputs.len()).map(Source::Step).collect();
        let outputs = (0..step.outputs.len()).map(Sink::Step).collect();
        return Cut { stages: vec![StageGraph { graph: step.clone(), inputs, outputs }], edges: Vec::new() };
    }
    Cutter::new(step, count, slice_of).run()
}

struct Cutter<'a> {
    step: &'a Graph,
    count: usize,
    stage_of_node: Vec<usize>,
    /// Values that every reading stage computes itself, or is fed.
    is_local: Vec<bool>,
    /// The stage that owns a value.
    home: Vec<usize>,
    /// For each value, by stage, whether it is present: computed, fed, persistent or received.
    present: Vec<Vec<bool>>,
}

impl<'a> Cutter<'a> {
    fn new(step: &'a Graph, count: usize, slice_of: &dyn Fn(usize) -> usize) -> Cutter<'a> {
        let stage_of_node: Vec<usize> = step.nodes.iter().map(|node| slice_of(node.stage)).collect();
        let is_local = from_feed(step, |_| false);
        let mut home = vec![0; step.values.len()];
        for (position, &input) in step.inputs.iter().enumerate() {
            let replacement = step.aliases.iter().find(|alias| alias.0 == position);
            let writer = replacement.and_then(|&(_, output)| step.value(step.outputs[output]).definition);
            home[input.index()] = match writer {
                Some((node, _)) => stage_of_node[node.index()],
                None => first_reader(step, &stage_of_node, input),
            };
        }
        for (node, &stage) in step.nodes.iter().zip(&stage_of_node) {
            node.results.iter().for_each(|result| home[result.index()] = stage);
        }
        let present = vec![vec![false; count]; step.values.len()];
        Cutter { step, count, stage_of_node, is_local, home, present }
    }

    fn run(mut self) -> Cut {
        let step = self.step;
        for (position, &output) in step.outputs.iter().enumerate() {
            for stage in self.returned_by(position) {
                self.present[output.index()][stage] = true;
            }
        }
        for &input in &step.inputs {
            // An unread input also has a stage.
            self.present[input.index()][self.home[input.index()]] = true;
        }
        let mut runs: Vec<Vec<bool>> = vec![vec![false; self.count]; step.nodes.len()];
        for id in step.node_ids().rev() {
            let node = step.node(id);
            for (stage, runs_here) in runs[id.index()].iter_mut().enumerate() {
                let is_read = node.results.iter().any(|v| self.present[v.index()][stage]);
                let is_local = node.results.iter().all(|v| self.is_local[v.index()]);
                let reads_elsewhere = || node.results.iter().any(|v| self.present[v.index()].contains(&true));
                let home = self.stage_of_node[id.index()] == stage;
                if (is_local && is_read) || (!is_local && home && reads_elsewhere()) {
                    *runs_here = true;
                    node.operands.iter().for_each(|v| self.present[v.index()][stage] = true);
                }
            }
        }
        let mut edges: Vec<Edge> = Vec::new();
        for value in self.in_order().into_iter().filter(|value| !self.is_local[value.index()]) {
            let home = self.home[value.index()];
            let readers = (0..self.count).filter(|&s| s != home && self.present[value.index()][s]);
            let edge = |to| Edge { name: step.describe(value), value, from: (home, 0), to: (to, 0) };
            edges.extend(readers.map(edge));
        }
        let stages = (0..self.count).map(|stage| self.stage(stage, &runs, &mut edges)).collect();
        Cut { stages, edges }
    }

    /// Inputs, then results of nodes in execution order.
    fn in_order(&self) -> Vec<ValueId> {
        let results = self.step.nodes.iter().flat_map(|node| node.results.iter().copied());
        self.step.inputs.iter().copied().chain(results).collect()
    }

    /// The stages that return an output of the step: all of them for a scalar that the step is
    /// checked by.
    fn returned_by(&self, position: usize) -> Vec<usize> {
        let output = self.step.outputs[position];
        let ty = self.step.ty(output);
        let replaces = self.step.aliases.iter().any(|alias| alias.1 == position);
        match ty.rank() == 0 && ty.dtype.is_float() && !replaces {
            true => (0..self.count).collect(),
            false => vec![self.home[output.index()]],
        }
    }

    fn stage(&self, stage: usize, runs: &[Vec<bool>], edges: &mut [Edge]) -> StageGraph {
        let step = self.step;
        let mut graph = Graph { name: step.name.clone(), meshes: step.meshes.clone(), ..Graph::default() };
        let mut map: Vec<Option<ValueId>> = vec![None; step.values.len()];
        let mut add = |graph: &mut Graph, value: ValueId, definition: Option<(NodeId, usize)>| {
            let new = ValueId::new(graph.values.len());
            graph.values.push(Value { definition, ..step.value(value).clone() });
            map[value.index()] = Some(new);
            new
        };
        let mut inputs = Vec::new();
        let mut input_at = vec![None; step.inputs.len()];
        for (position, &input) in step.inputs.iter().enumerate() {
            let is_kept = self.is_local[input.index()] || self.home[input.index()] == stage;
            if is_kept && self.present[input.index()][stage] {
                input_at[position] = Some(inputs.len());
                let new = add(&mut graph, input, None);
                graph.inputs.push(new);
                inputs.push(Source::Step(position));
            }
        }
        for (number, edge) in edges.iter_mut().enumerate().filter(|(_, edge)| edge.to.0 == stage) {
            let new = add(&mut graph, edge.value, None);
            let received = graph.value_mut(new);
            received.name = format!("edge.{number}");
            received.role = Role::Input;
            edge.to.1 = inputs.len();
            graph.inputs.push(new);
            inputs.push(Source::Edge(number));
        }
        for id in step.node_ids().filter(|id| runs[id.index()][stage]) {
            let node = step.node(id);
            let new = NodeId::new(graph.nodes.len());
            let results =
                node.results.iter().enumerate().map(|(i, &v)| add(&mut graph, v, Some((new, i)))).collect();
            graph.nodes.push(Node { results, ..node.clone() });
        }
        let here = |value: ValueId| map[value.index()].expect("what a stage reads is there");
        for node in &mut graph.nodes {
            node.operands.iter_mut().for_each(|operand| *operand = here(*operand));
        }
        for value in &mut graph.values {
            value.role = value.role.renamed(|v| map[v.index()]);
        }
        let mut outputs = Vec::new();
        let mut push = |graph: &mut Graph, value: ValueId, name: String, sink: Sink| {
            graph.outputs.push(here(value));
            graph.output_names.push(name);
            outputs.push(sink);
        };
        let mut annotations = Vec::new();
        for (position, &output) in step.outputs.iter().enumerate() {
            if !self.returned_by(position).contains(&stage) {
                continue;
            }
            let replaced = step.aliases.iter().filter(|alias| alias.1 == position);
            for input in replaced.filter_map(|alias| input_at[alias.0]) {
                graph.aliases.push((input, graph.outputs.len()));
            }
            let name = step.output_names.get(position).cloned().unwrap_or_default();
            annotations.push(step.output_annotations.get(position).cloned().flatten());
            push(&mut graph, output, name, Sink::Step(position));
        }
        for (number, edge) in edges.iter_mut().enumerate().filter(|(_, edge)| edge.from.0 == stage) {
            edge.from.1 = graph.outputs.len();
            annotations.push(None);
            push(&mut graph, edge.value, format!("edge.{number}"), Sink::Edge(number));
        }
        if annotations.iter().any(Option::is_some) {
            graph.output_annotations = annotations;
        }
        StageGraph { graph, inputs, outputs }
    }
}

/// The first stage that reads a value; the first stage if none does.
fn first_reader(step: &Graph, stage_of_node: &[usize], value: ValueId) -> usize {
    let reads = |(node, _): &(&Node, &usize)| node.operands.contains(&value);
    step.nodes.iter().zip(stage_of_node).filter(reads).map(|(_, &stage)| stage).min().unwrap_or(0)
}
