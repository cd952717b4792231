//! From a config to programs.

use crate::config::Config;
use crate::play::{self, CpuStep};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::Registry;
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_program::{LowerOptions, ProgramSet, RegionTarget, lower_stages};
use partita_schedule::{BuildOptions, Built, Plan, ReadyOptions, Tools, build, ready_plan};
use partita_spmd::better_mesh;

/// What is varied between a training run and a verification of it.
#[derive(Clone, Debug)]
pub struct Build {
    /// Rows of the whole batch.
    pub batch: usize,
    /// Type of parameters and activations.
    pub dtype: DType,
    /// Whether the step also returns the gradient with respect to the first real input, `grad.<input>`.
    pub input_gradient: bool,
    /// Test hook: see [`BuildOptions::break_rule_at`].
    pub break_rule_at: Option<String>,
}

impl Build {
    /// What the config says.
    pub fn from_config(config: &Config) -> Build {
        Build {
            batch: config.train.batch,
            dtype: config.train.dtype,
            input_gradient: false,
            break_rule_at: None,
        }
    }
}

/// The mesh a config asks for, `device_count` standing for `-1`.
pub fn mesh(config: &Config) -> Result<Mesh> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mesh = Mesh::parse(&config.mesh, Some(cores))?;
    fits(&mesh, MOST_PLANNED_RANKS, "in a plan")?;
    Ok(mesh)
}

/// Planning takes memory for every rank of a collective: a mesh larger than any machine is a typo.
const MOST_PLANNED_RANKS: usize = 65_536;

/// All ranks that run live in one process.
const MOST_RUNNING_RANKS: usize = 256;

/// E007 where a process cannot run all ranks of the mesh.
pub fn runs_here(mesh: &Mesh) -> Result<()> {
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

/// The model for training.
pub fn model(config: &Config, build: &Build) -> Result<Model> {
    config.model.build(build.batch, build.dtype, true)
}

/// The step of a config planned for `mesh`.
pub fn plan_step(config: &Config, model: &Model, mesh: &Mesh, varied: &Build) -> Result<Built> {
    let plan = plan_of(config, model, mesh)?;
    let tools = Tools { registry: &Registry::default(), runner: &CpuStep::of(config)? };
    let built = build(model, &plan, mesh, &build_options(config, varied), &tools)?;
    if config.plan.strict
        && let Some(idle) = built.stages.iter().find_map(|stage| stage.partitioned.notes.first())
    {
        let mut error =
            Diagnostic::new("E009", "the mesh leaves ranks idle").at("--strict").note(idle.clone());
        error.help = advice(config, model, &built, varied);
        return Err(error);
    }
    Ok(built)
}

/// What is worth telling of a planned step, a better mesh included where ranks are idle.
pub fn notes(config: &Config, model: &Model, built: &Built, varied: &Build) -> Vec<String> {
    let advice = advice(config, model, built, varied);
    built.notes.iter().cloned().chain(advice).collect()
}

/// A better mesh, where ranks are idle and the cost model knows one.
fn advice(config: &Config, model: &Model, built: &Built, varied: &Build) -> Option<String> {
    // Of pipelines the cost model knows nothing yet: their stages overlap.
    let [stage] = &built.stages[..] else { return None };
    if stage.partitioned.notes.is_empty() {
        return None;
    }
    let tools = Tools { registry: &Registry::default(), runner: &CpuStep::default() };
    let options = build_options(config, varied);
    let mut on = |mesh: &Mesh| {
        let built = build(model, &plan_of(config, model, mesh)?, mesh, &options, &tools)?;
        Ok(built.stages.into_iter().next().expect("a step has a stage").partitioned)
    };
    better_mesh(&stage.partitioned, &mut on).map(|better| better.to_string())
}

/// What a config and its variation say of a build.
pub fn build_options(config: &Config, varied: &Build) -> BuildOptions {
    BuildOptions {
        microbatches: config.train.microbatches,
        timetable: config.train.timetable.clone(),
        sequence_parallel: config.plan.sequence_parallel,
        input_gradient: varied.input_gradient,
        cluster: config.cluster.clone(),
        break_rule_at: varied.break_rule_at.clone(),
        ..BuildOptions::new(config.step.clone())
    }
}

/// The plan: from a file, from the config, else the ready one for the model and mesh.
pub fn plan_of(config: &Config, model: &Model, mesh: &Mesh) -> Result<Plan> {
    if let Some(path) = &config.plan.file {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Diagnostic::new("E005", format!("no plan file `{}`", path.display())).found(error.to_string())
        })?;
        return Plan::parse(&text, &path.display().to_string());
    }
    if !config.plan.styles.is_empty() {
        return Plan::from_value(&toml::Value::Table(config.plan.styles.clone()), "[plan]");
    }
    let options = ReadyOptions {
        sequence_parallel: config.plan.sequence_parallel,
        vocab_parallel: config.plan.vocab_parallel,
        ..ReadyOptions::default()
    };
    ready_plan(config.model.name(), &model.forward, mesh, &options)
}

/// The programs of all ranks.
pub fn lower(planned: &Built, target: &dyn RegionTarget) -> Result<ProgramSet> {
    lower_stages(&play::stages(planned), &LowerOptions::default(), target)
}
