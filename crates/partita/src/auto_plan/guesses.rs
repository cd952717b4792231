//! Guesses: candidates of large steps in closed form, and the exact prices of the best of them.

use super::blocks::{BlockCost, BlockCosts, blocks, divided};
use super::folded::{Layer, Recomputed};
use super::layouts::slice_of;
use super::{Candidate, Tried, Watch, in_order, in_parts, with, without_splits};
use crate::predict::step::{BlockSeconds, Job};
use crate::predict::unfold::{SmallSteps, is_inside};
use crate::session::Session;
use partita_base::Result;
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_pipeline::mark::{after, evenly};
use partita_pipeline::{Order, block_of};
use partita_schedule::{Entry, PIPELINE_AXIS, Plan, Primitive};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Candidates whose programs are priced at a time; any number of cores finds the same plan.
const AT_ONCE: usize = 2;
/// The fewest and the most candidates, timetables apart, whose programs are priced.
const PRICED: [usize; 2] = [4, 12];
/// The most of them that hardly promise to fit, once others do.
const DOUBTFUL: usize = 8;
/// The most of them that do not fit.
const IN_VAIN: usize = 40;
/// The axes for experts and for long rows, and the most candidates with each that are priced to say what it gains or costs.
const TOLD: [(&str, usize); 2] = [("ep", 3), ("cp", 1)];
/// The most ranks of such an axis then: the steps of a ring of many ranks take long to build.
pub(super) const MOST_TOLD: usize = 8;
/// By how much more memory their programs may need than expected.
const ROOM: f64 = 1.3;
/// What programs may take and need relative to their estimates, where none like them is priced.
pub(super) const DOUBT: f64 = 0.95;
/// See [`Pricing::expected`].
const MOST_DOUBT: f64 = 1.1;

/// A candidate before it is priced.
#[derive(Clone)]
pub(super) struct Guess<'a> {
    /// The number of its job.
    pub number: usize,
    pub mesh: &'a Mesh,
    pub layer: &'a Layer,
    /// What its plan came from.
    pub source: &'static str,
    pub plan: &'a Plan,
    pub microbatches: usize,
    pub order: Order,
    pub job: &'a Job,
    /// Seconds of a step, and bytes of the rank with the least room, in closed form.
    pub step_s: f64,
    pub bytes: f64,
    /// Bytes that its device holds.
    pub limit: f64,
    /// Bytes of the fullest rank that are in host memory.
    pub away: f64,
}

/// Guesses with the same small steps and other timetables.
type Kin<'a> = Vec<Guess<'a>>;

