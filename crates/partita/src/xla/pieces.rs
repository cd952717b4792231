//! The stages of a pipeline as pieces for XLA: what a stage computes in one task of its timetable, such as the forward pass
//! of a microbatch, is a program of its own, which reads values of pieces before it and returns what later ones read.
//!
//! A whole stage cannot be one program, since it would wait for other stages that wait for it. The order of the pieces is
//! that in which tasks begin, so a runner that starts one after the other never waits for a value that no piece has begun
//! to compute. Updates, which come after all tasks, are cut where they read what other stages computed in theirs, such as
//! parts of the norm of the gradients.

use partita_base::Result;
use partita_ir::{Graph, GraphBuilder, Node, Operation, Role, ValueId};
use partita_pipeline::Timetable;
use partita_program::tasks_of_stages;
use partita_schedule::Stage;
use std::collections::{BTreeMap, BTreeSet};

/// A program of one stage.
pub(super) struct Piece {
    /// The stage whose ranks run it.
    pub stage: usize,
    /// Its program.
    pub graph: Graph,
    /// Where each of its inputs comes from.
    pub inputs: Vec<Source>,
    /// Where each of its outputs goes.
    pub outputs: Vec<Sink>,
}

/// The source of an input.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Source {
    /// The input of the stage at this position.
    Stage(usize),
    /// The value of the stage that an earlier piece computed.
    Carried(ValueId),
}

/// The destination of an output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Sink {
    /// Later pieces of the stage, and those of other stages that receive this value.
    Carried(ValueId),
    /// The output of the stage at this position.
    Stage(usize),
}

/// When a piece runs: the slot in which its task begins, the round of updates, and its stage.
type Turn = (usize, usize, usize);

/// The pieces of all stages in the order in which they run. `graphs` has the program of each stage.
///
/// # Errors
/// E461 if the timetable does not fit the stages.
pub(super) fn pieces(stages: &[Stage], graphs: &[Graph], timetable: &Timetable) -> Result<Vec<Piece>> {
    let inputs = |(stage, graph): (&Stage, &Graph)| -> Vec<(usize, ValueId)> {
        stage.received().into_iter().map(|(position, edge)| (edge, graph.inputs[position])).collect()
    };
    let outputs = |(stage, graph): (&Stage, &Graph)| -> Vec<(usize, ValueId)> {
        stage.sent().into_iter().map(|(position, edge)| (edge, graph.outputs[position])).collect()
    };
    let received: Vec<_> = stages.iter().zip(graphs).map(inputs).collect();
    let sent: Vec<_> = stages.iter().zip(graphs).map(outputs).collect();
    let timed: Vec<_> = (0..graphs.len())
        .map(|stage| (&graphs[stage], received[stage].clone(), sent[stage].clone()))
        .collect();
    let tasks = tasks_of_stages(timetable, &timed)?;
    let is_update = |stage: usize, node: usize| tasks[stage].of_node[node] >= tasks[stage].slots.len();

    // The round of each update: one more than that of an update of another stage whose result it reads.
    let mut of_edge: BTreeMap<usize, usize> = BTreeMap::new();
    let mut rounds: Vec<Vec<usize>>;
    loop {
        let round_of = |stage: usize| {
            let graph = &graphs[stage];
            let arrives: BTreeMap<ValueId, usize> = received[stage]
                .iter()
                .map(|&(edge, v)| (v, of_edge.get(&edge).copied().unwrap_or(0)))
                .collect();
            let mut rounds = vec![0; graph.nodes.len()];
            for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| is_update(stage, *index))
            {
                let of_operand = |value: &ValueId| match graph.value(*value).definition {
                    Some((maker, _)) => rounds[maker.index()],
                    None => arrives.get(value).copied().unwrap_or(0),
                };
                rounds[index] = node.operands.iter().map(of_operand).max().unwrap_or(0);
            }
            rounds
        };
        rounds = (0..graphs.len()).map(round_of).collect();
        let mut now = BTreeMap::new();
        for (stage, sent) in sent.iter().enumerate() {
            for &(edge, value) in sent {
                let maker = graphs[stage].value(value).definition.map(|(node, _)| node.index());
                let maker = maker.filter(|&node| is_update(stage, node));
                now.insert(edge, maker.map_or(0, |node| rounds[stage][node] + 1));
            }
        }
        if now == of_edge {
            break;
        }
        of_edge = now;
    }

    let mut all: Vec<(Turn, Piece)> = Vec::new();
    for (stage, graph) in graphs.iter().enumerate() {
        let turn = |node: usize| -> Turn {
            let begin = tasks[stage].slots.get(tasks[stage].of_node[node]);
            begin.map_or((usize::MAX, rounds[stage][node], stage), |&slot| (slot, 0, stage))
        };
        let cutter = Cutter::new(graph, turn);
        let last = (usize::MAX, usize::MAX, stage);
        let sent = sent[stage].iter().map(|&(_, value)| value).collect();
        all.extend(cutter.run(&stages[stage], last, &sent));
    }
    all.sort_by_key(|(turn, _)| *turn);
    Ok(all.into_iter().map(|(_, piece)| piece).collect())
}

