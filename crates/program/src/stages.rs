//! Lowers a step with pipeline stages: all passes on each stage, then one program set with the
//! sends between stages.

use crate::collective::{Collective, CollectiveKind, CollectiveOp, Transfer};
use crate::edges::phase_of_sent;
use crate::outside::{Outside, StageEnds};
use crate::passes::emit::nothing;
use crate::passes::timing::{Timing, splits_backward};
use crate::passes::{Back, Edges, Lowering, PASSES, PassContext, find_pass};
use crate::program::{Action, Program, ProgramSet};
use crate::{LowerOptions, RegionTarget, check};
use indexmap::IndexMap;
use partita_base::{CollectiveId, Result};
use partita_ir::pass::{Pass, run_passes};
use partita_ir::{ClassGraph, Offload, Phase, TensorType};
use partita_mesh::BoxMove;
use partita_pipeline::Timetable;
use std::sync::Arc;

/// A step as stages, ready to be lowered. A step without a pipeline is one stage without edges.
#[derive(Clone, Debug)]
pub struct Stages<'a> {
    /// What each slice of the mesh runs.
    pub stages: Vec<Stage<'a>>,
    /// The values sent between stages.
    pub edges: Vec<Edge>,
    /// The order of tasks; graph order if `None`.
    pub timetable: Option<&'a Timetable>,
    /// What is kept in host memory.
    pub offload: Offload,
}

/// What one slice of the mesh runs.
#[derive(Clone, Debug)]
pub struct Stage<'a> {
    /// The local graph of each rank class; ranks are numbered from 0 within the slice. Values
    /// received over edges are the last inputs, values sent over edges the last outputs.
    pub classes: &'a [ClassGraph],
    /// The number in the whole mesh of each rank of the slice, ascending.
    pub ranks: Vec<usize>,
    /// (position among the inputs, number of the edge).
    pub received: Vec<(usize, usize)>,
    /// (position among the outputs, number of the edge).
    pub sent: Vec<(usize, usize)>,
}

/// A value that one stage sends to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Edge {
    /// The name of the value in messages.
    pub name: String,
    /// The ranks that send it, followed by those that receive it.
    pub members: Arc<[usize]>,
    /// The boxes that move between these members.
    pub boxes: Arc<[BoxMove]>,
}