/// Prices guesses, those first that are best by their estimates, until no other promises to be better. With a guess, all of
/// its kin are priced. Of meshes with experts or long rows on an axis of their own, some are in any case.
pub(super) fn priced(session: &Session, guesses: Vec<Guess>, watch: Watch) -> Result<Tried> {
    let mut kin: BTreeMap<(usize, usize, bool), Kin> = BTreeMap::new();
    for guess in guesses {
        kin.entry(guess.kin()).or_default().push(guess);
    }
    let mut kin: Vec<Kin> = kin.into_values().collect();
    let classes: BTreeSet<Class> = kin.iter().flatten().map(Guess::class).collect();
    let mut pricing = Pricing::new(session, classes, watch)?;
    let mut meshes: BTreeSet<String> = BTreeSet::new();
    let (mut count, mut in_vain, mut doubtful) = (0, 0, 0);
    while count < PRICED[1] && in_vain < IN_VAIN && !kin.is_empty() {
        let best_s = pricing.best_s();
        let fitting = pricing.fitting().count();
        // Those first that promise to be better, then one of each mesh.
        let mut order: Vec<(bool, Promise, usize)> = Vec::new();
        // Steps with a ring take long to build, longer with more ranks. As long as nothing fits, other candidates are priced
        // first; once something does, only rings of few ranks are priced.
        let is_dear = |kin: &Kin| {
            let ring = kin[0].mesh.axis_named("cp").map_or(1, |axis| axis.size);
            ring > 1 && if best_s.is_finite() { ring > MOST_TOLD } else { in_vain < 2 * PRICED[0] }
        };
        for (number, kin) in kin.iter().enumerate().filter(|(_, kin)| !is_dear(kin)) {
            let Some(promise) = pricing.promise(kin) else { continue };
            let is_better = match promise.fit {
                Fit::Expected => promise.key < best_s,
                Fit::Doubtful => promise.key < best_s && doubtful < DOUBTFUL,
                Fit::TooLarge => false,
            };
            if is_better || !meshes.contains(&kin[0].mesh.to_string()) {
                order.push((!is_better, promise, number));
            }
        }
        order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.order(&b.1)));
        let is_done = |&(is_no_better, ..): &(bool, Promise, usize)| is_no_better;
        if best_s.is_finite() && count + in_vain >= PRICED[0] && order.first().is_none_or(is_done) {
            break;
        }
        let mut chosen: Vec<usize> = Vec::new();
        // As long as none fits, one of them is the smallest.
        if best_s.is_infinite() && (in_vain >= PRICED[0] || order.is_empty()) {
            let least = |number: &usize| pricing.least_bytes(&kin[*number]);
            let may_be = (0..kin.len()).filter(|&number| !is_dear(&kin[number]));
            chosen.extend(may_be.min_by(|a, b| least(a).total_cmp(&least(b))));
        }
        for (_, promise, number) in order {
            let is_other = |&other: &usize| kin[other][0].class() != kin[number][0].class();
            if chosen.len() < AT_ONCE && chosen.iter().all(is_other) {
                doubtful += usize::from(best_s.is_finite() && promise.fit == Fit::Doubtful);
                chosen.push(number);
            }
        }
        if chosen.is_empty() {
            break;
        }
        chosen.sort_unstable_by(|a, b| b.cmp(a));
        let chosen: Vec<Kin> = chosen.into_iter().map(|number| kin.remove(number)).collect();
        meshes.extend(chosen.iter().map(|kin| kin[0].mesh.to_string()));
        pricing.price(&chosen);
        match pricing.fitting().count() > fitting {
            true => count += chosen.len(),
            false => in_vain += chosen.len(),
        }
    }
    for (axis, most) in TOLD {
        pricing.price_with(axis, most, &mut kin);
    }
    Ok(pricing.tried)
}

/// What was priced so far.
struct Pricing<'a> {
    session: &'a Session,
    watch: Watch<'a>,
    small: SmallSteps,
    stages: EvenStages,
    tried: Tried,
    /// For guesses alike, what programs take and need relative to their estimates.
    known: BTreeMap<Class, Vec<[f64; 2]>>,
    /// What is expected of each class.
    expected: BTreeMap<Class, [f64; 2]>,
    /// What programs with the same kind of layer need relative to their estimates.
    of_layers: BTreeMap<LayerKind, Vec<f64>>,
}

