//! The stages of a built step: what each slice of the mesh runs, the edges between them, and an
//! interpreter that runs all stages together.

use partita_base::{Diagnostic, Result};
use partita_ir::interpret::Evaluation;
use partita_ir::{Annotation, ClassGraph, Graph, Literal, ValueId};
use partita_mesh::{AxisRole, BoxMove, Mesh, Slice, transfer};
use partita_pipeline::{Edge, Sink, Source, StageGraph};
use partita_spmd::{Layouts, Partitioned, specialise, virtual_ranks};

/// The mesh axis of pipeline stages.
pub const PIPELINE_AXIS: &str = AxisRole::Stages.axis();

/// What one slice of the mesh runs.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Layouts and class graphs, on the mesh of the slice.
    pub partitioned: Partitioned,
    /// The local graph of each class of ranks; ranks are numbered from 0 within the slice.
    pub classes: Vec<ClassGraph>,
    /// The rank of the whole mesh for each rank of the slice, ascending.
    pub ranks: Vec<usize>,
    /// The source of each input.
    pub inputs: Vec<Source>,
    /// The destination of each output.
    pub outputs: Vec<Sink>,
}

impl Stage {
    /// One stage from a partitioned step, without a pipeline.
    pub fn whole(partitioned: Partitioned) -> Result<Stage> {
        Ok(Stage {
            classes: virtual_ranks::class_graphs(&partitioned)?,
            ranks: Slice::whole(&partitioned.mesh).ranks,
            inputs: (0..partitioned.graph.inputs.len()).map(Source::Step).collect(),
            outputs: (0..partitioned.graph.outputs.len()).map(Sink::Step).collect(),
            partitioned,
        })
    }

    /// The local graph of a rank, numbered within the stage: that of its class with its number folded in.
    ///
    /// # Errors
    /// Those of [`specialise()`].
    pub fn local(&self, rank: usize) -> Result<Graph> {
        specialise(self.partitioned.local(rank), rank)
    }

    /// The number within the stage of a rank of the whole mesh.
    pub fn position(&self, rank: usize) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    /// (position, edge) of each input that comes from another stage.
    pub fn received(&self) -> Vec<(usize, usize)> {
        let edge = |(position, source): (usize, &Source)| match source {
            Source::Edge(edge) => Some((position, *edge)),
            Source::Step(_) => None,
        };
        self.inputs.iter().enumerate().filter_map(edge).collect()
    }

    /// (position, edge) of each output that goes to other stages.
    pub fn sent(&self) -> Vec<(usize, usize)> {
        let edge = |(position, sink): (usize, &Sink)| match sink {
            Sink::Edge(edge) => Some((position, *edge)),
            Sink::Step(_) => None,
        };
        self.outputs.iter().enumerate().filter_map(edge).collect()
    }

    /// (position, position among the inputs of the step) of each input that is fed or persistent.
    pub fn fed(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.inputs.iter().enumerate().filter_map(|(position, source)| match source {
            Source::Step(of_step) => Some((position, *of_step)),
            Source::Edge(_) => None,
        })
    }

    /// (position, position among the outputs of the step) of each output of the step.
    pub fn returned(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.outputs.iter().enumerate().filter_map(|(position, sink)| match sink {
            Sink::Step(of_step) => Some((position, *of_step)),
            Sink::Edge(_) => None,
        })
    }
}

/// The ranks of the whole mesh that take part in the transfer over an edge (senders first, then
/// receivers), and the moves between them.
pub fn moves(stages: &[Stage], edge: &Edge) -> (Vec<usize>, Vec<BoxMove>) {
    let [(from, output), (to, input)] = [edge.from, edge.to].map(|(stage, place)| (&stages[stage], place));
    let (sent, received) = (&from.partitioned, &to.partitioned);
    let shape = &sent.graph.ty(sent.graph.outputs[output]).shape;
    let source = (&sent.outputs[output], &sent.mesh);
    let boxes = transfer(shape, source, (&received.inputs[input], &received.mesh));
    ([&from.ranks[..], &to.ranks].concat(), boxes)
}

/// Gives each received input of a stage the layout that the value has in the whole step, as a
/// floor: the propagation of the stage may add axes.
pub(crate) fn lay_out_received(stage: &mut StageGraph, edges: &[Edge], layouts: &Layouts, mesh: &Mesh) {
    let graph = &mut stage.graph;
    let index = graph.meshes.iter().position(|other| other == mesh).unwrap_or_else(|| {
        graph.meshes.push(mesh.clone());
        graph.meshes.len() - 1
    });
    for (position, source) in stage.inputs.iter().enumerate() {
        let Source::Edge(edge) = source else { continue };
        let input = graph.inputs[position];
        let sharding = layouts.sharding(edges[*edge].value).clone();
        let open = vec![true; sharding.dims.len()];
        let origin = "its layout in the whole step".to_string();
        let own = Annotation { mesh: index, sharding, open, replicated: Vec::new(), origin };
        graph.value_mut(input).annotation.get_or_insert(own);
    }
}

/// Evaluates all stages on global inputs of the step, each on its virtual ranks in lock step; returns the global outputs.
pub fn interpret(
    stages: &[Stage],
    edges: &[Edge],
    inputs: &[Literal],
    watch: &dyn Fn(f64),
) -> Result<Vec<Literal>> {
    let mut evaluations = on_ranks(stages, inputs, false)?;
    advance(stages, edges, &mut evaluations, watch, &over_ranks(stages))?;
    let count = stages.iter().flat_map(Stage::returned).map(|(_, of_step)| of_step + 1).max().unwrap_or(0);
    let mut outputs: Vec<Option<Literal>> = vec![None; count];
    for (stage, evaluation) in stages.iter().zip(&evaluations) {
        let Partitioned { graph, mesh, outputs: layouts, .. } = &stage.partitioned;
        for (position, of_step) in stage.returned() {
            let locals = evaluation.value(|graph| graph.outputs[position]).expect("all nodes are evaluated");
            let ty = graph.ty(graph.outputs[position]);
            outputs[of_step] = Some(virtual_ranks::collect(ty, &layouts[position], mesh, &locals)?);
        }
    }
    Ok(outputs.into_iter().map(|output| output.expect("a stage returns it")).collect())
}

