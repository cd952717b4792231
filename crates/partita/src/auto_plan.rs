//! Plans that are found by search.
//!
//! On each mesh, the planner searches layouts for the step as the model defines it, and its solution is written as a plan.
//! That plan and the model's ready plan are then built as any other plan, and their collectives and work are priced with
//! the cluster of the run: what counts is what would run. The fastest that fits the memory of a device is chosen.

use crate::memory::memory;
use crate::session::{Part, Session};
use partita_base::{Diagnostic, Result};
use partita_ir::{Graph, Phase, Registry};
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_planner::inter::{Stage, StageTable, makespan_s, stages};
use partita_planner::intra::{Found, Options, Prices, Table};
use partita_planner::{Pins, plan_of};
use partita_schedule::{Built, PIPELINE_AXIS, Plan, Primitive, ReadyOptions, Tools, annotated_steps, moves};
use partita_spmd::step_s;
use std::time::{Duration, Instant};

/// Axes that shard data by themselves; the search chooses over all others.
const DATA_AXES: [&str; 3] = ["dp", "fsdp", "sp"];

/// A plan that was tried on a mesh.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh.
    pub mesh: Mesh,
    /// Where the plan comes from: the planner, or a ready plan.
    pub source: &'static str,
    /// The plan.
    pub plan: Plan,
    /// The microbatches of a step.
    pub microbatches: usize,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Bytes of the arena of the fullest rank, where the programs were lowered.
    pub bytes: Option<usize>,
    /// The modules of each stage, by the first and the last.
    pub stages: Vec<(String, String)>,
}

/// What a search over layouts on one mesh found.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The mesh of a stage.
    pub mesh: Mesh,
    /// Variables of the problem.
    pub variables: usize,
    /// The cost of the layouts found, in seconds of all work and communication one after another.
    pub cost_s: f64,
    /// No layouts cost less.
    pub bound_s: f64,
    /// For each line of the plan that shards a parameter: the line, and the cost of the best layouts without it.
    pub without: Vec<(String, f64)>,
}

/// How long the parts of a search took.
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

/// A plan found by search, with those that it was preferred to.
#[derive(Clone, Debug)]
pub struct AutoPlan {
    /// The fastest candidate that fits.
    pub best: Candidate,
    /// The others, the fastest first.
    pub others: Vec<Candidate>,
    /// The searches.
    pub searched: Vec<Searched>,
    /// Candidates that were refused: mesh, source and reason.
    pub refused: Vec<(Mesh, &'static str, String)>,
    /// The time of the search.
    pub time: SearchTime,
}

/// What a search may vary and say beside the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Freedom {
    /// Other numbers of microbatches than one, where stages of a pipeline would wait for each other.
    pub microbatches: bool,
    /// Prices each line of a plan against the best layouts without it.
    pub explain: bool,
}

/// The most meshes of a device count that are tried.
const MOST_MESHES: usize = 64;

/// The meshes of so many devices: every product of `pp`, `dp` and `tp`, without axes of size 1, with at most `stages` stages
/// and `rows` shards of the batch.
pub fn meshes(devices: usize, stages: usize, rows: usize) -> Vec<Mesh> {
    let divisors = |of: usize| (1..=of).filter(move |divisor| of.is_multiple_of(*divisor));
    let mut found = Vec::new();
    for pp in divisors(devices).filter(|&pp| pp <= stages.max(1)) {
        for dp in divisors(devices / pp).filter(|&dp| dp <= rows) {
            let axes = [("pp", pp), ("dp", dp), ("tp", devices / pp / dp)];
            let axes: Vec<(&str, usize)> = axes.into_iter().filter(|(_, size)| *size > 1).collect();
            found.push(Mesh::new("mesh", if axes.is_empty() { &[("dp", 1)] } else { &axes }));
        }
    }
    found.truncate(MOST_MESHES);
    found
}

/// The repeated blocks of a model, such as `layers.0`: the module paths up to their first number, in order.
fn blocks(graph: &Graph) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward) {
        if let Some(block) = block_of(&node.path).filter(|block| !found.contains(block)) {
            found.push(block);
        }
    }
    found
}

fn block_of(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('.').collect();
    let number = parts.iter().position(|part| part.parse::<usize>().is_ok())?;
    Some(parts[..=number].join("."))
}

/// What is tried on one mesh.
struct Trial<'a> {
    session: Session,
    model: &'a Model,
    searched: Option<Searched>,
    time: SearchTime,
}

