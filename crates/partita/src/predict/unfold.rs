//! A large step from small ones: the programs of the same step with few layers and microbatches are built twice, with
//! different numbers of layers, and run over a clock (module `small`). What a layer adds is the difference of the two; a
//! stage in the middle of a pipeline and a microbatch in the middle of a step stand for all others like them. The timetable
//! of the step then runs over a clock with these seconds.
//!
//! So a large step is predicted from the very passes, kernels and collectives that a small one is, and the two predictions
//! agree (`tests/all/unfold.rs` compares them).

use super::block::matmul_flops;
use super::fold::rows_of_microbatch;
use super::small::{
    Part, STAGES, Small, SmallSlice, Spent, not_folded, period_and_before, repeated_blocks, splits_backward,
};
use super::step::{Bytes, Forecast, StepSeconds};
use crate::session::Session;
use partita_base::{Diagnostic, Result};
use partita_mesh::Slice;
use partita_pipeline::{Order, Task, TaskKind, Timetable, mark};
use partita_schedule::{PIPELINE_AXIS, Plan, Primitive};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Predicts the step of a session. A plan is that of the whole model; none is the plan of the session.
///
/// # Errors
/// E511 for a model without repeated layers, a batch that does not divide or a plan that lists slices, E463 for a timetable
/// of other numbers, E474 for a mesh that the cluster does not hold; what building, lowering and simulating refuse.
pub fn forecast(session: &Session, plan: Option<&Plan>) -> Result<Forecast> {
    forecast_with(session, plan, &SmallSteps::default())
}

/// The small steps of forecasts: steps that differ only in their slices, microbatches or the order of tasks share theirs.
#[derive(Debug, Default)]
pub struct SmallSteps {
    known: Mutex<BTreeMap<String, Arc<[Small; 2]>>>,
}

impl SmallSteps {
    /// The small steps of a session; they are built without holding up others.
    fn of(&self, session: &Session, plan: Option<&Plan>, stages: usize) -> Result<Arc<[Small; 2]>> {
        let (config, mut mesh) = (session.config(), session.mesh().clone());
        let cluster = config.cluster.resized(&mesh, PIPELINE_AXIS, stages);
        mesh.axes.retain(|axis| axis.name != PIPELINE_AXIS);
        let (microbatches, rows) = (config.train.microbatches, rows_of_microbatch(session)?);
        let key = format!(
            "{stages} {mesh} {:?} {rows} {} {} {} {plan:?}",
            cluster.levels,
            microbatches.min(super::small::MICROBATCHES),
            splits_backward(session)?,
            config.plan.sequence_parallel
        );
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(small) = known().get(&key) {
            return Ok(small.clone());
        }
        let small = Arc::new(few_and_more(session, plan, stages)?);
        known().insert(key, small.clone());
        Ok(small)
    }
}

/// As [`forecast`], with the small steps of other forecasts of the same model and config.
///
/// # Errors
/// As [`forecast`].
pub fn forecast_with(session: &Session, plan: Option<&Plan>, small: &SmallSteps) -> Result<Forecast> {
    Ok(unfolded(session, plan, small)?.forecast)
}

/// A task of the timetable of a large step, as it ran over the clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TaskRun {
    /// The slice of the mesh.
    pub slice: usize,
    /// The task.
    pub task: Task,
    /// When it begins.
    pub begin_s: f64,
    /// When it ends.
    pub end_s: f64,
}

/// A large step in terms of its slices.
#[derive(Clone, PartialEq, Debug)]
pub struct LargeStep {
    /// Its forecast.
    pub forecast: Forecast,
    /// The timetable.
    pub timetable: Timetable,
    /// Layers of each stage.
    pub layers: Vec<f64>,
    /// The tasks, in the order of their ends on each slice.
    pub tasks: Vec<TaskRun>,
}

/// The stages and the layers on each of them of the smaller one of the steps by which a session's step is predicted.
///
/// # Errors
/// E463 for a timetable of other numbers than the session's.
pub fn small_size(session: &Session) -> Result<(usize, usize)> {
    let slices = session.mesh().slices(PIPELINE_AXIS).len();
    let train = &session.config().train;
    let stages = timetable(&train.timetable, slices, train.microbatches)?.stages.min(STAGES);
    Ok((stages, few_layers(session, stages)))
}

