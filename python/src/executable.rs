//! Planned passes without an update: all outputs of a model, and its gradients.

use crate::error::{OrRaise, detached};
use crate::lent::{Lease, Leases, array};
use crate::mesh::Mesh;
use crate::model::Model;
use crate::plan::Plan;
use crate::profiler;
use crate::running::{OfProcess, Watched};
use crate::tensors::{Batch, Given, Returned, returned};
use crate::trainer::prepare;
use partita::PlannedStep;
use partita::execution::CpuStep;
use partita_base::Result;
use partita_ir::Registry;
use partita_ir::port::LOSS;
use partita_nn::cotangents::OWN_LOSS;
use partita_nn::{Optimizer, StepOptions};
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{BatchTensor, Lent, TrainLoop};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, StepKind, check_axes};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A planned pass in memory.
#[pyclass(frozen, module = "partita._partita")]
pub struct Executable {
    step: OfProcess<PlannedStep>,
    inputs: Vec<String>,
    watched: Watched,
    leases: Leases,
    /// The parameters that were lent.
    lent: Mutex<Vec<String>>,
}

/// A result of a pass.
enum Found {
    Copied(TensorData),
    Lent(Lent),
}

/// The name under which gradients are lent.
const GRADIENTS: &str = "";

impl Executable {
    fn locked(&self) -> MutexGuard<'_, PlannedStep> {
        self.step.lock()
    }

    /// Runs a pass on global inputs, and returns the outputs of these names, and then those that are `lent`, if they can
    /// be.
    fn pass(
        slf: &Bound<'_, Self>,
        inputs: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
        lent: Vec<String>,
        run: impl FnOnce(&mut TrainLoop, &[BatchTensor<'_>]) -> Result<()> + Send,
    ) -> PyResult<Vec<Returned>> {
        let (py, this) = (slf.py(), slf.get());
        let inputs = Batch::new(inputs).or_raise(py)?;
        let views = inputs.views();
        let found = this.watched.run(py, || {
            let train_loop = &mut this.locked().train_loop;
            run(train_loop, &views)?;
            let mut found = Vec::with_capacity(outputs.len() + lent.len());
            for name in &outputs {
                found.push(Found::Copied(train_loop.output(name)?));
            }
            for name in &lent {
                found.push(match train_loop.lend_output(name)? {
                    Some(lent) => Found::Lent(lent),
                    None => Found::Copied(train_loop.output(name)?),
                });
            }
            Ok(found)
        })?;
        let is_lent = found.iter().any(|found| matches!(found, Found::Lent(_)));
        let lease = is_lent.then(|| this.leases.give(py, slf.clone().unbind(), GRADIENTS)).transpose()?;
        let value = |found| match (found, &lease) {
            (Found::Lent(lent), Some(lease)) => array(py, lent, lease),
            (Found::Copied(data), _) => returned(py, data),
            (Found::Lent(_), None) => unreachable!("what is lent has a lease"),
        };
        Ok(found.into_iter().map(value).collect())
    }

    /// Gives the parameters that were lent to the other ranks that hold them.
    fn spread(&self, train_loop: &mut TrainLoop) -> Result<()> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.iter().try_for_each(|name| train_loop.spread(name))
    }
}

#[pymethods]
impl Executable {
    /// Passes of this kind: `training`, a forward and a backward pass as one program that pauses between them, with the
    /// gradients of all parameters and of `differentiated` inputs; `forward`, a forward pass alone, which draws the same
    /// masks for the same seed; `evaluation`, one without dropout. E009 for an axis of the mesh that nothing uses,
    /// unless its ranks `may_repeat` work.
    #[new]
    #[pyo3(signature = (model, plan, mesh, kind, differentiated = Vec::new(), may_repeat = false))]
    fn new(
        py: Python<'_>,
        model: &Model,
        plan: &Plan,
        mesh: &Mesh,
        kind: &str,
        differentiated: Vec<String>,
        may_repeat: bool,
    ) -> PyResult<Executable> {
        let source = model.source.clone();
        let (step, inputs) = detached(py, || {
            let context = BuildContext { registry: &Registry::default(), runner: &CpuStep::default() };
            let mut options = BuildOptions::new(StepOptions::new(Optimizer::sgd()));
            options.output_predictions = true;
            options.input_gradients = differentiated;
            let model = if kind == "training" { &source.weighed } else { &source.model };
            let part = match kind {
                "training" => StepKind::Gradients,
                "forward" => StepKind::Forward,
                _ => StepKind::Outputs,
            };
            let built =
                BuildRequest::new(model, &plan.plan, &mesh.mesh, &options, context).part(part).build()?;
            if !may_repeat {
                check_axes(&built)?;
            }
            // Numbers that are not finite are results here, as in PyTorch.
            let step = prepare(&built, &source, 0, false)?;
            let kept = step.train_loop.state_names();
            let names = built.step.inputs.iter().map(|&input| built.step.value(input).name.clone());
            let fed = names.filter(|name| !kept.contains(&name.as_str())).collect();
            Ok((step, fed))
        })?;
        let watched = Watched::new(step.train_loop.runner().interrupter());
        let (leases, lent) = (Leases::default(), Mutex::default());
        Ok(Executable { step: OfProcess::new(step), inputs, watched, leases, lent })
    }

