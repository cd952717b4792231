//! The candidates of large steps, from one repeated layer.
//!
//! Layouts are searched on a model of two layers and one microbatch over `tp` alone. Data parallel ranks, what they share
//! (ZeRO), stages, microbatches and recomputation are unfolded from the layer in closed form, for every mesh. The best of
//! each mesh is then priced as `partita simulate` prices it, its timetable over a clock.

use super::guesses::{DOUBT, Guess, MOST_TOLD, priced};
use super::layouts::{annotated_step, options, within_a_step};
use super::{
    Freedom, SearchTime, Searched, Tried, Watch, expert_lines, is_free, offloaded, orders, storage, with,
};
use crate::predict::block::{Block, BlockSpec, Traced};
use crate::predict::small::{check_stages, not_folded};
use crate::predict::step::{BlockSeconds, Job, Software, forecast_from};
use crate::predict::unfold::is_inside;
use crate::predict::{Blocks, FEW_ROWS, MORE_ROWS};
use crate::session::Session;
use partita_base::Result;
use partita_mesh::Mesh;
use partita_planner::intra::{Options, Table};
use partita_planner::solver::Effort;
use partita_planner::{Pins, plan_of_layers};
use partita_schedule::{Entry, Plan, Primitive, ReadyOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// What a search on a layer may cost. With experts, more branches of larger tables take minutes and gain little.
const EFFORT: Effort = Effort { most_entries: 1 << 18, most_branches: 4 };
/// Elements of the residual stream of a microbatch beyond which more rows make no kernel faster.
const MOST_STREAM: usize = 1 << 27;
/// The most ranks of `tp`: those of a node, unless the cluster says how many a node has.
const MOST_TP: usize = 8;
/// The memory that programs need relative to their estimates is below this.
const SURELY: f64 = 1.2;
/// What programs with experts may need relative to their estimates: buffers of experts that drop no token are hard to
/// estimate.
const DOUBT_OF_EXPERTS: f64 = 3.0;
/// The parts of the forward pass of a layer that are at least computed again with its feed-forward block, and with all of
/// it: nothing reads what the last matmul of the block computes.
const RECOMPUTED: [(Recomputed, f64); 2] = [(Recomputed::Part, 0.33), (Recomputed::All, 0.67)];

/// A layer: its layouts over `tp`, and what is recomputed.
pub(super) struct Layer {
    pub source: &'static str,
    plan: Plan,
    pub sequence_parallel: bool,
    /// What is recomputed.
    pub(super) recomputed: Recomputed,
    /// The layer and its seconds by the rows of a microbatch.
    pub(super) of_rows: BTreeMap<usize, (Arc<Block>, BlockSeconds)>,
}

/// The part of a layer that the backward pass computes again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Recomputed {
    Nothing,
    Part,
    All,
}

impl Layer {
    /// Whether this layer takes at most as long and needs at most as much memory as another one, whatever the rows.
    fn is_as_good_as(&self, other: &Layer) -> bool {
        let at_most = |own: f64, others: f64| own <= others * (1.0 + 1e-9);
        let figures = |(block, seconds): &(Arc<Block>, BlockSeconds)| {
            let sum = |of: fn(&Traced) -> &[f64; 3]| of(&block.two).iter().sum::<f64>();
            [
                seconds.stage_s(1, false, false),
                seconds.stage_s(0, true, true),
                sum(|traced| &traced.saved),
                sum(|traced| &traced.parameters),
                sum(|traced| &traced.transient),
                block.two.state_bytes,
                block.stream_bytes,
            ]
        };
        other.of_rows.iter().all(|(rows, others)| {
            let own = self.of_rows.get(rows).map(figures);
            own.is_some_and(|own| own.iter().zip(figures(others)).all(|(&own, others)| at_most(own, others)))
        })
    }
}

