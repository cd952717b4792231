//! A session: one config on its mesh, and everything that is built from it.
//!
//! [`Session`] is the only place that decides how steps are built ([`BuildOptions`]), lowered ([`LowerOptions`]) and run
//! ([`RunnerOptions`]), so a run, its verification, its validation and every listing of it agree. Each method is one
//! arrow of the design: config, model, plan, built step, programs, training loop.

use crate::config::{Config, Limit, rows_at_once};
use crate::execution::{self, CpuStep, InterpretedCpuStep};
use crate::feeds::{self, Feed};
use crate::infer::Inference;
use crate::models::ModelSource;
use crate::planned_step::PlannedStep;
use crate::signature::Signature;
use crate::target::target_of;
use partita_base::{DType, Diagnostic, Note, Result};
use partita_cost::Cluster;
use partita_ir::Registry;
use partita_ir::pass::Pass;
use partita_ir::port::LOSS;
use partita_mesh::Mesh;
use partita_nn::{Model, with_cotangents};
use partita_pipeline::Order;
use partita_program::{CollectiveMatmul, LowerOptions, ProgramSet, RegionTarget, lower_stages};
use partita_runtime::checkpoint::Checkpoint;
use partita_runtime::{Cpu, Processes, RunnerOptions};
use partita_schedule::feed::Fed;
use partita_schedule::passes::{Building, Front};
use partita_schedule::verify::{StepRunner, Verification, Verified, Watcher};
use partita_schedule::{
    BuildContext, BuildOptions, BuildRequest, Built, Plan, StepKind, check_effects, unused_axes,
};
use std::sync::Arc;
use std::time::Duration;

mod notes;
mod plan;

use notes::without_rows;
pub use plan::sets_layouts;

/// The most ranks of a plan. Planning takes memory for every rank of a collective: a larger mesh is a typo.
const MOST_PLANNED_RANKS: usize = 65_536;

/// The most ranks that one process runs.
const MOST_RUNNING_RANKS: usize = 256;

/// Choices of a run that change no number and are not in its config.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    /// Threads in all; one per core by default.
    pub workers: Option<usize>,
    /// Runs all ranks on the calling thread, in a fixed order.
    pub deterministic: bool,
    /// Records when each thread executed which instruction.
    pub record: bool,
    /// How long ranks may make no progress before the run ends as stuck; two minutes by default.
    pub watchdog: Option<Duration>,
    /// The processes that share the ranks; without them this process runs all.
    pub processes: Option<Arc<dyn Processes>>,
}

/// A config on its mesh.
#[derive(Clone, Debug)]
pub struct Session {
    config: Config,
    mesh: Mesh,
    cpu: Cpu,
    execution: Execution,
    input_gradient: bool,
    #[cfg(feature = "testing")]
    broken_rule: Option<String>,
}

impl Session {
    /// A session of a config. In its mesh, -1 is the number of devices of the cluster that the other axes leave. On the
    /// cores of one machine, it is the number of its cores.
    ///
    /// # Errors
    /// E20x for a mesh that cannot be parsed, E205 for -1 on a cluster of any number of devices, E007 for a mesh that is
    /// too large to plan, E465 for kernels that this machine lacks.
    pub fn new(config: Config) -> Result<Session> {
        let mesh = Mesh::parse(&config.mesh, devices(&config.cluster)).map_err(|error| {
            match error.code == "E205" || error.code == "E206" {
                true => error.note(format!("the devices are those of cluster `{}`", config.cluster.name)),
                false => error,
            }
        })?;
        fits(&mesh, MOST_PLANNED_RANKS, "in a plan")?;
        let cpu = config.cpu()?;
        Ok(Session {
            config,
            mesh,
            cpu,
            execution: Execution::default(),
            input_gradient: false,
            #[cfg(feature = "testing")]
            broken_rule: None,
        })
    }

    /// A session of a config file or a bundled config with overrides: see [`Config::load`].
    ///
    /// # Errors
    /// Those of [`Config::load`] and [`Session::new`].
    pub fn load(name: &str, overrides: &[String]) -> Result<Session> {
        Session::new(Config::load(name, overrides)?)
    }

    /// A session of a model that no config names, with the defaults of the config on a mesh such as `dp=2,tp=2`.
    ///
    /// # Errors
    /// Those of [`Session::new`].
    pub fn of(model: Arc<dyn ModelSource>, mesh: &str) -> Result<Session> {
        Session::new(Config { mesh: mesh.to_string(), ..Config::of(model) })
    }

