//! Plans that are found by search.
//!
//! Candidates are made on each mesh: plans that a search over layouts finds, and ready ones. What would run is then priced
//! as `partita simulate` prices it ([`crate::price`]), and the fastest candidate that fits the memory of a device wins.
//! `trial` searches the step of a small model whole, `folded` the repeated layer of a large one.

mod blocks;
mod candidate;
mod folded;
mod guesses;
mod layouts;
mod lines;
mod reasons;
mod shares;
mod slices;
pub mod tables;
mod trial;

use crate::cores::on_all_cores;
use crate::session::{Session, sets_layouts};
pub use candidate::Candidate;
use candidate::in_order;
use layouts::Searches;
pub(crate) use lines::recomputed;
use lines::{expert_lines, offloaded, storage, with, without_splits};
use partita_base::{Diagnostic, Result};
use partita_cost::{Cluster, Collective};
use partita_ir::Graph;
use partita_mesh::{AxisRole, Mesh};
use partita_nn::Model;
use partita_pipeline::Order;
use partita_planner::intra::Prices;
use partita_schedule::{PIPELINE_AXIS, Plan, overruled_lines};
use slices::Divider;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether an axis shards data by itself, and experts by the lines of the ready plan; the search chooses over all others.
fn is_given(axis: &str) -> bool {
    AxisRole::from_axis(axis).is_some_and(AxisRole::shards_data)
}

/// What a search over layouts on one mesh found.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The mesh of a stage.
    pub mesh: Mesh,
    /// The repeated layers of the step that was searched; none if those are all of the model.
    pub layers: Option<usize>,
    /// Variables of the problem.
    pub variables: usize,
    /// The cost of the layouts found, in seconds of all work and communication one after another, or by Alpa's formula.
    pub cost_s: f64,
    /// No layouts cost less.
    pub bound_s: f64,
    /// The best plan that was built from these layouts, in the same terms: with several stages, those of all stages one
    /// after another. Unknown where few layers are searched.
    pub built_s: Option<f64>,
    /// For each line of the plan that shards a parameter: the line, and the cost of the best layouts without it.
    pub without: Vec<(String, f64)>,
}

/// How long the parts of a search took, added up over the threads that worked on them.
#[derive(Clone, Copy, Debug, Default)]
pub struct SearchTime {
    /// Writing the step.
    pub tracing: Duration,
    /// Listing and pricing the choices.
    pub enumerating: Duration,
    /// Solving.
    pub solving: Duration,
    /// Building and pricing the plans.
    pub checking: Duration,
}

impl SearchTime {
    fn add(&mut self, other: SearchTime) {
        let SearchTime { tracing, enumerating, solving, checking } = other;
        self.tracing += tracing;
        self.enumerating += enumerating;
        self.solving += solving;
        self.checking += checking;
    }
}

/// A plan found by search, with those that it was preferred to.
#[derive(Clone, Debug)]
pub struct AutoPlan {
    /// The fastest candidate that fits.
    pub best: Candidate,
    /// The others, the fastest first; those that do not fit last, the smallest first.
    pub others: Vec<Candidate>,
    /// The searches.
    pub searched: Vec<Searched>,
    /// Candidates that were refused: mesh, source and reason.
    pub refused: Vec<(Mesh, &'static str, String)>,
    /// Candidates that were not built, because others promise more.
    pub told: Vec<String>,
    /// Given lines that a later line overrides.
    pub notes: Vec<String>,
    /// The time of the search.
    pub time: SearchTime,
    /// From its beginning to its end.
    pub wall: Duration,
}

impl AutoPlan {
    /// The candidates of which no other is both faster and smaller, the fastest first.
    pub fn pareto(&self) -> Vec<&Candidate> {
        let mut all: Vec<&Candidate> = [&self.best].into_iter().chain(&self.others).collect();
        all.sort_by(|a, b| a.step_s.total_cmp(&b.step_s).then(a.bytes.cmp(&b.bytes)));
        let mut least = u64::MAX;
        all.retain(|candidate| {
            let is_smaller = candidate.idle.is_none() && candidate.bytes < least;
            least = if is_smaller { candidate.bytes } else { least };
            is_smaller
        });
        all
    }
}

/// What a search may vary and say beside the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Freedom {
    /// Other numbers of microbatches than that of the config, if it is one.
    pub microbatches: bool,
    /// Other timetables than that of the config, if it is the default one, and layers that are sequence-parallel.
    pub flags: bool,
    /// Stages on slices of different sizes, beside the meshes.
    pub slices: bool,
    /// Prices each line of a plan against the best layouts without it.
    pub explain: bool,
    /// Searches layouts by Alpa's formula, in bytes over the slowest axis, instead of the seconds of the cluster. What the
    /// candidates take is priced with the cluster in either case.
    pub alpa: bool,
}

