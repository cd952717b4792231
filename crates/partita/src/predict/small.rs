//! What the slices of a mesh do in a step of few layers, few microbatches and at most three stages, read off the programs
//! that would run, on a clock.
//!
//! The seconds of a task of the timetable are those of its instructions and of its waits for collectives among the ranks
//! of its slice, whenever they run; waits for other slices depend on the timetable and do not count. While the first
//! task waits for its input, instructions of later tasks that need no other slice may run: their seconds count with
//! their tasks, but before all of them ([`Part::Ahead`]). What belongs to no microbatch happens once a step, as part of
//! the task under way, such as the norms of gradients that are ready. The first and the last microbatch differ from
//! those between them: the first accumulates no gradients, and behind the last one gradients are exchanged.

use super::step::Bytes;
use crate::models::ModelSource;
use crate::session::Session;
use partita_base::{CollectiveId, DType, Diagnostic, Result};
use partita_cost::Cluster;
use partita_ir::{Phase, Role};
use partita_pipeline::{Order, Task, TaskKind, Timetable, block_of};
use partita_program::{
    Action, BufferKind, Collective, CollectiveKind, CollectiveOp, Event, Origin, Program, ProgramSet,
};
use partita_schedule::{Built, PIPELINE_AXIS, Plan, Primitive};
use partita_simulate::{ClassRun, MemoryKind, Simulation, simulate};
use std::collections::BTreeMap;
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
}

impl Spent {
    pub fn sum(self) -> f64 {
        self.compute + self.exposed
    }