impl Session {
    /// The best plan for the mesh of the session: searched, or the ready plan where that is predicted to be faster.
    ///
    /// # Errors
    /// As [`Session::auto_plan_over`].
    pub fn auto_plan(&self, model: &Model, mesh: &Mesh) -> Result<AutoPlan> {
        self.auto_plan_over(model, std::slice::from_ref(mesh), Freedom::default())
    }

    /// The best plan over several meshes.
    ///
    /// # Errors
    /// E520 if no plan fits the memory of a device; what refused the last candidate if none could be built.
    pub fn auto_plan_over(&self, model: &Model, meshes: &[Mesh], freedom: Freedom) -> Result<AutoPlan> {
        let mut time = SearchTime::default();
        let (mut found, mut searched, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let mut last_error = None;
        for mesh in meshes {
            for microbatches in self.microbatches_on(mesh, freedom) {
                let session = self.clone().with_mesh(mesh.clone()).with_microbatches(microbatches);
                let mut trial = Trial { session, model, searched: None, time: SearchTime::default() };
                for (source, plan) in trial.plans(freedom.explain)? {
                    match plan.and_then(|plan| trial.price(source, plan)) {
                        Ok(candidate) => found.push(candidate),
                        Err(error) => {
                            refused.push((mesh.clone(), source, error.message.clone()));
                            last_error = Some(error);
                        }
                    }
                }
                searched.extend(trial.searched);
                let SearchTime { tracing, enumerating, solving, checking } = trial.time;
                time.tracing += tracing;
                time.enumerating += enumerating;
                time.solving += solving;
                time.checking += checking;
            }
        }
        found.sort_by(|a: &Candidate, b: &Candidate| a.step_s.total_cmp(&b.step_s));
        let limit = self.config().cluster.device.memory_bytes;
        let mut least = u64::MAX;
        for place in 0..found.len() {
            let start = Instant::now();
            let bytes = self.arena_bytes(model, &found[place])?;
            time.checking += start.elapsed();
            found[place].bytes = Some(bytes);
            least = least.min(bytes as u64);
            if bytes as u64 <= limit {
                let best = found.remove(place);
                return Ok(AutoPlan { best, others: found, searched, refused, time });
            }
        }
        Err(match last_error.filter(|_| found.is_empty()) {
            Some(error) => error,
            None => Diagnostic::new("E520", "no plan fits the memory of a device")
                .at(format!("cluster `{}`", self.config().cluster.name))
                .expected(format!("at most {limit} bytes on a rank"))
                .found(format!("at least {least} bytes, {} too many", least.saturating_sub(limit)))
                .help("use more devices or more microbatches, or recompute activations with a plan line `checkpoint`"),
        })
    }

    /// The numbers of microbatches to try on a mesh: that of the config, and with a pipeline of several slices also those
    /// that keep it busy.
    fn microbatches_on(&self, mesh: &Mesh, freedom: Freedom) -> Vec<usize> {
        let (own, batch) = (self.config().train.microbatches, self.config().train.batch);
        let slices = mesh.axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
        if slices == 1 || own > 1 || !freedom.microbatches {
            return vec![own];
        }
        let mut counts: Vec<usize> =
            [1, 2, 4].iter().map(|times| times * slices).filter(|count| *count <= batch).collect();
        if counts.is_empty() {
            counts.push(own);
        }
        counts
    }

    /// The bytes of the fullest rank under a candidate.
    fn arena_bytes(&self, model: &Model, candidate: &Candidate) -> Result<usize> {
        let session =
            self.clone().with_mesh(candidate.mesh.clone()).with_microbatches(candidate.microbatches);
        let set = session.lower(&session.build_part(model, &candidate.plan, Part::Step)?)?;
        Ok(memory(&set).iter().map(|rank| rank.arena).max().unwrap_or(0))
    }
}

impl Trial<'_> {
    /// The plans to try: the search's, with more or fewer lines beside those for parameters, and the ready ones.
    fn plans(&mut self, explain: bool) -> Result<Vec<(&'static str, Result<Plan>)>> {
        let mesh = self.session.mesh().clone();
        let mut plans = Vec::new();
        match self.search(explain) {
            Ok(found) => plans.extend(found.into_iter().map(|plan| ("planner", Ok(plan)))),
            Err(error) => plans.push(("planner", Err(error))),
        }
        for (source, vocab_parallel) in [("ready plan", false), ("ready plan, vocab-parallel", true)] {
            let options = ReadyOptions { vocab_parallel, ..ReadyOptions::default() };
            let ready = self.session.config().model.plan(&self.model.forward, &mesh, &options);
            if !plans.iter().any(|(_, plan)| matches!((plan, &ready), (Ok(one), Ok(other)) if one == other)) {
                plans.push((source, ready));
            }
        }
        Ok(plans)
    }

