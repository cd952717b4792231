//! The searches over layouts of small steps. Meshes that differ only in what data parallel ranks share, and pipelines whose
//! slices are alike, have the same layouts, so each search is made once.

use super::blocks::BlockCosts;
use super::{Freedom, SearchTime, Searched, expert_lines, is_free, is_given, with};
use crate::models::ModelSource;
use crate::session::{Session, with_loss};
use partita_base::{Diagnostic, Result};
use partita_cost::{Cluster, Level};
use partita_ir::{Graph, Registry};
use partita_mesh::{Axis, AxisRole, Mesh};
use partita_nn::Model;
use partita_pipeline::Order;
use partita_planner::intra::{Found, Options, Prices, Table};
use partita_planner::{Pins, plan_of, plan_of_layers};
use partita_schedule::{BuildContext, BuildRequest, Entry, PIPELINE_AXIS, Plan, Primitive};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Models with more layers than this are searched with [`FEW`].
const MANY: usize = 4;
/// The first layer, one in the middle, the last one.
const FEW: usize = 3;

/// The same model with few layers, if it has many.
pub(super) fn few_layers(session: &Session) -> Option<Arc<dyn ModelSource>> {
    let model = &session.config().model;
    model.stream().filter(|[layers, ..]| *layers > MANY).and_then(|_| model.with_layers(FEW))
}

/// The block of a model with [`FEW`] layers that does what a block of the same model with all layers does: the first, the
/// middle or the last one of its kind. Blocks before those that repeat are in both.
pub(super) fn like(model: &dyn ModelSource, block: usize, [all, few]: [usize; 2]) -> Option<usize> {
    let repeated = FEW * model.period();
    let before = few.checked_sub(repeated)?;
    let Some(number) = block.checked_sub(before) else { return Some(block) };
    let count = all.checked_sub(before)?;
    let kind = model.kind_of_block(number, count);
    let of_kind = |number: usize, count: usize| -> Vec<usize> {
        (0..number).filter(|&block| model.kind_of_block(block, count) == kind).collect()
    };
    let (rank, last) = (of_kind(number, count).len(), of_kind(count, count).len().checked_sub(1)?);
    let few_alike = of_kind(repeated, repeated);
    let alike = match rank {
        0 => few_alike.first(),
        rank if rank == last => few_alike.last(),
        _ => few_alike.get(1),
    };
    Some(before + alike?)
}

/// What a search found.
#[derive(Debug)]
pub(super) struct Layouts {
    /// Plans with more or fewer lines, the lines of the config in each of them.
    pub plans: Vec<Plan>,
    /// The search.
    pub searched: Searched,
    /// The costs of the repeated blocks of the step that was searched.
    pub blocks: BlockCosts,
}

impl Layouts {
    /// The costs of all blocks of a model, of which few may have been searched: the others cost what those like them do.
    pub fn of_all(&self, model: &dyn ModelSource, names: &[String]) -> BlockCosts {
        let (few, all) = (self.blocks.names.len(), names.len());
        let place = |block: usize| if few < all { like(model, block, [all, few]) } else { Some(block) };
        self.blocks.expanded(names, &place)
    }
}

/// The searches that were made.
#[derive(Debug, Default)]
pub(super) struct Searches {
    known: Mutex<BTreeMap<String, Arc<OnceLock<Result<Arc<Layouts>>>>>>,
}

impl Searches {
    /// The layouts of a session's step on its mesh, with the time that this call spent.
    pub fn of(
        &self,
        session: &Session,
        model: &Model,
        pins: &Plan,
        freedom: Freedom,
        time: &mut SearchTime,
    ) -> Result<Arc<Layouts>> {
        let search = Search::of(session, pins, freedom)?;
        let place = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(search.key()).or_default().clone()
        };
        place.get_or_init(|| search.run(model, time).map(Arc::new)).clone()
    }
}

/// A search to make.
struct Search<'a> {
    /// The session of one microbatch on the mesh that is searched.
    one: Session,
    /// Whether the model is not folded to few layers.
    is_whole: bool,
    /// Lines of the config.
    pins: &'a Plan,
    /// Lines that the step has when it is searched.
    given: Plan,
    freedom: Freedom,
    /// The microbatches of a step.
    repeats: usize,
    cluster: Cluster,
}