    /// With these choices of execution.
    ///
    /// # Errors
    /// E032 for no threads, or too many.
    pub fn with_execution(self, execution: Execution) -> Result<Session> {
        let session = Session { execution, ..self };
        session.runner_options().check()?;
        Ok(session)
    }

    /// With a batch of so many rows.
    pub fn with_batch(mut self, rows: usize) -> Session {
        self.config.train.batch = rows;
        self
    }

    /// With so many microbatches per step.
    pub fn with_microbatches(mut self, count: usize) -> Session {
        self.config.train.microbatches = count;
        self
    }

    /// With this type of parameters and activations.
    pub fn with_dtype(mut self, dtype: DType) -> Session {
        self.config.train.dtype = dtype;
        self
    }

    /// Shards the residual stream along the sequence, or not.
    pub fn with_sequence_parallel(mut self, is_sharded: bool) -> Session {
        self.config.plan.sequence_parallel = is_sharded;
        self
    }

    /// With updates that are only priced ([`StepOptions::abridged`](partita_nn::StepOptions)).
    pub(crate) fn only_priced(mut self) -> Session {
        self.config.step.abridged = true;
        self
    }

    /// With other values in its config.
    pub(crate) fn with_config(mut self, change: impl FnOnce(&mut Config)) -> Session {
        change(&mut self.config);
        self
    }

    /// On another mesh.
    pub fn with_mesh(mut self, mesh: Mesh) -> Session {
        self.mesh = mesh;
        self
    }

    /// With another model of the same kind, such as one with fewer layers.
    pub(crate) fn with_model(mut self, model: Arc<dyn ModelSource>) -> Session {
        self.config.model = model;
        self
    }

    /// With another timetable.
    pub(crate) fn with_timetable(mut self, timetable: Order) -> Session {
        self.config.train.timetable = timetable;
        self
    }

    /// With at most so many bytes kept for the backward pass of a microbatch.
    pub(crate) fn with_activation_limit(mut self, bytes: usize) -> Session {
        self.config.train.activation_limit = Some(bytes);
        self
    }

    /// On another cluster.
    pub(crate) fn with_cluster(mut self, cluster: Cluster) -> Session {
        self.config.cluster = cluster;
        self
    }

    /// The processes that share the ranks, this one among them.
    pub fn processes(&self) -> Option<&Arc<dyn Processes>> {
        self.execution.processes.as_ref()
    }

    /// With all ranks in this process.
    pub fn in_this_process(mut self) -> Session {
        self.execution.processes = None;
        self
    }

    /// With a step that also returns the gradient with respect to the first float input of the model, `grad.<input>`.
    pub fn with_input_gradient(mut self) -> Session {
        self.input_gradient = true;
        self
    }

    /// With a step that forgets one reduction in the modules below this path; verification must find that.
    #[cfg(feature = "testing")]
    pub fn with_broken_rule(mut self, path: Option<String>) -> Session {
        self.broken_rule = path;
        self
    }

    /// The config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The kernels of each rank.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// E007 if a process cannot run all ranks of the mesh, E015 if the tensors of the batch are too large for one.
    pub fn check_runs_here(&self) -> Result<()> {
        runs_here(&self.mesh)?;
        self.check_sizes(self.config.train.batch)
    }

    /// E015 if a process cannot hold the tensors of a step of so many rows. Planning, which holds none, needs no check.
    pub fn check_sizes(&self, rows: usize) -> Result<()> {
        let rows = rows_at_once(rows, self.config.train.microbatches, self.mesh.batch_shards());
        Limit::Held.check(self.config.model.as_ref(), rows)
    }

    /// The model for training.
    ///
    /// # Errors
    /// Those of [`ModelSource::build`].
    pub fn model(&self) -> Result<Model> {
        self.config.model.build(self.config.train.batch, self.config.train.dtype, true)
    }

    /// What the model has to be fed.
    pub fn signature(&self, model: &Model) -> Signature {
        Signature::of(model, self.config.model.is_bidirectional())
    }

    /// The data that suits the model.
    ///
    /// # Errors
    /// Those of [`feeds::feed`].
    pub fn feed(&self, model: &Model) -> Result<Arc<dyn Feed>> {
        feeds::feed(&self.config, &self.signature(model))
    }

