//! The candidates of one mesh, from a search over the whole step of a small model.
//!
//! The search is made on the step as the model defines it, and its solution is written as a plan, with more or fewer lines.
//! These plans and the ready ones are built as any other plan, and ranked by their work and their collectives one after
//! another. The best of each source is lowered and priced.

use super::blocks::{BlockCosts, blocks, blocks_among, divided, patterns};
use super::guesses::DOUBT;
use super::layouts::{Layouts, Searches, few_layers, of_a_microbatch, of_any_layer, slice_of};
use super::shares::{busy, idle_axis};
use super::{
    Candidate, Freedom, SearchTime, Searched, Tried, in_order, is_free, offloaded, orders, slices, storage,
    with, without_splits,
};
use crate::price::MOST_LAYERS;
use crate::session::Session;
use partita_base::{Diagnostic, Result};
use partita_ir::Node;
use partita_ir::composites::ATTENTION;
use partita_nn::Model;
use partita_pipeline::Order;
use partita_pipeline::mark::evenly;
use partita_planner::inter::{SliceKind, Stage, StageTable, makespan_s};
use partita_program::kept_curve;
use partita_schedule::{Built, Entry, Kind, PIPELINE_AXIS, Plan, Primitive, ReadyOptions, Style, moves};
use partita_spmd::step_s;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Limits on kept bytes that are tried until a step fits.
const LIMITS: u32 = 6;
/// What plans of a search are called.
const PLANNER: &str = "planner";

/// What is tried on the mesh of a session. Where no step fits with all of it on the device and nothing computed again, more
/// microbatches are tried; with a pipeline, those that keep it busy, and for the best of them other timetables. Both shorten
/// at most the time in which slices wait for each other: where even without it no step would beat `known_s`, that of a
/// step that fits, they are left out.
pub(super) fn on_mesh(
    session: &Session,
    model: &Model,
    pins: &Plan,
    freedom: Freedom,
    searches: &Searches,
    known_s: f64,
) -> Tried {
    let trial = |count: usize, order: &Order| {
        let session = session.clone().with_microbatches(count).with_timetable(order.clone());
        Trial::new(session, model, pins, freedom, searches)
    };
    let own = &session.config().train.timetable;
    let slices = session.mesh().axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
    let is_vain = |tried: &Tried| {
        let without_waiting = |candidate: &Candidate| {
            candidate.step_s / (1.0 + (slices - 1) as f64 / candidate.microbatches as f64)
        };
        let is_slower = |candidate: &Candidate| without_waiting(candidate) * DOUBT > known_s;
        slices > 1 && !tried.found.is_empty() && tried.found.iter().all(is_slower)
    };
    let mut tried = Tried::default();
    let mut counts = first_counts(session, freedom);
    let mut next = 0;
    while let Some(&count) = counts.get(next).filter(|_| next == 0 || !is_vain(&tried)) {
        let found = trial(count, own).run(tried.best_s().min(known_s));
        let is_smaller = |entry: &Entry| {
            let saves = matches!(entry.primitive, Primitive::Checkpoint { .. } | Primitive::Offload { .. });
            entry.origin == PLANNER && saves
        };
        let is_plain = |candidate: &Candidate| {
            let is_limited = candidate.activation_limit != session.config().train.activation_limit;
            !is_limited && !candidate.plan.entries.iter().any(is_smaller)
        };
        let fits = found.found.iter().any(|candidate| candidate.fits() && is_plain(candidate));
        // Where fewer microbatches fit with values computed again, and faster, more of them gain nothing.
        let gains = tried.best_s().is_infinite() || found.best_s() < tried.best_s();
        if !fits && gains && !found.found.is_empty() && next + 1 == counts.len() {
            counts.extend(more_microbatches(session, count, freedom));
        }
        tried.join(found);
        next += 1;
    }
    let best = tried.found.iter().min_by(|a, b| in_order(a, b)).filter(|_| !is_vain(&tried)).cloned();
    if let Some(Candidate { source, plan, microbatches, .. }) = best {
        let layers = blocks(&model.forward).len();
        // The stages that a search found are for one on each slice.
        let plan = without_splits(&plan);
        for order in orders(own, [layers, slices, microbatches], freedom).iter().filter(|&order| order != own)
        {
            tried.join(trial(microbatches, order).of_plan(source, plan.clone()));
        }
    }
    tried
}

