//! A step that arrives as a program, differentiated already: planned, and run with its state on the ranks.

use crate::built::{self, Collectives};
use crate::error::{OrRaise, detached};
use crate::mesh::Mesh;
use crate::plan::Plan;
use crate::program::Program;
use crate::running::OfProcess;
use crate::schedule::Report;
use crate::tensors::{Batch, Given, Returned, Type, literal, returned, type_of};
use indexmap::IndexMap;
use partita::PlannedStep;
use partita::auto_step::{ArrivingStep, TriedStep};
use partita::execution::{CpuStep, tensor_data};
use partita::xla;
use partita_base::{Note, Result};
use partita_ir::port::gradient_name;
use partita_ir::{Graph, Literal, Role, complex_as_pairs};
use partita_nn::{Optimizer, StepOptions};
use partita_pipeline::Order;
use partita_runtime::RunnerOptions;
use partita_runtime::checkpoint::TensorData;
use partita_schedule::feed::Fed;
use partita_schedule::tensors::{inputs_of, outputs_by_name};
use partita_schedule::verify::{StepRunner, compare};
use partita_schedule::{BuildOptions, Built, Differentiated};
use pyo3::prelude::*;
use std::sync::MutexGuard;

/// What is known of a program beside its text, and how it is split.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Known {
    /// A name for each argument.
    inputs: Vec<String>,
    /// A name for each result.
    outputs: Vec<String>,
    /// The result that is the loss.
    loss: Option<usize>,
    /// The results that are gradients.
    gradients: Vec<usize>,
    /// The arguments whose dimension 0 is the batch.
    batched: Vec<usize>,
    /// Pairs (argument, result).
    carried: Vec<(usize, usize)>,
    /// The arguments that stay on the ranks; one that no result replaces is replaced by itself.
    kept: Vec<usize>,
    /// The results that are computed; the others are forgotten.
    returned: Vec<usize>,
    microbatches: usize,
    timetable: String,
}

/// A program with what is known of it, as the planner takes it.
struct Arrived {
    whole: Graph,
    known: Differentiated,
    returned: Vec<usize>,
    options: BuildOptions,
}

impl Known {
    /// The program with these names; what is kept and not replaced is returned as it is.
    fn arrived(mut self, program: &Graph) -> Result<Arrived> {
        let mut whole = complex_as_pairs(program.clone())?;
        for (place, (input, name)) in whole.inputs.clone().into_iter().zip(&self.inputs).enumerate() {
            let value = whole.value_mut(input);
            value.name.clone_from(name);
            // What stays on the ranks is not fed.
            value.role = if self.kept.contains(&place) { Role::Activation } else { Role::Input };
        }
        whole.aliases.clear();
        for &place in &self.kept {
            if self.carried.iter().all(|pair| pair.0 != place)
                && let Some(&input) = whole.inputs.get(place)
            {
                self.carried.push((place, whole.outputs.len()));
                self.returned.push(whole.outputs.len());
                self.outputs.push(format!("kept.{}", whole.value(input).name));
                whole.outputs.push(input);
            }
        }
        whole.output_names.clone_from(&self.outputs);
        let name_of = |place: usize| self.outputs.get(place).cloned().unwrap_or_default();
        let known = Differentiated {
            loss: self.loss.map(name_of).unwrap_or_default(),
            gradients: self.gradients.iter().copied().map(name_of).collect(),
            batched: self.batched,
            carried: self.carried,
        };
        let mut options = BuildOptions::new(StepOptions::new(Optimizer::sgd()));
        options.microbatches = self.microbatches;
        options.timetable = Order::named(&self.timetable)?;
        Ok(Arrived { whole, known, returned: self.returned, options })
    }
}

impl Arrived {
    fn with<T>(&self, then: impl FnOnce(ArrivingStep<'_>) -> T) -> T {
        let is_returned = |place: usize| self.returned.contains(&place);
        then(ArrivingStep {
            step: &self.whole,
            known: &self.known,
            options: &self.options,
            is_returned: &is_returned,
            runner: &runner(),
        })
    }
}

/// A planned step in memory.
#[pyclass(frozen, module = "partita._partita")]
pub struct Step {
    step: OfProcess<PlannedStep>,
    built: Built,
    /// The program as it arrived, for one device.
    whole: Graph,
    known: Differentiated,
    plan: Plan,
    mesh: Mesh,
    options: BuildOptions,
    names: IndexMap<String, Type>,
}

/// How programs run here: as elsewhere, but what is not finite is a result and no error.
fn runner() -> CpuStep {
    CpuStep { options: RunnerOptions { nan_guard: false, ..CpuStep::default().options } }
}

impl Step {
    fn locked(&self) -> MutexGuard<'_, PlannedStep> {
        self.step.lock()
    }

