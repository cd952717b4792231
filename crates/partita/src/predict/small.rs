//! What the slices of a mesh do in a step of few layers, few microbatches and at most three stages, read off the programs
//! that would run, on a clock.
//!
//! The seconds of a task of the timetable are those of its instructions and of its waits for collectives among the ranks
//! of its slice, whenever they run; waits for other slices depend on the timetable and do not count. In a pipeline, how long
//! a slice waits for gathers of parameters and reductions of gradients depends on the timetable too, since they run beside
//! other tasks: of these the seconds that they take count, apart. While the first
//! task waits for its input, instructions of later tasks that need no other slice may run: their seconds count with
//! their tasks, but before all of them ([`Part::Ahead`]). What belongs to no microbatch happens once a step, as part of
//! the task under way, such as the norms of gradients that are ready. The first and the last microbatch differ from
//! those between them: the first accumulates no gradients, and behind the last one gradients are exchanged.

use super::reading::Reading;
use super::small_bytes::{accumulated, accumulates, bytes, in_flight, parameters, saved, used};
use super::step::Bytes;
use super::unfold::is_inside;
use crate::models::ModelSource;
use crate::session::Session;
use partita_base::{DType, Diagnostic, Result};
use partita_cost::Cluster;
use partita_ir::Phase;
use partita_pipeline::{Order, TaskKind, block_of};
use partita_program::{Action, Collective, CollectiveKind, CollectiveOp, Program, ProgramSet, Start};
use partita_schedule::{Built, PIPELINE_AXIS, Plan, Primitive};
use partita_simulate::{ClassRun, Simulation, simulate};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most microbatches of a small step: the first one, one in the middle, the last one.
pub(super) const MICROBATCHES: usize = 3;
/// The most stages of a small step: the first one, one in the middle, the last one.
pub(super) const STAGES: usize = 3;

/// A part of what a slice does in a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Part {
    /// Before its first task.
    Before,
    /// What a task for the microbatch with this number does before the first task has its input.
    Ahead(TaskKind, usize),
    /// A task for the microbatch with this number.
    Task(TaskKind, usize),
    /// What happens once a step, while such a task is under way.
    Along(TaskKind, usize),
    /// After its last task: what is left of the exchange of gradients, and the update.
    After,
}

/// Seconds of a slice.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Spent {
    /// In which it computes.
    pub compute: f64,
    /// In which it waits for a collective.
    pub exposed: f64,
    /// Of gathers of parameters beside its tasks.
    pub gathered: f64,
    /// Of reductions of gradients beside its tasks.
    pub reduced: f64,
}

impl Spent {
    /// Without what runs beside.
    pub fn sum(self) -> f64 {
        self.compute + self.exposed
    }

    pub fn plus(self, other: Spent) -> Spent {
        self.with(other, |a, b| a + b)
    }

    pub fn minus(self, other: Spent) -> Spent {
        self.with(other, |a, b| (a - b).max(0.0))
    }

    pub fn times(self, factor: f64) -> Spent {
        self.with(self, |a, _| a * factor)
    }

    fn with(self, other: Spent, of: impl Fn(f64, f64) -> f64) -> Spent {
        Spent {
            compute: of(self.compute, other.compute),
            exposed: of(self.exposed, other.exposed),
            gathered: of(self.gathered, other.gathered),
            reduced: of(self.reduced, other.reduced),
        }
    }
}

/// A figure by place: that of each of the blocks that repeat together as one layer, and last that of all else.
pub(super) type ByPlace<T> = Vec<T>;