impl Freedom {
    /// The prices of a search over layouts.
    fn prices(self, cluster: &Cluster, mesh: &Mesh) -> Prices {
        if !self.alpa {
            return Prices::Cluster(cluster.clone());
        }
        let seconds = |axis: usize| {
            let axes = [mesh.full_axis(axis)];
            cluster.collective_s(Collective::AllGather, LARGE_BYTES, mesh, &axes)
        };
        let seconds: Vec<f64> = (0..mesh.axes.len()).map(seconds).collect();
        let slowest = seconds.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let beta = seconds.iter().map(|seconds| seconds / slowest).collect();
        Prices::Alpa { alpha: vec![1.0; mesh.axes.len()], beta }
    }
}

/// The size of a message by which the bandwidths of axes are compared.
const LARGE_BYTES: f64 = 268_435_456.0;

/// The meshes of so many devices: every product of `pp`, `dp`, `fsdp` and `tp`, without axes of size 1, with at most
/// `stages` stages and `rows` shards of the batch.
pub fn meshes(devices: usize, stages: usize, rows: usize) -> Vec<Mesh> {
    meshes_with(devices, stages, rows, [1, 1])
}

/// As [`meshes`], with axes `ep` for the experts of a layer and `cp` for the tokens of a row, up to these sizes.
pub fn meshes_with(devices: usize, stages: usize, rows: usize, [experts, parts]: [usize; 2]) -> Vec<Mesh> {
    let divisors = |of: usize| (1..=of).filter(move |divisor| of.is_multiple_of(*divisor));
    let mut found = Vec::new();
    let mut add = |axes: [(&str, usize); 6]| {
        let axes: Vec<(&str, usize)> = axes.into_iter().filter(|(_, size)| *size > 1).collect();
        found.push(Mesh::new("mesh", if axes.is_empty() { &[("dp", 1)] } else { &axes }));
    };
    for pp in divisors(devices).filter(|&pp| pp <= stages.max(1)) {
        for dp in divisors(devices / pp).filter(|&dp| dp <= rows) {
            for fsdp in divisors(devices / pp / dp).filter(|&fsdp| dp * fsdp <= rows) {
                let left = devices / pp / dp / fsdp;
                for ep in divisors(left).filter(|&ep| experts.is_multiple_of(ep) && dp * fsdp * ep <= rows) {
                    for cp in divisors(left / ep).filter(|&cp| parts.is_multiple_of(cp)) {
                        let tp = left / ep / cp;
                        add([("pp", pp), ("dp", dp), ("fsdp", fsdp), ("ep", ep), ("cp", cp), ("tp", tp)]);
                    }
                }
            }
        }
    }
    found
}

/// Tokens of a row from which sharing it among ranks (`cp`) is tried.
const LONG: usize = 8192;
/// The most ranks that share the experts of a layer, or a row, in a search.
const MOST_SHARED: usize = 64;

impl Session {
    /// The meshes to search for so many devices: with `ep` for a model with experts, and `cp` where rows are long, or fewer
    /// than the devices.
    pub fn meshes(&self, devices: usize, stages: usize) -> Vec<Mesh> {
        let (model, rows) = (&self.config().model, self.config().train.batch);
        let experts = model.experts().map_or(1, |experts| experts.count);
        let experts =
            (1..=experts.min(MOST_SHARED)).rev().find(|of| experts.is_multiple_of(*of)).unwrap_or(1);
        let is_long = model.stream().is_some_and(|[_, tokens, _]| tokens >= LONG);
        let parts = if is_long { MOST_SHARED } else { 1 };
        meshes_with(devices, stages, rows, [experts, parts])
    }
}

/// How far a search is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Parts of it that are done: meshes with a number of microbatches, or candidates to price.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// The best candidate so far.
    pub best: Option<Candidate>,
}

/// Receives the progress of a search, from any thread.
pub type Watch<'a> = &'a (dyn Fn(&Progress) + Sync);

/// What a search has found so far.
#[derive(Debug, Default)]
struct Tried {
    found: Vec<Candidate>,
    searched: Vec<Searched>,
    refused: Vec<(Mesh, &'static str, Box<Diagnostic>)>,
    /// What was not tried, and why.
    told: Vec<String>,
    time: SearchTime,
}

impl Tried {
    fn refuse(&mut self, mesh: &Mesh, source: &'static str, error: Box<Diagnostic>) {
        self.refused.push((mesh.clone(), source, error));
    }