    /// The names of the inputs that each run is fed. A state is among them if no output replaces it.
    fn inputs(&self) -> Vec<String> {
        self.inputs.clone()
    }

    /// Runs once on global inputs, with the random numbers of a seed, and returns the outputs of these names.
    fn run(
        slf: &Bound<'_, Self>,
        inputs: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
        seed: u64,
    ) -> PyResult<Vec<Returned>> {
        let this = slf.get();
        Executable::pass(slf, inputs, outputs, Vec::new(), |train_loop, inputs| {
            this.spread(train_loop)?;
            train_loop.seed = seed;
            train_loop.feed(inputs, 0.0)?;
            train_loop.runner_mut().step()
        })
    }

    /// As `run`, the forward pass of a training step. Until the next forward pass, its activations stay in memory.
    fn forward(
        slf: &Bound<'_, Self>,
        inputs: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
        seed: u64,
    ) -> PyResult<Vec<Returned>> {
        // A loss of the model's own is an output like others here.
        let own = |name: String| if name == LOSS { OWN_LOSS.to_string() } else { name };
        let (this, outputs) = (slf.get(), outputs.into_iter().map(own).collect());
        Executable::pass(slf, inputs, outputs, Vec::new(), |train_loop, inputs| {
            this.spread(train_loop)?;
            train_loop.seed = seed;
            train_loop.forward(inputs)
        })
    }

    /// The backward pass of the last forward pass, on `cotangent.<output>`; returns the outputs of these names, then those
    /// that are `lent`. It overwrites the activations. A lent output that a rank holds whole is an array over its memory,
    /// which the next pass overwrites: see `is_lent`.
    fn backward(
        slf: &Bound<'_, Self>,
        cotangents: Vec<(String, Given<'_>)>,
        outputs: Vec<String>,
        lent: Vec<String>,
    ) -> PyResult<Vec<Returned>> {
        Executable::pass(slf, cotangents, outputs, lent, |train_loop, cotangents| {
            train_loop.backward(cotangents)
        })
    }

    /// Sets a parameter or state, of which only the bytes on the ranks are a copy.
    fn set(&self, py: Python<'_>, name: String, value: Given<'_>) -> PyResult<()> {
        let value = Batch::new(vec![(name, value)]).or_raise(py)?;
        let views = value.views();
        detached(py, || {
            let train_loop = &mut self.locked().train_loop;
            views.iter().try_for_each(|tensor| train_loop.write_tensor(tensor))
        })
    }

    /// The memory of a parameter or state as an array, where a rank holds it whole: from now on each pass begins with what
    /// the array contains. None where it is sharded, or stored in pieces.
    fn lend(slf: &Bound<'_, Self>, name: &str) -> PyResult<Option<Returned>> {
        let (py, this) = (slf.py(), slf.get());
        let Some(lent) = detached(py, || this.locked().train_loop.lend_state(name))? else { return Ok(None) };
        let mut names = this.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.iter().any(|other| other == name) {
            names.push(name.to_string());
        }
        drop(names);
        let lease: Py<Lease> = this.leases.give(py, slf.clone().unbind(), name)?;
        Ok(Some(array(py, lent, &lease)))
    }

    /// Whether an array over the memory of a parameter or state is left; without a name, over that of gradients.
    #[pyo3(signature = (name = GRADIENTS))]
    fn is_lent(&self, name: &str) -> bool {
        self.leases.is_lent(name)
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