impl<'a> Stages<'a> {
    /// A step that runs on one mesh, without a pipeline.
    pub fn one(classes: &'a [ClassGraph]) -> Stages<'a> {
        let count = classes.iter().map(|class| class.ranks.len()).sum();
        let stage = Stage { classes, ranks: (0..count).collect(), received: Vec::new(), sent: Vec::new() };
        Stages { stages: vec![stage], edges: Vec::new(), timetable: None, offload: Offload::default() }
    }
}

/// Lowers each stage with all of [`PASSES`], in the order of the timetable, and combines the
/// programs.
///
/// # Errors
/// As [`crate::lower`]; E461 if the timetable does not fit the stages.
pub fn lower_stages(step: &Stages, options: &LowerOptions, target: &dyn RegionTarget) -> Result<ProgramSet> {
    lower_stages_watched(step, options, target, &mut |_, _, _| Ok(()))
}

/// As [`lower_stages`]; `after` receives the result of each pass on each stage.
///
/// # Errors
/// As [`lower_stages`].
pub fn lower_stages_watched(
    step: &Stages,
    options: &LowerOptions,
    target: &dyn RegionTarget,
    after: &mut dyn FnMut(usize, &Pass<Back>, &Lowering) -> Result<()>,
) -> Result<ProgramSet> {
    let mut options = options.clone();
    options.split_backward |= step.timetable.is_some_and(splits_backward);
    let context = PassContext { options: &options, target };
    let (timed, last) = (find_pass("bucket")?, find_pass("check")?);
    let mut lowerings = Vec::with_capacity(step.stages.len());
    let ends = step.stages.iter().filter_map(|stage| {
        let graph = &stage.classes.first()?.graph;
        Some(StageEnds { graph, received: &stage.received, sent: &stage.sent })
    });
    let outsides = Outside::of_stages(&ends.collect::<Vec<_>>());
    let paused = outsides.first().filter(|_| step.stages.len() == 1).and_then(Outside::timetable);
    for (number, (stage, outside)) in step.stages.iter().zip(outsides).enumerate() {
        let edges = Edges { received: stage.received.clone(), sent: stage.sent.clone() };
        let lowering = Lowering::with_edges(stage.classes, edges, outside)?.offloading(&step.offload);
        let passes = &PASSES[..timed];
        lowerings.push(run_passes(passes, lowering, &context, &mut |pass, l| after(number, pass, l))?);
    }
    if let Some(timetable) = step.timetable.or(paused.as_ref()) {
        let graphs: Vec<_> = lowerings.iter().map(|l| (l.graph(), l.received(), l.sent())).collect();
        let timings = Timing::of_stages(timetable, &graphs)?;
        lowerings = lowerings.into_iter().zip(timings).map(|(l, timing)| l.timed(timing)).collect();
    }
    let mut types = vec![Types::default(); step.edges.len()];
    let mut phases = vec![Phase::Forward; step.edges.len()];
    for stage in &step.stages {
        stage.sent.iter().for_each(|&(position, edge)| phases[edge] = phase_of_sent(stage, position));
    }
    let mut whole = ProgramSet::default();
    let mut sends: IndexMap<usize, Collective> = IndexMap::new();
    let mut lowered = Vec::with_capacity(step.stages.len());
    for (number, (lowering, stage)) in lowerings.into_iter().zip(&step.stages).enumerate() {
        types_of_edges(stage, &mut types);
        let passes = &PASSES[timed..last];
        let lowering = run_passes(passes, lowering, &context, &mut |pass, l| after(number, pass, l))?;
        let set = lowering.programs().expect("the pass `emit` is on the list").clone();
        append(&mut whole, set, &stage.ranks, &mut sends);
        lowered.push(lowering);
    }
    let first_send = whole.collectives.len();
    let number = |edge: usize| first_send + sends.get_index_of(&edge).expect("it was met");
    for program in &mut whole.programs {
        rename(program, &|id| match id.index().checked_sub(EDGES) {
            Some(edge) => CollectiveId::new(number(edge)),
            None => id,
        });
    }
    let buckets = whole.collectives.last().map_or(0, |last| last.bucket + 1);
    for (position, (edge, placeholder)) in sends.into_iter().enumerate() {
        let placeholder = Collective { phase: phases[edge], bucket: buckets + position, ..placeholder };
        whole.collectives.push(send(placeholder, &step.edges[edge], &types[edge]));
    }
    // The last pass checks programs against each other, here those of all stages together.
    check(&whole)?;
    let mut lowered = lowered.iter().enumerate();
    lowered.try_for_each(|(number, lowering)| after(number, &PASSES[last], lowering))?;
    Ok(whole)
}

/// For each rank, the types of the values that it sends and receives over an edge.
#[derive(Clone, Default)]
struct Types {
    inputs: IndexMap<usize, TensorType>,
    outputs: IndexMap<usize, TensorType>,
}

fn types_of_edges(stage: &Stage, types: &mut [Types]) {
    for class in stage.classes {
        for &rank in &class.ranks {
            let (graph, rank) = (&class.graph, stage.ranks[rank]);
            for &(position, edge) in &stage.sent {
                types[edge].inputs.insert(rank, graph.ty(graph.outputs[position]).clone());
            }
            for &(position, edge) in &stage.received {
                types[edge].outputs.insert(rank, graph.ty(graph.inputs[position]).clone());
            }
        }
    }
}

/// Collective ids from this number on stand for edges until all stages are combined.
const EDGES: usize = 1 << 31;

/// Adds the programs of a stage and renumbers its ranks in the whole mesh. For each edge that they
/// use, one placeholder collective is kept.
fn append(whole: &mut ProgramSet, set: ProgramSet, ranks: &[usize], sends: &mut IndexMap<usize, Collective>) {
    let mut numbers = Vec::with_capacity(set.collectives.len());
    let first_bucket = whole.collectives.last().map_or(0, |last| last.bucket + 1);
    // Collectives share lists of members.
    let mut lists: IndexMap<*const usize, Arc<[usize]>> = IndexMap::new();
    for mut collective in set.collectives {
        match collective.edge {
            Some(edge) => {
                numbers.push(CollectiveId::new(EDGES + edge));
                sends.entry(edge).or_insert(collective);
            }
            None => {
                numbers.push(CollectiveId::new(whole.collectives.len()));
                let renumbered = || collective.members.iter().map(|&member| ranks[member]).collect();
                collective.members =
                    lists.entry(collective.members.as_ptr()).or_insert_with(renumbered).clone();
                collective.bucket += first_bucket;
                whole.collectives.push(collective);
            }
        }
    }
    for mut program in set.programs {
        rename(&mut program, &|id| numbers[id.index()]);
        if ranks.iter().enumerate().any(|(local, &rank)| local != rank) {
            renumber(&mut program, ranks);
        }
        whole.programs.push(program);
    }
}

/// Renumbers the collectives of a program.
fn rename(program: &mut Program, name: &dyn Fn(CollectiveId) -> CollectiveId) {
    for instruction in &mut program.instructions {
        match &mut instruction.action {
            Action::Compute(_) | Action::Move(_) | Action::Moved(_) => {}
            Action::Start(start) => start.collective = name(start.collective),
            Action::Wait(collective) => *collective = name(*collective),
        }
    }
}

/// Renumbers ranks of a slice as ranks of the whole mesh.
fn renumber(program: &mut Program, ranks: &[usize]) {
    let name = |rank: usize| ranks[rank];
    program.ranks.iter_mut().for_each(|rank| *rank = name(*rank));
    for (_, constant) in &mut program.rank_constants {
        *constant = constant.renumbered(&name);
    }
    for region in &mut program.regions {
        for node in &mut region.graph.nodes {
            node.op = node.op.renumbered(&name);
        }
    }
}

/// The collective of an edge.
fn send(placeholder: Collective, edge: &Edge, types: &Types) -> Collective {
    let any = types.inputs.values().next().expect("a stage sends it");
    let nothing = nothing(any);
    let of = |types: &IndexMap<usize, TensorType>| -> Arc<[TensorType]> {
        edge.members.iter().map(|rank| types.get(rank).unwrap_or(&nothing).clone()).collect()
    };
    let exchange = CollectiveOp::Send { boxes: edge.boxes.clone() };
    let (inputs, outputs) = (of(&types.inputs), of(&types.outputs));
    Collective {
        kind: CollectiveKind::Send,
        members: edge.members.clone(),
        transfers: [Transfer { exchange, inputs, outputs, what: edge.name.clone() }].into(),
        label: format!("send of {}", edge.name),
        ..placeholder
    }
}
