//! Optimizers as graphs, in PyTorch's formulas.

use crate::accumulation_dtype;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::{BinaryKind, UnaryKind};
use partita_ir::{GraphBuilder, ValueId};

/// The update rule of a parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Optimizer {
    /// `torch.optim.SGD`.
    Sgd {
        /// The decay of the previous direction; 0 needs no state.
        momentum: f64,
        /// Added to the gradient, times the parameter.
        weight_decay: f64,
        /// Whether to use Nesterov momentum.
        nesterov: bool,
    },
    /// `torch.optim.Adam`: weight decay is added to the gradient.
    Adam {
        /// Decay of the mean of gradients.
        beta1: f64,
        /// Decay of the mean of squared gradients.
        beta2: f64,
        /// Added to the denominator.
        epsilon: f64,
        /// Added to the gradient, times the parameter.
        weight_decay: f64,
    },
    /// `torch.optim.AdamW`: weight decay shrinks the parameter.
    AdamW {
        /// Decay of the mean of gradients.
        beta1: f64,
        /// Decay of the mean of squared gradients.
        beta2: f64,
        /// Added to the denominator.
        epsilon: f64,
        /// Weight decay, relative to the parameter and per unit of learning rate.
        weight_decay: f64,
    },
    /// Lion (Chen et al. 2023): the sign of an interpolated momentum.
    Lion {
        /// Share of the momentum in the direction.
        beta1: f64,
        /// Decay of the momentum.
        beta2: f64,
        /// Weight decay, relative to the parameter and per unit of learning rate.
        weight_decay: f64,
    },
}

/// Scalars that all parameters share within a step, in f64 so that `1 - beta^step` keeps its
/// precision.
pub(crate) struct Shared {
    /// The learning rate; for Adam and AdamW divided by the first bias correction.
    step_size: ValueId,
    /// The square root of the second bias correction.
    denominator: Option<ValueId>,
    /// `1 - rate * weight_decay`, for decoupled weight decay.
    keep: Option<ValueId>,
}

