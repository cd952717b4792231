//! Dynamic loss scaling: gradients in f16 are computed of the loss times a scale, so that small ones do not vanish.
//!
//! The scale grows while gradients stay finite and shrinks where they do not; such a step changes neither parameters nor
//! optimizer states. Whether gradients are finite is read off the sum of their squares, which the gradient norm adds up over
//! all ranks anyway: all ranks see one number, so all skip a step or none does.
//!
//! Source: P. Micikevicius et al., "Mixed Precision Training", 2018, section 3.2; defaults are those of
//! `torch.amp.GradScaler`.

use crate::optim::spread_over;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::{BinaryKind, Direction};
use partita_ir::port::{GOOD_STEPS, LOSS_SCALE, SKIPPED_STEPS};
use partita_ir::{GraphBuilder, Phase, Role, TensorType, ValueId};

/// How the scale of the loss moves. Factors that are powers of two change no bit of a gradient that is finite.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossScaling {
    /// The scale of the first step.
    pub initial: f64,
    /// The factor after [`LossScaling::interval`] finite steps in a row.
    pub growth: f64,
    /// The factor after a step that is not finite.
    pub backoff: f64,
    /// The number of finite steps in a row after which the scale grows.
    pub interval: u32,
}

impl Default for LossScaling {
    fn default() -> LossScaling {
        LossScaling { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

impl LossScaling {
    /// E057 if a number is out of range.
    pub fn validate(&self) -> Result<()> {
        let refused = |name: &str, expected: &str, found: String| {
            Err(Diagnostic::new("E057", format!("loss scaling `{name}` out of range"))
                .expected(expected)
                .found(found))
        };
        let LossScaling { initial, growth, backoff, interval } = *self;
        if !(initial.is_finite() && initial > 0.0) {
            return refused("initial", "a finite number above 0", initial.to_string());
        }
        if !(growth.is_finite() && growth >= 1.0) {
            return refused("growth", "a finite number of at least 1", growth.to_string());
        }
        if !(backoff > 0.0 && backoff < 1.0) {
            return refused("backoff", "above 0 and less than 1", backoff.to_string());
        }
        if interval == 0 {
            return refused("interval", "at least 1 step", interval.to_string());
        }
        Ok(())
    }

    /// The scale of this step, a scalar in f32. The input [`LOSS_SCALE`] is 0 before the first step, as all states are.
    pub(crate) fn current(&self, b: &mut GraphBuilder) -> Result<ValueId> {
        let state = match b.graph().input_named(LOSS_SCALE) {
            Some(state) => state,
            None => b.input(LOSS_SCALE, TensorType::scalar(DType::F32), Role::Input),
        };
        let zero = b.scalar(DType::F32, 0.0);
        let initial = b.scalar(DType::F32, self.initial);
        let is_new = b.compare(Direction::Eq, state, zero)?;
        b.select(is_new, initial, state)
    }
}

/// The states of loss scaling in an update under construction.
pub(crate) struct Scaler {
    scaling: LossScaling,
    scale: ValueId,
    good_steps: ValueId,
    skipped: ValueId,
}

impl Scaler {
    pub fn new(b: &mut GraphBuilder, scaling: LossScaling) -> Result<Scaler> {
        let count = TensorType::scalar(DType::I64);
        let outer = std::mem::replace(&mut b.phase, Phase::InputGrad);
        let scale = scaling.current(b)?;
        b.phase = outer;
        Ok(Scaler {
            scaling,
            scale,
            good_steps: b.input(GOOD_STEPS, count.clone(), Role::Input),
            skipped: b.input(SKIPPED_STEPS, count, Role::Input),
        })
    }

    /// The gradients of the loss itself, as a part of the backward pass: ranks add what is divided already.
    pub fn unscaled(
        &self,
        b: &mut GraphBuilder,
        params: &[ValueId],
        gradients: &[ValueId],
    ) -> Result<Vec<ValueId>> {
        let outer = (b.path.clone(), b.phase);
        b.phase = Phase::InputGrad;
        let one = b.scalar(DType::F32, 1.0);
        let inverse = b.divide(one, self.scale)?;
        let mut unscaled = Vec::with_capacity(gradients.len());
        for (&parameter, &gradient) in params.iter().zip(gradients) {
            if let Some((maker, _)) = b.graph().value(gradient).definition {
                let maker = b.graph().node(maker).clone();
                b.enter(&maker);
            }
            let inverse = spread_over(b, inverse, gradient)?;
            let own = b.multiply(gradient, inverse)?;
            b.graph_mut().value_mut(own).role = Role::GradOf(parameter);
            unscaled.push(own);
        }
        (b.path, b.phase) = outer;
        (b.location, b.microbatch, b.remat, b.stage) = (None, None, None, 0);
        Ok(unscaled)
    }

    /// The number of steps that were taken, this one included: skipped ones do not count for an optimizer.
    pub fn taken(&self, b: &mut GraphBuilder, step: ValueId) -> Result<ValueId> {
        b.subtract(step, self.skipped)
    }

    /// Whether a step is taken, an i1 scalar: whether the norm of its gradients is finite.
    pub fn is_good(&self, b: &mut GraphBuilder, norm: ValueId) -> Result<ValueId> {
        let infinity = b.full_like(norm, f64::INFINITY)?;
        // NaN compares false.
        b.compare(Direction::Lt, norm, infinity)
    }

    /// The new value of each state: name, old input and new value.
    pub fn next(&self, b: &mut GraphBuilder, good: ValueId) -> Result<Vec<(&'static str, ValueId)>> {
        let LossScaling { growth, backoff, interval, .. } = self.scaling;
        let one = b.scalar(DType::I64, 1.0);
        let zero = b.scalar(DType::I64, 0.0);
        let interval = b.scalar(DType::I64, f64::from(interval));
        let in_a_row = b.add(self.good_steps, one)?;
        let is_full = b.compare(Direction::Ge, in_a_row, interval)?;
        let grown = b.scale(self.scale, growth)?;
        let grown = b.select(is_full, grown, self.scale)?;
        let shrunk = b.scale(self.scale, backoff)?;
        let scale = b.select(good, grown, shrunk)?;
        let in_a_row = b.select(is_full, zero, in_a_row)?;
        let good_steps = b.select(good, in_a_row, zero)?;
        let skipped_once = b.binary(BinaryKind::Add, self.skipped, one)?;
        let skipped = b.select(good, self.skipped, skipped_once)?;
        Ok(vec![(LOSS_SCALE, scale), (GOOD_STEPS, good_steps), (SKIPPED_STEPS, skipped)])
    }
}

/// `new` if `good`, else `old`.
pub(crate) fn taken_or_kept(
    b: &mut GraphBuilder,
    good: ValueId,
    new: ValueId,
    old: ValueId,
) -> Result<ValueId> {
    let shape = b.shape(new);
    let good = b.broadcast_scalar(good, &shape)?;
    b.select(good, new, old)
}