impl<'a> Pricing<'a> {
    fn new(session: &'a Session, classes: BTreeSet<Class>, watch: Watch<'a>) -> Result<Pricing<'a>> {
        let stages = EvenStages::of_model(session)?;
        let expected = classes.into_iter().map(|class| (class, [DOUBT; 2])).collect();
        let (small, tried, known) = (SmallSteps::default(), Tried::default(), BTreeMap::new());
        Ok(Pricing { session, watch, small, stages, tried, known, expected, of_layers: BTreeMap::new() })
    }

    /// Whether what a guess offloads may have to: it does not, as far as known, fit beside the rest.
    fn may_offload(&self, guess: &Guess) -> bool {
        let share = self.expected(guess)[1] / guess.bytes.max(1.0);
        guess.away == 0.0 || (guess.bytes + guess.away) * share >= guess.limit
    }

    /// Seconds and bytes that the programs of a guess are expected to take and need. The bytes of one kind of layer say
    /// little about those of another one: where none is known, at most [`MOST_DOUBT`] times the estimate.
    fn expected(&self, guess: &Guess) -> [f64; 2] {
        let [of_time, of_class] = self.expected.get(&guess.class()).copied().unwrap_or([DOUBT; 2]);
        let of_bytes = match self.of_layers.get(&guess.kind()) {
            Some(known) => known.iter().sum::<f64>() / known.len() as f64,
            None => of_class.min(MOST_DOUBT),
        };
        [guess.step_s * of_time, guess.bytes * of_bytes]
    }

    /// The candidates that fit.
    fn fitting(&self) -> impl Iterator<Item = &Candidate> {
        self.tried.found.iter().filter(|candidate| candidate.fits())
    }

    /// Seconds of the best candidate that fits.
    fn best_s(&self) -> f64 {
        self.fitting().map(|candidate| candidate.step_s).fold(f64::INFINITY, f64::min)
    }

    /// What the best of guesses promises.
    fn promise(&self, kin: &Kin) -> Option<Promise> {
        let of = |guess: &Guess| {
            let ([step_s, bytes], limit) = (self.expected(guess), guess.limit);
            // Of another kind of layer than those that were priced, the bytes are hardly known.
            let may_fit = guess.bytes * DOUBT <= limit && !self.of_layers.contains_key(&guess.kind());
            let (fit, key) = match may_fit {
                _ if bytes <= limit => (Fit::Expected, step_s),
                true => (Fit::Doubtful, step_s),
                false => (Fit::TooLarge, bytes),
            };
            Promise { fit, key }
        };
        let kin = kin.iter().filter(|guess| self.may_offload(guess));
        kin.map(of).min_by(Promise::order)
    }

    /// What is expected to be needed by the smallest of guesses.
    fn least_bytes(&self, kin: &Kin) -> f64 {
        let of = |guess: &Guess| self.expected(guess)[1];
        kin.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    /// Prices so many candidates with an axis at most, until one fits and none with it promises to be faster, so that the
    /// output can say what the axis gains or costs.
    fn price_with(&mut self, axis: &str, most: usize, kin: &mut Vec<Kin>) {
        for _ in 0..most {
            let own = self.fitting().filter(|candidate| candidate.has(axis));
            let best_s = own.map(|candidate| candidate.step_s).fold(f64::INFINITY, f64::min);
            let with_axis = (0..kin.len()).filter(|&number| {
                let size = kin[number][0].mesh.axis_named(axis).map_or(1, |axis| axis.size);
                (2..=MOST_TOLD).contains(&size)
            });
            let promises = with_axis.filter_map(|number| {
                let is_tight = |guess: &Guess| self.expected(guess)[1] * ROOM > guess.limit;
                let is_tight = kin[number].iter().all(is_tight);
                Some((is_tight, self.promise(&kin[number])?, number))
            });
            let best = promises.min_by(|a, b| a.0.cmp(&b.0).then(a.1.order(&b.1)));
            let Some((_, promise, number)) = best else { return };
            if best_s.is_finite() && (promise.fit == Fit::TooLarge || promise.key >= best_s) {
                return;
            }
            // Its best timetable says enough.
            let alone = kin.remove(number).into_iter().map(|guess| vec![guess]);
            let promises = alone.filter_map(|guess| Some((self.promise(&guess)?, guess)));
            let best = promises.min_by(|a, b| a.0.order(&b.0));
            self.price(&best.into_iter().map(|(_, guess)| guess).collect::<Vec<Kin>>());
        }
    }

    /// Prices guesses and corrects what is expected of others.
    fn price(&mut self, chosen: &[Kin]) {
        let (session, small, stages) = (self.session, &self.small, &self.stages);
        let round = in_parts(chosen.len(), self.watch, |number| {
            let mut tried = Tried::default();
            for guess in &chosen[number] {
                match candidate(session, guess, small, stages) {
                    Ok(found) => tried.found.push(found),
                    Err(error) => tried.refuse(guess.mesh, guess.source, error),
                }
            }
            tried
        });
        for guess in chosen.iter().flatten() {
            let is_own = |candidate: &&Candidate| {
                candidate.mesh == *guess.mesh
                    && without_splits(&candidate.plan) == without_splits(guess.plan)
                    && candidate.microbatches == guess.microbatches
                    && candidate.timetable == guess.order
            };
            if let Some(price) = round.found.iter().find(is_own) {
                let ratios = [price.step_s / guess.step_s, price.bytes as f64 / guess.bytes];
                self.known.entry(guess.class()).or_default().push(ratios);
                self.of_layers.entry(guess.kind()).or_default().push(ratios[1]);
            }
        }
        self.tried.join(round);
        for (class, expected) in &mut self.expected {
            let mean = |is_alike: &dyn Fn(&Class) -> bool| {
                let alike = self.known.iter().filter(|(key, _)| is_alike(key)).flat_map(|(_, ratios)| ratios);
                let alike: Vec<&[f64; 2]> = alike.collect();
                let mean =
                    |of: usize| alike.iter().map(|ratios| ratios[of]).sum::<f64>() / alike.len() as f64;
                (!alike.is_empty()).then(|| [mean(0), mean(1)])
            };
            // Of a class without prices, the estimate says how long programs take, and those of the same timetable how much
            // memory they need.
            let alike = mean(&|key| (key.0, &key.1) == (class.0, &class.1));
            let unknown = [DOUBT.sqrt(), alike.map_or(DOUBT, |ratios| ratios[1] * DOUBT.sqrt())];
            *expected = mean(&|key| key == class).unwrap_or(unknown);
        }
    }
}

