//! Training a built step on the CPU device in a few lines.

use crate::play;
use partita_base::Result;
use partita_ir::Literal;
use partita_ir::Pieces;
use partita_nn::{Initializer, Model, ParamSpec};
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
/// let mut trainer = Trainer::new(&sch.build()?, &model, 0, RunnerOptions::default())?;
/// let batch = random_feed(&model, 1, 0.0);
/// let first = trainer.step(&batch, 0.01)?.loss;
/// let second = trainer.step(&batch, 0.01)?.loss;
/// assert!(second < first);
/// # Ok::<(), Box<partita::prelude::Diagnostic>>(())
/// ```
pub struct Trainer {
    /// The loop over programs: their memory, checkpoints, single tensors as they are stored.
    pub player: TrainLoop,
    pieces: Vec<Pieces>,
    kernel_options: KernelOptions,
}

impl Trainer {
    /// Parameters start as the model says for this seed, optimizer states at zero. The options must be those of the
    /// device the step was built for.
    ///
    /// # Errors
    /// What lowering and the runner say.
    pub fn new(built: &Built, model: &Model, seed: u64, options: RunnerOptions) -> Result<Trainer> {
        let mut trainer = Trainer::uninitialized(built, seed, options)?;
        trainer.initialize(model, seed)?;
        Ok(trainer)
    }

    /// As [`Trainer::new`], with parameters at zero until [`Trainer::initialize`].
    ///
    /// # Errors
    /// What lowering and the runner say.
    pub fn uninitialized(built: &Built, seed: u64, options: RunnerOptions) -> Result<Trainer> {
        let kernel_options = options.cpu.kernel_options;
        let player = play::player(built, seed, options)?;
        Ok(Trainer { player, pieces: built.pieces.clone(), kernel_options })
    }

    /// Gives every parameter of the model its initial value for this seed.
    ///
    /// # Errors
    /// E414 where the step has no parameter of the name, E415 where it has another type.
    pub fn initialize(&mut self, model: &Model, seed: u64) -> Result<()> {
        let initializer = Initializer::new(self.kernel_options, seed);
        model.params.iter().try_for_each(|(name, spec)| self.start_parameter(name, spec, &initializer))
    }

    /// Draws a parameter where its shards live.
    fn start_parameter(&mut self, name: &str, spec: &ParamSpec, initializer: &Initializer) -> Result<()> {
        let ParamSpec { ty, .. } = spec;
        let Some(pieces) = self.pieces.iter().find(|pieces| pieces.name == name) else {
            return self.player.fill_tensor(name, ty.dtype, &ty.shape, |offset, extent, targets| {
                initializer.fill(spec, offset, extent, targets);
            });
        };
        for (piece, start, limit) in &pieces.limits {
            let mut shape = ty.shape.clone();
            shape[pieces.dim] = limit - start;
            self.player.fill_tensor(piece, ty.dtype, &shape, |offset, extent, targets| {
                let mut offset = offset.to_vec();
                offset[pieces.dim] += start;
                initializer.fill(spec, &offset, extent, targets);
            })?;
        }
        Ok(())
    }

    /// One step on a global batch by input name; scalars of the step (`learning_rate`, `step`, `seed`) are fed by it.
    ///
    /// # Errors
    /// What [`TrainLoop::step`] says.
    pub fn step(&mut self, batch: &Fed, learning_rate: f64) -> Result<StepReport> {
        play::with_batch(batch, |batch| self.player.step(batch, learning_rate))
    }

    /// Sets a parameter by its global name, in pieces where it is stored so.
    ///
    /// # Errors
    /// What [`TrainLoop::set_tensor`] says.
    pub fn set_parameter(&mut self, name: &str, value: &Literal) -> Result<()> {
        match self.pieces.iter().find(|p| p.name == name) {
            None => self.player.set_tensor(name, &play::tensor_data(value)),
            Some(piece) => {
                for (part, literal) in piece.split(value) {
                    self.player.set_tensor(&part, &play::tensor_data(&literal))?;
                }
                Ok(())
            }
        }
    }
}