    /// The outputs of the program on one device and as planned, with the gradients and the loss where they are known, for
    /// an update may turn a rounding difference of a small gradient into the whole learning rate.
    fn compared(&self, tensors: &IndexMap<String, Literal>) -> Result<partita_schedule::verify::Report> {
        let runner = runner();
        let (whole, known) = (&self.whole, &self.known);
        let position = |name: &String| whole.output_names.iter().position(|other| other == name);
        let mut compared: Vec<usize> = known.gradients.iter().filter_map(position).collect();
        compared.extend(position(&known.loss));
        if compared.is_empty() {
            compared = (0..whole.outputs.len()).collect();
        }
        let is_compared = |place: usize| compared.contains(&place);
        let (plan, mesh) = (&self.plan.plan, &self.mesh.mesh);
        let arriving = ArrivingStep {
            step: whole,
            known,
            options: &self.options,
            is_returned: &is_compared,
            runner: &runner,
        };
        let planned = arriving.build(plan, mesh)?;
        let found = runner.run(&planned, &inputs_of(&planned.step, &[], tensors)?)?;
        let found = outputs_by_name(&planned.step, &[], found);
        let mut alone = Built::solo(whole, &runner)?;
        alone.step.output_names.clone_from(&whole.output_names);
        let expected = runner.run(&alone, &inputs_of(&alone.step, &[], tensors)?)?;
        let mut expected = outputs_by_name(&alone.step, &[], expected);
        expected.retain(|name, _| found.contains_key(name));
        let dtype = expected.values().map(|value| value.ty.dtype).find(|dtype| dtype.is_float());
        // Under the names of gradients, they may differ by the noise of terms that cancel.
        let named = |outputs: Fed| -> Fed {
            let name_of = |name: String| match known.gradients.contains(&name) {
                true => gradient_name(name.strip_prefix("gradient.").unwrap_or(&name)),
                false => name,
            };
            outputs.into_iter().map(|(name, value)| (name_of(name), value)).collect()
        };
        let (expected, found) = (named(expected), named(found));
        Ok(compare(&expected, &found, None, None, dtype.unwrap_or(partita_base::DType::F32)))
    }
}

#[pymethods]
impl Step {
    #[new]
    fn new(py: Python<'_>, program: &Program, known: Known, plan: &Plan, mesh: &Mesh) -> PyResult<Step> {
        detached(py, || {
            let Arrived { whole, known, returned, options } = known.arrived(&program.graph)?;
            let runner = runner();
            let is_returned = |place: usize| returned.contains(&place);
            let (lines, ranks) = (&plan.plan, &mesh.mesh);
            let arriving = ArrivingStep {
                step: &whole,
                known: &known,
                options: &options,
                is_returned: &is_returned,
                runner: &runner,
            };
            let built = arriving.build(lines, ranks)?;
            let step = PlannedStep::uninitialized(&built, 0, runner.options)?;
            let ty = |&input: &partita_ir::ValueId| {
                let name = whole.value(input).name.clone();
                (name.clone(), type_of(&name, whole.ty(input)))
            };
            let names = whole.inputs.iter().map(ty).collect();
            let (plan, mesh) = (plan.clone(), mesh.clone());
            Ok(Step { step: OfProcess::new(step), built, known, plan, mesh, options, names, whole })
        })
    }

    /// The step on each of these meshes, with the plan and with more lines that the planner found, the fastest first:
    /// (mesh, plan, source of the plan, predicted seconds, bytes of the fullest rank).
    #[staticmethod]
    fn tried(
        py: Python<'_>,
        program: &Program,
        known: Known,
        plan: &Plan,
        meshes: Vec<PyRef<'_, Mesh>>,
    ) -> PyResult<Vec<(Mesh, Plan, &'static str, f64, usize)>> {
        let meshes: Vec<partita_mesh::Mesh> = meshes.iter().map(|mesh| mesh.mesh.clone()).collect();
        let tried =
            detached(py, || known.arrived(&program.graph)?.with(|step| step.tried(&plan.plan, &meshes)))?;
        let row = |step: TriedStep| {
            (Mesh { mesh: step.mesh }, Plan { plan: step.plan }, step.source, step.step_s, step.bytes)
        };
        Ok(tried.into_iter().map(row).collect())
    }