/// What guesses have in common whose estimates err alike: a pipeline, its timetable and the logarithm of the stages on a
/// slice, since estimates err less the more there are; and what data parallel ranks share.
type Class = (bool, String, u32, u8, [bool; 4]);

/// Guesses that err alike in their bytes: the ranks that share a layer or its rows, the layer, and how stages follow each
/// other.
type LayerKind = ([usize; 3], &'static str, bool, Recomputed, [bool; 2]);

/// Whether a candidate fits, before it is priced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fit {
    Expected,
    /// It does if its estimate errs as little as those of other kinds of layers.
    Doubtful,
    TooLarge,
}

/// What a candidate is expected to take: seconds, or bytes if it is too large.
#[derive(Clone, Copy, Debug)]
struct Promise {
    fit: Fit,
    key: f64,
}

impl Promise {
    /// Those that fit first, by their seconds; those that are too large last, by their bytes.
    fn order(&self, other: &Promise) -> Ordering {
        self.fit.cmp(&other.fit).then(self.key.total_cmp(&other.key))
    }
}

impl Guess<'_> {
    fn kind(&self) -> LayerKind {
        let Layer { source, sequence_parallel, recomputed, .. } = *self.layer;
        let size = |name: &str| self.mesh.axis_named(name).map_or(1, |axis| axis.size);
        let stages = [self.job.pp > 1, self.order.chunks(self.job.pp) > 1];
        (["ep", "cp", "tp"].map(size), source, sequence_parallel, recomputed, stages)
    }

    /// What guesses with the same small steps have in common.
    fn kin(&self) -> (usize, usize, bool) {
        (self.number, self.microbatches, self.order.name().starts_with("zb"))
    }

    fn class(&self) -> Class {
        let chunks = self.order.chunks(self.job.pp).max(1);
        let order = if chunks > 1 { "looped" } else { self.order.name() };
        let Job { zero, shard_group, dp, cp, ref block, .. } = *self.job;
        let has_replicas = zero == 3 && shard_group < dp;
        let others = [has_replicas, block.ep > 1, cp > 1, self.job.bytes.host > 0.0];
        (self.job.pp > 1, order.to_string(), chunks.ilog2(), zero, others)
    }
}

/// The candidate of a guess; where slices have different devices, the better one of even stages and of those that give slow
/// slices fewer layers.
fn candidate(session: &Session, guess: &Guess, small: &SmallSteps, stages: &EvenStages) -> Result<Candidate> {
    let Guess { mesh, layer, source, plan, microbatches, order, job, .. } = guess;
    let session = session
        .clone()
        .with_mesh((*mesh).clone())
        .with_microbatches(*microbatches)
        .with_timetable(order.clone())
        .with_sequence_parallel(layer.sequence_parallel);
    let chunks = if job.pp > 1 { order.chunks(job.pp) } else { 1 };
    let of_plan = |plan: &Plan| -> Result<Candidate> {
        let price = session.price_folded_with(plan, small)?;
        let stages = stages.of(job.pp * chunks, plan)?;
        let slices = vec![slice_of(mesh); stages.len()];
        Ok(Candidate { stages, slices, ..Candidate::priced(&session, source, plan.clone(), &price) })
    };
    let even = of_plan(plan)?;
    let splits = if chunks == 1 { splits(&session, guess, stages) } else { None };
    let uneven = splits.and_then(|splits| of_plan(&with(plan, &splits)).ok());
    Ok(uneven.into_iter().fold(even, |best, other| match in_order(&other, &best) {
        Ordering::Less => other,
        _ => best,
    }))
}

