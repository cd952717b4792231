//! What a step reports.

use partita_base::Result;
use partita_ir::port::{LOSS_SCALE, SKIPPED_STEPS};

use super::TrainLoop;

/// The results of one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// The loss.
    pub loss: f64,
    /// The norm of the gradients, if it is an output.
    pub grad_norm: Option<f64>,
    /// The scaling of the loss, if it is scaled.
    pub scaling: Option<Scaling>,
    /// Elements of the batch's integer tensor `tokens` (or else rows of its first tensor) per second of this
    /// step.
    pub tokens_per_s: f64,
    /// Planned bytes of the largest arena of all ranks.
    pub peak_bytes_planned: usize,
    /// Bytes used so far of the most used arena of this process.
    pub peak_bytes_used: usize,
}

/// The state of loss scaling after a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scaling {
    /// The factor of the loss in the next step.
    pub scale: f64,
    /// Steps so far that changed no parameter because gradients were not finite.
    pub skipped: u64,
}

impl TrainLoop {
    /// The state of loss scaling; `None` if the step does not scale its loss.
    pub(super) fn scaling(&self) -> Result<Option<Scaling>> {
        if !self.inputs.iter().any(|layout| layout.name == LOSS_SCALE) {
            return Ok(None);
        }
        let (scale, skipped) = (self.tensor(LOSS_SCALE)?, self.tensor(SKIPPED_STEPS)?);
        let read = |bytes: &[u8]| bytes.try_into().map(f32::from_le_bytes).unwrap_or(f32::NAN);
        let count = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
        Ok(Some(Scaling { scale: f64::from(read(&scale.bytes)), skipped: count(&skipped.bytes) }))
    }
}