impl Optimizer {
    /// Plain gradient descent.
    pub fn sgd() -> Optimizer {
        Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false }
    }

    /// Adam with PyTorch's defaults.
    pub fn adam() -> Optimizer {
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }

    /// AdamW with PyTorch's defaults.
    pub fn adamw() -> Optimizer {
        Optimizer::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }

    /// Lion with its paper's defaults.
    pub fn lion() -> Optimizer {
        Optimizer::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }

    /// The default of the optimizer spelled `sgd`, `adam`, `adamw` or `lion`.
    pub fn from_name(name: &str) -> Option<Optimizer> {
        match name {
            "sgd" => Some(Optimizer::sgd()),
            "adam" => Some(Optimizer::adam()),
            "adamw" => Some(Optimizer::adamw()),
            "lion" => Some(Optimizer::lion()),
            _ => None,
        }
    }

    /// `sgd`, `adam`, `adamw` or `lion`.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Adam { .. } => "adam",
            Optimizer::AdamW { .. } => "adamw",
            Optimizer::Lion { .. } => "lion",
        }
    }

    /// The states each parameter has, by PyTorch's names; all start at 0.
    pub fn slots(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Optimizer::Sgd { .. } => &["momentum_buffer"],
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } => &["exp_avg", "exp_avg_sq"],
            Optimizer::Lion { .. } => &["exp_avg"],
        }
    }

    /// E057 if a number is out of range.
    pub fn validate(&self) -> Result<()> {
        let share = |name: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(Diagnostic::new("E057", format!("{} `{name}` out of range", self.name()))
                .expected("at least 0 and less than 1")
                .found(value.to_string())),
        };
        let amount = |name: &str, value: f64| match value.is_finite() && value >= 0.0 {
            true => Ok(()),
            false => Err(Diagnostic::new("E057", format!("{} `{name}` out of range", self.name()))
                .expected("a finite number, at least 0")
                .found(value.to_string())),
        };
        match *self {
            Optimizer::Sgd { momentum, weight_decay, nesterov } => {
                amount("momentum", momentum)?;
                amount("weight_decay", weight_decay)?;
                if nesterov && momentum == 0.0 {
                    return Err(Diagnostic::new("E057", "`nesterov` needs a momentum")
                        .expected("a momentum above 0")
                        .found("0"));
                }
                Ok(())
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay }
            | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                amount("epsilon", epsilon)?;
                amount("weight_decay", weight_decay)
            }
            Optimizer::Lion { beta1, beta2, weight_decay } => {
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                amount("weight_decay", weight_decay)
            }
        }
    }

    /// The formula for one element, in f64: parameter and states (in the order of
    /// [`Optimizer::slots`], the rest unused) after a step (the first is 1) with this gradient. The
    /// caller applies what precedes the update in [`StepOptions`](crate::StepOptions), such as
    /// clipping; `decay` tells whether weight decay applies.
    pub fn element(&self, before: [f64; 3], gradient: f64, rate: f64, step: i32, decay: bool) -> [f64; 3] {
        let [p, first, second] = before;
        let decayed = |weight_decay: f64| if decay { weight_decay } else { 0.0 };
        match *self {
            Optimizer::Sgd { momentum, weight_decay, nesterov } => {
                let g = gradient + decayed(weight_decay) * p;
                let buffer = momentum * first + g;
                let direction = if nesterov { g + momentum * buffer } else { buffer };
                [p - rate * direction, buffer, second]
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay }
            | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
                let joins = matches!(self, Optimizer::Adam { .. });
                let (pull, keep) = match joins {
                    true => (decayed(weight_decay) * p, 1.0),
                    false => (0.0, 1.0 - rate * decayed(weight_decay)),
                };
                let g = gradient + pull;
                let mean = beta1 * first + (1.0 - beta1) * g;
                let square = beta2 * second + (1.0 - beta2) * g * g;
                let root = (square / (1.0 - beta2.powi(step))).sqrt();
                [p * keep - rate * mean / (1.0 - beta1.powi(step)) / (root + epsilon), mean, square]
            }
            Optimizer::Lion { beta1, beta2, weight_decay } => {
                let blended = beta1 * first + (1.0 - beta1) * gradient;
                let sign = if blended == 0.0 { 0.0 } else { blended.signum() };
                let keep = 1.0 - rate * decayed(weight_decay);
                [p * keep - rate * sign, beta2 * first + (1.0 - beta2) * gradient, second]
            }
        }
    }

    /// The scalars of a step from its `learning_rate` (a float) and `step` (i64, from 1).
    pub(crate) fn shared(&self, b: &mut GraphBuilder, rate: ValueId, step: ValueId) -> Result<Shared> {
        let rate = b.convert(rate, DType::F64)?;
        let shrink = |b: &mut GraphBuilder, weight_decay: f64| -> Result<Option<ValueId>> {
            if weight_decay == 0.0 {
                return Ok(None);
            }
            let taken = b.scale(rate, -weight_decay)?;
            Ok(Some(b.offset(taken, 1.0)?))
        };
        match *self {
            Optimizer::Sgd { .. } => Ok(Shared { step_size: rate, denominator: None, keep: None }),
            Optimizer::Adam { beta1, beta2, .. } | Optimizer::AdamW { beta1, beta2, .. } => {
                let step = b.convert(step, DType::F64)?;
                let correction = |b: &mut GraphBuilder, beta: f64| -> Result<ValueId> {
                    let beta = b.scalar(DType::F64, beta);
                    let power = b.binary(BinaryKind::Power, beta, step)?;
                    let power = b.negate(power)?;
                    b.offset(power, 1.0)
                };
                let first = correction(b, beta1)?;
                let second = correction(b, beta2)?;
                let keep = match *self {
                    Optimizer::AdamW { weight_decay, .. } => shrink(b, weight_decay)?,
                    _ => None,
                };
                Ok(Shared {
                    step_size: b.divide(rate, first)?,
                    denominator: Some(b.unary(UnaryKind::Sqrt, second)?),
                    keep,
                })
            }
            Optimizer::Lion { weight_decay, .. } => {
                Ok(Shared { step_size: rate, denominator: None, keep: shrink(b, weight_decay)? })
            }
        }
    }

    /// The new parameter and states from the old ones and the gradient, all of one shape; states,
    /// and the arithmetic, are in the accumulation type. `decay` tells whether weight decay
    /// applies.
    pub(crate) fn update(
        &self,
        b: &mut GraphBuilder,
        shared: &Shared,
        parameter: ValueId,
        gradient: ValueId,
        states: &[ValueId],
        decay: bool,
    ) -> Result<(ValueId, Vec<ValueId>)> {
        let own = b.ty(parameter).dtype;
        let wide = accumulation_dtype(own);
        let p = b.convert(parameter, wide)?;
        let mut g = b.convert(gradient, wide)?;
        let shape = b.shape(p);
        let spread = |b: &mut GraphBuilder, scalar: ValueId| -> Result<ValueId> {
            let scalar = b.convert(scalar, wide)?;
            b.broadcast_scalar(scalar, &shape)
        };
        if let (Optimizer::Sgd { weight_decay, .. } | Optimizer::Adam { weight_decay, .. }, true) =
            (self, decay)
            && *weight_decay != 0.0
        {
            let pull = b.scale(p, *weight_decay)?;
            g = b.add(g, pull)?;
        }
        let (direction, states) = match *self {
            Optimizer::Sgd { momentum, nesterov, .. } => match states {
                [] => (g, vec![]),
                states => {
                    let kept = b.scale(states[0], momentum)?;
                    let buffer = b.add(kept, g)?;
                    let direction = if nesterov {
                        let ahead = b.scale(buffer, momentum)?;
                        b.add(g, ahead)?
                    } else {
                        buffer
                    };
                    (direction, vec![buffer])
                }
            },
            Optimizer::Adam { beta1, beta2, epsilon, .. }
            | Optimizer::AdamW { beta1, beta2, epsilon, .. } => {
                let mean = blend(b, states[0], g, beta1)?;
                let squared = b.multiply(g, g)?;
                let square = blend(b, states[1], squared, beta2)?;
                let root = b.unary(UnaryKind::Sqrt, square)?;
                let correction = shared.denominator.expect("the Adams have a second correction");
                let correction = spread(b, correction)?;
                let root = b.divide(root, correction)?;
                let denominator = b.offset(root, epsilon)?;
                (b.divide(mean, denominator)?, vec![mean, square])
            }
            Optimizer::Lion { beta1, beta2, .. } => {
                let blended = blend(b, states[0], g, beta1)?;
                let sign = b.unary(UnaryKind::Sign, blended)?;
                (sign, vec![blend(b, states[0], g, beta2)?])
            }
        };
        let p = match (shared.keep, decay) {
            (Some(keep), true) => {
                let keep = spread(b, keep)?;
                b.multiply(p, keep)?
            }
            _ => p,
        };
        let step_size = spread(b, shared.step_size)?;
        let change = b.multiply(direction, step_size)?;
        let p = b.subtract(p, change)?;
        Ok((b.convert(p, own)?, states))
    }
}

/// `beta * old + (1 - beta) * new`.
fn blend(b: &mut GraphBuilder, old: ValueId, new: ValueId, beta: f64) -> Result<ValueId> {
    let old = b.scale(old, beta)?;
    let new = b.scale(new, 1.0 - beta)?;
    b.add(old, new)
}
