//! The candidates of large steps, from one repeated layer.
//!
//! Layouts are searched on a model of two layers and one microbatch over `tp` alone. Data parallel ranks, what they share
//! (ZeRO), stages, microbatches and recomputation are unfolded from the layer in closed form, for every mesh. The best of
//! each mesh is then priced as `partita simulate` prices it, its timetable over a clock.

use super::{Candidate, DATA_AXES, Freedom, SearchTime, Searched, Tried, Watch, on_all_cores, storage, with};
use crate::predict::Blocks;
use crate::predict::block::BlockSpec;
use crate::predict::step::{BlockSeconds, Job, Software, forecast_from, layers_of_stages};
use crate::session::Session;
use partita_base::{Diagnostic, Result};
use partita_ir::Registry;
use partita_mesh::Mesh;
use partita_planner::intra::{Options, Table};
use partita_planner::{Pins, plan_of};
use partita_schedule::{Plan, ReadyOptions, Tools, annotated_steps, batch_shards};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

/// Rows of a microbatch that are tried.
const ROWS: [usize; 5] = [1, 2, 4, 8, 16];
/// Elements of the residual stream of a microbatch beyond which more rows make no kernel faster.
const MOST_STREAM: usize = 1 << 26;
/// The most ranks of `tp`: those of a node, unless the cluster says how many a node has.
const MOST_TP: usize = 8;
/// The candidates whose timetable runs over a clock.
const MOST_PRICED: usize = 6;

/// Layouts of a layer over so many ranks of `tp`.
#[derive(Clone, Debug)]
struct Lines {
    source: &'static str,
    plan: Plan,
    sequence_parallel: bool,
}

/// A candidate before it is priced.
struct Guess {
    session: Session,
    source: &'static str,
    plan: Plan,
    job: Job,
}

/// The best candidate of each mesh.
pub(super) fn search(session: &Session, meshes: &[Mesh], freedom: Freedom, watch: Watch) -> Result<Tried> {
    let mut tried = Tried::default();
    let mut blocks = Blocks::default();
    let meshes = usable(session, meshes, &mut tried);
    let size = |mesh: &Mesh, name: &str| mesh.axis_named(name).map_or(1, |axis| axis.size);
    let mut lines: BTreeMap<usize, Vec<Lines>> = BTreeMap::new();
    for mesh in &meshes {
        let tp = size(mesh, "tp");
        if let Entry::Vacant(place) = lines.entry(tp) {
            place.insert(lines_over(session, mesh, tp, freedom, &mut tried)?);
        }
    }
    let start = Instant::now();
    let mut guesses: Vec<Guess> = Vec::new();
    for mesh in &meshes {
        for microbatches in microbatches_on(session, mesh, freedom) {
            let own = session.clone().with_mesh(mesh.clone()).with_microbatches(microbatches);
            for of in &lines[&size(mesh, "tp")] {
                let own = own.clone().with_sequence_parallel(of.sequence_parallel);
                for plan in stored(mesh, &of.plan, session.pins()?.entries.is_empty())? {
                    match own.job_under(&plan) {
                        Ok(job) => guesses.push(Guess { session: own.clone(), source: of.source, plan, job }),
                        Err(error) => tried.refuse(mesh, of.source, error),
                    }
                }
            }
        }
    }
    let mut of_layer: BTreeMap<String, Vec<Guess>> = BTreeMap::new();
    for guess in guesses {
        of_layer.entry(guess.job.block.key()).or_default().push(guess);
    }
    let specs: Vec<&BlockSpec> = of_layer.values().map(|guesses| &guesses[0].job.block).collect();
    blocks.prepare(&specs);
    // The fastest of each mesh that fits, or the smallest one.
    let cluster = &session.config().cluster;
    let limit = cluster.device.memory_bytes as f64;
    let mut best: BTreeMap<String, (bool, f64, Guess)> = BTreeMap::new();
    for guesses in of_layer.into_values() {
        let block = match blocks.of(&guesses[0].job.block) {
            Ok(block) => block,
            Err(error) => {
                tried.refuse(guesses[0].session.mesh(), guesses[0].source, error);
                continue;
            }
        };
        let of_block = BlockSeconds::of(&guesses[0].job, &block, cluster);
        for guess in guesses {
            let job = Job { clocked: false, ..guess.job.clone() };
            let forecast = forecast_from(&job, &block, cluster, &Software::default(), &of_block)?;
            let (bytes, step_s) = (forecast.fullest().total(), forecast.seconds.step_s);
            let key = (bytes > limit, if bytes > limit { bytes } else { step_s });
            let mesh = guess.session.mesh().to_string();
            if best.get(&mesh).is_none_or(|other| key < (other.0, other.1)) {
                best.insert(mesh, (key.0, key.1, guess));
            }
        }
    }
    let mut best: Vec<(bool, f64, Guess)> = best.into_values().collect();
    best.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    best.truncate(MOST_PRICED);
    let priced = on_all_cores(best.len(), limit as u64, watch, |number| {
        let mut tried = Tried::default();
        let (_, _, guess) = &best[number];
        match candidate(guess) {
            Ok(found) => tried.found.push(found),
            Err(error) => tried.refuse(guess.session.mesh(), guess.source, error),
        }
        tried
    });
    tried.join(priced);
    tried.time.add(SearchTime { checking: start.elapsed(), ..SearchTime::default() });
    Ok(tried)
}