/// The numbers of microbatches to try on the mesh of a session: that of the config, and with a pipeline of several slices
/// those that keep it busy. Where multiples of the slices do not divide the batch, the next numbers that do.
fn first_counts(session: &Session, freedom: Freedom) -> Vec<usize> {
    let (own, mesh) = (session.config().train.microbatches, session.mesh());
    let slices = mesh.axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
    if slices == 1 || own > 1 || !freedom.microbatches {
        return vec![own];
    }
    let multiples = [1, 2, 4].map(|times| times * slices);
    let counts: Vec<usize> = multiples.into_iter().filter(|&count| suits(session, count)).collect();
    if !counts.is_empty() {
        return counts;
    }
    let next = |&least: &usize| (least..2 * least).find(|&count| suits(session, count));
    let mut counts: Vec<usize> = [own].into_iter().chain(multiples[..2].iter().filter_map(next)).collect();
    counts.dedup();
    counts
}

/// The next number of microbatches after `count`, at least twice as many.
fn more_microbatches(session: &Session, count: usize, freedom: Freedom) -> Option<usize> {
    if session.config().train.microbatches > 1 || !freedom.microbatches {
        return None;
    }
    let rows = session.config().train.batch / session.mesh().batch_shards().max(1);
    (2 * count..=rows.min(MOST_LAYERS)).find(|&more| suits(session, more))
}

/// Whether a batch divides into so many microbatches on the mesh of a session, in a step that is not folded.
pub(super) fn suits(session: &Session, count: usize) -> bool {
    let config = session.config();
    let layers = config.model.stream().map_or(0, |[layers, ..]| layers) * config.model.period();
    config.train.batch.is_multiple_of(count * session.mesh().batch_shards())
        && layers.max(1) * count <= MOST_LAYERS
}

/// What is tried on one mesh with one number of microbatches.
pub(super) struct Trial<'a> {
    session: Session,
    model: &'a Model,
    /// Lines that hold in every candidate.
    pins: &'a Plan,
    freedom: Freedom,
    searches: &'a Searches,
    /// The step by which plans are compared, of a model with many layers: one microbatch through few layers.
    few: Option<(Session, Model)>,
    time: SearchTime,
}

/// A plan that was built, and its place among those of its source.
struct Ranked {
    source: &'static str,
    plan: Plan,
    /// The whole step; where few layers were built, none.
    built: Option<Built>,
    idle: Option<String>,
    seconds: f64,
    /// Seconds of all stages one after another, as a search counts them.
    in_a_row_s: f64,
}

impl Ranked {
    fn key(&self) -> (bool, f64) {
        (self.idle.is_some(), self.seconds)
    }
}