    /// The plans of the search on this mesh.
    fn search(&mut self, explain: bool) -> Result<Vec<Plan>> {
        let start = Instant::now();
        let runner = self.session.step_runner();
        let tools = Tools { registry: &Registry::default(), runner: &runner };
        let options = self.session.build_options();
        let mesh = self.session.mesh().clone();
        let steps = annotated_steps(self.model, &Plan::default(), &mesh, &options, &tools)?;
        let (slice, step) = steps.first().ok_or_else(|| Diagnostic::new("E523", "the mesh has no slices"))?;
        self.time.tracing += start.elapsed();
        let cluster = self.session.config().cluster.sliced(&mesh, PIPELINE_AXIS);
        let is_data = |name: &str| DATA_AXES.contains(&name);
        let axes = slice.axes.iter().filter(|axis| axis.size > 1).map(|axis| axis.name.clone());
        let (data, axes): (Vec<String>, Vec<String>) = axes.partition(|name| is_data(name));
        let mut plans: Vec<Plan> = Vec::new();
        // Dimensions sharded over a data axis and another one are hard to express by a plan: without them, a search may
        // find a plan that is built as searched.
        for mixed_axes in [true, false] {
            if !mixed_axes && (data.is_empty() || axes.is_empty()) {
                continue;
            }
            let start = Instant::now();
            let mut search = Options::new(Prices::Cluster(cluster.clone()));
            search.batch_axes = DATA_AXES.map(str::to_string).to_vec();
            search.mixed_axes = mixed_axes;
            let table = Table::new(step, slice, &search)?;
            self.time.enumerating += start.elapsed();
            let start = Instant::now();
            let found = table.solve()?;
            let mut own: Vec<Plan> = Vec::new();
            for pins in [Pins::Inputs, Pins::Activations, Pins::Parameters] {
                let plan = plan_of(step, slice, &axes, &found, pins);
                if !own.contains(&plan) {
                    own.push(plan);
                }
            }
            if mixed_axes {
                self.searched = Some(Searched {
                    mesh: slice.clone(),
                    variables: table.problem.variables.len(),
                    cost_s: found.solution.cost,
                    bound_s: found.solution.bound,
                    without: if explain { self.without(&table, step, &found, &own) } else { Vec::new() },
                });
            }
            if let Some(splits) = self.splits(step, &found)? {
                let with =
                    |plan: &Plan| Plan { entries: [plan.entries.clone(), splits.entries.clone()].concat() };
                own.extend(own.iter().map(with).collect::<Vec<Plan>>());
            }
            own.retain(|plan| !plans.contains(plan));
            plans.extend(own);
            self.time.solving += start.elapsed();
        }
        Ok(plans)
    }

    /// The cost of the best layouts in which the first parameter of each line has another layout.
    fn without(&self, table: &Table, step: &Graph, found: &Found, plans: &[Plan]) -> Vec<(String, f64)> {
        let mut prices = Vec::new();
        for entry in plans.first().into_iter().flat_map(|plan| &plan.entries) {
            let Primitive::Shard { tensor, .. } = &entry.primitive else { continue };
            let of_line = |name: &str| {
                let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
                own == tensor && partita_schedule::matches(&entry.modules, module)
            };
            let params = step.params();
            if let Some(&parameter) = params.iter().find(|p| of_line(&step.value(**p).name)) {
                let cost = table.without(table.variable_of(parameter), &found.solution);
                prices.push((format!("\"{}\" = \"{}\"", entry.modules, entry.primitive), cost));
            }
        }
        prices
    }