impl<'a> Search<'a> {
    fn of(session: &Session, pins: &'a Plan, freedom: Freedom) -> Result<Search<'a>> {
        let mesh = session.mesh();
        let cluster = session.config().cluster.sliced(mesh, PIPELINE_AXIS);
        let (one, repeats) = of_a_microbatch(session);
        if !is_free(pins) {
            let one = if repeats > 1 { one.with_timetable(Order::default()) } else { one };
            return Ok(Search { one, is_whole: true, pins, given: pins.clone(), freedom, repeats, cluster });
        }
        let few = few_layers(session);
        let is_whole = few.is_none();
        let one = few.into_iter().fold(one, Session::with_model);
        let given = if is_whole { within_a_step(pins) } else { of_any_layer(&within_a_step(pins)) };
        let mesh = merged(&slice_of(mesh));
        let one = one.with_timetable(Order::default()).with_mesh(mesh).with_cluster(cluster.clone());
        let given = with(&expert_lines(&one)?, &given);
        Ok(Search { one, is_whole, pins, given, freedom, repeats, cluster })
    }

    /// What the layouts depend on: of the links, those between the ranks of the mesh.
    fn key(&self) -> String {
        let (mesh, Cluster { device, levels, others, .. }) = (self.one.mesh(), &self.cluster);
        let connects = |level: &&Level| level.ranks.is_none_or(|ranks| ranks >= mesh.rank_count());
        let inner: Vec<&Level> = levels.iter().take_while(|level| !connects(level)).collect();
        let outer = levels.iter().find(connects).map(|level| (level.link, level.links));
        let batch = self.one.config().train.batch;
        format!("{mesh} {batch} {} {device:?} {others:?} {inner:?} {outer:?}", self.repeats)
    }

    fn run(&self, model: &Model, time: &mut SearchTime) -> Result<Layouts> {
        let start = Instant::now();
        let Search { one, pins, freedom, repeats, cluster, .. } = self;
        let model = if self.is_whole && *repeats == 1 { model.clone() } else { one.model()? };
        let (slice, step) = &annotated_step(one, &with_loss(model)?, &self.given)?;
        time.tracing += start.elapsed();
        let axes = slice.axes.iter().filter(|axis| axis.size > 1).map(|axis| axis.name.clone());
        let (data, axes): (Vec<String>, Vec<String>) = axes.partition(|name| is_given(name));
        let lines = if self.is_whole { plan_of } else { plan_of_layers };
        let mut layouts: Option<Layouts> = None;
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
            let mut search = options(freedom.prices(cluster, slice));
            search.mixed_axes = mixed_axes;
            search.repeats = *repeats;
            search.split_contractions |= split_contractions;
            let table = Table::new(step, slice, &search)?;
            time.enumerating += start.elapsed();
            let start = Instant::now();
            let found = table.solve()?;
            is_idle |= axes.iter().any(|name| {
                let place = slice.axes.iter().position(|axis| axis.name == *name);
                place.is_some_and(|at| !found.layouts.iter().any(|l| l.uses_axis(slice.full_axis(at))))
            });
            let mut own: Vec<Plan> = Vec::new();
            for lines_for in [Pins::Inputs, Pins::Activations, Pins::Parameters, Pins::Replicated] {
                let plan = with(&with(pins, &self.given), &lines(step, slice, &axes, &found, lines_for));
                if !own.contains(&plan) {
                    own.push(plan);
                }
            }
            let layouts = layouts.get_or_insert_with(|| self.first(&table, step, slice, &found, &own));
            own.retain(|plan| !layouts.plans.contains(plan));
            layouts.plans.extend(own);
            time.solving += start.elapsed();
        }
        layouts.ok_or_else(|| Diagnostic::new("E523", "the mesh has no slices"))
    }

    /// What the first search says, still without its plans.
    fn first(&self, table: &Table, step: &Graph, slice: &Mesh, found: &Found, plans: &[Plan]) -> Layouts {
        let searched = Searched {
            without: match self.freedom.explain {
                true => without(table, step, found, plans),
                false => Vec::new(),
            },
            ..Searched::of(slice, (!self.is_whole).then_some(FEW), table, found)
        };
        let blocks = BlockCosts::of(step, slice, found, self.repeats);
        Layouts { plans: Vec::new(), searched, blocks }
    }
}

