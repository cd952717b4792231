//! Training with the optimizer inside the planned step.

use crate::arguments::build_options;
use crate::error::{OrRaise, detached};
use crate::mesh::Mesh;
use crate::model::{Model, Source};
use crate::plan::Plan;
use crate::profiler;
use crate::running::{self, OfProcess, Watched};
use crate::tensors::{Batch, Given, Returned, literal, returned};
use partita::PlannedStep;
use partita::execution::{CpuStep, tensor_data};
use partita::resume::{NO_MANIFEST, Origin};
use partita::run_files::Saved;
use partita_base::{Diagnostic, Result};
use partita_ir::{Literal, Registry};
use partita_runtime::RunnerOptions;
use partita_runtime::checkpoint::{FileStorage, RunFolder, run_folder};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Built, check_effects, with_storage};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::MutexGuard;

/// A planned training step in memory.
#[pyclass(frozen, module = "partita._partita")]
pub struct Trainer {
    step: OfProcess<PlannedStep>,
    /// Where it saves: the folder of the last save or load.
    folder: OfProcess<Option<RunFolder>>,
    /// What its checkpoints say of the model and the rule.
    origin: Origin,
    notes: Vec<String>,
    watched: Watched,
}

impl Trainer {
    fn locked(&self) -> MutexGuard<'_, PlannedStep> {
        self.step.lock()
    }
}

/// A built step in memory, with the values that the file has for the inputs it keeps. With a guard, a loss that is not finite
/// is an error.
pub fn prepare(built: &Built, source: &Source, seed: u64, nan_guard: bool) -> Result<PlannedStep> {
    let options = RunnerOptions { nan_guard, ..running::options(built.mesh.rank_count())? };
    let mut step = PlannedStep::uninitialized(built, seed, options)?;
    for (name, tensor) in source.tensors() {
        if step.train_loop.state().has(name) {
            set(&mut step, name, &tensor.literal()?)?;
        }
    }
    Ok(step)
}

/// Sets a parameter or state by its global name.
pub fn set(step: &mut PlannedStep, name: &str, value: &Literal) -> Result<()> {
    step.set_parameter(name, value)
}

#[pymethods]
impl Trainer {
    #[new]
    fn new(
        py: Python<'_>,
        model: &Model,
        plan: &Plan,
        mesh: &Mesh,
        options: &Bound<'_, PyDict>,
        seed: u64,
    ) -> PyResult<Trainer> {
        let source = model.source.clone();
        let options = BuildOptions { rows: source.rows, ..build_options(py, options)? };
        let (step, notes) = detached(py, || {
            let context = BuildContext { registry: &Registry::default(), runner: &CpuStep::default() };
            let plan = with_storage(plan.plan.clone(), &source.model.forward, &mesh.mesh);
            let built = BuildRequest::new(&source.model, &plan, &mesh.mesh, &options, context).build()?;
            check_effects(&built)?;
            Ok((
                prepare(&built, &source, seed, true)?,
                built.notes.into_iter().map(|note| note.text).collect(),
            ))
        })?;
        let origin = Origin::of_graph(&model.source.model.forward, &options.step);
        let watched = Watched::new(step.train_loop.runner().interrupter());
        Ok(Trainer { step: OfProcess::new(step), folder: OfProcess::new(None), origin, notes, watched })
    }

    /// One step on a global batch, with a learning rate for each group of parameters; returns the loss.
    fn step(
        &self,
        py: Python<'_>,
        batch: Vec<(String, Given<'_>)>,
        rates: Vec<f64>,
    ) -> PyResult<(f64, Option<f64>)> {
        let batch = Batch::new(batch).or_raise(py)?;
        let views = batch.views();
        let report = self.watched.run(py, || self.locked().train_loop.step_at_rates(&views, &rates))?;
        Ok((report.loss, report.grad_norm))
    }

    /// Continues the steps of another trainer: takes their number, its folder, and the parameters and states that both have.
    fn continue_from(&self, py: Python<'_>, other: &Trainer) -> PyResult<()> {
        detached(py, || {
            let (mut own, other_step) = (self.locked(), other.locked());
            let names: Vec<String> = own.train_loop.state().names().map(str::to_string).collect();
            for name in names.iter().filter(|name| other_step.train_loop.state().has(name)) {
                set(&mut own, name, &other_step.parameter(name)?)?;
            }
            own.train_loop.set_steps_taken(other_step.train_loop.steps_taken());
            let mut folder = other.folder.lock();
            *self.folder.lock() = folder.take();
            Ok(())
        })
    }

    /// Steps taken.
    fn steps_taken(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.locked().train_loop.steps_taken())
    }

