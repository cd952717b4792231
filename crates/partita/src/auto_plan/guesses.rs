//! Guesses: candidates of large steps in closed form, and the exact prices of the best of them.

use super::folded::{Layer, Recomputed};
use super::{Candidate, Tried, Watch, on_all_cores};
use crate::predict::step::{Job, layers_of_stages};
use crate::predict::unfold::SmallSteps;
use crate::session::Session;
use partita_base::Result;
use partita_mesh::Mesh;
use partita_pipeline::Order;
use partita_schedule::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// Candidates whose programs are priced at a time; any number of cores finds the same plan.
const AT_ONCE: usize = 2;
/// The fewest and the most candidates, timetables apart, whose programs are priced.
const PRICED: [usize; 2] = [4, 12];
/// The most of them that do not fit.
const IN_VAIN: usize = 40;
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
    /// Seconds of a step and bytes of the fullest rank, in closed form.
    pub step_s: f64,
    pub bytes: f64,
    /// Bytes of the fullest rank that are in host memory.
    pub away: f64,
}

/// Guesses with the same small steps and other timetables.
type Kin<'a> = Vec<Guess<'a>>;

/// Prices guesses, those first that are best by their estimates, until no other promises to be better. With a guess, all of
/// its kin are priced. Of meshes with experts or long rows on an axis of their own, at least one is.
pub(super) fn priced(session: &Session, guesses: Vec<Guess>, watch: Watch) -> Tried {
    let mut kin: BTreeMap<(usize, usize, bool), Kin> = BTreeMap::new();
    for guess in guesses {
        kin.entry(guess.kin()).or_default().push(guess);
    }
    let mut kin: Vec<Kin> = kin.into_values().collect();
    let classes: BTreeSet<Class> = kin.iter().flatten().map(Guess::class).collect();
    let mut pricing = Pricing::new(session, classes, watch);
    let mut meshes: BTreeSet<String> = BTreeSet::new();
    let (mut count, mut in_vain) = (0, 0);
    while count < PRICED[1] && in_vain < IN_VAIN && !kin.is_empty() {
        let best_s = pricing.best_s();
        let fitting = pricing.fitting().count();
        let mut order: Vec<(bool, f64, usize)> = Vec::new();
        for (number, kin) in kin.iter().enumerate() {
            let Some((is_large, key)) = pricing.promise(kin) else { continue };
            // One of each mesh, unless another promises to be the best one.
            if key < best_s && !is_large || !meshes.contains(&kin[0].mesh.to_string()) {
                order.push((is_large, key, number));
            }
        }
        order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let is_done = |&(is_large, step_s, _): &(bool, f64, usize)| is_large || step_s >= best_s;
        if best_s.is_finite() && count + in_vain >= PRICED[0] && order.first().is_none_or(is_done) {
            break;
        }
        let mut chosen: Vec<usize> = Vec::new();
        // As long as none fits, one of them is the smallest.
        if best_s.is_infinite() && (in_vain >= PRICED[0] || order.is_empty()) {
            let least = |number: &usize| pricing.least_bytes(&kin[*number]);
            chosen.extend((0..kin.len()).min_by(|a, b| least(a).total_cmp(&least(b))));
        }
        for (_, _, number) in order {
            let is_other = |&other: &usize| kin[other][0].class() != kin[number][0].class();
            if chosen.len() < AT_ONCE && chosen.iter().all(is_other) {
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
    let untold = ["ep", "cp"].iter().filter_map(|axis| {
        let has = |mesh: &Mesh| mesh.axis_named(axis).is_some_and(|axis| axis.size > 1);
        let is_told = pricing.tried.found.iter().any(|candidate| has(&candidate.mesh));
        let own = kin.iter().filter(|kin| !is_told && has(kin[0].mesh));
        let promises = own.filter_map(|kin| Some((pricing.promise(kin)?, kin)));
        let best = promises.min_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))?;
        Some(best.1.clone())
    });
    let untold: Vec<Kin> = untold.collect();
    pricing.price(&untold);
    pricing.tried
}

/// What was priced so far.
struct Pricing<'a> {
    session: &'a Session,
    watch: Watch<'a>,
    small: SmallSteps,
    tried: Tried,
    /// For guesses alike, what programs take and need relative to their estimates.
    known: BTreeMap<Class, Vec<[f64; 2]>>,
    /// What is expected of each class.
    expected: BTreeMap<Class, [f64; 2]>,
    /// What programs with the same kind of layer need relative to their estimates.
    of_layers: BTreeMap<LayerKind, Vec<f64>>,
}