/// What one slice does.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct SmallSlice {
    /// Its layers.
    pub layers: usize,
    /// Seconds by part.
    pub spent: BTreeMap<Part, ByPlace<Spent>>,
    /// Of the gathers and of the reductions of a part that belong to no layer, the seconds of each, in order.
    pub at_ends: BTreeMap<Part, [Vec<f64>; 2]>,
    /// Of a task, what comes after it has sent its result to another slice.
    pub behind_send: BTreeMap<Part, ByPlace<Spent>>,
    /// When its last task ends, and what runs beside.
    pub tasks_end_s: f64,
    /// Seconds from the end of the tasks of all slices to its own end.
    pub tail_s: f64,
    /// Bytes in use on its fullest rank.
    pub bytes: Bytes,
    /// What alignment and placement add to these, as a part of them: it grows by no equal amounts.
    pub gaps: f64,
    /// Of these, what a microbatch keeps in each span of [`Timetable::spans`].
    pub saved: [ByPlace<f64>; 3],
    /// The part of its parameters at each place.
    pub parameters: ByPlace<f64>,
    /// The microbatches in flight at once, by span.
    pub in_flight: [f64; 3],
    /// Whether gradients of earlier microbatches are there when memory is fullest.
    pub accumulates: bool,
    /// Gradients that wait for those of later microbatches.
    pub accumulated: f64,
}

/// A message: from which rank of its slice, to which rank of the other one, and its bytes.
pub(super) type Message = (usize, usize, usize);

/// A small step.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Small {
    /// The blocks that repeat together as one layer.
    pub period: usize,
    /// The slices, each with one stage.
    pub slices: Vec<SmallSlice>,
    /// Seconds from the end of all tasks to the end of the step.
    pub tail_s: f64,
    /// What the first stage sends to the second one for a microbatch, and what it receives for it.
    pub sent: [Vec<Message>; 2],
    /// Seconds of what the first stage sends to the last one once a step, and of what it receives for it: a tied head.
    pub tied_s: [f64; 2],
}

/// The programs of a small step, over a clock.
pub(crate) struct SmallStep {
    /// The session with few layers, microbatches and stages.
    pub session: Session,
    /// Layers of each stage.
    layers: Vec<usize>,
    /// The blocks of its model.
    pub blocks: Blocks,
    /// Its step.
    pub built: Built,
    /// The programs.
    pub set: ProgramSet,
    /// The programs over a clock.
    pub simulation: Simulation,
}

impl SmallStep {
    /// The step of a session with so many layers on each stage and at most three microbatches. A plan is that of the whole
    /// model; none is the plan of the session.
    ///
    /// # Errors
    /// E511 for a model without repeated layers; what building, lowering and simulating refuse.
    pub fn of(session: &Session, plan: Option<&Plan>, layers: &[usize]) -> Result<SmallStep> {
        let stages = layers.len();
        let train = &session.config().train;
        let microbatches = train.microbatches.clamp(1, MICROBATCHES);
        let rows = train.batch / train.microbatches.max(1) * microbatches;
        let source = session.config().model.with_layers(layers.iter().sum()).ok_or_else(not_folded)?;
        let mut mesh = session.mesh().clone();
        // What is chosen for all slices is chosen for the slowest one.
        let whole = &session.config().cluster;
        let slowest = whole.slowest_slice(&mesh, PIPELINE_AXIS);
        let cluster = whole.like_slice(&mesh, PIPELINE_AXIS, slowest, stages);
        mesh.axes.iter_mut().filter(|axis| axis.name == PIPELINE_AXIS).for_each(|axis| axis.size = stages);
        let order = Order::named(if splits_backward(session)? { "zb-h1" } else { "1f1b" })?;
        let small = session.clone().with_model(source).with_mesh(mesh).with_cluster(cluster);
        let small = small.with_batch(rows).with_microbatches(microbatches).with_timetable(order);
        let model = small.model()?;
        let [period, before] = period_and_before(&session.config().model)?;
        let plan = match plan {
            Some(plan) => plan.clone(),
            None => small.plan(&model)?,
        };
        let blocks = Blocks::of(&small.config().model, repeated_blocks(&model.forward), [period, before]);
        let built = small.built_under(&model, &staged(&plan, &blocks, layers)?)?;
        let set = small.lower(&built)?;
        let simulation = simulate(&set, &small.config().cluster)?;
        Ok(SmallStep { session: small, layers: layers.to_vec(), blocks, built, set, simulation })
    }
}

