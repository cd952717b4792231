//! A built step in the memory of the CPU device, with its parameters.

use crate::execution;
use partita_base::Result;
use partita_ir::Literal;
use partita_nn::{Initializer, Model, ParamSpec};
use partita_runtime::checkpoint::Checkpoint;
use partita_runtime::{KernelOptions, RunnerOptions, StepReport, TrainLoop};
use partita_schedule::Built;
use partita_schedule::feed::Fed;

/// A planned step with its parameters, ready to train.
///
/// ```
/// use partita::prelude::*;
/// let model = ModelConfig::Mlp(MlpConfig::default()).build(8, DType::F32, true)?;
/// let mut sch = Schedule::new(&model, &Mesh::parse("tp=2", None)?)?.on(CpuStep::default());
/// sch.at("layers.0")?.style("colwise")?;
/// sch.at("layers.1")?.style("rowwise")?;
/// let mut step = PlannedStep::new(&sch.build()?, &model, 0, RunnerOptions::default())?;
/// let batch = random_feed(&model, 1, 0.0);
/// let first = step.step(&batch, 0.01)?.loss;
/// let second = step.step(&batch, 0.01)?.loss;
/// assert!(second < first);
/// # Ok::<(), Box<partita::prelude::Diagnostic>>(())
/// ```
pub struct PlannedStep {
    /// The loop over programs: their memory, checkpoints, single tensors as they are stored.
    pub train_loop: TrainLoop,
    kernel_options: KernelOptions,
}

impl PlannedStep {
    /// Parameters start as the model says for this seed, optimizer states at zero. The options must be those of the
    /// device the step was built for.
    ///
    /// # Errors
    /// What lowering and the runner say, and [`PlannedStep::initialize`].
    pub fn new(built: &Built, model: &Model, seed: u64, options: RunnerOptions) -> Result<PlannedStep> {
        let mut step = PlannedStep::uninitialized(built, seed, options)?;
        step.initialize(model, seed)?;
        Ok(step)
    }

    /// As [`PlannedStep::new`], with parameters at zero until [`PlannedStep::initialize`].
    ///
    /// # Errors
    /// What lowering and the runner say.
    pub fn uninitialized(built: &Built, seed: u64, options: RunnerOptions) -> Result<PlannedStep> {
        let kernel_options = options.cpu.kernel_options;
        let train_loop = execution::train_loop(built, seed, options)?;
        Ok(PlannedStep { train_loop, kernel_options })
    }

    /// Gives every parameter and state of the model its initial value for this seed.
    ///
    /// # Errors
    /// E414 where the step has no parameter of the name, E415 where it has another type, E350 where its values are in a file
    /// that has changed.
    pub fn initialize(&mut self, model: &Model, seed: u64) -> Result<()> {
        let initializer = Initializer::new(self.kernel_options, seed);
        model.kept().try_for_each(|(name, spec)| self.start_parameter(name, spec, &initializer))
    }

    /// Draws a parameter where its shards live.
    fn start_parameter(&mut self, name: &str, spec: &ParamSpec, initializer: &Initializer) -> Result<()> {
        let ParamSpec { ty, .. } = spec;
        self.train_loop.fill_state_tensor(name, ty.dtype, &ty.shape, |offset, extent, targets| {
            initializer.fill(spec, offset, extent, targets)
        })
    }

    /// One step on a global batch by input name; scalars of the step (`learning_rate`, `step`, `seed`) are fed by it.
    ///
    /// # Errors
    /// What [`TrainLoop::step`] says.
    pub fn step(&mut self, batch: &Fed, learning_rate: f64) -> Result<StepReport> {
        execution::with_batch(batch, |batch| self.train_loop.step(batch, learning_rate))
    }

    /// The global value of an output of the last step, such as `grad.<parameter>`.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn output(&self, name: &str) -> Result<Literal> {
        Ok(execution::literal(&self.train_loop.output(name)?))
    }

    /// The global value of a parameter or state, joined if it is stored in pieces.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn parameter(&self, name: &str) -> Result<Literal> {
        Ok(execution::literal(&self.train_loop.state_tensor(name)?))
    }

    /// The global names of the parameters, and of states that are none of the optimizer's.
    pub fn parameters(&self) -> Vec<String> {
        let is_state = |name: &str| partita_ir::port::state_of(name).is_some();
        let names = self.train_loop.state().names();
        names.filter(|name| !is_state(name)).map(str::to_string).collect()
    }

    /// Takes the tensors of a checkpoint that this step has, and ignores the others: a forward pass has no optimizer.
    ///
    /// # Errors
    /// E314 with a table if one is missing or has another shape or type.
    pub fn restore_parameters(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let wanted = self.train_loop.checkpoint_tensors();
        let found = wanted.iter().filter_map(|(name, ..)| checkpoint.tensors.get_key_value(name));
        let tensors = found.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        self.train_loop.restore(&Checkpoint { tensors, ..Checkpoint::default() })
    }

    /// Sets a parameter or state by its global name, in pieces where it is stored so.
    ///
    /// # Errors
    /// What [`TrainLoop::set_state_tensor`] says.
    pub fn set_parameter(&mut self, name: &str, value: &Literal) -> Result<()> {
        self.train_loop.set_state_tensor(name, &execution::tensor_data(value))
    }
}