    /// Seconds of the fastest candidate that fits; infinite if none does.
    fn best_s(&self) -> f64 {
        let fitting = self.found.iter().filter(|candidate| candidate.fits());
        fitting.map(|candidate| candidate.step_s).fold(f64::INFINITY, f64::min)
    }

    /// What refused most of the candidates; of equally many, what refused the first.
    fn main_error(&self) -> Option<Box<Diagnostic>> {
        let count = |error: &Diagnostic| {
            self.refused
                .iter()
                .filter(|(_, _, other)| (other.code, &other.message) == (error.code, &error.message))
                .count()
        };
        let errors = self.refused.iter().rev().map(|(_, _, error)| error);
        errors.max_by_key(|error| count(error)).cloned()
    }

    /// What another part of the search found.
    fn join(&mut self, other: Tried) {
        let Tried { found, searched, refused, told, time } = other;
        self.told.extend(told);
        self.found.extend(found);
        self.searched.extend(searched);
        self.refused.extend(refused);
        self.time.add(time);
    }

    /// The candidates of a search that began at `start`, in order. Of one mesh and source only the best counts.
    fn ranked(self, session: &Session, notes: Vec<String>, start: Instant) -> Result<AutoPlan> {
        let main_error = self.main_error();
        let Tried { mut found, searched, refused, told, time } = self;
        let refused =
            refused.into_iter().map(|(mesh, source, error)| (mesh, source, error.message)).collect();
        let cluster = &session.config().cluster;
        found.sort_by(in_order);
        let mut kept: Vec<Candidate> = Vec::new();
        for candidate in found {
            let same = |other: &Candidate| {
                other.mesh == candidate.mesh
                    && (other.source == candidate.source
                        || other.microbatches == candidate.microbatches
                            && other.timetable == candidate.timetable
                            && other.activation_limit == candidate.activation_limit
                            && other.plan == candidate.plan)
            };
            if !kept.iter().any(same) {
                kept.push(candidate);
            }
        }
        match kept.first() {
            Some(best) if best.fits() => {
                let best = kept.remove(0);
                let (others, wall) = (kept, start.elapsed());
                Ok(AutoPlan { best, others, searched, refused, told, notes, time, wall })
            }
            None => Err(main_error.unwrap_or_else(|| {
                let rows = session.config().train.batch;
                let error = Diagnostic::new("E523", "no mesh has work for all of its devices")
                    .at("--mesh, --devices")
                    .expected("as many devices as rows, stages, sequences and experts can be divided among")
                    .found(format!("a batch of {rows} rows, too few or of a number that does not divide"))
                    .help("use fewer devices, or another number of rows: --batch");
                told.iter().fold(error, |error, why| error.note(why.clone()))
            })),
            Some(_) => {
                let least =
                    kept.iter().map(Candidate::fill).min_by_key(|fill| fill.excess()).unwrap_or_default();
                Err(Diagnostic::new("E520", "no plan fits the memory of a device")
                    .at(format!("cluster `{}`", cluster.name))
                    .expected(format!("at most {} bytes on a rank", least.limit))
                    .found(format!("at least {} bytes, {} too many", least.bytes, least.missing()))
                    .help("use more devices, more microbatches, or devices with more memory"))
            }
        }
    }
}

/// Does the parts of a search on all cores, tells how far it is, and joins what they find in their order.
fn in_parts(parts: usize, watch: Watch, part: impl Fn(usize) -> Tried + Sync) -> Tried {
    let told = Mutex::new(Progress { total: parts, ..Progress::default() });
    let tell = |tried: &Tried| {
        let mut progress = told.lock().unwrap_or_else(PoisonError::into_inner);
        progress.done += 1;
        let best = progress.best.iter().chain(&tried.found).min_by(|a, b| in_order(a, b)).cloned();
        progress.best = best;
        watch(&progress);
    };
    let mut tried = Tried::default();
    on_all_cores(parts, tell, part).into_iter().for_each(|other| tried.join(other));
    tried
}

impl Session {
    /// The best plan for the mesh of the session: searched, or the ready plan where that is predicted to be faster. Lines of
    /// the section `[plan]` hold.
    ///
    /// # Errors
    /// As [`Session::auto_plan_over`].
    pub fn auto_plan(&self, model: &Model, mesh: &Mesh) -> Result<AutoPlan> {
        self.auto_plan_over(Some(model), std::slice::from_ref(mesh), Freedom::default(), &|_| {})
    }