impl Small {
    /// What the slices of the small step do on clusters like these; the other arguments and errors are those of
    /// [`SmallStep::of`].
    pub fn on(
        clusters: &[Cluster],
        session: &Session,
        plan: Option<&Plan>,
        layers: &[usize],
    ) -> Result<Vec<Small>> {
        let step = SmallStep::of(session, plan, layers)?;
        let on = |cluster: &Cluster| match *cluster == step.session.config().cluster {
            true => Small::of(&step, &step.simulation),
            false => Small::of(&step, &simulate(&step.set, cluster)?),
        };
        clusters.iter().map(on).collect()
    }

    /// What the slices of a small step do as it ran over a clock.
    fn of(step: &SmallStep, simulation: &Simulation) -> Result<Small> {
        let SmallStep { session: small, blocks, built, set, .. } = step;
        let microbatches = small.config().train.microbatches;
        let timetable = small.config().train.timetable.timetable(step.layers.len(), microbatches)?;
        let once = sent_once(set, microbatches > 1);
        let slice = |(number, stage): (usize, &partita_schedule::Stage)| {
            let own = simulation.classes.iter().map(|run| (&set.programs[run.program], run));
            let own: Vec<(&Program, &ClassRun)> =
                own.filter(|(program, _)| stage.position(program.rank()).is_some()).collect();
            let reading = Reading {
                set,
                simulation,
                once: &once,
                tasks: &timetable.slices[number],
                blocks,
                is_several: microbatches > 1,
                is_pipeline: step.layers.len() > 1,
            };
            let read = own.iter().map(|(program, run)| reading.of(program, run));
            let total = |of: &SmallSlice| of.spent.values().flatten().map(|spent| spent.sum()).sum::<f64>();
            let slowest = read.max_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or_default();
            let fullest = own.iter().max_by_key(|(program, _)| program.arena_bytes);
            let saved = fullest.map(|(program, _)| saved(program, microbatches, blocks)).unwrap_or_default();
            let in_flight = in_flight(&timetable, number, saved.each_ref().map(|of| of.iter().sum()));
            SmallSlice {
                layers: step.layers[number],
                bytes: fullest.map(|(_, run)| used(run)).unwrap_or_default(),
                gaps: fullest.map_or(0.0, |(_, run)| bytes(run).total() / used(run).total() - 1.0),
                saved,
                parameters: fullest.map_or_else(Vec::new, |(program, _)| parameters(program, blocks)),
                tail_s: own.iter().map(|(_, run)| run.end_s).fold(0.0, f64::max),
                in_flight,
                accumulates: accumulates(&timetable, number),
                accumulated: fullest.map_or(0.0, |(program, run)| accumulated(program, run, microbatches)),
                ..slowest
            }
        };
        let mut slices: Vec<SmallSlice> = built.stages.iter().enumerate().map(slice).collect();
        let tasks_end_s = slices.iter().map(|slice| slice.tasks_end_s).fold(0.0, f64::max);
        slices.iter_mut().for_each(|slice| slice.tail_s -= tasks_end_s);
        Ok(Small {
            period: blocks.period,
            slices,
            tail_s: simulation.step_s - tasks_end_s,
            sent: [Phase::Forward, Phase::InputGrad].map(|phase| messages(built, set, &once, phase)),
            tied_s: [Phase::Forward, Phase::WeightGrad]
                .map(|phase| tied_s(built, set, simulation, &once, phase)),
        })
    }
}

/// E511: a model without repeated layers.
pub(crate) fn not_folded() -> Box<Diagnostic> {
    Diagnostic::new("E511", "the step cannot be folded to one layer")
        .expected("a model with repeated layers: of kind gpt, llama, bert, moe-gpt, mixtral, deepseek, t5 or vit")
        .help("`partita simulate` takes the whole step, with fewer ranks, layers and microbatches if it is too large")
}