/// The ends of stages on slices of different devices: a layer takes as long as the closed form says on those of each slice.
fn splits(session: &Session, guess: &Guess, stages: &EvenStages) -> Option<Plan> {
    let Guess { mesh, layer, plan, microbatches, job, .. } = guess;
    let cluster = &session.config().cluster;
    let kinds = cluster.kinds_of_slices(mesh, PIPELINE_AXIS);
    let is_split = |entry: &Entry| entry.primitive.ends_stage();
    if kinds.iter().all(|kind| *kind == kinds[0]) || plan.entries.iter().any(is_split) {
        return None;
    }
    let rows = session.config().train.batch / (mesh.batch_shards() * microbatches).max(1);
    let (block, _) = layer.of_rows.get(&rows)?;
    let names = blocks(&stages.forward);
    let mut of_kinds: BTreeMap<usize, BlockCosts> = BTreeMap::new();
    for (slice, kind) in kinds.iter().enumerate() {
        of_kinds.entry(*kind).or_insert_with(|| {
            let seconds = BlockSeconds::of(job, block, &cluster.of_slice(mesh, PIPELINE_AXIS, slice));
            let layer_s = seconds.stage_s(1, false, false);
            let each_s = layer_s * job.layers as f64 / names.len().max(1) as f64;
            let mut costs = vec![BlockCost { each_s, ..BlockCost::default() }; names.len()];
            let ends =
                [(true, false), (false, true)].map(|(first, last)| seconds.stage_s(1, first, last) - layer_s);
            costs.first_mut().into_iter().for_each(|cost| cost.each_s += ends[0]);
            costs.last_mut().into_iter().for_each(|cost| cost.each_s += ends[1]);
            BlockCosts { names: names.clone(), costs }
        });
    }
    let of_slices: Vec<BlockCosts> = kinds.iter().map(|kind| of_kinds[kind].clone()).collect();
    let mut plan = Plan::default();
    for end in divided(&of_slices, *microbatches)? {
        plan.push(&names[end], Primitive::PipelineSplit { mesh: None, ranks: Vec::new() }, "planner");
    }
    Some(plan)
}

/// The modules of the stages of a model that is cut evenly, or where a plan says.
struct EvenStages {
    forward: Graph,
    known: Mutex<BTreeMap<(usize, Vec<String>), Ends>>,
}

/// The first and the last block of each stage.
type Ends = Vec<(String, String)>;

impl EvenStages {
    fn of_model(session: &Session) -> Result<EvenStages> {
        let forward = session.config().model.build(1, session.config().train.dtype, true)?.forward;
        Ok(EvenStages { forward, known: Mutex::default() })
    }

    /// The first and the last block of each of so many stages under a plan.
    fn of(&self, count: usize, plan: &Plan) -> Result<Ends> {
        let splits = plan.entries.iter().filter(|entry| entry.primitive.ends_stage());
        let key = (count, splits.map(|entry| entry.modules.clone()).collect::<Vec<String>>());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stages) = known.get(&key) {
            return Ok(stages.clone());
        }
        let mut forward = self.forward.clone();
        match key.1.is_empty() {
            true => evenly(&mut forward, count)?,
            false => {
                let last = |end: &String| forward.nodes.iter().rposition(|node| is_inside(&node.path, end));
                let ends: Vec<usize> = key.1.iter().filter_map(last).collect();
                after(&mut forward, &ends);
            }
        }
        let names = blocks(&forward);
        let mut stages: Vec<Vec<&String>> = vec![Vec::new(); count];
        for name in &names {
            let stage =
                forward.nodes.iter().find(|node| block_of(&node.path) == name).map_or(0, |node| node.stage);
            stages[stage.min(count - 1)].push(name);
        }
        let ends = |own: &Vec<&String>| {
            let text = |name: Option<&&String>| name.map(|name| name.to_string()).unwrap_or_default();
            (text(own.first()), text(own.last()))
        };
        let stages: Ends = stages.iter().map(ends).collect();
        known.insert(key, stages.clone());
        Ok(stages)
    }
}