    /// The training step, planned for the mesh.
    ///
    /// # Errors
    /// Those of [`Session::model`] and [`Session::build_model`].
    pub fn build(&self) -> Result<Built> {
        self.build_model(&self.model()?)
    }

    /// The training step of a model that was built before, or changed since; of a model without a loss, its outputs.
    ///
    /// # Errors
    /// What the plan and the passes refuse; [`check_effects`]; E009 if ranks are idle and the config is strict.
    pub fn build_model(&self, model: &Model) -> Result<Built> {
        let built = self.build_part(model, &self.plan(model)?, part_of(model))?;
        self.check_effects(model, built)
    }

    /// The step of a model, unless an axis or a line of its plan has no effect.
    fn check_effects(&self, model: &Model, built: Built) -> Result<Built> {
        check_effects(&built)?;
        if self.config.plan.strict {
            let idle = built.stages.iter().find_map(|stage| stage.partitioned.notes.first());
            let idle = idle.map(Note::to_string);
            let idle = idle.or_else(|| without_rows(&built)).map(|note| ("the mesh leaves ranks idle", note));
            let alike = || unused_axes(&built).into_iter().next();
            let cause =
                idle.or_else(|| alike().map(|(_, why)| ("ranks of the mesh all do the same work", why)));
            if let Some((message, note)) = cause {
                let mut error = Diagnostic::new("E009", message).at("--strict").note(note);
                error.help = self.advice(model, &built);
                return Err(error);
            }
        }
        Ok(built)
    }

    /// A part of the step of a model under a plan.
    ///
    /// # Errors
    /// What the plan and the passes refuse.
    pub fn build_part(&self, model: &Model, plan: &Plan, part: StepKind) -> Result<Built> {
        self.build_on(model, plan, part, &self.mesh, &mut |_, _| Ok(()))
    }

    fn build_on(
        &self,
        model: &Model,
        plan: &Plan,
        part: StepKind,
        mesh: &Mesh,
        after: &mut dyn FnMut(&Pass<Front>, &Building) -> Result<()>,
    ) -> Result<Built> {
        let (options, registry, runner) = (self.build_options(), Registry::default(), self.step_runner());
        let context = BuildContext { registry: &registry, runner: &runner };
        let request = BuildRequest::new(model, plan, mesh, &options, context).part(part);
        request.build_watched(after).map_err(|error| self.config.model.explained(error))
    }

    /// The training step of a model; `after` sees what each pass leaves, of those that take the model to local graphs.
    ///
    /// # Errors
    /// Those of [`Session::build_model`] and of `after`.
    pub fn build_watched(
        &self,
        after: &mut dyn FnMut(&Pass<Front>, &Building) -> Result<()>,
    ) -> Result<Built> {
        let model = self.model()?;
        let built = self.build_on(&model, &self.plan(&model)?, part_of(&model), &self.mesh, after)?;
        self.check_effects(&model, built)
    }

    /// A part of the step with all its outputs, for a comparison on the runner.
    pub(crate) fn build_compared(
        &self,
        model: &Model,
        part: StepKind,
        runner: &dyn StepRunner,
    ) -> Result<Built> {
        let (plan, options) = (self.plan(model)?, self.build_options().for_verification());
        let context = BuildContext { registry: &Registry::default(), runner };
        BuildRequest::new(model, &plan, &self.mesh, &options, context).part(part).build()
    }

    pub(crate) fn build_options(&self) -> BuildOptions {
        let config = &self.config;
        BuildOptions {
            microbatches: config.train.microbatches,
            // A file of a fixed shape does not say which of its extents is the batch.
            rows: (!config.model.terms().are_rows_fixed).then_some(config.train.batch),
            timetable: config.train.timetable.clone(),
            sequence_parallel: config.plan.sequence_parallel,
            input_gradient: self.input_gradient,
            cluster: config.cluster.clone(),
            #[cfg(feature = "testing")]
            break_rule_at: self.broken_rule.clone(),
            ..BuildOptions::new(config.step.clone())
        }
    }

    /// Which collectives around matmuls are permutes under them, on this cluster.
    fn collective_matmul(&self) -> CollectiveMatmul {
        let name = &self.config.train.collective_matmul;
        CollectiveMatmul::named(name, &self.config.cluster.of_first(self.mesh.rank_count()))
            .expect("the config checks it")
    }

    /// How steps are lowered.
    pub fn lower_options(&self) -> LowerOptions {
        execution::lower_options(&self.runner_options())
    }