/// E511: a pipeline of a model whose kinds of blocks come one after another, such as an encoder and a decoder: its stages
/// differ.
pub(crate) fn check_stages(session: &Session) -> Result<()> {
    let model = &session.config().model;
    let slices = session.mesh().axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
    if slices == 1 || has_like_stages(model.as_ref()) {
        return Ok(());
    }
    Err(Diagnostic::new("E511", "the step cannot be folded to one layer")
        .expected(format!("no axis `{PIPELINE_AXIS}`: blocks of `{}` are of other kinds on other stages", model.name()))
        .found(format!("`{PIPELINE_AXIS}={slices}`"))
        .help("`partita simulate` takes the whole step of a pipeline; share such a model over dp, fsdp or tp to fold it"))
}

/// Whether stages with equally many blocks do the same.
pub(crate) fn has_like_stages(model: &dyn ModelSource) -> bool {
    let blocks = 2 * model.period();
    let kind = |block: usize| model.kind_of_block(block, blocks);
    (0..blocks).all(|block| kind(block) == kind(block % model.period()))
}

/// Whether the timetable of a session runs input gradients and weight gradients apart.
pub(super) fn splits_backward(session: &Session) -> Result<bool> {
    let slices = session.mesh().axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
    if slices == 1 {
        return Ok(false);
    }
    let train = &session.config().train;
    let timetable = train.timetable.timetable(slices, train.microbatches)?;
    Ok(timetable.slices.iter().flatten().any(|task| task.kind == TaskKind::InputGrad))
}

/// The repeated blocks of a model, such as `layers.0`, in order.
pub(super) fn repeated_blocks(graph: &partita_ir::Graph) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for node in &graph.nodes {
        let block = block_of(&node.path);
        let is_numbered = block.rsplit('.').next().is_some_and(|part| part.parse::<usize>().is_ok());
        if is_numbered && !found.iter().any(|known| known == block) {
            found.push(block.to_string());
        }
    }
    found
}

/// How many numbered blocks repeat together as one layer, and how many are before all that repeat.
pub(super) fn period_and_before(model: &Arc<dyn ModelSource>) -> Result<[usize; 2]> {
    let blocks = |layers: usize| -> Result<usize> {
        let model = model.with_layers(layers).ok_or_else(not_folded)?.build(1, DType::F32, true)?;
        Ok(repeated_blocks(&model.forward).len())
    };
    let (one, two) = (blocks(1)?, blocks(2)?);
    let period = (two - one).max(1);
    Ok([period, one - period.min(one)])
}

/// The plan with stages of so many layers in place of its own.
fn staged(plan: &Plan, blocks: &Blocks, layers: &[usize]) -> Result<Plan> {
    let kept = plan.entries.iter().filter(|entry| !entry.primitive.ends_stage()).cloned();
    let mut plan = Plan { entries: kept.collect() };
    // Layers before those that repeat are on the first stage.
    let mut end = blocks.before;
    for layers in &layers[..layers.len() - 1] {
        end += layers * blocks.period;
        let last = end.checked_sub(1).and_then(|last| blocks.names.get(last)).ok_or_else(not_folded)?;
        plan.push(last, Primitive::PipelineSplit { mesh: None, ranks: Vec::new() }, "folded");
    }
    Ok(plan)
}

/// The numbered blocks of a model.
pub(crate) struct Blocks {
    /// Their paths, in order.
    names: Vec<String>,
    /// How many are before all that repeat.
    before: usize,
    /// How many repeat together as one layer.
    pub(super) period: usize,
    /// Which of these each block that repeats is.
    kinds: Vec<usize>,
}

impl Blocks {
    fn of(model: &Arc<dyn ModelSource>, names: Vec<String>, [period, before]: [usize; 2]) -> Blocks {
        let count = names.len().saturating_sub(before);
        let kinds = (0..count).map(|block| model.kind_of_block(block, count)).collect();
        Blocks { names, before, period, kinds }
    }