/// The best candidates: the closed form says in which order they are priced, and each price corrects it for others alike.
pub(super) fn search(session: &Session, meshes: &[Mesh], freedom: Freedom, watch: Watch) -> Result<Tried> {
    let mut tried = Tried::default();
    let meshes = usable(session, meshes, &mut tried);
    let mut layers = layers_over(session, &meshes, freedom, &mut tried)?;
    let start = Instant::now();
    let promising = {
        let jobs = jobs_of(session, &meshes, &layers, &mut tried)?;
        promising(session, &guesses_of(session, &jobs, freedom)?)
    };
    let rows = rows_of(session, &meshes, freedom);
    let is_promising = |within: Within, layer: &Layer| promising.contains(&(within, layer.recomputed));
    compiled(session, &mut layers, &rows, is_promising, &mut tried);
    let jobs = jobs_of(session, &meshes, &layers, &mut tried)?;
    tried.join(priced(session, guesses_of(session, &jobs, freedom)?, watch)?);
    tried.time.add(SearchTime { checking: start.elapsed(), ..SearchTime::default() });
    Ok(tried)
}

/// A layer on a mesh with what data parallel ranks share.
struct OnMesh<'a> {
    mesh: &'a Mesh,
    layer: &'a Layer,
    /// What its plan came from.
    source: &'static str,
    plan: Arc<Plan>,
    job: Job,
}

/// Each layer whose seconds are known on each mesh, with each storage.
fn jobs_of<'a>(
    session: &Session,
    meshes: &'a [Mesh],
    layers: &'a BTreeMap<Within, Vec<Layer>>,
    tried: &mut Tried,
) -> Result<Vec<OnMesh<'a>>> {
    let pins = session.pins()?;
    let is_storage =
        |entry: &Entry| matches!(&entry.primitive, Primitive::Style(style) if style.is_storage());
    let is_free = is_free(&pins) && !pins.entries.iter().any(is_storage);
    let mut jobs = Vec::new();
    // Meshes with the same kinds of axes have the same plans.
    let mut plans: BTreeMap<(Within, usize, [bool; 2]), Sources> = BTreeMap::new();
    for mesh in meshes {
        let has = |name: &str| mesh.axis_named(name).is_some_and(|axis| axis.size > 1);
        let gathers = has("fsdp");
        // What a part of a layer recomputes from gathered parameters would keep these.
        let suits = |layer: &Layer| {
            let keeps_gathered = gathers && layer.recomputed == Recomputed::Part;
            !layer.of_rows.is_empty() && !keeps_gathered
        };
        let on_mesh = session.clone().with_mesh(mesh.clone()).with_microbatches(1);
        let within = within_layer(mesh);
        for (number, layer) in layers[&within].iter().enumerate().filter(|(_, layer)| suits(layer)) {
            let key = (within, number, [gathers, has("dp")]);
            let sources = match plans.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let mut found: Sources = Vec::new();
                    for plan in stored(mesh, &layer.plan, is_free)? {
                        let away = offloaded(session, layer.source, &plan)?;
                        let all = [(layer.source, plan)].into_iter().chain(away);
                        found.extend(all.map(|(source, plan)| (source, Arc::new(plan))));
                    }
                    plans.entry(key).or_insert(found).clone()
                }
            };
            for (source, plan) in sources {
                match on_mesh.job_under(&plan) {
                    // The layer is compiled, so the job needs no lines of its own.
                    Ok(mut job) => {
                        job.block.plan = None;
                        jobs.push(OnMesh { mesh, layer, source, plan, job });
                    }
                    Err(error) => tried.refuse(mesh, source, error),
                }
            }
        }
    }
    Ok(jobs)
}

