//! A large step from small ones: the programs of the same step with few layers and microbatches are built twice, with
//! different numbers of layers, and run over a clock (module `small`). What a layer adds is the difference of the two; a
//! stage in the middle of a pipeline and a microbatch in the middle of a step stand for all others like them. The timetable
//! of the step then runs over a clock with these seconds.
//!
//! So a large step is predicted from the very passes, kernels and collectives that a small one is, and the two predictions
//! agree (`tests/all/unfold.rs` compares them).

use super::fold::rows_of_microbatch;
pub use super::run::TaskRun;
use super::run::{Act, Tasks, beside, joined, send};
use super::small::{
    ByPlace, Part, STAGES, Small, SmallSlice, Spent, check_stages, not_folded, period_and_before,
    repeated_blocks, splits_backward,
};
pub use super::small_steps::SmallSteps;
use super::small_steps::{SmallPair, few_layers};
use super::step::{Bytes, Forecast, StepSeconds};
use crate::figures::model_flops;
use crate::session::Session;
use partita_base::{Diagnostic, Result};
use partita_mesh::{AxisRef, AxisRole, Slice};
use partita_pipeline::{Order, Task, TaskKind, Timetable, mark};
use partita_schedule::{PIPELINE_AXIS, Plan, Primitive};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Predicts the step of a session. A plan is that of the whole model; none is the plan of the session.
///
/// # Errors
/// E511 for a model without repeated layers, a batch that does not divide or a plan that lists slices, E463 for a timetable
/// of other numbers, E474 for a mesh that the cluster does not hold; what building, lowering and simulating refuse.
pub fn forecast(session: &Session, plan: Option<&Plan>) -> Result<Forecast> {
    forecast_with(session, plan, &SmallSteps::default())
}