    /// The options for which programs are lowered: on the cores of one machine those of a run, whose ranks share its
    /// threads. On any other cluster a rank is one thread, so that nothing depends on the machine that predicts.
    fn lowered_for(&self) -> RunnerOptions {
        match self.config.cluster.is_one_machine() {
            true => self.runner_options().sharing(self.mesh.rank_count()),
            false => self.runner_options(),
        }
    }

    /// The cores that run a rank here, with the threads of each.
    pub fn cores(&self) -> Cpu {
        self.lowered_for().cpu
    }

    /// What programs are lowered for: the devices of the cluster. `lower`, `simulate`, `plan` and `report` read it, and on
    /// the cores of one machine so does a run.
    pub fn target(&self) -> Box<dyn RegionTarget + Send + Sync> {
        target_of(self.config.cluster.device.target, self.cores())
    }

    /// The programs of all ranks. On the cores of one machine they are those that a run executes, to the byte.
    ///
    /// # Errors
    /// E4xx of the static checks.
    pub fn lower(&self, built: &Built) -> Result<ProgramSet> {
        lower_stages(&execution::stages(built), &self.lower_options(), &*self.target())
    }

    /// How programs are run.
    pub fn runner_options(&self) -> RunnerOptions {
        let Execution { workers, deterministic, record, watchdog, processes } = self.execution.clone();
        RunnerOptions {
            cpu: self.cpu.clone(),
            memory: self.config.train.memory_limit,
            kept_bytes: self.config.train.activation_limit,
            collective_matmul: self.collective_matmul(),
            workers,
            deterministic,
            record,
            watchdog: watchdog.unwrap_or(RunnerOptions::default().watchdog),
            processes,
            ..RunnerOptions::default()
        }
    }

    /// The CPU device as verification uses it: it runs the programs of a training run.
    pub fn step_runner(&self) -> CpuStep {
        CpuStep { options: self.runner_options() }
    }

    /// The reference interpreter as verification uses it: it runs the local graphs that the CPU device would run.
    pub fn interpreter(&self) -> InterpretedCpuStep {
        InterpretedCpuStep { memory: self.config.train.memory_limit, cpu: self.cpu.clone() }
    }

    /// A built step in memory, with parameters and optimizer states at zero.
    ///
    /// # Errors
    /// E007 for too many ranks, E040 for too little memory, E4xx of lowering.
    pub fn prepare(&self, built: &Built) -> Result<PlannedStep> {
        PlannedStep::uninitialized(built, self.config.train.seed, self.runner_options())
    }

    /// The forward pass of a model on the mesh, from these inputs to all outputs that follow from them, with the initial
    /// parameters of the seed until [`Inference::restore`].
    ///
    /// # Errors
    /// E037 if no output follows from the inputs; what building and lowering refuse.
    pub fn inference(&self, model: &Model, inputs: &[&str]) -> Result<Inference> {
        Inference::new(self, model, &self.plan(model)?, inputs)
    }

    /// All outputs of the model that follow from `inputs`, computed once on the mesh: global tensors by name, whose rows
    /// are dimension 0. Parameters are those of a checkpoint, or the initial ones of the seed.
    ///
    /// # Errors
    /// E037 if no output follows from the inputs, E314 for a checkpoint of another model, E414 and E415 for inputs that
    /// the model does not have.
    pub fn infer(&self, checkpoint: Option<&Checkpoint>, inputs: &Fed) -> Result<Fed> {
        let rows = inputs.values().find_map(|input| input.ty.shape.first().copied());
        let session = self.clone().with_batch(rows.unwrap_or(self.config.train.batch));
        let names: Vec<&str> = inputs.keys().map(String::as_str).collect();
        let mut inference = session.inference(&session.model()?, &names)?;
        if let Some(checkpoint) = checkpoint {
            inference.restore(checkpoint)?;
        }
        inference.run(inputs)
    }

    /// The rows of the smallest batch that represents the config's batch in a verification: see
    /// [`verification_rows`].
    pub fn verification_rows(&self) -> usize {
        let train = &self.config.train;
        match self.config.model.terms().are_rows_fixed {
            true => train.batch,
            false => verification_rows(train.batch, train.microbatches, self.mesh.batch_shards()),
        }
    }