/// The meshes that the cluster holds, with at least one layer on each stage, and `tp` within a node.
fn usable(session: &Session, meshes: &[Mesh], tried: &mut Tried) -> Vec<Mesh> {
    let config = session.config();
    let levels = &config.cluster.levels;
    let node = levels.first().and_then(|level| level.ranks).unwrap_or(MOST_TP);
    let size = |mesh: &Mesh, name: &str| mesh.axis_named(name).map_or(1, |axis| axis.size);
    let layers = config.model.stream().map_or(1, |[layers, ..]| layers);
    let is_only = meshes.len() == 1;
    let mut kept: Vec<Mesh> = Vec::new();
    for mesh in meshes {
        if let Err(error) = config.cluster.holds(mesh) {
            tried.refuse(mesh, "planner", error);
        } else if is_only || size(mesh, "tp") <= node && size(mesh, "pp") <= layers {
            kept.push(mesh.clone());
        }
    }
    kept
}

/// The microbatches to try: those that small numbers of rows make, or the number of the config.
fn microbatches_on(session: &Session, mesh: &Mesh, freedom: Freedom) -> Vec<usize> {
    let (own, batch) = (session.config().train.microbatches, session.config().train.batch);
    let shards = batch_shards(mesh);
    if own > 1 || !freedom.microbatches {
        return vec![own];
    }
    let stream = session.config().model.stream().map_or(1, |[_, tokens, features]| tokens * features);
    let fits = |rows: &&usize| {
        batch.is_multiple_of(*rows * shards) && (**rows == 1 || *rows * stream <= MOST_STREAM)
    };
    ROWS.iter().filter(fits).map(|rows| batch / (rows * shards)).collect()
}

/// A plan with each choice of what data parallel ranks share, kept and recomputed.
fn stored(mesh: &Mesh, plan: &Plan, is_free: bool) -> Result<Vec<Plan>> {
    let mut plans = vec![with(plan, &storage(mesh)?)];
    if !is_free {
        return Ok(plans);
    }
    if mesh.axis_named("dp").is_some_and(|axis| axis.size > 1) && mesh.axis_named("fsdp").is_none() {
        let mut zero = plans[0].clone();
        zero.add("**", "zero1", "planner")?;
        plans.push(zero);
    }
    for at in 0..plans.len() {
        let mut recomputed = plans[at].clone();
        recomputed.add("layers.*", "checkpoint", "planner")?;
        plans.push(recomputed);
    }
    Ok(plans)
}