impl<'a> Pricing<'a> {
    fn new(session: &'a Session, classes: BTreeSet<Class>, watch: Watch<'a>) -> Pricing<'a> {
        let expected = classes.into_iter().map(|class| (class, [DOUBT; 2])).collect();
        let (small, tried, known) = (SmallSteps::default(), Tried::default(), BTreeMap::new());
        Pricing { session, watch, small, tried, known, expected, of_layers: BTreeMap::new() }
    }

    /// Whether what a guess offloads may have to: it does not, as far as known, fit beside the rest.
    fn may_offload(&self, guess: &Guess) -> bool {
        let share = self.expected(guess)[1] / guess.bytes.max(1.0);
        guess.away == 0.0 || (guess.bytes + guess.away) * share >= self.limit() as f64
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

    fn limit(&self) -> u64 {
        self.session.config().cluster.device.memory_bytes
    }

    /// The candidates that fit.
    fn fitting(&self) -> impl Iterator<Item = &Candidate> {
        self.tried.found.iter().filter(|candidate| candidate.bytes <= self.limit())
    }

    /// Seconds of the best candidate that fits.
    fn best_s(&self) -> f64 {
        self.fitting().map(|candidate| candidate.step_s).fold(f64::INFINITY, f64::min)
    }

    /// The best of guesses: that it is too large, and its bytes then, else its seconds.
    fn promise(&self, kin: &Kin) -> Option<(bool, f64)> {
        let of = |guess: &Guess| {
            let [step_s, bytes] = self.expected(guess);
            let is_large = bytes > self.limit() as f64;
            (is_large, if is_large { bytes } else { step_s })
        };
        let kin = kin.iter().filter(|guess| self.may_offload(guess));
        kin.map(of).min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
    }

    /// What is expected to be needed by the smallest of guesses.
    fn least_bytes(&self, kin: &Kin) -> f64 {
        let of = |guess: &Guess| self.expected(guess)[1];
        kin.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    /// Prices guesses and corrects what is expected of others.
    fn price(&mut self, chosen: &[Kin]) {
        let (session, small) = (self.session, &self.small);
        let round = on_all_cores(chosen.len(), self.limit(), self.watch, |number| {
            let mut tried = Tried::default();
            for guess in &chosen[number] {
                match candidate(session, guess, small) {
                    Ok(found) => tried.found.push(found),
                    Err(error) => tried.refuse(guess.mesh, guess.source, error),
                }
            }
            tried
        });
        for guess in chosen.iter().flatten() {
            let is_own = |candidate: &&Candidate| {
                candidate.mesh == *guess.mesh
                    && candidate.plan == *guess.plan
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
            // Of a class without prices, the timetable says most.
            let alike = || mean(&|key| (key.0, &key.1) == (class.0, &class.1));
            let of_timetable = || alike().map(|ratios| ratios.map(|ratio| ratio * DOUBT.sqrt()));
            *expected = mean(&|key| key == class).or_else(of_timetable).unwrap_or([DOUBT; 2]);
        }
    }
}

/// What guesses have in common whose estimates err alike: a pipeline and its timetable, what data parallel ranks share.
type Class = (bool, String, u8, [bool; 4]);

/// Guesses that err alike in their bytes: the ranks that share a layer, the layer, and how stages follow each other.
type LayerKind = ([usize; 2], &'static str, bool, Recomputed, [bool; 2]);

impl Guess<'_> {
    fn kind(&self) -> LayerKind {
        let Layer { source, sequence_parallel, recomputed, .. } = *self.layer;
        let size = |name: &str| self.mesh.axis_named(name).map_or(1, |axis| axis.size);
        let stages = [self.job.pp > 1, self.order.chunks(self.job.pp) > 1];
        (["ep", "tp"].map(size), source, sequence_parallel, recomputed, stages)
    }

    /// What guesses with the same small steps have in common.
    fn kin(&self) -> (usize, usize, bool) {
        (self.number, self.microbatches, self.order.name().starts_with("zb"))
    }

    fn class(&self) -> Class {
        let is_looped = self.order.chunks(self.job.pp) > 1;
        let order = if is_looped { "looped" } else { self.order.name() };
        let Job { zero, shard_group, dp, cp, ref block, .. } = *self.job;
        let has_replicas = zero == 3 && shard_group < dp;
        let others = [has_replicas, block.ep > 1, cp > 1, self.job.bytes.host > 0.0];
        (self.job.pp > 1, order.to_string(), zero, others)
    }
}

fn candidate(session: &Session, guess: &Guess, small: &SmallSteps) -> Result<Candidate> {
    let Guess { mesh, layer, source, plan, microbatches, order, job, .. } = guess;
    let session = session
        .clone()
        .with_mesh((*mesh).clone())
        .with_microbatches(*microbatches)
        .with_timetable(order.clone())
        .with_sequence_parallel(layer.sequence_parallel);
    let price = session.price_folded_with(plan, small)?;
    let mut first = 0;
    let chunks = if job.pp > 1 { order.chunks(job.pp) } else { 1 };
    let stages = layers_of_stages(job.layers, job.pp * chunks).into_iter().map(|count| {
        let (from, to) = (first, first + count);
        first = to;
        (format!("layers.{from}"), format!("layers.{}", to.saturating_sub(1)))
    });
    Ok(Candidate {
        mesh: (*mesh).clone(),
        source,
        plan: (*plan).clone(),
        microbatches: *microbatches,
        timetable: order.clone(),
        sequence_parallel: layer.sequence_parallel,
        step_s: price.step_s(),
        bytes: price.bytes(),
        idle: None,
        stages: stages.collect(),
    })
}