/// Every value of the stages: computed on one device, and on the ranks.
pub(crate) struct Trace {
    /// By stage and value of its graph.
    pub whole: Vec<Vec<Option<Literal>>>,
    /// By stage, rank and value of the local graph.
    pub on_ranks: Vec<Vec<Vec<Option<Literal>>>>,
}

/// [`interpret`] that keeps every value.
pub(crate) fn trace(
    stages: &[Stage],
    edges: &[Edge],
    inputs: &[Literal],
    watch: &dyn Fn(f64),
) -> Result<Trace> {
    let mut whole = Vec::with_capacity(stages.len());
    for stage in stages {
        let mut evaluation = Evaluation::new(&[&stage.partitioned.graph], true);
        for (position, of_step) in stage.fed() {
            evaluation.feed(0, position, inputs[of_step].clone())?;
        }
        whole.push(evaluation);
    }
    let same = |sent: &[&Literal], _: &Edge| Ok(vec![sent[0].clone()]);
    advance(stages, edges, &mut whole, watch, &same)?;
    // Every stage receives correct values, so a difference in it is its own.
    let right = |_: &[&Literal], edge: &Edge| {
        let (stage, input) = edge.to;
        let sent =
            whole[edge.from.0].value(|graph| graph.outputs[edge.from.1]).expect("all nodes are evaluated");
        let to = &stages[stage].partitioned;
        let local = |rank| virtual_ranks::distribute(sent[0], &to.inputs[input], &to.mesh, rank);
        Ok((0..to.mesh.rank_count()).map(local).collect())
    };
    let mut evaluations = on_ranks(stages, inputs, true)?;
    advance(stages, edges, &mut evaluations, watch, &right)?;
    Ok(Trace {
        whole: whole.into_iter().map(|evaluation| evaluation.into_values().remove(0)).collect(),
        on_ranks: evaluations.into_iter().map(Evaluation::into_values).collect(),
    })
}

/// The stages on their ranks, with inputs.
fn on_ranks<'a>(stages: &'a [Stage], inputs: &[Literal], keep_all: bool) -> Result<Vec<Evaluation<'a>>> {
    let mut evaluations = Vec::with_capacity(stages.len());
    for stage in stages {
        let Partitioned { mesh, inputs: layouts, .. } = &stage.partitioned;
        let graphs: Vec<&Graph> = (0..mesh.rank_count()).map(|rank| stage.partitioned.local(rank)).collect();
        let mut evaluation = Evaluation::new(&graphs, keep_all);
        for (position, of_step) in stage.fed() {
            for rank in 0..mesh.rank_count() {
                let local = virtual_ranks::distribute(&inputs[of_step], &layouts[position], mesh, rank);
                evaluation.feed(rank, position, local)?;
            }
        }
        evaluations.push(evaluation);
    }
    Ok(evaluations)
}

/// Delivers to the ranks of a stage what the ranks of another one sent, through the global tensor.
type Deliver<'a> = dyn Fn(&[&Literal], &Edge) -> Result<Vec<Literal>> + 'a;

fn over_ranks(stages: &[Stage]) -> impl Fn(&[&Literal], &Edge) -> Result<Vec<Literal>> + '_ {
    |sent, edge| {
        let (stage, input) = edge.to;
        let (from, output) = (&stages[edge.from.0].partitioned, edge.from.1);
        let ty = from.graph.ty(from.graph.outputs[output]);
        let global = virtual_ranks::collect(ty, &from.outputs[output], &from.mesh, sent)?;
        let to = &stages[stage].partitioned;
        let local = |rank| virtual_ranks::distribute(&global, &to.inputs[input], &to.mesh, rank);
        Ok((0..to.mesh.rank_count()).map(local).collect())
    }
}

/// Runs every stage as far as possible, delivers its sends, and repeats until all are done.
fn advance(
    stages: &[Stage],
    edges: &[Edge],
    evaluations: &mut [Evaluation],
    watch: &dyn Fn(f64),
    deliver: &Deliver,
) -> Result<()> {
    let mut is_open = vec![true; edges.len()];
    loop {
        let mut is_done = true;
        for evaluation in evaluations.iter_mut() {
            is_done &= evaluation.advance(Some(watch))?;
        }
        let mut has_delivered = false;
        for (edge, is_open) in edges.iter().zip(&mut is_open).filter(|(_, is_open)| **is_open) {
            let output = |graph: &Graph| -> ValueId { graph.outputs[edge.from.1] };
            let Some(sent) = evaluations[edge.from.0].value(output) else { continue };
            let (stage, input) = edge.to;
            for (rank, literal) in deliver(&sent, edge)?.into_iter().enumerate() {
                evaluations[stage].feed(rank, input, literal)?;
            }
            (*is_open, has_delivered) = (false, true);
        }
        match (is_done, has_delivered) {
            (true, false) => return Ok(()),
            (false, false) => {
                return Err(Diagnostic::new("E464", format!("{} stages wait for each other", stages.len()))
                    .help("this is a bug in partita; please report it"));
            }
            (_, true) => {}
        }
    }
}
