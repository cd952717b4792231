//! The candidates of one mesh, from a search over the whole step of a small model.
//!
//! The search is made on the step as the model defines it, and its solution is written as a plan, with more or fewer lines.
//! These plans and the ready ones are built as any other plan, and ranked by their work and their collectives one after
//! another. The best of each source is lowered and priced.

use super::{Candidate, DATA_AXES, Freedom, SearchTime, Searched, Tried, offloaded, storage, with};
use crate::session::{Session, with_loss};
use partita_base::{Diagnostic, Result};
use partita_ir::composites::ATTENTION;
use partita_ir::{Graph, Node, Phase, Registry};
use partita_nn::Model;
use partita_pipeline::Order;
use partita_planner::inter::{Stage, StageTable, makespan_s, stages};
use partita_planner::intra::{Found, Options, Table};
use partita_planner::{Pins, plan_of};
use partita_schedule::{Built, PIPELINE_AXIS, Plan, Primitive, ReadyOptions, Tools, annotated_steps, moves};
use partita_spmd::{Partitioned, step_s};
use std::collections::BTreeSet;
use std::time::Instant;

/// What plans of a search are called.
const PLANNER: &str = "planner";

/// What is tried on one mesh with one number of microbatches.
pub(super) struct Trial<'a> {
    session: Session,
    model: &'a Model,
    /// Lines that hold in every candidate.
    pins: &'a Plan,
    freedom: Freedom,
    searched: Option<Searched>,
    time: SearchTime,
}

/// A plan that was built, and its place among those of its source.
struct Ranked {
    source: &'static str,
    plan: Plan,
    built: Built,
    idle: Option<String>,
    seconds: f64,
}