/// As [`forecast_with`], with the tasks of the timetable.
///
/// # Errors
/// As [`forecast`].
pub fn unfolded(session: &Session, plan: Option<&Plan>, small: &SmallSteps) -> Result<LargeStep> {
    let config = session.config();
    config.cluster.holds(session.mesh())?;
    rows_of_microbatch(session)?;
    let [layers, ..] = config.model.stream().ok_or_else(not_folded)?;
    let slices = session.mesh().slices(PIPELINE_AXIS);
    let microbatches = config.train.microbatches;
    let timetable = timetable(&config.train.timetable, slices.len(), microbatches)?;
    let counts = layers_of_stages(session, plan, layers, timetable.stages)?;
    let stages = timetable.stages.min(STAGES);
    let small = small.of(session, plan, stages)?;
    let step = Unfolded { counts, timetable, small, splits: splits_backward(session)? };
    let delays = step.delays(session, &slices);
    let mut tasks = Vec::new();
    let seconds = step.seconds(&delays, &mut tasks)?;
    let model = |layers: usize| -> Result<[f64; 2]> {
        let source = config.model.with_layers(layers).ok_or_else(not_folded)?;
        let model = source.build(config.train.batch / microbatches.max(1), config.train.dtype, true)?;
        Ok([matmul_flops(&model.forward), model.parameter_count() as f64])
    };
    let ([one_flops, one], [two_flops, two]) = (model(1)?, model(2)?);
    let whole = |one: f64, two: f64| one + (two - one) * (layers - 1) as f64;
    let forecast = Forecast {
        // The backward pass does twice the arithmetic of the forward pass.
        flops: 3.0 * microbatches as f64 * whole(one_flops, two_flops),
        parameters: whole(one, two),
        stages: (0..slices.len()).map(|slice| step.bytes(slice)).collect(),
        seconds,
    };
    Ok(LargeStep { forecast, timetable: step.timetable, layers: step.counts, tasks })
}

/// The timetable of a mesh with these slices; without a pipeline, one microbatch after another.
fn timetable(order: &Order, slices: usize, microbatches: usize) -> Result<Timetable> {
    match slices {
        1 => Order::default().timetable(1, microbatches),
        _ => order.timetable(slices, microbatches),
    }
}

/// The layers on each stage of the smaller one of the small steps. Where parameters are gathered for each use, a layer
/// hides the gathers of the next one, so a stage needs two of them; and with too few, memory is fullest in another part
/// of the step than with many.
fn few_layers(session: &Session, stages: usize) -> usize {
    let gathers = session.mesh().axis_named("fsdp").is_some_and(|axis| axis.size > 1);
    match (stages, gathers) {
        (1, _) => 3,
        (_, true) => 2,
        (_, false) => 1,
    }
}