/// Plans with what they come from.
type Sources = Vec<(&'static str, Arc<Plan>)>;

/// Every number of microbatches and every timetable of these jobs, in closed form.
fn guesses_of<'a>(session: &Session, jobs: &'a [OnMesh<'a>], freedom: Freedom) -> Result<Vec<Guess<'a>>> {
    let cluster = &session.config().cluster;
    let doubt = if session.config().model.experts().is_some() { DOUBT_OF_EXPERTS } else { DOUBT };
    let mut guesses: Vec<Guess> = Vec::new();
    for (number, OnMesh { mesh, layer, source, plan, job }) in jobs.iter().enumerate() {
        for microbatches in microbatches_on(session, mesh, freedom) {
            let rows = session.config().train.batch / (mesh.batch_shards() * microbatches).max(1);
            let Some((block, of_block)) = layer.of_rows.get(&rows) else { continue };
            let own = &session.config().train.timetable;
            for order in orders(own, [job.layers, job.pp, microbatches], freedom) {
                let mut own = Job {
                    microbatches,
                    clocked: false,
                    chunks: if job.pp > 1 { order.chunks(job.pp) } else { 1 },
                    order: Some(order.clone()),
                    ..job.clone()
                };
                own.block.rows = rows;
                let forecast = forecast_from(&own, block, cluster, &Software::default(), of_block)?;
                let (bytes, step_s) = (forecast.fullest().total(), forecast.seconds.step_s);
                let limit = forecast.fill().limit as f64;
                // States go to host memory only where they do not fit beside the rest, and fit there.
                let kept = forecast.fullest().parameters / job.bytes.parameter;
                let shared = if matches!(job.zero, 1 | 2) { job.shard_group as f64 } else { 1.0 };
                let away = job.bytes.host * kept / shared;
                let fits = (bytes + away) * doubt < limit;
                let is_away = *source != layer.source;
                if is_away && (fits || away > cluster.host_bytes() as f64) {
                    continue;
                }
                let source = *source;
                guesses.push(Guess {
                    number,
                    mesh,
                    layer,
                    source,
                    plan,
                    microbatches,
                    order,
                    job,
                    step_s,
                    bytes,
                    limit,
                    away: if is_away { away } else { 0.0 },
                });
            }
        }
    }
    Ok(guesses)
}

/// Which recomputation may pay over which ranks: where a step that does not surely fit would, with the seconds of what is
/// computed again, take less time than the best one that surely fits.
fn promising(session: &Session, guesses: &[Guess]) -> BTreeSet<(Within, Recomputed)> {
    let is_safe = |guess: &&Guess| guess.bytes * SURELY < guess.limit;
    let best_s = guesses.iter().filter(is_safe).map(|guess| guess.step_s).fold(f64::INFINITY, f64::min);
    let mut promising = BTreeSet::new();
    // The fastest layer over each number of ranks that share experts is tried in any case, so that the output can say what
    // these cost.
    let mut fastest: BTreeMap<usize, &Guess> = BTreeMap::new();
    for guess in guesses.iter().filter(|guess| (2..=MOST_TOLD).contains(&within_layer(guess.mesh).0)) {
        let known = fastest.entry(within_layer(guess.mesh).0).or_insert(guess);
        if guess.step_s < known.step_s {
            *known = guess;
        }
    }
    promising.extend(fastest.values().map(|guess| (within_layer(guess.mesh), Recomputed::All)));
    for guess in guesses.iter().filter(|guess| !is_safe(guess)) {
        let Guess { job, layer, microbatches, .. } = guess;
        let rows = session.config().train.batch / (guess.mesh.batch_shards() * microbatches).max(1);
        let Some((_, seconds)) = layer.of_rows.get(&rows) else { continue };
        let forward_s = seconds.layer_forward_s() * (microbatches * job.layers.div_ceil(job.pp)) as f64;
        for (recomputed, part) in RECOMPUTED {
            if (guess.step_s + forward_s * part) * DOUBT < best_s {
                promising.insert((within_layer(guess.mesh), recomputed));
            }
        }
    }
    promising
}

/// The meshes that the cluster holds, with at least one layer on each stage, each group of `tp` within a node, and ranks
/// that share the batch evenly.
fn usable(session: &Session, meshes: &[Mesh], tried: &mut Tried) -> Vec<Mesh> {
    let config = session.config();
    let levels = &config.cluster.levels;
    let node = levels.first().and_then(|level| level.ranks).unwrap_or(MOST_TP);
    let size = |mesh: &Mesh, name: &str| mesh.axis_named(name).map_or(1, |axis| axis.size);
    let layers = config.model.stream().map_or(1, |[layers, ..]| layers);
    let is_only = meshes.len() == 1;
    let mut kept: Vec<Mesh> = Vec::new();
    for mesh in meshes {
        let held = config.cluster.holds(mesh);
        let held = held.and_then(|()| check_stages(&session.clone().with_mesh(mesh.clone())));
        if let Err(error) = held {
            tried.refuse(mesh, "planner", error);
        } else if is_only
            || (mesh.rank_count().min(node)).is_multiple_of(size(mesh, "tp"))
                && size(mesh, "pp") <= layers
                && config.train.batch.is_multiple_of(mesh.batch_shards())
        {
            kept.push(mesh.clone());
        }
    }
    kept
}

/// The microbatches to try: those of any number of rows up to [`MOST_STREAM`], or the number of the config.
fn microbatches_on(session: &Session, mesh: &Mesh, freedom: Freedom) -> Vec<usize> {
    let (own, batch) = (session.config().train.microbatches, session.config().train.batch);
    let shards = mesh.batch_shards();
    if own > 1 || !freedom.microbatches {
        return vec![own];
    }
    let stream = session.config().model.stream().map_or(1, |[_, tokens, features]| tokens * features);
    let most = (MOST_STREAM / stream.max(1)).max(1);
    let rows = (1..=most.min(batch / shards.max(1))).filter(|rows| batch.is_multiple_of(rows * shards));
    rows.map(|rows| batch / (rows * shards)).collect()
}

/// A plan with each choice of what data parallel ranks share.
fn stored(mesh: &Mesh, plan: &Plan, is_free: bool) -> Result<Vec<Plan>> {
    let mut plans = vec![with(plan, &storage(mesh)?)];
    let has = |name: &str| mesh.axis_named(name).is_some_and(|axis| axis.size > 1);
    if is_free && has("dp") && !has("fsdp") {
        for kind in ["zero1", "zero2"] {
            let mut zero = plans[0].clone();
            zero.add("**", kind, "planner")?;
            plans.push(zero);
        }
    }
    Ok(plans)
}

/// The rows of a microbatch that meshes may have, by the ranks that share a layer.
fn rows_of(session: &Session, meshes: &[Mesh], freedom: Freedom) -> BTreeMap<Within, BTreeSet<usize>> {
    let mut rows: BTreeMap<Within, BTreeSet<usize>> = BTreeMap::new();
    for mesh in meshes {
        for count in microbatches_on(session, mesh, freedom) {
            let shards = mesh.batch_shards() * count;
            if session.config().train.batch.is_multiple_of(shards.max(1)) {
                rows.entry(within_layer(mesh)).or_default().insert(session.config().train.batch / shards);
            }
        }
    }
    rows
}

/// Layers by the ranks of `tp`: searched layouts and ready ones, each with what may be recomputed, and with the seconds of
/// each number of rows that a mesh may have.
fn layers_over(
    session: &Session,
    meshes: &[Mesh],
    freedom: Freedom,
    tried: &mut Tried,
) -> Result<BTreeMap<Within, Vec<Layer>>> {
    let rows = rows_of(session, meshes, freedom);
    let sizes: BTreeSet<Within> = meshes.iter().map(within_layer).collect();
    let over_tp: BTreeSet<usize> = sizes.iter().map(|&(_, tp)| tp).filter(|&tp| tp > 1).collect();
    let pins = session.pins()?;
    let found: BTreeMap<usize, Result<Plan>> = std::thread::scope(|scope| {
        let of = |tp: usize| {
            let mut tried = Tried::default();
            (tp, searched(session, &mesh_within((1, tp)), &pins, freedom, &mut tried), tried)
        };
        let threads: Vec<_> = over_tp.iter().map(|&tp| scope.spawn(move || of(tp))).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let kept = joined.map(|(tp, plan, other)| {
            tried.join(other);
            (tp, plan)
        });
        kept.collect()
    });
    let start = Instant::now();
    let mut layers: BTreeMap<Within, Vec<Layer>> = BTreeMap::new();
    for &within in &sizes {
        layers.insert(within, lines_over(session, within, freedom, found.get(&within.1), tried)?);
    }
    // What is worse than another choice without recomputation is not tried with it.
    compiled(session, &mut layers, &rows, |_, layer| layer.recomputed == Recomputed::Nothing, tried);
    for own in layers.values_mut() {
        let plain: Vec<usize> = (0..own.len())
            .filter(|&at| own[at].recomputed == Recomputed::Nothing && !own[at].of_rows.is_empty())
            .collect();
        let is_worse = |&&at: &&usize| {
            plain.iter().any(|&other| {
                let both = own[at].is_as_good_as(&own[other]);
                other != at && own[other].is_as_good_as(&own[at]) && (!both || other < at)
            })
        };
        let kind = |layer: &Layer| (layer.source, layer.sequence_parallel);
        let worse: Vec<_> = plain.iter().filter(is_worse).map(|&at| kind(&own[at])).collect();
        own.retain(|layer| !worse.contains(&kind(layer)));
    }
    tried.time.add(SearchTime { checking: start.elapsed(), ..SearchTime::default() });
    Ok(layers)
}

/// Compiles the blocks of the layers that `is_wanted` takes.
fn compiled(
    session: &Session,
    layers: &mut BTreeMap<Within, Vec<Layer>>,
    rows: &BTreeMap<Within, BTreeSet<usize>>,
    is_wanted: impl Fn(Within, &Layer) -> bool,
    tried: &mut Tried,
) {
    let cluster = &session.config().cluster;
    let mut wanted: Vec<(Within, usize, usize, Job)> = Vec::new();
    for (&within, own) in layers.iter() {
        let mesh = mesh_within(within);
        for (number, layer) in own.iter().enumerate().filter(|(_, layer)| is_wanted(within, layer)) {
            let of_layer = session
                .clone()
                .with_mesh(mesh.clone())
                .with_batch(within.0)
                .with_microbatches(1)
                .with_sequence_parallel(layer.sequence_parallel);
            let job = match of_layer.job_under(&layer.plan) {
                Ok(job) => job,
                Err(error) => {
                    tried.refuse(&mesh, layer.source, error);
                    continue;
                }
            };
            for &rows in rows.get(&within).into_iter().flatten() {
                let mut job = job.clone();
                job.block.rows = rows;
                wanted.push((within, number, rows, job));
            }
        }
    }
    let mut blocks = Blocks::default();
    let of_number = |number: usize| -> Vec<BlockSpec> {
        let (within, layer, _, job) = &wanted[number];
        let alike = wanted.iter().filter(|(w, l, ..)| (w, l) == (within, layer)).count();
        match alike {
            1 | 2 => vec![job.block.clone()],
            _ => [FEW_ROWS, MORE_ROWS].map(|rows| BlockSpec { rows, ..job.block.clone() }).to_vec(),
        }
    };
    let specs: Vec<BlockSpec> = (0..wanted.len()).flat_map(of_number).collect();
    blocks.prepare(&specs.iter().collect::<Vec<_>>());
    for (within, number, rows, job) in &wanted {
        match blocks.at_rows(&job.block) {
            Ok(block) => {
                let seconds = BlockSeconds::of(job, &block, cluster);
                let own = layers.get_mut(within).and_then(|own| own.get_mut(*number));
                own.map(|layer| layer.of_rows.insert(*rows, (block, seconds)));
            }
            Err(error) => {
                let layer = &layers[within][*number];
                tried.refuse(&mesh_within(*within), layer.source, error);
            }
        }
    }
}

/// The ranks that share a layer: over `ep` its experts, over `tp` all of it.
type Within = (usize, usize);

fn within_layer(mesh: &Mesh) -> Within {
    let size = |name: &str| mesh.axis_named(name).map_or(1, |axis| axis.size);
    (size("ep"), size("tp"))
}

fn mesh_within((ep, tp): Within) -> Mesh {
    let axes = [("ep", ep), ("tp", tp)];
    Mesh::new("mesh", &axes[usize::from(ep == 1)..])
}

/// Layers over so many ranks, not yet priced.
fn lines_over(
    session: &Session,
    within: Within,
    freedom: Freedom,
    found_over_tp: Option<&Result<Plan>>,
    tried: &mut Tried,
) -> Result<Vec<Layer>> {
    let (config, pins) = (session.config(), session.pins()?);
    let own = config.plan.sequence_parallel;
    let (ep, tp) = within;
    let mesh = mesh_within(within);
    let small = config.model.with_layers(1).ok_or_else(not_folded)?;
    let forward = small.build(1, config.train.dtype, true)?.forward;
    let is_free = is_free(&pins);
    let of_experts = session.clone().with_model(small.clone()).with_mesh(mesh_within((ep, 1)));
    let experts = if is_free { expert_lines(&of_experts)? } else { Plan::default() };
    let mut found: Vec<(&'static str, Plan, bool)> = Vec::new();
    match found_over_tp {
        Some(Ok(plan)) => found.push(("planner", with(plan, &experts), own)),
        Some(Err(error)) => tried.refuse(&mesh, "planner", error.clone()),
        None => found.push(("ready plan", with(&pins, &experts), own)),
    }
    if is_free && tp > 1 {
        // The collectives of sequence parallelism move as many bytes, and less is kept.
        let sequence_parallel = own || freedom.flags;
        let options = ReadyOptions {
            sequence_parallel,
            vocab_parallel: config.plan.vocab_parallel || sequence_parallel,
            ..ReadyOptions::default()
        };
        let ready = with(&small.plan(&forward, &mesh, &options)?, &pins);
        found.push(("ready plan", ready, sequence_parallel));
    }
    let mut recomputed = Vec::new();
    let is_checkpoint = |entry: &Entry| matches!(entry.primitive, Primitive::Checkpoint { .. });
    if is_free && !pins.entries.iter().any(is_checkpoint) {
        let has_mlp = forward.nodes.iter().any(|node| is_inside(&node.path, "layers.0.mlp"));
        recomputed.extend(has_mlp.then_some("layers.*.mlp"));
        recomputed.push("layers.*");
    }
    let mut layers = Vec::new();
    for (source, plan, sequence_parallel) in found {
        for modules in [None].into_iter().chain(recomputed.iter().map(Some)) {
            let mut plan = plan.clone();
            if let Some(modules) = modules {
                plan.add(modules, "checkpoint", "planner")?;
            }
            let recomputed = match modules {
                None => Recomputed::Nothing,
                Some(&"layers.*") => Recomputed::All,
                Some(_) => Recomputed::Part,
            };
            layers.push(Layer { source, plan, sequence_parallel, recomputed, of_rows: BTreeMap::new() });
        }
    }
    Ok(layers)
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
    let session = session.clone().with_mesh(mesh.clone()).with_microbatches(1).only_priced();
    let lines = if is_free(pins) { within_a_step(pins) } else { pins.clone() };
    let (slice, step) = &annotated_step(&session, &model, &lines)?;
    let tracing = start.elapsed();
    let start = Instant::now();
    let prices = freedom.prices(&config.cluster, slice);
    let search = Options { split_contractions: true, effort: EFFORT, ..options(prices) };
    let table = Table::new(step, slice, &search)?;
    let enumerating = start.elapsed();
    let start = Instant::now();
    let found = table.solve()?;
    let plan = plan_of_layers(step, slice, &["tp".to_string()], &found, Pins::Activations);
    tried.searched.push(Searched::of(slice, Some(2), &table, &found));
    tried.time.add(SearchTime { tracing, enumerating, solving: start.elapsed(), ..SearchTime::default() });
    Ok(with(pins, &plan))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of `tp` are within a node, and stages need no power of two.
    #[test]
    fn groups_of_tp_do_not_cross_nodes() {
        let kept = |cluster: &str, devices: usize| -> Vec<String> {
            let more = [format!("cluster.name={cluster}"), "train.batch=240".to_string()];
            let mut config = crate::Config::load("gpt2-124m", &more).unwrap();
            config.model = config.model.with_layers(70).unwrap();
            let session = Session::new(config).unwrap();
            let mut tried = Tried::default();
            let meshes = usable(&session, &session.meshes(devices, 128), &mut tried);
            meshes.iter().map(Mesh::to_string).collect()
        };
        let on_nodes_of_8 = kept("a100-80g:10x8", 80);
        assert!(on_nodes_of_8.contains(&"pp=10,tp=8".to_string()), "{on_nodes_of_8:?}");
        assert!(on_nodes_of_8.iter().all(|mesh| !mesh.ends_with("tp=5")), "{on_nodes_of_8:?}");
        assert!(kept("a100-80g:2x6", 12).contains(&"pp=4,tp=3".to_string()));
        assert!(kept("a100-80g:1x8", 6).contains(&"tp=6".to_string()));
    }
}