struct Cutter<'a> {
    graph: &'a Graph,
    /// The turn of each node.
    turns: Vec<Turn>,
    /// Nodes that depend on no input. Each piece that reads their results computes them itself.
    is_constant: Vec<bool>,
}

impl<'a> Cutter<'a> {
    fn new(graph: &'a Graph, turn: impl Fn(usize) -> Turn) -> Cutter<'a> {
        let mut is_constant: Vec<bool> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let of = |value: &ValueId| {
                graph.value(*value).definition.is_some_and(|(maker, _)| is_constant[maker.index()])
            };
            let is_constant_node = !node.op.is_collective() && node.operands.iter().all(of);
            is_constant.push(is_constant_node);
        }
        Cutter { graph, turns: (0..graph.nodes.len()).map(turn).collect(), is_constant }
    }

    /// The node that computes a value for its readers in other pieces; `None` for inputs and constants.
    fn maker(&self, value: ValueId) -> Option<usize> {
        let (node, _) = self.graph.value(value).definition?;
        (!self.is_constant[node.index()]).then_some(node.index())
    }

    /// The pieces with their turns. Outputs that no node computes are returned in the turn `last`; `sent` are the values
    /// that other stages read.
    fn run(&self, stage: &Stage, last: Turn, sent: &BTreeSet<ValueId>) -> Vec<(Turn, Piece)> {
        let graph = self.graph;
        let of_value = |value: ValueId| self.maker(value).map(|node| self.turns[node]);
        let mut nodes: BTreeMap<Turn, Vec<usize>> = BTreeMap::from([(last, Vec::new())]);
        for (index, &turn) in self.turns.iter().enumerate().filter(|(index, _)| !self.is_constant[*index]) {
            nodes.entry(turn).or_default().push(index);
        }
        // What each piece hands on, and the last turn in which an input is read.
        let mut carried: BTreeMap<Turn, BTreeSet<ValueId>> = BTreeMap::new();
        let mut last_read: BTreeMap<ValueId, Turn> = BTreeMap::new();
        for (&turn, own) in &nodes {
            for &value in own.iter().flat_map(|&index| &graph.nodes[index].operands) {
                match of_value(value) {
                    Some(made) if made != turn => {
                        carried.entry(made).or_default().insert(value);
                    }
                    Some(_) => {}
                    None => {
                        last_read.insert(value, turn);
                    }
                }
            }
        }
        for &value in sent {
            if let Some(made) = of_value(value) {
                carried.entry(made).or_default().insert(value);
            }
        }
        let mut returned: BTreeMap<Turn, Vec<usize>> = BTreeMap::new();
        let received =
            |value: ValueId| stage.received().iter().any(|&(position, _)| graph.inputs[position] == value);
        for (position, _) in stage.returned() {
            // The stage that computed it returns it, too.
            if received(graph.outputs[position]) {
                continue;
            }
            let turn = of_value(graph.outputs[position]).unwrap_or(last);
            returned.entry(turn).or_default().push(position);
        }
        let piece = |(turn, own): (Turn, Vec<usize>)| {
            let carried = carried.remove(&turn).unwrap_or_default();
            let returned = returned.remove(&turn).unwrap_or_default();
            let sinks = carried.into_iter().map(Sink::Carried).chain(returned.into_iter().map(Sink::Stage));
            let may_replace = |value: ValueId| last_read.get(&value).is_none_or(|&read| read <= turn);
            (turn, self.piece(last.2, &own, sinks.collect(), &may_replace))
        };
        nodes.into_iter().map(piece).filter(|(_, piece)| !piece.outputs.is_empty()).collect()
    }