/// The small steps, on two cores.
fn few_and_more(session: &Session, plan: Option<&Plan>, stages: usize) -> Result<[Small; 2]> {
    let few = few_layers(session, stages);
    let session = session.clone().in_this_process().only_priced();
    let small = |layers: usize| Small::of(&session, plan, stages, layers);
    let (few, more) = std::thread::scope(|scope| {
        let other = scope.spawn(|| small(few));
        let more = small(few + 1);
        (other.join(), more)
    });
    match few {
        Ok(few) => Ok([few?, more?]),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Whether a path is this module or inside it.
pub(crate) fn is_inside(path: &str, module: &str) -> bool {
    path == module || path.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'))
}

/// The layers of each stage, as the step of all layers is cut.
fn layers_of_stages(
    session: &Session,
    plan: Option<&Plan>,
    layers: usize,
    stages: usize,
) -> Result<Vec<f64>> {
    if stages == 1 {
        return Ok(vec![layers as f64]);
    }
    let config = session.config();
    let mut forward = config.model.build(1, config.train.dtype, true)?.forward;
    let [period, before] = period_and_before(&config.model)?;
    let given;
    let lines = match plan {
        Some(plan) => plan,
        None => {
            given = session.pins()?;
            &given
        }
    };
    let mut ends = Vec::new();
    for entry in &lines.entries {
        match &entry.primitive {
            Primitive::PipelineSplit { mesh: None, ranks } if ranks.is_empty() => {
                ends.extend(forward.nodes.iter().rposition(|node| is_inside(&node.path, &entry.modules)));
            }
            Primitive::PipelineSplit { .. } | Primitive::Layers { .. } => {
                return Err(Diagnostic::new("E511", "the step cannot be folded to one layer")
                    .at(entry.describe())
                    .expected("stages that end after layers of the model, on equal slices of the mesh"));
            }
            _ => {}
        }
    }
    match ends.is_empty() {
        true => mark::evenly(&mut forward, stages)?,
        false => mark::after(&mut forward, &ends),
    }
    let blocks = repeated_blocks(&forward);
    let mut counts = vec![0.0; stages];
    for block in &blocks[before.min(blocks.len())..] {
        let stage =
            forward.nodes.iter().find(|node| is_inside(&node.path, block)).map_or(0, |node| node.stage);
        counts[stage.min(stages - 1)] += 1.0 / period as f64;
    }
    Ok(counts)
}

/// A step of any size, in terms of two small ones.
struct Unfolded {
    /// Layers of each stage.
    counts: Vec<f64>,
    timetable: Timetable,
    small: Arc<[Small; 2]>,
    /// Whether the small steps run input gradients and weight gradients apart.
    splits: bool,
}

impl Unfolded {
    fn few(&self) -> &Small {
        &self.small[0]
    }

    fn more(&self) -> &Small {
        &self.small[1]
    }

    /// The slices of the small steps that do what a stage does.
    fn small(&self, stage: usize) -> [&SmallSlice; 2] {
        let last = self.few().slices.len() - 1;
        let like = match stage {
            0 => 0,
            stage if stage + 1 == self.counts.len() => last,
            _ => 1.min(last),
        };
        [&self.few().slices[like], &self.more().slices[like]]
    }

    /// A figure of a stage, from that of the two small steps.
    fn at(&self, stage: usize) -> impl Fn(f64, f64) -> f64 {
        let beyond = self.counts[stage] - self.few().layers as f64;
        let between = (self.more().layers - self.few().layers) as f64;
        move |few, more| (few + (more - few) * beyond / between).max(0.0)
    }

    /// The seconds of a task after it has sent its result.
    fn behind_send(&self, stage: usize, part: Part) -> f64 {
        let [few, more] = self.small(stage).map(|s| s.behind_send.get(&part).copied().unwrap_or_default());
        self.at(stage)(few, more)
    }

    fn spent(&self, stage: usize, part: Part) -> Spent {
        let [few, more] = self.small(stage).map(|slice| slice.spent.get(&part).copied().unwrap_or_default());
        Spent::beyond(few, more, self.at(stage))
    }

    /// The seconds of a task, and those of them after it has sent its result.
    fn task(&self, stage: usize, kind: TaskKind, microbatch: usize) -> (Spent, f64) {
        let last = self.timetable.microbatches - 1;
        let like = match microbatch {
            0 => 0,
            number if number == last => last.min(super::small::MICROBATCHES - 1),
            _ => 1,
        };
        let of = |kind: TaskKind| {
            let part = Part::Task(kind, like);
            (self.spent(stage, part), self.behind_send(stage, part))
        };
        match (kind, self.splits) {
            (TaskKind::Backward, true) => {
                let ((input, behind), (weight, _)) = (of(TaskKind::InputGrad), of(TaskKind::WeightGrad));
                (input.plus(weight), behind + weight.sum())
            }
            _ => of(kind),
        }
    }

    /// For each stage but the last, the seconds of a microbatch on its way to the next stage, and back.
    fn delays(&self, session: &Session, slices: &[Slice]) -> Vec<[f64; 2]> {
        let (slice_of, cluster) = (self.timetable.slice_of_stage(), &session.config().cluster);
        let [forward, backward] = &self.few().sent;
        let seconds = |messages: &[super::small::Message], from: usize, to: usize| {
            let (from, to) = (&slices[slice_of[from]].ranks, &slices[slice_of[to]].ranks);
            if from == to {
                return 0.0;
            }
            cluster
                .messages_s(messages.iter().map(|&(source, target, bytes)| (from[source], to[target], bytes)))
        };
        let pairs = 0..self.counts.len() - 1;
        pairs.map(|s| [seconds(forward, s, s + 1), seconds(backward, s + 1, s)]).collect()
    }

    /// Runs the timetable, and writes down its tasks.
    fn seconds(&self, delays: &[[f64; 2]], tasks: &mut Vec<TaskRun>) -> Result<StepSeconds> {
        let (timetable, stages) = (&self.timetable, self.counts.len());
        let slice_of = timetable.slice_of_stage();
        let sum = |slice: usize, part: Part| {
            let own = (0..stages).filter(|&stage| slice_of[stage] == slice);
            own.fold(Spent::default(), |sum, stage| sum.plus(self.spent(stage, part)))
        };
        let mut slices: Vec<Running> = (0..timetable.slices.len())
            .map(|slice| {
                let before = sum(slice, Part::Before);
                Running { now: before.sum(), busy: before, next: 0 }
            })
            .collect();
        let mut done: BTreeMap<(TaskKind, usize, usize), f64> = BTreeMap::new();
        loop {
            let mut advanced = false;
            for (slice, running) in slices.iter_mut().enumerate() {
                while let Some(task) = timetable.slices[slice].get(running.next) {
                    let (stage, number) = (task.stage, task.microbatch);
                    let ready = match task.kind {
                        TaskKind::Forward if stage == 0 => Some(0.0),
                        TaskKind::Forward => done
                            .get(&(TaskKind::Forward, stage - 1, number))
                            .map(|end| end + delays[stage - 1][0]),
                        TaskKind::WeightGrad => done.get(&(TaskKind::InputGrad, stage, number)).copied(),
                        _ if stage + 1 == stages => done.get(&(TaskKind::Forward, stage, number)).copied(),
                        _ => [TaskKind::Backward, TaskKind::InputGrad]
                            .iter()
                            .find_map(|&kind| done.get(&(kind, stage + 1, number)))
                            .map(|end| end + delays[stage][1]),
                    };
                    let Some(ready) = ready else { break };
                    let (own, behind) = self.task(stage, task.kind, number);
                    let begin_s = running.now.max(ready);
                    running.now = begin_s + own.sum();
                    tasks.push(TaskRun { slice, task: *task, begin_s, end_s: running.now });
                    running.busy = running.busy.plus(own);
                    running.next += 1;
                    done.insert((task.kind, stage, number), running.now - behind);
                    advanced = true;
                }
            }
            let is_done = |(slice, running): (usize, &Running)| running.next == timetable.slices[slice].len();
            if slices.iter().enumerate().all(is_done) {
                break;
            }
            if !advanced {
                // The timetable itself says which task waits forever.
                timetable.slots()?;
                return Err(Diagnostic::new("E510", "the simulated ranks wait for each other forever"));
            }
        }
        let mut end_s = 0.0f64;
        for (slice, running) in slices.iter_mut().enumerate() {
            end_s = end_s.max(running.now);
            running.busy = running.busy.plus(sum(slice, Part::After));
        }
        let fullest = (0..stages).max_by(|&a, &b| self.counts[a].total_cmp(&self.counts[b])).unwrap_or(0);
        let step_s = end_s + self.at(fullest)(self.few().tail_s, self.more().tail_s);
        let busiest = slices.iter().map(|slice| slice.busy).max_by(|a, b| a.sum().total_cmp(&b.sum()));
        let busiest = busiest.unwrap_or_default();
        let in_flight = (0..stages).map(|stage| self.in_flight(slice_of[stage]));
        Ok(StepSeconds {
            step_s,
            compute_s: busiest.compute,
            exposed_s: busiest.exposed,
            bubble_s: (step_s - busiest.sum()).max(0.0),
            in_flight: in_flight.collect(),
        })
    }

    /// The microbatches in flight on a slice for each of its stages.
    fn in_flight(&self, slice: usize) -> f64 {
        let own = self.timetable.slice_of_stage().iter().filter(|&&of| of == slice).count();
        self.timetable.peak(slice) as f64 / own.max(1) as f64
    }

    /// Bytes of the fullest rank of a slice.
    fn bytes(&self, slice: usize) -> Bytes {
        let slice_of = self.timetable.slice_of_stage();
        let in_flight = self.in_flight(slice);
        let own: Vec<usize> = (0..self.counts.len()).filter(|&stage| slice_of[stage] == slice).collect();
        let (mut sum, mut saved, mut rest) = (Bytes::default(), 0.0, 0.0f64);
        for &stage in &own {
            let (small, at) = (self.small(stage), self.at(stage));
            let of = |figure: &dyn Fn(&SmallSlice) -> f64| at(figure(small[0]), figure(small[1]));
            let kept = |slice: &SmallSlice| slice.bytes.parameters + slice.bytes.optimizer_state;
            sum.parameters += of(&|slice| slice.bytes.parameters);
            sum.optimizer_state += of(&|slice| slice.bytes.optimizer_state);
            sum.gradients += of(&|slice| slice.bytes.gradients);
            sum.communication = sum.communication.max(of(&|slice| slice.bytes.communication));
            saved += of(&|slice| slice.saved) * in_flight;
            // Which kinds are in use when memory is fullest may differ between the small steps; their sum grows evenly.
            let others = match own.len() {
                1 => of(&|slice| slice.bytes.total() - kept(slice) - slice.saved * slice.in_flight),
                _ => of(&|slice| slice.bytes.activations - slice.saved * slice.in_flight),
            };
            rest = rest.max(others);
        }
        if own.len() > 1 {
            return Bytes { activations: (saved + rest).max(0.0), ..sum };
        }
        let rest = saved + rest;
        sum.gradients = sum.gradients.min(rest);
        sum.communication = sum.communication.min(rest - sum.gradients);
        sum.activations = rest - sum.gradients - sum.communication;
        sum
    }
}

/// A slice under way.
struct Running {
    now: f64,
    busy: Spent,
    next: usize,
}