    /// The ends of stages that the search over stages finds, if the mesh has several slices and the model enough blocks.
    fn splits(&self, step: &Graph, found: &Found) -> Result<Option<Plan>> {
        let config = self.session.config();
        let mesh = self.session.mesh();
        let slices = mesh.axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
        let blocks = blocks(step);
        let order = &config.train.timetable;
        if slices == 1 || blocks.len() < slices || order.slice_of_stage(slices)?.len() != slices {
            return Ok(None);
        }
        let microbatches = config.train.microbatches;
        let (mut each, mut once) = (vec![0.0; blocks.len()], vec![0.0; blocks.len()]);
        let mut current = 0;
        for (node, cost) in step.nodes.iter().zip(&found.node_costs) {
            let own = block_of(&node.path).and_then(|block| blocks.iter().position(|known| *known == block));
            // What is in no block belongs to the one before it: the embedding to the first, the head to the last.
            current = own.unwrap_or(if node.phase == Phase::Update { 0 } else { current });
            match node.phase {
                Phase::Update => once[current] += cost,
                _ => each[current] += cost / microbatches as f64,
            }
        }
        let range = |of: &[f64], first: usize, last: usize| {
            vec![of.get(first..=last).map_or(f64::INFINITY, |of| of.iter().sum())]
        };
        let grid = |of: &[f64]| -> Vec<Vec<Vec<f64>>> {
            (0..blocks.len())
                .map(|first| (0..blocks.len()).map(|last| range(of, first, last)).collect())
                .collect()
        };
        let table = StageTable {
            layers: blocks.len(),
            // Slices are all alike, so they count as one device each.
            devices: vec![1],
            seconds: grid(&each),
            successors: vec![vec![vec![i64::MAX]; blocks.len()]; blocks.len()],
            once: grid(&once),
            cut: vec![0.0; blocks.len()],
        };
        let found = stages(&table, slices, microbatches);
        let Some(found) = found.into_iter().find(|found| found.stages.len() == slices) else {
            return Ok(None);
        };
        let mut plan = Plan::default();
        for stage in &found.stages[..slices - 1] {
            let split = Primitive::PipelineSplit { mesh: None, ranks: Vec::new() };
            plan.push(&blocks[stage.last], split, "planner");
        }
        Ok(Some(plan))
    }

    /// Builds a plan and prices what would run.
    fn price(&mut self, source: &'static str, plan: Plan) -> Result<Candidate> {
        let start = Instant::now();
        let built = self.session.build_part(self.model, &plan, Part::Step)?;
        let seconds = self.session.predicted_s(&built)?;
        self.time.checking += start.elapsed();
        let stage = |stage: &partita_schedule::Stage| {
            let own = blocks(&stage.partitioned.graph);
            let text = |block: Option<&String>| block.cloned().unwrap_or_default();
            (text(own.first()), text(own.last()))
        };
        Ok(Candidate {
            mesh: self.session.mesh().clone(),
            source,
            microbatches: self.session.config().train.microbatches,
            step_s: seconds,
            bytes: None,
            stages: built.stages.iter().map(stage).collect(),
            plan,
        })
    }
}

impl Session {
    /// Predicted seconds of a built step, without overlap of communication and computation: on its slowest rank, or with
    /// several stages as their timetable runs them.
    ///
    /// # Errors
    /// E461 for a timetable that cannot run.
    pub fn predicted_s(&self, built: &Built) -> Result<f64> {
        let of_stages: Vec<f64> = built.stages.iter().map(|stage| step_s(&stage.partitioned)).collect();
        let (Some(timetable), [_, _, ..]) = (&built.timetable, built.stages.as_slice()) else {
            return Ok(of_stages.first().copied().unwrap_or(0.0));
        };
        let slices = timetable.slices.len();
        let microbatches = timetable.microbatches;
        let cluster = &self.config().cluster;
        let mut sent = vec![0.0; slices];
        for edge in &built.edges {
            let (ranks, boxes) = moves(&built.stages, edge);
            let bytes = edge_bytes(built, edge.from);
            let messages = boxes.iter().map(|b| (ranks[b.source], ranks[b.target], b.elements() * bytes));
            sent[edge.from.0] += cluster.messages_s(messages) / microbatches as f64;
        }
        let table = StageTable {
            layers: slices,
            devices: vec![1],
            seconds: grid(&of_stages, microbatches),
            successors: vec![vec![vec![i64::MAX]; slices]; slices],
            once: vec![vec![vec![0.0]; slices]; slices],
            cut: sent,
        };
        let stages: Vec<Stage> =
            (0..slices).map(|slice| Stage { first: slice, last: slice, slice: 0 }).collect();
        makespan_s(&table, &stages, &self.config().train.timetable, microbatches)
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