    fn piece(
        &self,
        stage: usize,
        own: &[usize],
        outputs: Vec<Sink>,
        may_replace: &dyn Fn(ValueId) -> bool,
    ) -> Piece {
        let graph = self.graph;
        let result = |sink: &Sink| match *sink {
            Sink::Carried(value) => value,
            Sink::Stage(position) => graph.outputs[position],
        };
        // With the constants that they read.
        let mut needed: BTreeSet<usize> = own.iter().copied().collect();
        let is_constant = |value: &ValueId| {
            graph.value(*value).definition.filter(|(node, _)| self.is_constant[node.index()])
        };
        let mut open: Vec<ValueId> =
            own.iter().flat_map(|&index| graph.nodes[index].operands.clone()).collect();
        open.extend(outputs.iter().map(result));
        while let Some(value) = open.pop() {
            if let Some((node, _)) = is_constant(&value)
                && needed.insert(node.index())
            {
                open.extend(&graph.nodes[node.index()].operands);
            }
        }
        let made: BTreeSet<ValueId> =
            needed.iter().flat_map(|&index| graph.nodes[index].results.clone()).collect();
        let mut read: BTreeSet<ValueId> = BTreeSet::new();
        for &index in &needed {
            read.extend(graph.nodes[index].operands.iter().filter(|value| !made.contains(value)));
        }
        read.extend(outputs.iter().map(result).filter(|value| !made.contains(value)));
        let source = |&value: &ValueId| {
            let position = graph.inputs.iter().position(|&input| input == value);
            position.map_or(Source::Carried(value), Source::Stage)
        };
        let mut inputs: Vec<Source> = read.iter().map(source).collect();
        inputs.sort();

        let mut builder = GraphBuilder::new("main");
        let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for source in &inputs {
            let value = match *source {
                Source::Stage(position) => graph.inputs[position],
                Source::Carried(value) => value,
            };
            let own = graph.value(value);
            map.insert(value, builder.input(&own.name, own.ty.clone(), Role::Activation));
        }
        for &index in &needed {
            let node: &Node = &graph.nodes[index];
            let operands: Vec<ValueId> = node.operands.iter().map(|value| map[value]).collect();
            let results = partita_ir::graph_edit::push_copy(&mut builder, graph, index, &operands);
            map.extend(node.results.iter().copied().zip(results));
        }
        let mut piece = builder.finish(outputs.iter().map(|sink| map[&result(sink)]).collect());
        piece.output_names = vec![String::new(); outputs.len()];
        piece.output_annotations = vec![None; outputs.len()];
        for &(input, output) in &graph.aliases {
            let place = inputs.iter().position(|source| *source == Source::Stage(input));
            let result = outputs.iter().position(|sink| *sink == Sink::Stage(output));
            if let (Some(place), Some(result), true) = (place, result, may_replace(graph.inputs[input])) {
                piece.aliases.push((place, result));
            }
        }
        Piece { stage, graph: piece, inputs, outputs }
    }
}