/// As [`forecast`], with the small steps of other forecasts of the same model and config.
///
/// # Errors
/// As [`forecast`].
pub fn forecast_with(session: &Session, plan: Option<&Plan>, small: &SmallSteps) -> Result<Forecast> {
    Ok(unfolded(session, plan, small)?.forecast)
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

/// The layers on each stage of the smaller one of the steps by which a session's step is predicted.
///
/// # Errors
/// E463 for a timetable of other numbers than the session's.
pub fn small_size(session: &Session) -> Result<Vec<usize>> {
    let slices = session.mesh().slices(PIPELINE_AXIS).len();
    let train = &session.config().train;
    let stages = timetable(&train.timetable, slices, train.microbatches)?.stages.min(STAGES);
    Ok(few_layers(stages))
}

/// As [`forecast_with`], with the tasks of the timetable.
///
/// # Errors
/// As [`forecast`].
pub fn unfolded(session: &Session, plan: Option<&Plan>, small: &SmallSteps) -> Result<LargeStep> {
    let config = session.config();
    config.cluster.holds(session.mesh())?;
    check_stages(session)?;
    rows_of_microbatch(session)?;
    let [layers, ..] = config.model.stream().ok_or_else(not_folded)?;
    let slices = session.mesh().slices(PIPELINE_AXIS);
    let microbatches = config.train.microbatches;
    let timetable = timetable(&config.train.timetable, slices.len(), microbatches)?;
    let counts = layers_of_stages(session, plan, layers, timetable.stages)?;
    let stages = timetable.stages.min(STAGES);
    let small = small.of(session, plan, stages)?;
    let (slice_of, splits) = (timetable.slice_of_stage(), splits_backward(session)?);
    let kind_of = config.cluster.kinds_of_slices(session.mesh(), PIPELINE_AXIS);
    let step = Unfolded { counts, timetable, slice_of, kind_of, small, splits };
    let delays = step.delays(session, &slices);
    let mut tasks = Vec::new();
    let seconds = step.seconds(&delays, &queue_of(session, &slices), &mut tasks)?;
    let model = |layers: usize| -> Result<[f64; 2]> {
        let source = config.model.with_layers(layers).ok_or_else(not_folded)?;
        let model = source.build(config.train.batch / microbatches.max(1), config.train.dtype, true)?;
        Ok([model_flops(&model), model.parameter_count() as f64])
    };
    let ([one_flops, one], [two_flops, two]) = (model(1)?, model(2)?);
    let whole = |one: f64, two: f64| one + (two - one) * (layers - 1) as f64;
    let forecast = Forecast {
        flops: microbatches as f64 * whole(one_flops, two_flops),
        parameters: whole(one, two),
        stages: (0..slices.len()).map(|slice| step.bytes(slice)).collect(),
        limits: slices.iter().map(|slice| config.cluster.memory_of(slice.ranks.iter().copied())).collect(),
        seconds,
    };
    let layers = (0..step.counts.len()).map(|stage| step.layers(stage)).collect();
    Ok(LargeStep { forecast, timetable: step.timetable, layers, tasks })
}

/// The timetable of a mesh with these slices; without a pipeline, one microbatch after another.
fn timetable(order: &Order, slices: usize, microbatches: usize) -> Result<Timetable> {
    match slices {
        1 => Order::default().timetable(1, microbatches),
        _ => order.timetable(slices, microbatches),
    }
}

/// The queue of messages between two slices: 0 if they go over the links over which data parallel ranks exchange, otherwise
/// 1.
fn queue_of(session: &Session, slices: &[Slice]) -> impl Fn(usize, usize) -> usize {
    let (mesh, cluster) = (session.mesh(), &session.config().cluster);
    let shared = [AxisRole::Parameters, AxisRole::Data].into_iter().filter_map(|role| mesh.axis_of(role));
    let shared: Vec<AxisRef> = shared.filter(|axis| axis.size > 1).take(1).collect();
    let rings = cluster.rings_among(&mesh.group_of(0, &shared));
    let beside: Vec<usize> = rings.into_iter().map(|ring| ring.level).collect();
    move |from, to| {
        let level = cluster.level_between(slices[from].ranks[0], slices[to].ranks[0]);
        usize::from(!beside.contains(&level))
    }
}

/// Whether a path is this module or inside it.
pub(crate) fn is_inside(path: &str, module: &str) -> bool {
    path == module || path.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'))
}

/// The blocks at each place of a layer on each stage, as the step of all layers is cut, and behind them its layers: with
/// a half, if it has one block more or less of a pair.
fn layers_of_stages(
    session: &Session,
    plan: Option<&Plan>,
    layers: usize,
    stages: usize,
) -> Result<Vec<ByPlace<f64>>> {
    let config = session.config();
    let [period, before] = period_and_before(&config.model)?;
    if stages == 1 {
        return Ok(vec![vec![layers as f64; period + 1]]);
    }
    let mut forward = config.model.build(1, config.train.dtype, true)?.forward;
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
            other if other.decides_stages() => {
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
    let mut counts = vec![vec![0.0; period + 1]; stages];
    let repeated = &blocks[before.min(blocks.len())..];
    for (number, block) in repeated.iter().enumerate() {
        let stage =
            forward.nodes.iter().find(|node| is_inside(&node.path, block)).map_or(0, |node| node.stage);
        let counts = &mut counts[stage.min(stages - 1)];
        counts[config.model.kind_of_block(number, repeated.len())] += 1.0;
        counts[period] += 1.0 / period as f64;
    }
    Ok(counts)
}

/// A step of any size, in terms of two small ones.
struct Unfolded {
    /// The blocks of each stage by place, and its layers.
    counts: Vec<ByPlace<f64>>,
    timetable: Timetable,
    /// The slice of each stage.
    slice_of: Vec<usize>,
    /// The kind of devices of each slice.
    kind_of: Vec<usize>,
    small: Arc<SmallPair>,
    /// Whether the small steps run input gradients and weight gradients apart.
    splits: bool,
}

impl Unfolded {
    /// The smaller one of the small steps, for what does not depend on devices.
    fn few(&self) -> &Small {
        &self.small[0][0]
    }

    /// The small steps on the devices of a slice.
    fn on_slice(&self, slice: usize) -> [&Small; 2] {
        let kind = self.kind_of[slice];
        [&self.small[0][kind], &self.small[1][kind]]
    }

    /// The slices of the small steps that do what a stage does.
    fn small(&self, stage: usize) -> [&SmallSlice; 2] {
        let last = self.few().slices.len() - 1;
        let like = match stage {
            0 => 0,
            stage if stage + 1 == self.counts.len() => last,
            _ => 1.min(last),
        };
        self.on_slice(self.slice_of[stage]).map(|small| &small.slices[like])
    }

    /// Those of a stage in the middle, on the devices of a slice.
    fn middle(&self, slice: usize) -> [&SmallSlice; 2] {
        let like = 1.min(self.few().slices.len() - 1);
        self.on_slice(slice).map(|small| &small.slices[like])
    }

    /// A figure by place of a stage like these with so many blocks.
    fn like(&self, [few, more]: [&SmallSlice; 2], counts: &[f64], figure: Figure) -> f64 {
        let of = |(place, &count): (usize, &f64)| {
            of_layers(count, [few.layers, more.layers], [figure(few, place), figure(more, place)])
        };
        counts.iter().enumerate().map(of).sum::<f64>().max(0.0)
    }

    /// A figure by place of a stage.
    fn of_stage(&self, stage: usize, figure: Figure) -> f64 {
        self.like(self.small(stage), &self.counts[stage], figure)
    }

    /// A figure of a slice: the sum over its stages, where what belongs to no layer counts once.
    fn of_slice(&self, slice: usize, figure: Figure) -> f64 {
        let sum: f64 = self.own(slice).map(|stage| self.of_stage(stage, figure)).sum();
        (sum - self.repeated(slice, figure)).max(0.0)
    }

    /// What all stages of a slice but one have of a figure beside their layers.
    fn repeated(&self, slice: usize, figure: Figure) -> f64 {
        match self.own(slice).count() {
            0 | 1 => 0.0,
            // Then there are stages between the first and the last one.
            several => {
                let none = vec![0.0; self.few().period + 1];
                (several - 1) as f64 * self.like(self.middle(slice), &none, figure)
            }
        }
    }

    /// The layers of a stage.
    fn layers(&self, stage: usize) -> f64 {
        self.counts[stage][self.few().period]
    }

    /// Of a task, what comes after it has sent its result.
    fn behind_send(&self, stage: usize, part: Part) -> Spent {
        spent_of(&|small| small.behind_send.get(&part), |figure| self.of_stage(stage, figure))
    }

    fn spent(&self, stage: usize, part: Part) -> Spent {
        spent_of(&|small| small.spent.get(&part), |figure| self.of_stage(stage, figure))
    }

    /// The stages of a slice.
    fn own(&self, slice: usize) -> impl Iterator<Item = usize> {
        (0..self.counts.len()).filter(move |&stage| self.slice_of[stage] == slice)
    }

    /// What a slice spends in a part that it has once, however many stages it has; behind its tasks, without what is left
    /// over from them.
    fn once(&self, slice: usize, part: Part) -> Spent {
        spent_of(&|small| small.spent.get(&part), |figure| self.of_slice(slice, figure))
    }

    /// Of the norms of gradients of a stage's last layers, which wait for their reductions, the seconds that the last task
    /// of the stage takes longer if another stage of its slice ends after it, whose reductions follow at once: those of one
    /// layer. The others are left over, and run with the last task of that stage.
    fn norms(&self, slice: usize) -> [f64; 2] {
        let beside = |layers: f64, wanted: fn(&Part) -> bool| {
            let in_part = |small: &SmallSlice, place: usize| -> f64 {
                let own = small.spent.iter().filter(|(part, _)| wanted(part));
                own.map(|(_, spent)| spent[place].compute).sum()
            };
            self.like(self.middle(slice), &vec![layers; self.few().period + 1], &in_part)
        };
        // All that happens once a step grows with the layers, wherever it runs.
        let of_step = |layers: f64| beside(layers, |part| matches!(part, Part::After | Part::Along(..)));
        let all = (beside(0.0, |part| *part == Part::After) - of_step(0.0)).max(0.0);
        let [few, more] = self.middle(slice).map(|small| small.layers as f64);
        let along = |layers: f64| beside(layers, |part| matches!(part, Part::Along(..)));
        let own = ((along(more) - along(few)) / (more - few)).clamp(0.0, all);
        [own, all - own]
    }

    /// Whether a task is the last one of a stage, and another stage of its slice ended before it, or ends after it.
    fn is_beside_another(&self, task: Task) -> [bool; 2] {
        let (slice_of, own) = (&self.slice_of, self.slice_of[task.stage]);
        let is_last = task.microbatch + 1 == self.timetable.microbatches;
        let ends = is_last && matches!(task.kind, TaskKind::Backward | TaskKind::WeightGrad);
        [&slice_of[task.stage + 1..], &slice_of[..task.stage]].map(|others| ends && others.contains(&own))
    }

    /// The microbatch of the small steps that a microbatch is like.
    fn like_microbatch(&self, microbatch: usize) -> usize {
        let last = self.timetable.microbatches - 1;
        match microbatch {
            0 => 0,
            number if number == last => last.min(super::small::MICROBATCHES - 1),
            _ => 1,
        }
    }

    /// The kinds of task of the small steps that a task runs one after another.
    fn kinds(&self, kind: TaskKind) -> &'static [TaskKind] {
        match kind {
            TaskKind::Backward if self.splits => &[TaskKind::InputGrad, TaskKind::WeightGrad],
            TaskKind::Forward => &[TaskKind::Forward],
            TaskKind::Backward => &[TaskKind::Backward],
            TaskKind::InputGrad => &[TaskKind::InputGrad],
            TaskKind::WeightGrad => &[TaskKind::WeightGrad],
        }
    }

    /// The seconds of a task that run ahead of all tasks. Collectives that it waits for then have until the first task
    /// begins.
    fn ahead(&self, task: Task) -> Spent {
        let like = self.like_microbatch(task.microbatch);
        let kinds = self.kinds(task.kind).iter();
        let compute = kinds.map(|&kind| self.spent(task.stage, Part::Ahead(kind, like)).compute).sum();
        Spent { compute, ..Spent::default() }
    }

    /// What a task does.
    fn acts(&self, task: Task) -> Vec<Act> {
        let (stage, like) = (task.stage, self.like_microbatch(task.microbatch));
        let [is_behind, is_before] = self.is_beside_another(task);
        let norms = if is_behind || is_before { self.norms(self.slice_of[stage]) } else { [0.0; 2] };
        let mut acts = Vec::new();
        for (number, &kind) in self.kinds(task.kind).iter().enumerate() {
            let parts = [Part::Task(kind, like), Part::Along(kind, like)];
            let own = parts.iter().map(|&part| self.units(stage, kind, part));
            let own = own.reduce(|a, b| a.into_iter().zip(b).map(|(a, b)| a.plus(b)).collect());
            let begin = acts.len();
            let units = joined(own.unwrap_or_default());
            let at_end = if self.is_led(stage, kind) { 0 } else { units.len() - 1 };
            for (at, unit) in units.into_iter().enumerate() {
                let ends = self.small(stage)[0].at_ends.get(&parts[0]).filter(|_| at == at_end);
                let [gathers, reductions] = ends.map_or([&[][..]; 2], |of| [&of[0][..], &of[1][..]]);
                acts.extend(beside(unit.gathered, gathers).map(Act::Gathered));
                acts.push(Act::Works(unit));
                acts.extend(beside(unit.reduced, reductions).map(Act::Reduces));
            }
            if number == 0 {
                let behind = parts.iter().map(|&part| self.behind_send(stage, part));
                let sent = send(&mut acts, begin, behind.fold(Spent::default(), Spent::plus));
                // Those that are left over wait for reductions that end with the first one of this stage.
                let beside = [is_behind, is_before].into_iter().zip([norms[1], norms[0]]);
                let seconds: f64 = beside.filter(|(is_there, _)| *is_there).map(|(_, norm)| norm).sum();
                if seconds > 0.0 {
                    acts.insert(sent, Act::Works(Spent { compute: seconds, ..Spent::default() }));
                }
            }
        }
        acts
    }

    /// The seconds of a part of a task by the units that run one after another: the blocks of the stage, and before or
    /// behind them what belongs to no block.
    fn units(&self, stage: usize, kind: TaskKind, part: Part) -> Vec<Spent> {
        let period = self.few().period;
        let (counts, small) = (&self.counts[stage], self.small(stage));
        let spent = |small: &'_ SmallSlice, place: usize| {
            small.spent.get(&part).map_or(Spent::default(), |of| of[place])
        };
        let at = |count: f64, place: usize| -> Spent {
            let of = |field: fn(&Spent) -> f64| {
                let figures = small.map(|small| field(&spent(small, place)));
                of_layers(count, small.map(|small| small.layers), figures).max(0.0)
            };
            Spent {
                compute: of(|spent| spent.compute),
                exposed: of(|spent| spent.exposed),
                gathered: of(|spent| spent.gathered),
                reduced: of(|spent| spent.reduced),
            }
        };
        // What belongs to no block and grows with the layers is shared by all of them.
        let all = at(counts[period], period);
        let blocks: f64 = counts[..period].iter().sum();
        let ends = at(0.0, period);
        let shared = all.minus(ends).times(1.0 / blocks.max(1.0));
        let mut left: Vec<usize> = counts[..period].iter().map(|&count| count.round() as usize).collect();
        let mut units = Vec::new();
        while left.iter().any(|&left| left > 0) {
            for place in (0..period).filter(|&place| left[place] > 0) {
                units.push(at(counts[place], place).times(1.0 / counts[place]).plus(shared));
            }
            left.iter_mut().for_each(|left| *left = left.saturating_sub(1));
        }
        let ends = if units.is_empty() { all } else { all.minus(shared.times(blocks)) };
        units.insert(if self.is_led(stage, kind) { 0 } else { units.len() }, ends);
        units
    }

    /// Whether what belongs to no block comes before the blocks of a stage: a table of embeddings in the forward pass, a
    /// head in the backward pass.
    fn is_led(&self, stage: usize, kind: TaskKind) -> bool {
        match kind {
            TaskKind::Forward => stage == 0 && self.counts.len() > 1,
            _ => stage + 1 == self.counts.len(),
        }
    }

    /// For each stage but the last, the seconds of a microbatch on its way to the next stage, and back.
    fn delays(&self, session: &Session, slices: &[Slice]) -> Vec<[f64; 2]> {
        let (slice_of, cluster) = (&self.slice_of, &session.config().cluster);
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
    fn seconds(
        &self,
        messages_s: &[[f64; 2]],
        queue_of: &dyn Fn(usize, usize) -> usize,
        ran: &mut Vec<TaskRun>,
    ) -> Result<StepSeconds> {
        let (timetable, stages) = (&self.timetable, self.counts.len());
        // What runs ahead of all tasks belongs to them all.
        let before = timetable.slices.iter().enumerate().map(|(slice, tasks)| {
            tasks.iter().fold(self.once(slice, Part::Before), |sum, task| sum.plus(self.ahead(*task)))
        });
        let mut scripts = Vec::new();
        // Tasks of a stage for microbatches that are alike do the same.
        let mut known: BTreeMap<(usize, TaskKind, usize), usize> = BTreeMap::new();
        let mut script = |task: &Task| {
            let alike = (task.stage, task.kind, self.like_microbatch(task.microbatch));
            *known.entry(alike).or_insert_with(|| {
                scripts.push(self.acts(*task));
                scripts.len() - 1
            })
        };
        let script_of =
            timetable.slices.iter().map(|tasks| tasks.iter().map(&mut script).collect()).collect();
        let (before, slice_of) = (before.collect(), &self.slice_of);
        let tied_s = self.few().tied_s;
        let tasks = Tasks { timetable, slice_of, scripts, script_of, messages_s, queue_of, before, tied_s };
        let (mut end_s, mut busiest) = (0.0f64, Spent::default());
        for (slice, (own_s, busy)) in tasks.run(ran)?.into_iter().enumerate() {
            end_s = end_s.max(own_s);
            let busy = busy.plus(self.once(slice, Part::After));
            if busy.sum() > busiest.sum() {
                busiest = busy;
            }
        }
        let step_s = end_s + self.tail_s(timetable.slices.len());
        let in_flight = (0..stages).map(|stage| self.in_flight(self.slice_of[stage]));
        Ok(StepSeconds {
            step_s,
            compute_s: busiest.compute,
            exposed_s: busiest.exposed,
            bubble_s: (step_s - busiest.sum()).max(0.0),
            in_flight: in_flight.collect(),
        })
    }

    /// Seconds from the end of the tasks of all slices to the end of the step.
    fn tail_s(&self, slices: usize) -> f64 {
        let layers = |slice: usize| self.own(slice).map(|stage| self.layers(stage)).sum::<f64>();
        match &*self.small {
            [few, more] if few.len() == 1 => {
                let most = (0..slices).map(layers).fold(0.0, f64::max);
                // The slice with most layers ends last. A layer more may take from the tail what it adds to a task.
                let [one, other] = self.middle(0).map(|small| small.layers);
                of_layers(most, [one, other], [few[0].tail_s, more[0].tail_s])
            }
            // Which slice ends last depends on its devices.
            _ => {
                let of_stage = |slice: usize, stage: usize| {
                    let [few, more] = self.small(stage);
                    of_layers(layers(slice), [few.layers, more.layers], [few.tail_s, more.tail_s])
                };
                let ends = (0..slices).flat_map(|slice| self.own(slice).map(move |stage| (slice, stage)));
                ends.map(|(slice, stage)| of_stage(slice, stage)).fold(0.0, f64::max)
            }
        }
    }

    /// The microbatches in flight on a slice for each of its stages.
    fn in_flight(&self, slice: usize) -> f64 {
        self.timetable.peak(slice) as f64 / self.own(slice).count().max(1) as f64
    }

    /// Bytes of the fullest rank of a slice.
    fn bytes(&self, slice: usize) -> Bytes {
        let of_parameters = |kind: fn(&SmallSlice) -> f64| {
            move |small: &SmallSlice, place: usize| {
                kind(small) * small.parameters.get(place).copied().unwrap_or_default()
            }
        };
        let saved_at = |small: &SmallSlice, span: usize, place| {
            small.saved[span].get(place).copied().unwrap_or_default()
        };
        let stages = self.own(slice).count().max(1) as f64;
        let of_span = |span: usize| {
            let own = self.own(slice);
            own.map(|stage| self.of_stage(stage, &|small, place| saved_at(small, span, place))).sum::<f64>()
                / stages
        };
        let of_spans = [0, 1, 2].map(of_span);
        let in_flight = super::small_bytes::in_flight(&self.timetable, slice, of_spans);
        let saved = of_spans.iter().zip(in_flight).map(|(bytes, count)| bytes * count).sum::<f64>();
        let gradients_at = of_parameters(|small| small.bytes.gradients);
        let accumulated_at = of_parameters(|small| small.accumulated);
        let parameters = self.of_slice(slice, &of_parameters(|small| small.bytes.parameters)).max(0.0);
        let optimizer_state =
            self.of_slice(slice, &of_parameters(|small| small.bytes.optimizer_state)).max(0.0);
        // Messages and gathered tensors belong to no layer.
        let period = self.few().period;
        let communication_at =
            |small: &SmallSlice, place| if place == period { small.bytes.communication } else { 0.0 };
        let (mut communication, mut missing) = (0.0f64, 0.0);
        let accumulates = super::small_bytes::accumulates(&self.timetable, slice);
        for stage in self.own(slice) {
            communication = communication.max(self.of_stage(stage, &communication_at));
            if accumulates && !self.small(stage)[0].accumulates {
                let [all, some] =
                    [self.of_stage(stage, &accumulated_at), self.of_stage(stage, &gradients_at)];
                missing += (all - some).max(0.0);
            }
        }
        // Which kinds are in use when memory is fullest may differ between the small steps; their sum grows evenly.
        let rest_at = |small: &SmallSlice, place: usize| {
            let of_none = small.bytes.activations + small.bytes.communication;
            let beside = if place == period { of_none } else { 0.0 };
            let saved: f64 = (0..3).map(|span| saved_at(small, span, place) * small.in_flight[span]).sum();
            beside + gradients_at(small, place) - saved
        };
        let rest = (saved + self.of_slice(slice, &rest_at) + missing).max(0.0);
        let gaps =
            self.own(slice).map(|stage| self.small(stage)[1].gaps).reduce(f64::max).unwrap_or_default();
        // Gaps are negative where results replace operands.
        let beside = (rest + (parameters + optimizer_state + rest) * gaps).max(0.0);
        // Each kind is unfolded along a line of its own, which may lead below nothing or beyond the sum of all.
        let gradients = (self.of_slice(slice, &gradients_at) + missing).clamp(0.0, beside);
        let communication = communication.clamp(0.0, beside - gradients);
        let activations = beside - gradients - communication;
        Bytes { parameters, gradients, optimizer_state, activations, communication }
    }
}

/// A figure of so many layers, from that of stages of fewer and of more, which grows by equal amounts.
fn of_layers(layers: f64, [few, more]: [usize; 2], [of_few, of_more]: [f64; 2]) -> f64 {
    of_few + (of_more - of_few) * (layers - few as f64) / (more as f64 - few as f64)
}

/// A figure of a slice of a small step, by place.
type Figure<'a> = &'a dyn Fn(&SmallSlice, usize) -> f64;

/// Seconds by place of a part, from how figures of them are unfolded.
fn spent_of(
    part: &dyn for<'a> Fn(&'a SmallSlice) -> Option<&'a ByPlace<Spent>>,
    unfold: impl Fn(Figure) -> f64,
) -> Spent {
    let of = |small: &SmallSlice, place: usize| part(small).map_or(Spent::default(), |of| of[place]);
    Spent {
        compute: unfold(&|small, place| of(small, place).compute),
        exposed: unfold(&|small, place| of(small, place).exposed),
        gathered: unfold(&|small, place| of(small, place).gathered),
        reduced: unfold(&|small, place| of(small, place).reduced),
    }
}
