//! Planned passes without an update: all outputs of a model, and its gradients.

use crate::error::{OrRaise, detached};
use crate::mesh::Mesh;
use crate::model::Model;
use crate::plan::Plan;
use crate::profiler;
use crate::running::Watched;
use crate::tensors::{Batch, Given, Returned, literal, returned};
use crate::trainer::{prepare, set};
use partita::PlannedStep;
use partita::execution::CpuStep;
use partita_base::Result;
use partita_ir::port::LOSS;
use partita_ir::{Registry, Role};
use partita_nn::cotangents::OWN_LOSS;
use partita_nn::{Optimizer, StepOptions};
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{BatchTensor, TrainLoop};
use partita_schedule::{BuildOptions, Tools, build_evaluation, build_forward, build_gradients};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A planned pass in memory.
#[pyclass(frozen, module = "partita._partita")]
pub struct Executable {
    step: Mutex<PlannedStep>,
    inputs: Vec<String>,
    watched: Watched,
}

impl Executable {
    fn locked(&self) -> MutexGuard<'_, PlannedStep> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a pass on global inputs, and returns the outputs of these names.
    fn pass(
        &self,
        py: Python<'_>,
        inputs: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
        run: impl FnOnce(&mut TrainLoop, &[BatchTensor<'_>]) -> Result<()> + Send,
    ) -> PyResult<Vec<Returned>> {
        let inputs = Batch::new(inputs).or_raise(py)?;
        let views = inputs.views();
        let found = self.watched.run(py, || {
            let train_loop = &mut self.locked().train_loop;
            run(train_loop, &views)?;
            outputs.iter().map(|name| train_loop.output(name)).collect::<Result<Vec<TensorData>>>()
        })?;
        Ok(found.into_iter().map(|data| returned(py, data)).collect())
    }
}

#[pymethods]
impl Executable {
    /// Passes of this kind: `training`, a forward and a backward pass as one program that pauses between them; `forward`,
    /// a forward pass alone, which draws the same masks for the same seed; `evaluation`, one without dropout.
    #[new]
    fn new(py: Python<'_>, model: &Model, plan: &Plan, mesh: &Mesh, kind: &str) -> PyResult<Executable> {
        let trains = kind == "training";
        let source = model.source.clone();
        let (step, inputs) = detached(py, || {
            let tools = Tools { registry: &Registry::default(), runner: &CpuStep::default() };
            let mut options = BuildOptions::new(StepOptions::new(Optimizer::sgd()));
            options.output_predictions = true;
            let model = if trains { &source.weighed } else { &source.model };
            let real = |input: &partita_ir::ValueId| {
                let value = model.forward.value(*input);
                value.role == Role::Input
                    && value.ty.rank() > 0
                    && value.ty.dtype.is_float()
                    && source.imported.inputs.contains_key(&value.name)
            };
            options.input_gradient = model.forward.inputs.iter().any(real);
            let build = match kind {
                "training" => build_gradients,
                "forward" => build_forward,
                _ => build_evaluation,
            };
            let built = build(model, &plan.plan, &mesh.mesh, &options, &tools)?;
            // Numbers that are not finite are results here, as in PyTorch.
            let step = prepare(&built, &source, 0, false)?;
            let kept = step.train_loop.state_names();
            let names = built.step.inputs.iter().map(|&input| built.step.value(input).name.clone());
            let fed = names.filter(|name| !kept.contains(&name.as_str())).collect();
            Ok((step, fed))
        })?;
        let watched = Watched::new(step.train_loop.runner().interrupter());
        Ok(Executable { step: Mutex::new(step), inputs, watched })
    }

    /// The names of the inputs that each run is fed. A state is among them if no output replaces it.
    fn inputs(&self) -> Vec<String> {
        self.inputs.clone()
    }

    /// Runs once on global inputs, with the random numbers of a seed, and returns the outputs of these names.
    fn run(
        &self,
        py: Python<'_>,
        inputs: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
        seed: u64,
    ) -> PyResult<Vec<Returned>> {
        self.pass(py, inputs, outputs, |train_loop, inputs| {
            train_loop.seed = seed;
            train_loop.feed(inputs, 0.0)?;
            train_loop.runner_mut().step()
        })
    }

    /// As `run`, the forward pass of a training step. Until the next forward pass, its activations stay in memory.
    fn forward(
        &self,
        py: Python<'_>,
        inputs: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
        seed: u64,
    ) -> PyResult<Vec<Returned>> {
        // A loss of the model's own is an output like others here.
        let own = |name: String| if name == LOSS { OWN_LOSS.to_string() } else { name };
        let outputs = outputs.into_iter().map(own).collect();
        self.pass(py, inputs, outputs, |train_loop, inputs| {
            train_loop.seed = seed;
            train_loop.forward(inputs)
        })
    }

    /// The backward pass of the last forward pass, on `cotangent.<output>`; returns the outputs of these names. It
    /// overwrites the activations.
    fn backward(
        &self,
        py: Python<'_>,
        cotangents: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
    ) -> PyResult<Vec<Returned>> {
        self.pass(py, cotangents, outputs, |train_loop, cotangents| train_loop.backward(cotangents))
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
}