impl Searched {
    /// What a search on a slice found, of a step with so many repeated layers if those are not all of the model.
    pub(super) fn of(slice: &Mesh, layers: Option<usize>, table: &Table, found: &Found) -> Searched {
        Searched {
            mesh: slice.clone(),
            layers,
            variables: table.problem.variables.len(),
            cost_s: found.solution.cost,
            bound_s: found.solution.bound,
            built_s: None,
            without: Vec::new(),
        }
    }
}

/// The step of a session with the layouts that a plan requests, on the first slice of its mesh.
pub(super) fn annotated_step(session: &Session, model: &Model, plan: &Plan) -> Result<(Mesh, Graph)> {
    let runner = session.step_runner();
    let context = BuildContext { registry: &Registry::default(), runner: &runner };
    let steps =
        BuildRequest::new(model, plan, session.mesh(), &session.build_options(), context).annotated()?;
    steps.into_iter().next().ok_or_else(|| Diagnostic::new("E523", "the mesh has no slices"))
}

/// The session of one microbatch, and how many of them a step has. Where the file of a model does not allow so few rows,
/// the session of the whole batch, once.
pub(super) fn of_a_microbatch(session: &Session) -> (Session, usize) {
    let train = &session.config().train;
    let repeats = train.microbatches.max(1);
    let whole = session.clone().with_microbatches(1);
    let one = whole.clone().with_batch(train.batch / repeats);
    let is_from_a_file = session.config().model.terms().rows.is_some();
    if repeats > 1 && is_from_a_file && one.model().is_err() { (whole, 1) } else { (one, repeats) }
}

/// The options of a search over the axes that do not shard data.
pub(super) fn options(prices: Prices) -> Options {
    let given = AxisRole::ALL.into_iter().filter(|role| role.shards_data());
    let batch_axes = given.map(|role| role.axis().to_string()).collect();
    Options { batch_axes, moves_shared: false, ..Options::new(prices) }
}

/// The mesh of a slice of a pipeline.
pub(super) fn slice_of(mesh: &Mesh) -> Mesh {
    mesh.slices(PIPELINE_AXIS).first().map_or_else(|| mesh.clone(), |slice| slice.mesh.clone())
}

/// The lines of a plan without those that say what is kept where, and where stages end.
pub(super) fn within_a_step(plan: &Plan) -> Plan {
    let is_within = |entry: &&Entry| match &entry.primitive {
        Primitive::Style(style) => !style.is_storage(),
        Primitive::PipelineSplit { .. } | Primitive::Offload { .. } => false,
        _ => true,
    };
    Plan { entries: plan.entries.iter().filter(is_within).cloned().collect() }
}

/// The lines of a plan that name no layer by its number.
pub(super) fn of_any_layer(plan: &Plan) -> Plan {
    let is_any = |entry: &&Entry| entry.modules.split('.').all(|part| part.parse::<usize>().is_err());
    Plan { entries: plan.entries.iter().filter(is_any).cloned().collect() }
}

/// A mesh whose neighbouring axes `dp` and `fsdp` are one: they shard the same rows, and what `fsdp` shards beside is not
/// searched.
fn merged(mesh: &Mesh) -> Mesh {
    let mut axes: Vec<Axis> = Vec::new();
    for axis in mesh.axes.iter().filter(|axis| axis.size > 1) {
        let is_data = |name: &str| matches!(name, "dp" | "fsdp");
        let has_dp = axes.iter().any(|axis| axis.name == "dp");
        match axes.last_mut().filter(|last| is_data(&last.name) && is_data(&axis.name)) {
            Some(last) => last.size *= axis.size,
            None if axis.name == "fsdp" && !has_dp => {
                axes.push(Axis { name: "dp".to_string(), size: axis.size });
            }
            None => axes.push(axis.clone()),
        }
    }
    if axes.is_empty() {
        axes.push(Axis { name: "dp".to_string(), size: 1 });
    }
    Mesh { name: mesh.name.clone(), axes, device_ids: None }
}

/// The cost of the best layouts in which the first parameter of each line has another layout.
fn without(table: &Table, step: &Graph, found: &Found, plans: &[Plan]) -> Vec<(String, f64)> {
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
