//! When the caller of a step writes its inputs and reads its outputs.
//!
//! A step runs in pieces with pauses between them. A caller that computes the loss itself, such as a Python program that
//! calls `loss.backward()`, runs the forward pass, reads the outputs at the pause behind it, and gives the gradients with
//! respect to them: inputs of the kind `Cotangent`. What the caller touches, and when, is a part of the
//! program: [`Outside`] is derived once from the graphs of all stages, the passes that order and emit instructions follow
//! it, ports carry it ([`Port::at`](crate::Port::at)), and the memory map and the static checks read it there.
//!
//! A *moment* is a number: 0 is before the step, `k` the pause behind piece `k - 1`, and the number of pieces is behind
//! the whole step. Piece `k` is what runs between the moments `k` and `k + 1`.

use partita_ir::{Graph, Phase};
use partita_pipeline::{Task, TaskKind, Timetable};
use std::collections::BTreeMap;

/// The moment at which cotangents are given, and outputs of the forward pass are read.
const BEHIND_FORWARD: usize = 1;

/// When the caller touches the ports of a stage, and when its edges have their values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outside {
    /// The number of pauses, the same on all stages.
    pub pauses: usize,
    /// The moment at which each input of the graph is written. For a received value, the piece that computes it.
    pub inputs: Vec<usize>,
    /// The moment from which on each output may be read. A sent value is computed in the piece before it.
    pub outputs: Vec<usize>,
}

/// A stage: its graph, and the edges over which inputs arrive and outputs leave, with their positions.
pub(crate) struct StageEnds<'a> {
    pub graph: &'a Graph,
    pub received: &'a [(usize, usize)],
    pub sent: &'a [(usize, usize)],
}

impl Outside {
    /// The table of each stage. Values that follow from a cotangent, perhaps through other stages, are computed behind the
    /// pause; all others before it, unless the backward pass alone needs them.
    pub fn of_stages(stages: &[StageEnds]) -> Vec<Outside> {
        let is_given_late = |stage: &StageEnds| -> Vec<bool> {
            stage.graph.inputs.iter().map(|&input| stage.graph.value(input).is_cotangent()).collect()
        };
        let mut late: Vec<Vec<bool>> = stages.iter().map(is_given_late).collect();
        let pauses = usize::from(late.iter().flatten().any(|&is_late| is_late));
        // What a stage sends late is late in the stage that receives it: iterate to a fixed point.
        let mut late_edges: BTreeMap<usize, bool> = BTreeMap::new();
        let values = loop {
            let values: Vec<Vec<bool>> =
                stages.iter().zip(&late).map(|(stage, late)| follows(stage.graph, late)).collect();
            let mut now = BTreeMap::new();
            for (stage, values) in stages.iter().zip(&values) {
                let sent = stage.sent.iter();
                now.extend(sent.map(|&(output, edge)| (edge, values[stage.graph.outputs[output].index()])));
            }
            if now == late_edges {
                break values;
            }
            late_edges = now;
            for (stage, late) in stages.iter().zip(&mut late) {
                for (input, edge) in stage.received {
                    late[*input] |= late_edges.get(edge).copied().unwrap_or(false);
                }
            }
        };
        let table = |((stage, late), values): ((&StageEnds, Vec<bool>), &Vec<bool>)| Outside {
            pauses,
            inputs: late.into_iter().map(usize::from).collect(),
            outputs: stage.graph.outputs.iter().map(|value| 1 + usize::from(values[value.index()])).collect(),
        };
        stages.iter().zip(late).zip(&values).map(table).collect()
    }

    /// Counts nodes that follow from a cotangent to the backward pass. All graphs have one structure.
    pub fn phased(&self, mut graphs: Vec<Graph>) -> Vec<Graph> {
        if self.pauses == 0 {
            return graphs;
        }
        for graph in &mut graphs {
            let late = self.late_values(graph);
            for node in graph.nodes.iter_mut().filter(|node| node.phase == Phase::Forward) {
                if node.operands.iter().any(|operand| late[operand.index()]) {
                    node.phase = Phase::InputGrad;
                }
            }
        }
        graphs
    }

    /// Whether each value of a graph of this stage follows from what the caller gives at a pause.
    pub fn late_values(&self, graph: &Graph) -> Vec<bool> {
        let is_late: Vec<bool> = self.inputs.iter().map(|&moment| moment > 0).collect();
        follows(graph, &is_late)
    }

    /// The order of the two passes, for a step of one stage that pauses between them: a timetable with one microbatch.
    pub fn timetable(&self) -> Option<Timetable> {
        let task = |kind| Task { kind, stage: 0, microbatch: 0 };
        let tasks = vec![task(TaskKind::Forward), task(TaskKind::Backward)];
        (self.pauses > 0).then(|| Timetable::new(1, 1, vec![tasks]))
    }

    /// Whether an output may be read at the pause behind the forward pass.
    pub fn is_read_at_pause(&self, output: usize) -> bool {
        self.pauses > 0 && self.outputs[output] <= BEHIND_FORWARD
    }
}

/// For each value, whether it follows from one of these inputs.
fn follows(graph: &Graph, inputs: &[bool]) -> Vec<bool> {
    let mut found = vec![false; graph.values.len()];
    if !inputs.contains(&true) {
        return found;
    }
    for (&input, &is_late) in graph.inputs.iter().zip(inputs) {
        found[input.index()] = is_late;
    }
    for node in &graph.nodes {
        if node.operands.iter().any(|operand| found[operand.index()]) {
            node.results.iter().for_each(|result| found[result.index()] = true);
        }
    }
    found
}