    /// The place of a module: that of its block among those that repeat together, or behind them.
    pub fn place(&self, path: &str) -> usize {
        let block = block_of(path);
        let number = self.names.iter().position(|known| known == block);
        let repeated = number.and_then(|number| number.checked_sub(self.before));
        repeated.and_then(|number| self.kinds.get(number)).copied().unwrap_or(self.period)
    }

    /// Whether a module is before or behind all layers, such as a head, and holds none of them.
    pub fn is_at_end(&self, path: &str) -> bool {
        self.place(path) == self.period && !self.names.iter().any(|name| is_inside(name, path))
    }

    /// A figure of nothing.
    pub fn none<T: Clone + Default>(&self) -> ByPlace<T> {
        vec![T::default(); self.period + 1]
    }
}

/// The buckets of messages that no microbatch sends or none receives, if there are several: parameters of a tied head, and
/// their gradients.
fn sent_once(set: &ProgramSet, is_several: bool) -> BTreeSet<usize> {
    let mut once = BTreeSet::new();
    for instruction in set.programs.iter().flat_map(|program| &program.instructions) {
        if let Action::Start(Start { collective, .. }) = &instruction.action
            && is_several
            && instruction.origin.microbatch.is_none()
        {
            let Collective { kind, bucket, .. } = set.collectives[collective.index()];
            once.extend((kind == CollectiveKind::Send).then_some(bucket));
        }
    }
    once
}

/// The seconds of the longest message of no microbatch between the first and the last slice, in a phase.
fn tied_s(
    built: &Built,
    set: &ProgramSet,
    simulation: &Simulation,
    once: &BTreeSet<usize>,
    phase: Phase,
) -> f64 {
    let [first, .., last] = &built.stages[..] else { return 0.0 };
    let is_tied = |one: &Collective| {
        let has =
            |stage: &partita_schedule::Stage| one.members.iter().any(|&rank| stage.position(rank).is_some());
        let is_own = once.contains(&one.bucket) && one.phase.is_backward() == phase.is_backward();
        is_own && has(first) && has(last)
    };
    let own = simulation.exchanged.iter().filter(|own| is_tied(&set.collectives[own.collective.index()]));
    own.map(|own| own.end_s - own.begin_s).fold(0.0, f64::max)
}

/// The messages between the first two slices for a microbatch in a phase; all of them at once.
fn messages(built: &Built, set: &ProgramSet, once: &BTreeSet<usize>, phase: Phase) -> Vec<Message> {
    let [from, to, ..] = &built.stages[..] else { return Vec::new() };
    let (from, to) = if phase == Phase::Forward { (from, to) } else { (to, from) };
    let of_phase =
        |one: &&Collective| one.phase.is_backward() == phase.is_backward() && !once.contains(&one.bucket);
    let sends = set.collectives.iter().filter(|one| one.kind == CollectiveKind::Send).filter(of_phase);
    let of = |one: &Collective| -> Vec<Message> {
        let mut found = Vec::new();
        for transfer in one.transfers.iter() {
            let CollectiveOp::Send { boxes } = &transfer.exchange else { continue };
            let element = transfer.inputs[0].dtype.size_bytes();
            for moved in boxes.iter() {
                let ends = (from.position(one.members[moved.source]), to.position(one.members[moved.target]));
                if let (Some(source), Some(target)) = ends {
                    found.push((source, target, moved.extents.iter().product::<usize>() * element));
                }
            }
        }
        found
    };
    // Scalars cross too; what takes longest decides when a task may begin.
    let bytes = |messages: &[Message]| messages.iter().map(|message| message.2).sum::<usize>();
    let mut largest: Vec<Message> = Vec::new();
    for one in sends {
        let own = of(one);
        if bytes(&own) > bytes(&largest) {
            largest = own;
        }
    }
    largest
}
