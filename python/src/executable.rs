//! Planned passes without an update: all outputs of a model, or its gradients.

use crate::error::{OrRaise, detached};
use crate::mesh::Mesh;
use crate::model::Model;
use crate::plan::Plan;
use crate::tensors::{Batch, Given, Returned, literal, returned};
use crate::trainer::{prepare, set};
use partita::PlannedStep;
use partita::execution::CpuStep;
use partita_ir::{Registry, Role};
use partita_nn::{Optimizer, StepOptions};
use partita_runtime::checkpoint::TensorData;
use partita_schedule::{BuildOptions, Tools, build_evaluation, build_gradients};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A planned pass in memory.
#[pyclass(frozen, module = "partita._partita")]
pub struct Executable {
    step: Mutex<PlannedStep>,
    inputs: Vec<String>,
}

impl Executable {
    fn locked(&self) -> MutexGuard<'_, PlannedStep> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Executable {
    /// The forward pass, or with `gradients` the gradients of the outputs weighed by `cotangent.<output>`. Dropout is
    /// disabled in the forward pass.
    #[new]
    fn new(py: Python<'_>, model: &Model, plan: &Plan, mesh: &Mesh, gradients: bool) -> PyResult<Executable> {
        let source = model.source.clone();
        let (step, inputs) = detached(py, || {
            let tools = Tools { registry: &Registry::default(), runner: &CpuStep::default() };
            let mut options = BuildOptions::new(StepOptions::new(Optimizer::sgd()));
            options.output_predictions = !gradients;
            let model = if gradients { &source.weighed } else { &source.model };
            let real = |input: &partita_ir::ValueId| {
                let value = model.forward.value(*input);
                value.role == Role::Input
                    && value.ty.rank() > 0
                    && value.ty.dtype.is_float()
                    && source.imported.inputs.contains_key(&value.name)
            };
            options.input_gradient = model.forward.inputs.iter().any(real);
            let built = match gradients {
                true => build_gradients(model, &plan.plan, &mesh.mesh, &options, &tools)?,
                false => build_evaluation(model, &plan.plan, &mesh.mesh, &options, &tools)?,
            };
            let step = prepare(&built, &source, 0)?;
            let kept = step.train_loop.state_names();
            let names = built.step.inputs.iter().map(|&input| built.step.value(input).name.clone());
            let fed = names.filter(|name| !kept.contains(&name.as_str())).collect();
            Ok((step, fed))
        })?;
        Ok(Executable { step: Mutex::new(step), inputs })
    }

    /// The names of the inputs that each run is fed. A state is among them if no output replaces it.
    fn inputs(&self) -> Vec<String> {
        self.inputs.clone()
    }

    /// Runs once on global inputs, and returns the outputs of these names.
    fn run(
        &self,
        py: Python<'_>,
        inputs: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
    ) -> PyResult<Vec<Returned>> {
        let inputs = Batch::new(inputs).or_raise(py)?;
        let views = inputs.views();
        let found = detached(py, || {
            let train_loop = &mut self.locked().train_loop;
            train_loop.feed(&views, 0.0)?;
            train_loop.runner_mut().step()?;
            outputs
                .iter()
                .map(|name| train_loop.output(name))
                .collect::<partita_base::Result<Vec<TensorData>>>()
        })?;
        Ok(found.into_iter().map(|data| returned(py, data)).collect())
    }

    /// Sets a parameter or state.
    fn set(&self, py: Python<'_>, name: &str, value: Given<'_>) -> PyResult<()> {
        let value = literal(name, &value).or_raise(py)?;
        detached(py, || set(&mut self.locked(), name, &value))
    }
}
