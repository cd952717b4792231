//! Meshes and layouts for a step that arrives differentiated, such as a training step of JAX: the fastest of several.
//!
//! On each mesh the step is built with the given plan, and with the layouts that the planner's search finds for the axes
//! that do not shard the batch. What would run is priced over a clock, as `partita simulate` prices it.

use crate::execution::{CpuStep, stages};
use partita_base::{Diagnostic, Result};
use partita_cost::Fill;
use partita_ir::{Graph, Registry};
use partita_mesh::{AxisRole, Mesh};
use partita_pipeline::mark::by_scopes;
use partita_planner::intra::{Options, Prices, Table};
use partita_planner::{Pins, plan_of};
use partita_program::{LowerOptions, lower_stages};
use partita_schedule::{
    BuildContext, BuildOptions, BuildRequest, Built, Differentiated, PIPELINE_AXIS, Plan, Source,
};
use partita_simulate::simulate;
use std::cell::RefCell;

/// Whether an axis shards data by itself; the search chooses over all others.
fn is_given(role: AxisRole) -> bool {
    role.shards_data() && role != AxisRole::Experts
}

/// A step on a mesh under a plan, priced.
#[derive(Clone, Debug)]
pub struct TriedStep {
    /// The mesh.
    pub mesh: Mesh,
    /// The plan.
    pub plan: Plan,
    /// Where the plan comes from: `given`, or the `planner`.
    pub source: &'static str,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Bytes of the arena of the rank with the least room.
    pub bytes: usize,
    /// Bytes that its device holds.
    pub limit: u64,
}

/// A step that arrives differentiated, and how it is built.
pub struct ArrivingStep<'a> {
    /// The step of one device.
    pub step: &'a Graph,
    /// What is known of it beside its text.
    pub known: &'a Differentiated,
    /// Microbatches, timetable and cluster.
    pub options: &'a BuildOptions,
    /// The outputs that are computed.
    pub is_returned: &'a dyn Fn(usize) -> bool,
    /// The device.
    pub runner: &'a CpuStep,
}

impl ArrivingStep<'_> {
    /// The step on each mesh, with the plan and with more lines that the planner found, the fastest first.
    ///
    /// # Errors
    /// E520 if none fits the memory of a device; what refused the first one if none could be built.
    pub fn tried(&self, plan: &Plan, meshes: &[Mesh]) -> Result<Vec<TriedStep>> {
        let (mut tried, mut refused) = (Vec::new(), None);
        for mesh in meshes {
            let searched = self.searched(plan, mesh);
            let plans = searched.unwrap_or_else(|error| {
                refused.get_or_insert(error);
                Vec::new()
            });
            let given = std::iter::once(("given", plan.clone()));
            for (source, plan) in given.chain(plans.into_iter().map(|plan| ("planner", plan))) {
                match self.price(mesh, plan, source) {
                    Ok(step) => tried.push(step),
                    Err(error) => _ = refused.get_or_insert(error),
                }
            }
        }
        tried.sort_by(|a: &TriedStep, b: &TriedStep| a.step_s.total_cmp(&b.step_s));
        let fill = |step: &TriedStep| Fill::new(step.bytes as u64, step.limit);
        let least = tried.iter().map(fill).min_by_key(|fill| fill.excess());
        tried.retain(|step| fill(step).fits());
        if !tried.is_empty() {
            return Ok(tried);
        }
        Err(match (least, refused) {
            (None, Some(error)) => error,
            (least, _) => {
                let least = least.unwrap_or_default();
                Diagnostic::new("E520", "no plan fits the memory of a device")
                    .at(format!("cluster `{}`", self.options.cluster.name))
                    .expected(format!("at most {} bytes on a rank", least.limit))
                    .found(format!("at least {} bytes", least.bytes))
                    .help("use more devices or more microbatches")
            }
        })
    }

    fn request<'b>(&'b self, plan: &'b Plan, mesh: &'b Mesh, registry: &'b Registry) -> BuildRequest<'b> {
        let ArrivingStep { step, known, options, is_returned, runner } = *self;
        let source = Source::Differentiated { step, known, is_returned };
        BuildRequest::new(source, plan, mesh, options, BuildContext { registry, runner })
    }

    /// The step, planned for a mesh.
    ///
    /// # Errors
    /// What the plan, the mesh and the passes refuse.
    pub fn build(&self, plan: &Plan, mesh: &Mesh) -> Result<Built> {
        self.request(plan, mesh, &Registry::default()).build()
    }

    /// Plans with layouts for the axes of several ranks that do not shard the batch.
    fn searched(&self, plan: &Plan, mesh: &Mesh) -> Result<Vec<Plan>> {
        let options = self.options;
        let steps = self.request(plan, mesh, &Registry::default()).annotated()?;
        let Some((slice, step)) = steps.first() else { return Ok(Vec::new()) };
        let is_free = |name: &str| !AxisRole::from_axis(name).is_some_and(is_given);
        let axes = slice.axes.iter().filter(|axis| axis.size > 1 && is_free(&axis.name));
        let axes: Vec<String> = axes.map(|axis| axis.name.clone()).collect();
        if axes.is_empty() {
            return Ok(Vec::new());
        }
        let mut search = Options::new(Prices::Cluster(options.cluster.sliced(mesh, PIPELINE_AXIS)));
        let given = AxisRole::ALL.into_iter().filter(|&role| is_given(role));
        search.batch_axes = given.map(|role| role.axis().to_string()).collect();
        let found = Table::new(step, slice, &search)?.solve()?;
        let mut plans: Vec<Plan> = Vec::new();
        for pins in [Pins::Inputs, Pins::Activations, Pins::Parameters] {
            let more = plan_of(step, slice, &axes, &found, pins).entries;
            let plan = Plan { entries: [plan.entries.clone(), more].concat() };
            if !plans.contains(&plan) {
                plans.push(plan);
            }
        }
        Ok(plans)
    }

    /// Builds, lowers and prices the step.
    fn price(&self, mesh: &Mesh, plan: Plan, source: &'static str) -> Result<TriedStep> {
        let ArrivingStep { options, runner, .. } = *self;
        let built = self.build(&plan, mesh)?;
        let set = lower_stages(&stages(&built), &LowerOptions::default(), &runner.options.cpu)?;
        let priced = simulate(&set, &options.cluster)?;
        let Fill { bytes, limit } = priced.fullest();
        Ok(TriedStep {
            mesh: mesh.clone(),
            plan,
            source,
            step_s: priced.step_s,
            bytes: bytes as usize,
            limit,
        })
    }

    /// The layers of each stage, where the scopes of the step make so many layers.
    ///
    /// # Errors
    /// E460 if there are fewer layers than stages, and those of [`Differentiated::microbatched`].
    pub fn layers_of_stages(&self, layers: usize, stages: usize) -> Result<Vec<Vec<usize>>> {
        let found = RefCell::new(vec![Vec::new(); stages]);
        self.known.microbatched(self.step, 1, &|forward| {
            let mut layered = forward.clone();
            by_scopes(&mut layered, layers)?;
            by_scopes(forward, stages)?;
            for (layer, node) in layered.nodes.iter().map(|node| node.stage).zip(&forward.nodes) {
                let own: &mut Vec<usize> = &mut found.borrow_mut()[node.stage];
                if !own.contains(&layer) {
                    own.push(layer);
                }
            }
            Ok(())
        })?;
        let mut found = found.into_inner();
        found.iter_mut().for_each(|layers| layers.sort_unstable());
        Ok(found)
    }
}