/// Layouts of a layer: searched, and ready ones.
fn lines_over(
    session: &Session,
    mesh: &Mesh,
    tp: usize,
    freedom: Freedom,
    tried: &mut Tried,
) -> Result<Vec<Lines>> {
    let (config, pins) = (session.config(), session.pins()?);
    let own = config.plan.sequence_parallel;
    if tp == 1 {
        return Ok(vec![Lines { source: "ready plan", plan: pins, sequence_parallel: own }]);
    }
    let inner = Mesh::new("mesh", &[("tp", tp)]);
    let mut found = Vec::new();
    match searched(session, &inner, &pins, freedom, tried) {
        Ok(plan) => found.push(Lines { source: "planner", plan, sequence_parallel: own }),
        Err(error) => tried.refuse(mesh, "planner", error),
    }
    if !pins.entries.is_empty() {
        return Ok(found);
    }
    let small = config.model.with_layers(1).ok_or_else(not_folded)?;
    let model = small.build(1, config.train.dtype, true)?;
    // The collectives of sequence parallelism move as many bytes, and less is kept.
    let sequence_parallel = own || freedom.microbatches;
    let options = ReadyOptions {
        sequence_parallel,
        vocab_parallel: config.plan.vocab_parallel || sequence_parallel,
        ..ReadyOptions::default()
    };
    let plan = small.plan(&model.forward, &inner, &options)?;
    found.push(Lines { source: "ready plan", plan, sequence_parallel });
    Ok(found)
}

fn not_folded() -> Box<Diagnostic> {
    Diagnostic::new("E511", "the step cannot be folded to one layer")
        .expected("a model of kind gpt, llama or bert")
}

/// The plan of a search on two layers.
fn searched(
    session: &Session,
    mesh: &Mesh,
    pins: &Plan,
    freedom: Freedom,
    tried: &mut Tried,
) -> Result<Plan> {
    let start = Instant::now();
    let config = session.config();
    let small = config.model.with_layers(2).ok_or_else(not_folded)?;
    let model = small.build(1, config.train.dtype, true)?;
    let session = session.clone().with_mesh(mesh.clone()).with_microbatches(1);
    let runner = session.step_runner();
    let tools = Tools { registry: &Registry::default(), runner: &runner };
    let steps = annotated_steps(&model, pins, mesh, &session.build_options(), &tools)?;
    let (slice, step) = steps.first().ok_or_else(|| Diagnostic::new("E523", "the mesh has no slices"))?;
    let tracing = start.elapsed();
    let start = Instant::now();
    let mut search = Options::new(freedom.prices(&config.cluster, slice));
    search.batch_axes = DATA_AXES.map(str::to_string).to_vec();
    search.split_contractions = true;
    let table = Table::new(step, slice, &search)?;
    let enumerating = start.elapsed();
    let start = Instant::now();
    let found = table.solve()?;
    let plan = plan_of(step, slice, &["tp".to_string()], &found, Pins::Activations);
    tried.searched.push(Searched {
        mesh: slice.clone(),
        variables: table.problem.variables.len(),
        cost_s: found.solution.cost,
        bound_s: found.solution.bound,
        built_s: None,
        without: Vec::new(),
    });
    tried.time.add(SearchTime { tracing, enumerating, solving: start.elapsed(), ..SearchTime::default() });
    Ok(with(pins, &plan))
}

fn candidate(guess: &Guess) -> Result<Candidate> {
    let Guess { session, source, plan, job } = guess;
    let price = session.price_folded(Some(plan))?;
    let mut first = 0;
    let stages = layers_of_stages(job.layers, job.pp * job.chunks).into_iter().map(|count| {
        let (from, to) = (first, first + count);
        first = to;
        (format!("layers.{from}"), format!("layers.{}", to.saturating_sub(1)))
    });
    Ok(Candidate {
        mesh: session.mesh().clone(),
        source,
        plan: plan.clone(),
        microbatches: job.microbatches,
        sequence_parallel: session.config().plan.sequence_parallel,
        step_s: price.step_s(),
        bytes: price.bytes(),
        idle: None,
        stages: stages.collect(),
    })
}