impl<'a> Trial<'a> {
    pub fn new(session: Session, model: &'a Model, pins: &'a Plan, freedom: Freedom) -> Trial<'a> {
        Trial { session, model, pins, freedom, searched: None, time: SearchTime::default() }
    }

    /// The best candidate of each source.
    pub fn run(mut self) -> Tried {
        let mut tried = Tried::default();
        let mesh = self.session.mesh().clone();
        let mut best: Vec<Ranked> = Vec::new();
        for (source, plan) in self.plans() {
            let start = Instant::now();
            let ranked = plan.and_then(|plan| self.rank(source, plan));
            self.time.checking += start.elapsed();
            let ranked = match ranked {
                Ok(ranked) => ranked,
                Err(error) => {
                    tried.refuse(&mesh, source, error);
                    continue;
                }
            };
            let key = |of: &Ranked| (of.idle.is_some(), of.seconds);
            match best.iter_mut().find(|other| other.source == source) {
                Some(other) if key(&ranked) < key(other) => *other = ranked,
                Some(_) => {}
                None => best.push(ranked),
            }
        }
        for ranked in best {
            let start = Instant::now();
            let source = ranked.source;
            if let Some(searched) = self.searched.as_mut().filter(|_| source == PLANNER) {
                searched.built_s = Some(ranked.seconds);
            }
            match self.candidates(ranked) {
                Ok(found) => tried.found.extend(found),
                Err(error) => tried.refuse(&mesh, source, error),
            }
            self.time.checking += start.elapsed();
        }
        tried.searched.extend(self.searched);
        tried.time.add(self.time);
        tried
    }

    /// The plans to try: the search's, with more or fewer lines beside those for parameters, and the ready ones.
    fn plans(&mut self) -> Vec<(&'static str, Result<Plan>)> {
        let mut plans: Vec<(&'static str, Result<Plan>)> = Vec::new();
        match self.search() {
            Ok(found) => plans.extend(found.into_iter().map(|plan| (PLANNER, Ok(plan)))),
            Err(error) => plans.push((PLANNER, Err(error))),
        }
        if !self.pins.entries.is_empty() {
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

    /// The plans of the search on this mesh.
    fn search(&mut self) -> Result<Vec<Plan>> {
        let start = Instant::now();
        let runner = self.session.step_runner();
        let tools = Tools { registry: &Registry::default(), runner: &runner };
        // All microbatches have the same layouts, so one is searched.
        let train = &self.session.config().train;
        let repeats = train.microbatches;
        let one = self.session.clone().with_batch(train.batch / repeats.max(1)).with_microbatches(1);
        let one = if repeats > 1 { one.with_timetable(Order::default()) } else { one };
        let model = if repeats > 1 { one.model()? } else { self.model.clone() };
        let options = one.build_options();
        let mesh = self.session.mesh().clone();
        let steps = annotated_steps(&with_loss(model)?, self.pins, &mesh, &options, &tools)?;
        let (slice, step) = steps.first().ok_or_else(|| Diagnostic::new("E523", "the mesh has no slices"))?;
        self.time.tracing += start.elapsed();
        let cluster = self.session.config().cluster.sliced(&mesh, PIPELINE_AXIS);
        let axes = slice.axes.iter().filter(|axis| axis.size > 1).map(|axis| axis.name.clone());
        let (data, axes): (Vec<String>, Vec<String>) =
            axes.partition(|name| DATA_AXES.contains(&name.as_str()));
        let storage = storage(&mesh)?;
        let mut plans: Vec<Plan> = Vec::new();
        // Dimensions sharded over a data axis and another one are hard to express by a plan: without them, a search may
        // find a plan that is built as searched. Where a search leaves an axis unused because repeating the work costs
        // less than exchanging anything, one in which every contraction is shared uses it.
        let is_mixed = !data.is_empty() && !axes.is_empty();
        let mut is_idle = false;
        for (mixed_axes, split_contractions) in [(true, false), (false, false), (true, true)] {
            let is_wanted = match (mixed_axes, split_contractions) {
                (false, _) => is_mixed,
                (true, true) => is_idle,
                (true, false) => true,
            };
            if !is_wanted {
                continue;
            }
            let start = Instant::now();
            let mut search = Options::new(self.freedom.prices(&cluster, slice));
            search.batch_axes = DATA_AXES.map(str::to_string).to_vec();
            search.mixed_axes = mixed_axes;
            search.repeats = repeats;
            search.split_contractions |= split_contractions;
            let table = Table::new(step, slice, &search)?;
            self.time.enumerating += start.elapsed();
            let start = Instant::now();
            let found = table.solve()?;
            is_idle |= axes.iter().any(|name| {
                let place = slice.axes.iter().position(|axis| axis.name == *name);
                place.is_some_and(|at| !found.layouts.iter().any(|l| l.uses_axis(slice.full_axis(at))))
            });
            let mut own: Vec<Plan> = Vec::new();
            for pins in [Pins::Inputs, Pins::Activations, Pins::Parameters, Pins::Replicated] {
                let plan = with(self.pins, &with(&plan_of(step, slice, &axes, &found, pins), &storage));
                if !own.contains(&plan) {
                    own.push(plan);
                }
            }
            if self.searched.is_none() {
                self.searched = Some(Searched {
                    mesh: slice.clone(),
                    variables: table.problem.variables.len(),
                    cost_s: found.solution.cost,
                    bound_s: found.solution.bound,
                    built_s: None,
                    without: if self.freedom.explain {
                        self.without(&table, step, &found, &own)
                    } else {
                        Vec::new()
                    },
                });
            }
            if let Some(splits) = self.splits(step, &found)? {
                own.extend(own.iter().map(|plan| with(plan, &splits)).collect::<Vec<Plan>>());
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

    /// Builds a plan and adds up what would run.
    fn rank(&self, source: &'static str, plan: Plan) -> Result<Ranked> {
        let built = self.session.built_under(self.model, &plan)?;
        let seconds = self.sum_s(&built)?;
        Ok(Ranked { source, plan, idle: idle_axis(&built), built, seconds })
    }

    /// Prices a plan, and where it does not fit, the same with the layers recomputed, with optimizer states in host memory,
    /// or both.
    fn candidates(&self, ranked: Ranked) -> Result<Vec<Candidate>> {
        let limit = self.session.config().cluster.device.memory_bytes;
        let blocks = blocks(&self.model.forward);
        let first = self.candidate(ranked)?;
        if first.bytes <= limit {
            return Ok(vec![first]);
        }
        let mut found = vec![first];
        let (source, plan) = (found[0].source, found[0].plan.clone());
        if !blocks.is_empty() {
            let recomputed = self.recomputed(&blocks, &plan)?;
            found.extend(self.rank(source, recomputed).and_then(|ranked| self.candidate(ranked)).ok());
        }
        for plan in found.iter().map(|candidate| candidate.plan.clone()).collect::<Vec<Plan>>() {
            if let Some((source, plan)) = offloaded(&self.session, source, &plan)? {
                let candidate = self.rank(source, plan).and_then(|ranked| self.candidate(ranked));
                found.extend(candidate);
            }
        }
        Ok(found)
    }

    /// A plan with the layers recomputed.
    fn recomputed(&self, blocks: &[String], plan: &Plan) -> Result<Plan> {
        let mut plan = plan.clone();
        let mut modules: Vec<String> = blocks
            .iter()
            .map(|block| format!("{}*", block.trim_end_matches(|c: char| c.is_ascii_digit())))
            .collect();
        modules.dedup();
        for modules in modules {
            plan.add(&modules, "checkpoint", "planner")?;
        }
        Ok(plan)
    }

    fn candidate(&self, ranked: Ranked) -> Result<Candidate> {
        let Ranked { source, plan, built, idle, .. } = ranked;
        let price = self.session.price_of(&built)?;
        let (device, host_bytes) = (&self.session.config().cluster.device, price.host_bytes());
        if host_bytes > device.host_bytes {
            return Err(Diagnostic::new("E520", "what a plan offloads does not fit host memory")
                .at(format!("cluster `{}`", self.session.config().cluster.name))
                .expected(format!("at most {} bytes for a device", device.host_bytes))
                .found(format!("{host_bytes} bytes"))
                .help("offload the states of fewer layers, or shard them over more ranks"));
        }
        let stage = |stage: &partita_schedule::Stage| {
            let own = blocks(&stage.partitioned.graph);
            let text = |block: Option<&String>| block.cloned().unwrap_or_default();
            (text(own.first()), text(own.last()))
        };
        let config = self.session.config();
        Ok(Candidate {
            mesh: self.session.mesh().clone(),
            source,
            microbatches: config.train.microbatches,
            timetable: config.train.timetable.clone(),
            sequence_parallel: config.plan.sequence_parallel,
            step_s: price.step_s(),
            bytes: price.bytes(),
            idle,
            stages: built.stages.iter().map(stage).collect(),
            plan,
        })
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
            devices: vec![1],
            seconds: grid(&of_stages, microbatches),
            successors: vec![vec![vec![i64::MAX]; slices]; slices],
            once: vec![vec![vec![0.0]; slices]; slices],
            cut: sent,
        };
        let stages: Vec<Stage> =
            (0..slices).map(|slice| Stage { first: slice, last: slice, slice: 0 }).collect();
        makespan_s(&table, &stages, &self.session.config().train.timetable, microbatches)
    }
}

/// An axis over which no stage shards a value that its forward pass computes.
fn idle_axis(built: &Built) -> Option<String> {
    let mesh = &built.stages.first()?.partitioned.mesh;
    let is_idle = |axis: usize| {
        let full = mesh.full_axis(axis);
        built.stages.iter().all(|stage| {
            let Partitioned { graph, layouts, .. } = &stage.partitioned;
            let mut forward = graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
            forward.all(|node| node.results.iter().all(|&value| !layouts.sharding(value).uses_axis(full)))
        })
    };
    let axis = (0..mesh.axes.len()).find(|&axis| mesh.axes[axis].size > 1 && is_idle(axis))?;
    Some(mesh.axes[axis].name.clone())
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