    /// The layers of each of so many stages.
    #[staticmethod]
    fn layers_of_stages(
        py: Python<'_>,
        program: &Program,
        known: Known,
        layers: usize,
        stages: usize,
    ) -> PyResult<Vec<Vec<usize>>> {
        detached(py, || known.arrived(&program.graph)?.with(|step| step.layers_of_stages(layers, stages)))
    }

    /// Runs one step on these inputs, those that are not kept, and returns results by name; a result that replaces an
    /// argument is read by the name of the argument with `get`.
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
            outputs.iter().map(|name| train_loop.output(name)).collect::<Result<Vec<TensorData>>>()
        })?;
        Ok(found.into_iter().map(|data| returned(py, data)).collect())
    }

    /// The value of a kept argument.
    fn get(&self, py: Python<'_>, name: &str) -> PyResult<Returned> {
        let value = detached(py, || self.locked().parameter(name))?;
        Ok(returned(py, tensor_data(&value)))
    }

    /// Sets a kept argument.
    fn set(&self, py: Python<'_>, name: &str, value: Given<'_>) -> PyResult<()> {
        let value = literal(name, &value).or_raise(py)?;
        detached(py, || self.locked().set_parameter(name, &value))
    }

    /// The arguments that stay on the ranks, and that a step reads.
    fn kept(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.locked().train_loop.state_names().into_iter().map(str::to_string).collect())
    }

    /// The arguments that each run is fed: those that the program reads and does not keep.
    fn fed(&self, py: Python<'_>) -> Vec<String> {
        let kept = self.kept(py);
        let read = self.built.step.inputs.iter().map(|&input| self.built.step.value(input).name.as_str());
        let mut fed: Vec<String> = Vec::new();
        for name in read {
            let name = partita_ir::port::microbatch_of(name).map_or(name, |(whole, _)| whole);
            if self.names.contains_key(name)
                && !kept.iter().any(|k| k == name)
                && !fed.iter().any(|f| f == name)
            {
                fed.push(name.to_string());
            }
        }
        fed
    }

    /// Compares the planned program with that of one device on these tensors, one for each argument by name.
    fn verify(&self, py: Python<'_>, inputs: Vec<(String, Given<'_>)>) -> PyResult<Report> {
        let mut tensors = IndexMap::new();
        for (name, given) in &inputs {
            tensors.insert(name.clone(), literal(name, given).or_raise(py)?);
        }
        let report = detached(py, || self.compared(&tensors))?;
        Ok(Report::new("the program of the step, with the interpreter on one device", report))
    }

    /// Why the step is as it is.
    fn explain(&self, py: Python<'_>, name: Option<String>) -> PyResult<String> {
        detached(py, || built::explain(self.built.clone(), &self.whole, name))
    }

    /// The collectives of a rank in a step: (phase, collective, count, bytes).
    #[pyo3(signature = (rank=0))]
    fn collectives(&self, py: Python<'_>, rank: usize) -> PyResult<Collectives> {
        detached(py, || built::collectives(&self.built, rank))
    }

    /// The program of a rank as text.
    fn program(&self, py: Python<'_>, rank: usize) -> PyResult<String> {
        detached(py, || built::program(&self.built, rank))
    }

    /// The number of ops of each phase in each stage: (stage, phase, count).
    fn stages(&self) -> Vec<(usize, &'static str, usize)> {
        let mut counts: IndexMap<(usize, &'static str), usize> = IndexMap::new();
        for node in &self.built.step.nodes {
            *counts.entry((node.stage, node.phase.name())).or_default() += 1;
        }
        let mut counts: Vec<_> =
            counts.into_iter().map(|((stage, phase), count)| (stage, phase, count)).collect();
        counts.sort_unstable();
        counts
    }

    /// The step as modules for XLA, in the uniform form: the manifest as JSON, and pairs of a file and its text.
    fn xla(&self, py: Python<'_>) -> PyResult<(String, Vec<(String, String)>)> {
        detached(py, || {
            let (manifest, texts) = xla::program(&self.built, xla::Form::Uniform)?;
            Ok((manifest.to_json(), texts.into_iter().collect()))
        })
    }

    /// The script that runs such modules.
    #[staticmethod]
    fn xla_runner() -> &'static str {
        xla::RUNNER
    }

    /// Notes of the build.
    fn notes(&self) -> Vec<String> {
        self.built.notes.iter().map(Note::to_string).collect()
    }

    /// Bytes of the arena of each rank.
    fn bytes(&self, py: Python<'_>) -> Vec<usize> {
        py.detach(|| self.locked().train_loop.runner().planned_bytes())
    }
}
