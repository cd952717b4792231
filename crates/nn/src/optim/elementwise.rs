//! Rules that move each element by itself: SGD, Adam, AdamW, Lion.

use super::{Optimizer, Shared, Subject, adam_direction, blend, spread_over, step_by};
use partita_base::Result;
use partita_ir::ops::UnaryKind;
use partita_ir::{GraphBuilder, ValueId};

impl Optimizer {
    /// The formula for one element, in f64: parameter and states (in the order of
    /// [`Optimizer::slots`], the rest unused) after a step (the first is 1) with this gradient. The
    /// caller applies what precedes the update in [`StepOptions`](crate::StepOptions), such as
    /// clipping; `decay` tells whether weight decay applies. `None` if the rule is not
    /// [elementwise](Optimizer::is_elementwise).
    pub fn element(
        &self,
        before: [f64; 3],
        gradient: f64,
        rate: f64,
        step: i32,
        decay: bool,
    ) -> Option<[f64; 3]> {
        let [p, first, second] = before;
        let decayed = |weight_decay: f64| if decay { weight_decay } else { 0.0 };
        Some(match *self {
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
            Optimizer::Adafactor { .. }
            | Optimizer::Lamb { .. }
            | Optimizer::Muon { .. }
            | Optimizer::Adam8bit { .. } => return None,
        })
    }
}

/// The update as a graph.
pub(super) fn update(
    rule: &Optimizer,
    b: &mut GraphBuilder,
    shared: &Shared,
    subject: &Subject,
) -> Result<(ValueId, Vec<ValueId>)> {
    let (p, mut g, states) = (subject.p, subject.g, subject.states);
    if shared.abridged {
        return abridged(b, shared, subject);
    }
    if let (Optimizer::Sgd { weight_decay, .. } | Optimizer::Adam { weight_decay, .. }, true) =
        (rule, subject.decay)
        && *weight_decay != 0.0
    {
        let pull = b.scale(p, *weight_decay)?;
        g = b.add(g, pull)?;
    }
    let (direction, states) = match *rule {
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
        Optimizer::Lion { beta1, beta2, .. } => {
            let blended = blend(b, states[0], g, beta1)?;
            let sign = b.unary(UnaryKind::Sign, blended)?;
            (sign, vec![blend(b, states[0], g, beta2)?])
        }
        Optimizer::Adam { beta1, beta2, epsilon, .. }
        | Optimizer::AdamW { beta1, beta2, epsilon, .. }
        | Optimizer::Muon { beta1, beta2, epsilon, .. }
        | Optimizer::Adam8bit { beta1, beta2, epsilon, .. } => {
            let moments = [states[0], states[1]];
            let (direction, moments) = adam_direction(b, shared, g, moments, [beta1, beta2], epsilon)?;
            (direction, moments.to_vec())
        }
        Optimizer::Adafactor { .. } | Optimizer::Lamb { .. } => {
            unreachable!("these rules see whole tensors")
        }
    };
    let p = subject.decayed(b, shared)?;
    Ok((step_by(b, p, direction, shared.step_size)?, states))
}

/// An update that reads and writes the same tensors, scalars included.
fn abridged(b: &mut GraphBuilder, shared: &Shared, subject: &Subject) -> Result<(ValueId, Vec<ValueId>)> {
    let add = |b: &mut GraphBuilder, &state: &ValueId| b.add(state, subject.g);
    let states = subject.states.iter().map(|state| add(b, state)).collect::<Result<Vec<ValueId>>>()?;
    let mut p = subject.p;
    for &read in if states.is_empty() { std::slice::from_ref(&subject.g) } else { &states } {
        p = b.subtract(p, read)?;
    }
    let keep = shared.keep.filter(|_| subject.decay);
    for scalar in [Some(shared.step_size), shared.denominator, keep].into_iter().flatten() {
        let scalar = spread_over(b, scalar, p)?;
        p = b.multiply(p, scalar)?;
    }
    Ok((p, states))
}