impl<'a> Trial<'a> {
    pub fn new(
        session: Session,
        model: &'a Model,
        pins: &'a Plan,
        freedom: Freedom,
        searches: &'a Searches,
    ) -> Trial<'a> {
        Trial { session, model, pins, freedom, searches, few: None, time: SearchTime::default() }
    }

    /// The best candidate of each source, of which one is known that fits and takes `known_s`.
    pub fn run(mut self, known_s: f64) -> Tried {
        let mut tried = Tried::default();
        let mesh = self.session.mesh().clone();
        if let Err(error) = self.check_stages() {
            tried.refuse(&mesh, PLANNER, error);
            return tried;
        }
        let start = Instant::now();
        match self.with_few_layers() {
            Ok(few) => self.few = few,
            Err(error) => tried.refuse(&mesh, PLANNER, error),
        }
        self.time.checking += start.elapsed();
        let layouts = self.searches.of(&self.session, self.model, self.pins, self.freedom, &mut self.time);
        let mut searched = layouts
            .as_ref()
            .ok()
            .map(|layouts| Searched { mesh: slice_of(&mesh), ..layouts.searched.clone() });
        let start = Instant::now();
        let mut best: Vec<Ranked> = Vec::new();
        for (source, plan) in self.plans(&layouts) {
            let ranked = match plan.and_then(|plan| self.rank(source, plan)) {
                Ok(ranked) => ranked,
                Err(error) => {
                    tried.refuse(&mesh, source, error);
                    continue;
                }
            };
            match best.iter_mut().find(|other| other.source == source) {
                Some(other) if ranked.key() < other.key() => *other = ranked,
                Some(_) => {}
                None => best.push(ranked),
            }
        }
        for ranked in best {
            let source = ranked.source;
            let found = self.whole(ranked, layouts.as_ref().ok()).and_then(|ranked| {
                if let Some(searched) = searched.as_mut().filter(|_| source == PLANNER) {
                    searched.built_s = searched.layers.is_none().then_some(ranked.in_a_row_s);
                }
                self.candidates(ranked, tried.best_s().min(known_s))
            });
            match found {
                Ok(found) => tried.found.extend(found),
                Err(error) => tried.refuse(&mesh, source, error),
            }
        }
        self.time.checking += start.elapsed();
        tried.searched.extend(searched);
        tried.time.add(self.time);
        tried
    }

    /// One plan.
    pub fn of_plan(self, source: &'static str, plan: Plan) -> Tried {
        let (start, mut tried) = (Instant::now(), Tried::default());
        match self.rank_whole(source, plan).and_then(|ranked| self.candidate(ranked)) {
            Ok(found) => tried.found.push(found),
            Err(error) => tried.refuse(self.session.mesh(), source, error),
        }
        tried.time.add(SearchTime { checking: start.elapsed(), ..SearchTime::default() });
        tried
    }

    /// The best of several plans by what one microbatch takes; where it does not fit, with what makes it smaller.
    pub fn of_plans(self, source: &'static str, plans: Vec<Plan>) -> Tried {
        let (start, mut tried) = (Instant::now(), Tried::default());
        let mesh = self.session.mesh().clone();
        let others = self.session.config().train.microbatches.saturating_sub(1) as f64;
        let one = of_a_microbatch(&self.session).0.with_timetable(Order::default());
        let key = |plan: &Plan, model: &Model| -> Result<(bool, f64)> {
            let built = one.built_under(model, plan)?;
            let of_stages: Vec<f64> = built.stages.iter().map(|stage| step_s(&stage.partitioned)).collect();
            let slowest = of_stages.iter().copied().fold(0.0, f64::max);
            Ok((idle_axis(&built).is_some(), of_stages.iter().sum::<f64>() + others * slowest))
        };
        let mut best: Option<((bool, f64), Plan)> = None;
        for plan in plans {
            match one.model().and_then(|model| key(&plan, &model)) {
                Ok(key) if best.as_ref().is_none_or(|(known, _)| key < *known) => best = Some((key, plan)),
                Ok(_) => {}
                Err(error) => tried.refuse(&mesh, source, error),
            }
        }
        let best = best.map(|(_, plan)| self.rank_whole(source, plan));
        match best.map(|ranked| ranked.and_then(|ranked| self.candidates(ranked, f64::INFINITY))) {
            Some(Ok(found)) => tried.found.extend(found),
            Some(Err(error)) => tried.refuse(&mesh, source, error),
            None => {}
        }
        tried.time.add(SearchTime { checking: start.elapsed(), ..SearchTime::default() });
        tried
    }

    /// Refuses more stages than the model has blocks, before anything is searched.
    fn check_stages(&self) -> Result<()> {
        let slices = self.session.mesh().axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
        let decides = |entry: &Entry| entry.primitive.decides_stages();
        let is_cut_evenly = is_free(self.pins) && !self.pins.entries.iter().any(decides);
        if slices == 1 || !is_cut_evenly || self.model.is_step() {
            return Ok(());
        }
        let stages = self.session.config().train.timetable.slice_of_stage(slices)?.len();
        evenly(&mut self.model.forward.clone(), stages)
    }

    /// The session and the model of a microbatch through few layers, for a model with many; none where lines of the config
    /// set layouts, which may name layers.
    fn with_few_layers(&self) -> Result<Option<(Session, Model)>> {
        let Some(few) = few_layers(&self.session).filter(|_| is_free(self.pins)) else { return Ok(None) };
        let (config, mesh) = (self.session.config(), self.session.mesh());
        let rows = config.train.batch / config.train.microbatches.max(1);
        let session = self.session.clone().with_model(few).with_mesh(slice_of(mesh)).with_batch(rows);
        let session = session.with_cluster(config.cluster.sliced(mesh, PIPELINE_AXIS));
        let session = session.with_microbatches(1).with_timetable(Order::default());
        let model = session.model()?;
        Ok(Some((session, model)))
    }

    /// The plans to try: the search's, with more or fewer lines beside those for parameters, and the ready ones.
    fn plans(&self, layouts: &Result<Arc<Layouts>>) -> Vec<(&'static str, Result<Plan>)> {
        let mut plans: Vec<(&'static str, Result<Plan>)> = Vec::new();
        match layouts.as_ref().map_err(Clone::clone).and_then(|layouts| self.searched(layouts)) {
            Ok(found) => plans.extend(found.into_iter().map(|plan| (PLANNER, Ok(plan)))),
            Err(error) => plans.push((PLANNER, Err(error))),
        }
        if !is_free(self.pins) {
            plans.push(("given lines", Ok(self.pins.clone())));
            return plans;
        }
        // No search over layouts says how attention goes along rows that ranks share.
        let searched = plans.len();
        for line in ["ring", "ulysses"] {
            let plan = self.attention(line);
            let found =
                plans[..searched].iter().filter_map(|(source, plan)| Some((*source, plan.as_ref().ok()?)));
            let more: Vec<_> = match plan {
                Ok(Some(line)) => found.map(|(source, plan)| (source, Ok(with(plan, &line)))).collect(),
                Ok(None) => Vec::new(),
                Err(error) => vec![(PLANNER, Err(error))],
            };
            plans.extend(more);
        }
        let mesh = self.session.mesh();
        for (source, vocab_parallel) in [("ready plan", false), ("ready plan, vocab-parallel", true)] {
            let options = ReadyOptions {
                vocab_parallel,
                sequence_parallel: self.session.config().plan.sequence_parallel,
                ..ReadyOptions::default()
            };
            let ready = self.session.config().model.plan(&self.model.forward, mesh, &options);
            let ready = ready.map(|plan| with(&plan, self.pins));
            if !plans.iter().any(|(_, plan)| matches!((plan, &ready), (Ok(one), Ok(other)) if one == other)) {
                plans.push((source, ready));
            }
        }
        plans
    }

    /// A line for every module with attention, on a mesh whose ranks share rows over `cp`.
    fn attention(&self, line: &str) -> Result<Option<Plan>> {
        if self.session.mesh().axis_named("cp").is_none_or(|axis| axis.size == 1) {
            return Ok(None);
        }
        let is_attention = |node: &&Node| {
            node.op.composite().is_some_and(|composite| composite.definition.name == ATTENTION.name)
        };
        let attends = self.model.forward.nodes.iter().filter(is_attention);
        // All layers in one pattern: `layers.*.attn`.
        let pattern = |node: &Node| {
            let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
            let parts = node.path.split('.').map(|part| if is_number(part) { "*" } else { part });
            parts.collect::<Vec<_>>().join(".")
        };
        let patterns: BTreeSet<String> = attends.map(pattern).collect();
        let mut plan = Plan::default();
        for pattern in &patterns {
            plan.add(pattern, line, PLANNER)?;
        }
        Ok((!patterns.is_empty()).then_some(plan))
    }

    /// The plans of the search for this mesh: with what `fsdp` shards, and of a small model also with the stages that a
    /// search finds.
    fn searched(&self, layouts: &Layouts) -> Result<Vec<Plan>> {
        let storage = storage(self.session.mesh())?;
        let mut plans: Vec<Plan> = layouts.plans.iter().map(|plan| with(plan, &storage)).collect();
        if let Some(splits) = self.splits(layouts)?.filter(|_| self.few.is_none()) {
            plans.extend(plans.iter().map(|plan| with(plan, &splits)).collect::<Vec<Plan>>());
        }
        Ok(plans)
    }

    /// The ends of stages that the search over stages finds, if the mesh has several slices and the model enough blocks.
    fn splits(&self, layouts: &Layouts) -> Result<Option<Plan>> {
        let config = self.session.config();
        let mesh = self.session.mesh();
        let slices = mesh.axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
        let blocks = blocks(&self.model.forward);
        let order = &config.train.timetable;
        if slices == 1 || blocks.len() < slices || order.slice_of_stage(slices)?.len() != slices {
            return Ok(None);
        }
        // Where few layers were searched, those between the ends cost what the one in the middle does.
        let own = layouts.of_all(&*config.model, &blocks);
        let clusters = config.cluster.slices(mesh, PIPELINE_AXIS);
        let mut of_slices: Vec<BlockCosts> = Vec::with_capacity(slices);
        for cluster in &clusters {
            // Slices with the devices of the search cost what it says; on others, the same layouts are searched again.
            let costs = match *cluster == config.cluster.sliced(mesh, PIPELINE_AXIS) {
                true => own.clone(),
                false => {
                    let alone = self.session.clone().with_mesh(slice_of(mesh)).with_cluster(cluster.clone());
                    let mut time = SearchTime::default();
                    let found = self.searches.of(&alone, self.model, self.pins, self.freedom, &mut time)?;
                    found.of_all(&*config.model, &blocks)
                }
            };
            of_slices.push(costs);
        }
        let Some(ends) = divided(&of_slices, config.train.microbatches) else { return Ok(None) };
        let mut plan = Plan::default();
        for end in ends {
            let split = Primitive::PipelineSplit { mesh: None, ranks: Vec::new() };
            plan.push(&blocks[end], split, "planner");
        }
        Ok(Some(plan))
    }

    /// Builds a plan, of a model with many layers for few of them, and adds up what would run.
    fn rank(&self, source: &'static str, plan: Plan) -> Result<Ranked> {
        let Some((session, model)) = &self.few else { return self.rank_whole(source, plan) };
        let built = session.built_under(model, &of_any_layer(&plan))?;
        let seconds = built.stages.iter().map(|stage| step_s(&stage.partitioned)).sum();
        Ok(Ranked { source, plan, idle: idle_axis(&built), built: None, seconds, in_a_row_s: seconds })
    }

    /// Builds a plan and adds up what would run.
    fn rank_whole(&self, source: &'static str, plan: Plan) -> Result<Ranked> {
        let built = self.session.built_under(self.model, &plan)?;
        let seconds = self.sum_s(&built)?;
        let in_a_row_s = built.stages.iter().map(|stage| step_s(&stage.partitioned)).sum();
        Ok(Ranked { source, plan, idle: idle_axis(&built), built: Some(built), seconds, in_a_row_s })
    }

    /// The whole step of a plan that was compared by few layers, with the better one of even stages and of those that a
    /// search finds.
    fn whole(&self, ranked: Ranked, layouts: Option<&Arc<Layouts>>) -> Result<Ranked> {
        if ranked.built.is_some() {
            return Ok(ranked);
        }
        let Ranked { source, plan, .. } = ranked;
        let splits = layouts.map(|layouts| self.splits(layouts)).transpose()?.flatten();
        let split = splits.and_then(|splits| self.rank_whole(source, with(&plan, &splits)).ok());
        let even = self.rank_whole(source, plan)?;
        Ok(split.into_iter().fold(even, |even, split| if split.key() < even.key() { split } else { even }))
    }

    /// Prices a plan, and where it does not fit, the same with the layers recomputed, with optimizer states in host memory,
    /// or both, unless it already takes longer than what is known to fit.
    fn candidates(&self, ranked: Ranked, best_s: f64) -> Result<Vec<Candidate>> {
        let blocks = blocks(&self.model.forward);
        let first = self.candidate(ranked)?;
        if first.fits() || first.step_s > best_s {
            return Ok(vec![first]);
        }
        let mut found = vec![first];
        let (source, plan) = (found[0].source, found[0].plan.clone());
        let is_recomputed = |entry: &Entry| matches!(entry.primitive, Primitive::Checkpoint { .. });
        if !blocks.is_empty() && !plan.entries.iter().any(is_recomputed) {
            let recomputed = self.recomputed(&blocks, &plan)?;
            found.extend(self.rank_whole(source, recomputed).and_then(|ranked| self.candidate(ranked)).ok());
        }
        let limited = self.limited(&found[0]);
        for plan in found.iter().map(|candidate| candidate.plan.clone()).collect::<Vec<Plan>>() {
            if let Some((source, plan)) = offloaded(&self.session, source, &plan)? {
                let candidate = self.rank_whole(source, plan).and_then(|ranked| self.candidate(ranked));
                found.extend(candidate);
            }
        }
        found.extend(limited);
        Ok(found)
    }

    /// A candidate that does not fit, with as many bytes kept for the backward pass as do: the compiler chooses what is
    /// computed again. None if none fits, or the config has a limit.
    fn limited(&self, large: &Candidate) -> Option<Candidate> {
        let config = self.session.config();
        if config.train.activation_limit.is_some() {
            return None;
        }
        let source = match large.source {
            PLANNER => "planner, activation limit",
            "ready plan" => "ready plan, activation limit",
            "ready plan, vocab-parallel" => "ready plan, vocab-parallel, activation limit",
            slices::SOURCE => "planner, slices, activation limit",
            _ => "given lines, activation limit",
        };
        let built = self.session.built_under(self.model, &large.plan).ok()?;
        let options = self.session.lower_options();
        // The first of two points keeps all that the backward pass reads.
        let all = |stage: &partita_schedule::Stage| {
            let curve = kept_curve(&stage.classes, &options, self.session.cpu(), 2).ok()?;
            curve.first().map(|kept| kept.bytes)
        };
        let all = built.stages.iter().filter_map(all).fold(0.0, f64::max) as u64;
        let timetable = built.timetable.as_ref();
        let held =
            timetable.and_then(|timetable| (0..timetable.slices.len()).map(|s| timetable.peak(s)).max());
        let in_flight = held.unwrap_or(1).max(1) as u64;
        let (mut fill, mut kept) = (large.fill(), all);
        for attempt in 0..LIMITS {
            // Fewer bytes of each microbatch in flight. What is kept may not be all that is there when memory is fullest, so
            // each step is twice the one before.
            let least = (all >> LIMITS) << attempt;
            kept = kept.checked_sub(fill.missing().div_ceil(in_flight).max(least))?;
            let session = self.session.clone().with_activation_limit(kept as usize);
            let price = session.price_of(&built).ok()?;
            fill = price.fullest();
            if fill.fits() {
                let found = Candidate::priced(&session, source, large.plan.clone(), &price);
                let Candidate { idle, stages, slices, .. } = large.clone();
                let busy = busy(&built, &price);
                return Some(Candidate { idle, stages, slices, busy, ..found });
            }
        }
        None
    }

    /// A plan with the layers recomputed.
    fn recomputed(&self, blocks: &[String], plan: &Plan) -> Result<Plan> {
        let mut plan = plan.clone();
        for modules in patterns(blocks) {
            plan.add(&modules, "checkpoint", "planner")?;
        }
        Ok(plan)
    }

    fn candidate(&self, ranked: Ranked) -> Result<Candidate> {
        let Ranked { source, plan, built, idle, .. } = ranked;
        let built = built.map_or_else(|| self.session.built_under(self.model, &plan), Ok)?;
        let mut plan = built.used_lines(&plan);
        if let Some(axis) = &idle {
            let mut line = Plan::default();
            line.push("**", Style::new(Kind::Replicate).over(axis), PLANNER);
            plan = with(&line, &plan);
        }
        let price = self.session.price_of(&built)?;
        let host = price.host(&self.session.config().cluster);
        if !host.fits() {
            return Err(Diagnostic::new("E520", "what a plan offloads does not fit host memory")
                .at(format!("cluster `{}`", self.session.config().cluster.name))
                .expected(format!("at most {} bytes for a device", host.limit))
                .found(format!("{} bytes", host.bytes))
                .help("offload the states of fewer layers, or shard them over more ranks"));
        }
        // Tables that follow from the inputs alone are computed by all stages that read them, but belong to one.
        let all = blocks(&self.model.forward);
        let slice_of = built.timetable.as_ref().map(|timetable| timetable.slice_of_stage());
        let stage = |number: usize| {
            let is_own = |node: &Node| slice_of.as_ref().is_none_or(|of| of.get(node.stage) == Some(&number));
            let mut own = blocks_among(&built.step, &is_own);
            own.retain(|block| all.contains(block));
            let text = |block: Option<&String>| block.cloned().unwrap_or_default();
            (text(own.first()), text(own.last()))
        };
        let stages = (0..built.stages.len()).map(stage).collect();
        let slices = built.stages.iter().map(|stage| stage.partitioned.mesh.clone()).collect();
        let busy = busy(&built, &price);
        Ok(Candidate { idle, stages, slices, busy, ..Candidate::priced(&self.session, source, plan, &price) })
    }

    /// Seconds of a built step, without overlap of communication and computation: on its slowest rank, or with several
    /// stages as their timetable runs them.
    fn sum_s(&self, built: &Built) -> Result<f64> {
        let of_stages: Vec<f64> = built.stages.iter().map(|stage| step_s(&stage.partitioned)).collect();
        let (Some(timetable), [_, _, ..]) = (&built.timetable, built.stages.as_slice()) else {
            return Ok(of_stages.first().copied().unwrap_or(0.0));
        };
        let slices = timetable.slices.len();
        let microbatches = timetable.microbatches;
        let cluster = &self.session.config().cluster;
        let mut sent = vec![0.0; slices];
        for edge in &built.edges {
            let (ranks, boxes) = moves(&built.stages, edge);
            let bytes = edge_bytes(built, edge.from);
            let messages = boxes.iter().map(|b| (ranks[b.source], ranks[b.target], b.elements() * bytes));
            sent[edge.from.0] += cluster.messages_s(messages) / microbatches as f64;
        }
        let table = StageTable {
            layers: slices,
            slices: vec![SliceKind::anywhere(1)],
            seconds: grid(&of_stages, microbatches),
            successors: vec![vec![vec![i64::MAX]; slices]; slices],
            once: vec![vec![vec![0.0]; slices]; slices],
            cut: sent.into_iter().map(|seconds| vec![seconds]).collect(),
        };
        let stages: Vec<Stage> =
            (0..slices).map(|slice| Stage { first: slice, last: slice, slice: 0, begin: slice }).collect();
        makespan_s(&table, &stages, &self.session.config().train.timetable, microbatches)
    }
}

/// Seconds of each slice for one microbatch, on the diagonal.
fn grid(of_stages: &[f64], microbatches: usize) -> Vec<Vec<Vec<f64>>> {
    let entry = |first: usize, last: usize| match first == last {
        true => of_stages[first] / microbatches as f64,
        false => f64::INFINITY,
    };
    let count = of_stages.len();
    (0..count).map(|first| (0..count).map(|last| vec![entry(first, last)]).collect()).collect()
}

/// The bytes of an element of what a stage sends.
fn edge_bytes(built: &Built, (stage, output): (usize, usize)) -> usize {
    let graph = &built.stages[stage].partitioned.graph;
    graph.ty(graph.outputs[output]).dtype.size_bytes()
}