    /// Runs the step on its mesh through `runner`, and on one device through the interpreter, on so many rows with ignored
    /// labels spread unevenly, and compares all outputs, gradients, parameters and states. The loss of a model without one
    /// is the inner product of its outputs with random numbers. `watcher` observes the work of the interpreter, and may
    /// refuse it.
    ///
    /// # Errors
    /// What building refuses, and what the watcher does.
    pub fn verify(&self, rows: usize, runner: &dyn StepRunner, watcher: &dyn Watcher) -> Result<Verified> {
        let session = self.clone().with_batch(rows);
        let model = with_loss(session.model()?)?;
        let is_mixed = self.config.step.precision.is_some();
        let precise = match self.config.train.dtype {
            _ if self.config.model.terms().dtype.is_some() => is_mixed.then(|| model.clone()),
            DType::F64 => is_mixed.then(|| model.clone()),
            _ => Some(with_loss(session.clone().with_dtype(DType::F64).model()?)?),
        };
        let verification = Verification {
            model: &model,
            precise: precise.as_ref(),
            options: &session.build_options().for_verification(),
            context: BuildContext { registry: &Registry::default(), runner },
            seed: self.config.train.seed,
            learning_rate: self.config.schedule.at(1),
            watcher,
        };
        let verified = verification.run(&session.plan(&model)?, &self.mesh);
        verified.map_err(|error| self.config.model.explained(error))
    }
}

/// What a training run builds of a model: its step, or of a model without a loss its outputs.
pub(crate) fn part_of(model: &Model) -> StepKind {
    if has_loss(model) { StepKind::Step } else { StepKind::Outputs }
}

/// Whether a model can be trained.
pub(crate) fn has_loss(model: &Model) -> bool {
    model.forward.output_position(LOSS).is_some()
}

/// The model, with a loss made of its outputs if it has none.
pub(crate) fn with_loss(model: Model) -> Result<Model> {
    if has_loss(&model) {
        return Ok(model);
    }
    with_cotangents(&model, &own_outputs(&model))
}

/// The outputs of a model that are no new values of its state, in order.
pub(crate) fn own_outputs(model: &Model) -> Vec<String> {
    let graph = &model.forward;
    let is_new = |place: usize| graph.aliases.iter().any(|&(_, output)| output == place);
    let names = graph.output_names.iter().enumerate().filter(|(place, _)| !is_new(*place));
    names.map(|(_, name)| name.clone()).collect()
}

/// The devices over which a mesh is laid: those of the cluster, or the cores of this machine; `None` if the cluster has any
/// number of them.
fn devices(cluster: &Cluster) -> Option<usize> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    match cluster.is_one_machine() {
        true => Some(cores()),
        false => cluster.levels.last().and_then(|level| level.ranks),
    }
}

/// E007 if a process cannot run all ranks of a mesh.
pub(crate) fn runs_here(mesh: &Mesh) -> Result<()> {
    fits(mesh, MOST_RUNNING_RANKS, "that run in one process")
}

fn fits(mesh: &Mesh, most: usize, what: &str) -> Result<()> {
    let ranks = mesh.rank_count();
    if ranks <= most {
        return Ok(());
    }
    Err(Diagnostic::new("E007", format!("mesh {mesh} does not fit"))
        .at("mesh.shape")
        .expected(format!("at most {most} ranks {what}"))
        .found(format!("{ranks} ranks")))
}

/// The fewest rows of a verification, if the batch has as many.
const LEAST_ROWS: usize = 6;

/// The rows of the smallest batch that represents a batch of `batch` rows in a verification: at least six, and split as
/// unevenly or evenly as that one. It has a row for each microbatch, its microbatches have equal sizes exactly if those of
/// the real batch do, and a microbatch divides among `shards` data-parallel shards exactly if a real one does, with no
/// empty shard that the real one does not have.
pub fn verification_rows(batch: usize, microbatches: usize, shards: usize) -> usize {
    // Of the largest and the smallest microbatch: whether its shards are equal, and how many of them hold a row.
    let shape = |rows: usize| {
        let sizes = [rows.div_ceil(microbatches), rows / microbatches];
        (sizes[0] == sizes[1], sizes.map(|size| (size.is_multiple_of(shards), size.min(shards))))
    };
    // With more microbatches than rows, the split reports the error.
    match (1..=batch).contains(&microbatches) && shards > 0 {
        true => (LEAST_ROWS.min(batch)..batch).find(|&rows| shape(rows) == shape(batch)).unwrap_or(batch),
        false => batch,
    }
}

#[cfg(test)]
mod tests;