    /// The best plan over several meshes of as many ranks each. The model is that of the config unless another is given.
    /// `watch` receives its progress.
    ///
    /// # Errors
    /// E520 if no plan fits the memory of a device; what refused most candidates if none could be built.
    pub fn auto_plan_over(
        &self,
        model: Option<&Model>,
        meshes: &[Mesh],
        freedom: Freedom,
        watch: Watch,
    ) -> Result<AutoPlan> {
        let start = Instant::now();
        let on_first = meshes.first().map(|mesh| self.clone().with_mesh(mesh.clone()));
        if on_first.is_some_and(|session| session.is_folded()) {
            let tried = folded::search(self, meshes, freedom, watch)?;
            return tried.ranked(self, self.overruled_pins()?, start);
        }
        let own;
        let model = match model {
            Some(model) => model,
            None => {
                own = self.model()?;
                &own
            }
        };
        let pins = self.pins()?;
        let searches = Searches::default();
        // Beside meshes whose slices are alike: stages on slices of different sizes.
        let devices = meshes.first().filter(|_| freedom.slices).map(Mesh::rank_count);
        let divided =
            devices.and_then(|devices| Divider::of(self, model, &pins, freedom, &searches, devices));
        // A mesh without a pipeline has one number of microbatches to try, so these come first.
        let has_stages = |mesh: &&Mesh| mesh.axis_named(PIPELINE_AXIS).is_some_and(|axis| axis.size > 1);
        let (staged, others): (Vec<&Mesh>, Vec<&Mesh>) = meshes.iter().partition(has_stages);
        let (mut tried, mut before) = (Tried::default(), 0);
        let total = meshes.len() + usize::from(divided.is_some());
        for (part, divided) in [(others, None), (staged, divided)] {
            let known_s = tried.best_s();
            let best = tried.found.iter().min_by(|a, b| in_order(a, b)).cloned();
            let watch = |own: &Progress| {
                let best = own.best.iter().chain(&best).min_by(|a, b| in_order(a, b)).cloned();
                watch(&Progress { done: before + own.done, total, best });
            };
            let parts = part.len() + usize::from(divided.is_some());
            tried.join(in_parts(parts, &watch, |number| match (part.get(number), &divided) {
                (Some(&mesh), _) => {
                    let session = self.clone().with_mesh(mesh.clone());
                    trial::on_mesh(&session, model, &pins, freedom, &searches, known_s)
                }
                (None, Some(divided)) => divided.run(),
                (None, None) => Tried::default(),
            }));
            before += parts;
        }
        tried.ranked(self, overruled(&pins, &model.forward), start)
    }

    /// Given lines that a later one overrides.
    fn overruled_pins(&self) -> Result<Vec<String>> {
        let pins = self.pins()?;
        match pins.entries.len() {
            0 | 1 => Ok(Vec::new()),
            _ => {
                Ok(overruled(&pins, &self.config().model.build(1, self.config().train.dtype, true)?.forward))
            }
        }
    }
}

/// Given lines that a later one overrides. What the model does not have, the candidates refuse.
fn overruled(pins: &Plan, forward: &Graph) -> Vec<String> {
    let notes = overruled_lines(pins, forward).unwrap_or_default();
    notes.into_iter().map(|note| note.text).collect()
}

/// The most stages on a slice that are tried.
const MOST_CHUNKS: usize = 12;

/// The timetables to try with so many microbatches of a model of `layers` layers on `slices` slices.
fn orders(own: &Order, [layers, slices, microbatches]: [usize; 3], freedom: Freedom) -> Vec<Order> {
    if !freedom.flags || *own != Order::default() || slices == 1 {
        return vec![own.clone()];
    }
    let fits =
        |chunks: &usize| microbatches >= slices && layers > 0 && layers.is_multiple_of(slices * *chunks);
    let looped = (2..=MOST_CHUNKS).filter(fits).map(|chunks| format!("interleaved-1f1b:{chunks}"));
    let split = ["zb-h1", "zb-h2"].map(str::to_string);
    let named = looped.chain(split).filter_map(|name| Order::named(&name).ok());
    std::iter::once(own.clone()).chain(named).collect()
}

/// Whether the lines of a config leave all layouts to the search.
fn is_free(pins: &Plan) -> bool {
    !pins.entries.iter().any(sets_layouts)
}
