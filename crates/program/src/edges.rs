//! Counts what crosses between the stages of a pipeline: sends and bytes over each edge.
//!
//! An edge leads from one stage to another, in one part of the step: activations go forward, their
//! gradients backward, and the numbers that validate a step (the loss, the gradient norm) to all.
//! A stage here is what one slice of the mesh runs. The counts are those of a step, over all
//! microbatches.

use crate::passes::bucket::phase_class;
use crate::passes::describe;
use crate::stages::{Stage, Stages};
use indexmap::IndexMap;
use partita_ir::Phase;
use partita_mesh::BoxMove;
use std::fmt;

/// What one stage sends to another in one part of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EdgeCount {
    /// The sending stage.
    pub from: usize,
    /// The receiving stage.
    pub to: usize,
    /// The part of the step that computes the values: forward, `InputGrad` for the backward pass,
    /// or update.
    pub phase: Phase,
    /// The names of the values, or the ops and modules that compute them, each once.
    pub values: Vec<String>,
    /// Values per step: one for each value and microbatch.
    pub sends: usize,
    /// Bytes per step that cross from the ranks of one stage to those of the other.
    pub bytes: usize,
}

impl EdgeCount {
    /// `forward`, `backward` or `update`.
    pub fn part(&self) -> &'static str {
        match self.phase {
            Phase::Forward => "forward",
            Phase::InputGrad | Phase::WeightGrad => "backward",
            Phase::Update => "update",
        }
    }
}

/// What crosses between the stages of a step, ordered by sender, receiver and part of the step.
/// Empty for a single stage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EdgeCounts {
    /// One entry for each pair of stages and part of the step with a send.
    pub rows: Vec<EdgeCount>,
}

impl EdgeCounts {
    /// The values sent in a step, over all edges.
    pub fn sends(&self) -> usize {
        self.rows.iter().map(|row| row.sends).sum()
    }

    /// The bytes that cross in a step, over all edges.
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.bytes).sum()
    }
}

/// Names that [`EdgeCounts`] prints for one edge; the others are counted.
const NAMES: usize = 3;

impl fmt::Display for EdgeCounts {
    /// A table with a line for each edge:
    ///
    /// ```text
    /// from  to     phase  sends  bytes a step  values
    ///    0   1   forward      4          2048  add in layers.1
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(f, "from  to     phase  sends  bytes a step  values")?;
        for row in &self.rows {
            let EdgeCount { from, to, sends, bytes, .. } = row;
            let more = row.values.len().saturating_sub(NAMES);
            let mut names = row.values[..row.values.len() - more].join(", ");
            if more > 0 {
                names += &format!(" and {more} more");
            }
            writeln!(f, "{from:>4} {to:>3} {:>9} {sends:>6} {bytes:>13}  {names}", row.part())?;
        }
        Ok(())
    }
}

/// Counts the values and bytes that the stages of a step send to each other.
pub fn edge_counts(step: &Stages) -> EdgeCounts {
    let mut receiver: Vec<Option<usize>> = vec![None; step.edges.len()];
    for (number, stage) in step.stages.iter().enumerate() {
        stage.received.iter().for_each(|&(_, edge)| receiver[edge] = Some(number));
    }
    let mut rows: IndexMap<(usize, usize, Phase), EdgeCount> = IndexMap::new();
    for (from, stage) in step.stages.iter().enumerate() {
        for &(position, edge) in &stage.sent {
            let Some(to) = receiver[edge] else { continue };
            let Sent { name, phase, element } = Sent::of(stage, position);
            let elements = step.edges[edge].boxes.iter().map(BoxMove::elements);
            let fresh = EdgeCount { from, to, phase, values: Vec::new(), sends: 0, bytes: 0 };
            let row = rows.entry((from, to, phase)).or_insert(fresh);
            row.sends += 1;
            row.bytes += elements.sum::<usize>() * element;
            if !row.values.contains(&name) {
                row.values.push(name);
            }
        }
    }
    rows.sort_unstable_keys();
    EdgeCounts { rows: rows.into_values().collect() }
}

/// A value that a stage sends.
struct Sent {
    /// Its name, or the op and module that compute it.
    name: String,
    phase: Phase,
    /// Bytes of one element.
    element: usize,
}

/// The part of the step that computes what a stage sends from the output at this position, `InputGrad` for the
/// backward pass. A parameter that another stage reads is sent in the forward pass.
pub(crate) fn phase_of_sent(stage: &Stage, position: usize) -> Phase {
    let graph = &stage.classes[0].graph;
    let maker = graph.value(graph.outputs[position]).definition;
    phase_class(maker.map_or(Phase::Forward, |(node, _)| graph.node(node).phase))
}

impl Sent {
    /// The output of a stage at this position.
    fn of(stage: &Stage, position: usize) -> Sent {
        let graph = &stage.classes[0].graph;
        let value = graph.outputs[position];
        Sent {
            name: describe(graph, value),
            phase: phase_of_sent(stage, position),
            element: graph.ty(value).dtype.size_bytes(),
        }
    }
}