    /// The global value of a parameter or state.
    fn get(&self, py: Python<'_>, name: &str) -> PyResult<Returned> {
        let value = detached(py, || self.locked().parameter(name))?;
        Ok(returned(py, tensor_data(&value)))
    }

    /// Sets a parameter or state.
    fn set(&self, py: Python<'_>, name: &str, value: Given<'_>) -> PyResult<()> {
        let value = literal(name, &value).or_raise(py)?;
        detached(py, || set(&mut self.locked(), name, &value))
    }

    /// Turns the recording of events on or off, from the next run on.
    fn record(&self, py: Python<'_>, is_on: bool) {
        py.detach(|| self.locked().train_loop.runner_mut().record(is_on));
    }

    /// The events of the last run, and the time now on their clock: see `profiler::Event`.
    fn events(&self, py: Python<'_>) -> (Vec<profiler::Event>, u64) {
        py.detach(|| profiler::events(self.locked().train_loop.runner()))
    }

    /// For each rank the number of its list of instructions, and the lists: see `profiler::Instruction`.
    fn programs(&self, py: Python<'_>) -> (Vec<(usize, usize)>, Vec<Vec<profiler::Instruction>>) {
        py.detach(|| profiler::programs(self.locked().train_loop.runner()))
    }

    /// The global names of everything that is kept from step to step.
    fn names(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.locked().train_loop.state().names().map(str::to_string).collect())
    }

    /// Saves parameters, states and the number of steps in a folder of checkpoints; returns the folder of the checkpoint.
    fn save(&self, py: Python<'_>, path: PathBuf, keep: usize) -> PyResult<PathBuf> {
        detached(py, || {
            let mut folder = self.folder.lock();
            if folder.as_ref().is_none_or(|open| open.path() != path) {
                *folder = Some(RunFolder::create(&path, keep)?);
            }
            let checkpoint = self.locked().train_loop.checkpoint(self.origin.metadata())?;
            folder.as_ref().expect("just opened").save(&FileStorage, checkpoint)
        })
    }

    /// Continues from a checkpoint, or from the newest one of a folder, made on any mesh. Later saves to that folder follow it.
    /// With `changed` its model and rule may be others, of the same tensors; returns what differs, a line for each of it.
    fn load(&self, py: Python<'_>, path: PathBuf, keep: usize, changed: bool) -> PyResult<Vec<String>> {
        detached(py, || {
            let saved = Saved::at(&path)?;
            let path = saved.path.clone();
            let at = |error: Box<Diagnostic>| error.at(path.display().to_string());
            let mut lines = self.origin.compare(saved.opened().meta(), changed).map_err(at)?;
            if !saved.opened().has_manifest() {
                lines.push(NO_MANIFEST.to_string());
            }
            self.locked().train_loop.resume(saved.opened()).map_err(at)?;
            let mut folder = self.folder.lock();
            if let Some(run) = run_folder(&path) {
                // A folder is open once.
                *folder = None;
                *folder = match RunFolder::reopen(run, saved.opened().meta(), keep) {
                    Ok(open) => Some(open),
                    // The run that writes there goes on: this one only read, and saves elsewhere.
                    Err(error) if error.code == "E331" => None,
                    Err(error) => return Err(error),
                };
            }
            Ok(lines)
        })
    }

    /// Notes of the build.
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Bytes of the arena of each rank.
    fn bytes(&self, py: Python<'_>) -> Vec<usize> {
        py.detach(|| self.locked().train_loop.runner().planned_bytes())
    }
}
