//! The loss of a model on held-out data, without dropout, on its mesh and under its plan.

use crate::execution;
use crate::feeds::Feed;
use crate::planned_step::PlannedStep;
use crate::session::Session;
use partita_base::Result;
use partita_nn::Model;
use partita_runtime::checkpoint::Checkpoint;
use partita_schedule::{Built, Plan, StepKind};

/// A forward pass with a loss, in memory.
pub struct Validator {
    step: PlannedStep,
}

impl Validator {
    /// Of a model under a plan; parameters are zeros.
    ///
    /// # Errors
    /// What building and lowering refuse.
    pub fn new(session: &Session, model: &Model, plan: &Plan) -> Result<Validator> {
        Validator::from_built(session, &session.build_part(model, plan, StepKind::Loss)?)
    }

    /// Of a step that was built before, [`StepKind::Loss`]; parameters are zeros.
    ///
    /// # Errors
    /// What lowering refuses.
    pub fn from_built(session: &Session, built: &Built) -> Result<Validator> {
        Ok(Validator { step: session.prepare(built)? })
    }

    /// That [`Validator::copy_from`] can take the parameters of this step: to be asked before its first step.
    ///
    /// # Errors
    /// E432 for a step without one of the parameters.
    pub fn takes_from(&self, step: &PlannedStep) -> Result<()> {
        step.train_loop.state().gives(self.step.train_loop.state())
    }

    /// Takes the parameters of a step of the same model, in whichever parts the two keep them.
    ///
    /// # Errors
    /// E414 and E415 for a step of another model.
    pub fn copy_from(&mut self, step: &PlannedStep) -> Result<()> {
        let names: Vec<String> = self.step.train_loop.state().names().map(str::to_string).collect();
        for name in names {
            self.step.train_loop.set_state_tensor(&name, &step.train_loop.state_tensor(&name)?)?;
        }
        Ok(())
    }

    /// Takes the parameters of a checkpoint, made on any mesh.
    ///
    /// # Errors
    /// E314 for a checkpoint of another model.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.step.restore_parameters(checkpoint)
    }

    /// The mean loss over the first `batches` validation batches, or as many as there are; `None` if no data is held out,
    /// or if `stop`, which is called before each batch, returns true.
    ///
    /// # Errors
    /// What the feed and the step refuse.
    pub fn loss(
        &mut self,
        feed: &dyn Feed,
        batches: u64,
        stop: &dyn Fn() -> Result<bool>,
    ) -> Result<Option<f64>> {
        let batches = batches.min(feed.validation_batches());
        let mut sum = 0.0;
        for index in 0..batches {
            if stop()? {
                return Ok(None);
            }
            let batch = feed.validation(index)?;
            sum += execution::with_batch(&batch, |batch| self.step.train_loop.step(batch, 0.0))?.loss;
        }
        Ok((batches > 0).then(|| sum / batches as f64))
    }
}