    pub fn plus(self, other: Spent) -> Spent {
        Spent { compute: self.compute + other.compute, exposed: self.exposed + other.exposed }
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
    /// Seconds of a task after it has sent its result to another slice.
    pub behind_send: BTreeMap<Part, ByPlace<f64>>,
    /// When its last task ends.
    pub tasks_end_s: f64,
    /// Seconds from the end of the tasks of all slices to its own end.
    pub tail_s: f64,
    /// Bytes in use on its fullest rank.
    pub bytes: Bytes,
    /// What alignment and placement add to these, as a part of them: it grows by no equal amounts.
    pub gaps: f64,
    /// Of these, what the forward pass of a microbatch keeps for its backward pass.
    pub saved: ByPlace<f64>,
    /// The part of its parameters at each place.
    pub parameters: ByPlace<f64>,
    /// The microbatches in flight at once.
    pub in_flight: f64,
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
        let slice = |(number, stage): (usize, &partita_schedule::Stage)| {
            let own = simulation.classes.iter().map(|run| (&set.programs[run.program], run));
            let own: Vec<(&Program, &ClassRun)> =
                own.filter(|(program, _)| stage.position(program.rank()).is_some()).collect();
            let reading =
                Reading { set, tasks: &timetable.slices[number], blocks, is_several: microbatches > 1 };
            let read = own.iter().map(|(program, run)| reading.of(program, run));
            let total = |of: &SmallSlice| of.spent.values().flatten().map(|spent| spent.sum()).sum::<f64>();
            let slowest = read.max_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or_default();
            let fullest = own.iter().max_by_key(|(program, _)| program.arena_bytes);
            SmallSlice {
                layers: step.layers[number],
                bytes: fullest.map(|(_, run)| used(run)).unwrap_or_default(),
                gaps: fullest.map_or(0.0, |(_, run)| bytes(run).total() / used(run).total() - 1.0),
                saved: fullest.map_or_else(Vec::new, |(program, _)| saved(program, microbatches, blocks)),
                parameters: fullest.map_or_else(Vec::new, |(program, _)| parameters(program, blocks)),
                tail_s: own.iter().map(|(_, run)| run.end_s).fold(0.0, f64::max),
                in_flight: timetable.peak(number) as f64,
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
            sent: [Phase::Forward, Phase::InputGrad].map(|phase| messages(built, set, phase)),
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

/// The part of a task's compute, as one in so many, that may come behind what makes the task done.
const LATE: u64 = 3;

/// The numbered blocks of a model.
pub(crate) struct Blocks {
    /// Their paths, in order.
    names: Vec<String>,
    /// How many are before all that repeat.
    before: usize,
    /// How many repeat together as one layer.
    period: usize,
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
    fn place(&self, path: &str) -> usize {
        let block = block_of(path);
        let number = self.names.iter().position(|known| known == block);
        let repeated = number.and_then(|number| number.checked_sub(self.before));
        repeated.and_then(|number| self.kinds.get(number)).copied().unwrap_or(self.period)
    }

    /// A figure of nothing.
    fn none<T: Clone + Default>(&self) -> ByPlace<T> {
        vec![T::default(); self.period + 1]
    }
}

/// How the events of a slice are read.
struct Reading<'a> {
    set: &'a ProgramSet,
    blocks: &'a Blocks,
    /// The tasks of the slice, in order.
    tasks: &'a [Task],
    is_several: bool,
}

impl Reading<'_> {
    /// The position of the task that an instruction is part of.
    fn task(&self, origin: &Origin) -> Option<usize> {
        let microbatch = origin.microbatch.or((!self.is_several).then_some(0))?;
        let is_own = |task: &Task| task.microbatch == microbatch && task.kind.includes(origin.phase);
        self.tasks.iter().position(is_own)
    }

    /// What a rank of a class does.
    fn of(&self, program: &Program, run: &ClassRun) -> SmallSlice {
        // Waits for other slices do not count.
        let is_counted = |event: &&Event| match &program.instructions[event.instruction].action {
            Action::Wait(collective) => !self.is_message(*collective),
            _ => true,
        };
        let events: Vec<&Event> = run.events.iter().filter(is_counted).collect();
        let task_of: Vec<Option<usize>> =
            events.iter().map(|event| self.task(&program.instructions[event.instruction].origin)).collect();
        let later = self.first_left(program, &events, &task_of);
        let (begin, sends) = (self.first_begin(program), self.last_sends(program));
        let mut read = SmallSlice::default();
        let mut current: Option<usize> = None;
        for (at, event) in events.iter().enumerate() {
            let seconds = (event.end_ns - event.begin_ns) as f64 / 1e9;
            let is_ahead = event.instruction < begin;
            if let Some(task) = task_of[at].filter(|&task| !is_ahead && task <= later[at]) {
                current = Some(task);
                read.tasks_end_s = event.end_ns as f64 / 1e9;
            }
            let own = match task_of[at].map(|task| self.tasks[task]) {
                Some(task) if is_ahead => Part::Ahead(task.kind, task.microbatch),
                Some(task) => Part::Task(task.kind, task.microbatch),
                None if later[at] == usize::MAX => Part::After,
                None => current.map_or(Part::Before, |task| self.once(self.tasks[task])),
            };
            let place = self.blocks.place(&program.instructions[event.instruction].origin.path);
            let spent = &mut read.spent.entry(own).or_insert_with(|| self.blocks.none())[place];
            match program.instructions[event.instruction].action {
                Action::Compute(_) => spent.compute += seconds,
                _ => spent.exposed += seconds,
            }
            let sent = task_of[at].or(current).filter(|_| !is_ahead && own != Part::After);
            let sent = sent.and_then(|task| sends[task]);
            if sent.is_some_and(|sent| event.instruction > sent) {
                read.behind_send.entry(own).or_insert_with(|| self.blocks.none())[place] += seconds;
            }
        }
        read
    }

    /// The part of what happens once a step while a task is under way. Microbatches in the middle stand for any number of
    /// others, so it counts with the first one there.
    fn once(&self, under_way: Task) -> Part {
        let is_last = self.tasks.iter().all(|task| task.microbatch <= under_way.microbatch);
        Part::Along(under_way.kind, if is_last { under_way.microbatch } else { 0 })
    }

    /// Whether a collective is a message between slices.
    fn is_message(&self, collective: CollectiveId) -> bool {
        self.set.collectives[collective.index()].kind == CollectiveKind::Send
    }

    /// The instruction with which the first task begins: the one that waits for its input, if that comes from another slice.
    fn first_begin(&self, program: &Program) -> usize {
        let of_first = || {
            let all = program.instructions.iter().enumerate();
            all.filter(|(_, instruction)| self.task(&instruction.origin) == Some(0))
        };
        let input = of_first().find_map(|(_, instruction)| match &instruction.action {
            Action::Start(start) if start.inputs.is_empty() => Some(start.collective),
            _ => None,
        });
        let input = input.filter(|&input| self.is_message(input));
        let is_waiting = |action: &Action| input.is_some_and(|input| *action == Action::Wait(input));
        let mut begins = of_first();
        let waits = of_first().find(|(_, instruction)| is_waiting(&instruction.action));
        waits.or_else(|| begins.next()).map_or(0, |(at, _)| at)
    }

    /// For each event, and behind the last one, the first task that is not done by then: an event of a later task runs ahead
    /// of it. A task is done with most of its compute; what comes behind that, such as adding up a gradient that was
    /// exchanged while the next tasks ran, keeps none of these from being under way.
    fn first_left(&self, program: &Program, events: &[&Event], task_of: &[Option<usize>]) -> Vec<usize> {
        let is_compute =
            |event: &Event| matches!(program.instructions[event.instruction].action, Action::Compute(_));
        let mut left = vec![0; self.tasks.len()];
        for (event, task) in events.iter().zip(task_of) {
            if let Some(task) = task.filter(|_| is_compute(event)) {
                left[task] += event.end_ns - event.begin_ns;
            }
        }
        let late: Vec<_> = left.iter().map(|all| all / LATE).collect();
        let mut done_at = vec![None; self.tasks.len()];
        for (at, (event, task)) in events.iter().zip(task_of).enumerate() {
            let Some(task) = *task else { continue };
            if is_compute(event) {
                left[task] -= event.end_ns - event.begin_ns;
            }
            if left[task] <= late[task] && is_compute(event) {
                done_at[task].get_or_insert(at);
            }
        }
        let mut first_left = vec![usize::MAX; events.len() + 1];
        for (task, done_at) in done_at.iter().enumerate() {
            if let Some(at) = *done_at {
                first_left[at] = first_left[at].min(task);
            }
        }
        // The last task ends with its last event.
        let end = task_of.iter().rposition(|task| task.is_some());
        for at in (0..events.len()).rev() {
            let last = if Some(at) == end { self.tasks.len() - 1 } else { usize::MAX };
            first_left[at] = first_left[at].min(first_left[at + 1]).min(last);
        }
        first_left
    }

    /// The last instruction of each task that sends something to another slice.
    fn last_sends(&self, program: &Program) -> Vec<Option<usize>> {
        let mut sends = vec![None; self.tasks.len()];
        for (at, instruction) in program.instructions.iter().enumerate() {
            let Action::Start(start) = &instruction.action else { continue };
            let is_sent = self.is_message(start.collective) && !start.inputs.is_empty();
            if let Some(task) = self.task(&instruction.origin).filter(|_| is_sent) {
                sends[task] = Some(at);
            }
        }
        sends
    }
}

/// Bytes of a rank by kind at its peak; what alignment and placement add, or save where results replace operands, counts
/// with activations.
pub(super) fn bytes(run: &ClassRun) -> Bytes {
    let mut bytes = used(run);
    bytes.activations += run.memory.arena_bytes as f64 - bytes.total();
    bytes
}

/// Bytes in use on a rank by kind at its peak; scratch memory and inputs count with activations.
fn used(run: &ClassRun) -> Bytes {
    let of = |kind: MemoryKind| run.memory.peak[kind as usize] as f64;
    Bytes {
        parameters: of(MemoryKind::Parameters),
        gradients: of(MemoryKind::Gradients),
        optimizer_state: of(MemoryKind::OptimizerState),
        activations: [MemoryKind::Activations, MemoryKind::Inputs, MemoryKind::Workspace]
            .map(of)
            .iter()
            .sum(),
        communication: of(MemoryKind::Communication),
    }
}

/// Bytes that the forward pass of a microbatch in the middle keeps for its backward pass.
fn saved(program: &Program, microbatches: usize, blocks: &Blocks) -> ByPlace<f64> {
    let wanted = (microbatches > 1).then_some(microbatches / 2);
    let is_saved = |buffer: &&partita_program::Buffer| {
        let [first, last] = [buffer.first, buffer.last].map(|at| program.instructions.get(at));
        let origins = first.zip(last).map(|(first, last)| (&first.origin, &last.origin));
        matches!(buffer.kind, BufferKind::Temporary | BufferKind::Output)
            && origins.is_some_and(|(first, last)| {
                first.phase == Phase::Forward && last.phase.is_backward() && first.microbatch == wanted
            })
    };
    let mut saved = blocks.none();
    for buffer in program.buffers.iter().filter(is_saved) {
        saved[blocks.place(&program.instructions[buffer.first].origin.path)] += buffer.bytes as f64;
    }
    saved
}

/// The part of a rank's parameters at each place.
fn parameters(program: &Program, blocks: &Blocks) -> ByPlace<f64> {
    let mut bytes = blocks.none();
    for port in program.inputs.iter().filter(|port| port.role == Role::Param) {
        bytes[blocks.place(&port.name)] += program.buffer(port.buffer).bytes as f64;
    }
    let all: f64 = bytes.iter().sum();
    bytes.iter().map(|of_place| if all > 0.0 { of_place / all } else { 0.0 }).collect()
}

/// Whether a slice has gradients of earlier microbatches when it holds most activations.
pub(super) fn accumulates(timetable: &Timetable, slice: usize) -> bool {
    let most = timetable.peak(slice);
    let held = timetable.held(slice);
    let done = timetable.slices[slice].iter().position(|task| task.kind != TaskKind::Forward);
    // The first backward task itself releases what it holds as it goes.
    done.is_some_and(|done| held[done + 1..].contains(&most))
}

/// Bytes of gradients of the microbatches before the last one, as its backward pass begins.
fn accumulated(program: &Program, run: &ClassRun, microbatches: usize) -> f64 {
    let last = microbatches.checked_sub(1).filter(|&last| last > 0);
    let is_begin = |event: &&Event| {
        let origin = &program.instructions[event.instruction].origin;
        last.is_some() && origin.microbatch == last && origin.phase.is_backward()
    };
    let Some(begin) = run.events.iter().find(is_begin) else { return 0.0 };
    let begin_s = begin.begin_ns as f64 / 1e9;
    let before = run.memory.over_time.iter().take_while(|(now_s, _)| *now_s < begin_s);
    before.last().map_or(0.0, |(_, bytes)| bytes[MemoryKind::Gradients as usize] as f64)
}

/// The messages between the first two slices for a microbatch in a phase; all of them at once.
fn messages(built: &Built, set: &ProgramSet, phase: Phase) -> Vec<Message> {
    let [from, to, ..] = &built.stages[..] else { return Vec::new() };
    let (from, to) = if phase == Phase::Forward { (from, to) } else { (to, from) };
    let of_phase = |one: &&Collective| one.phase.is_backward() == phase.is_backward();
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
