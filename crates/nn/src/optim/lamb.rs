//! LAMB (You et al. 2020, <https://arxiv.org/abs/1904.00962>, algorithm 2).

use super::{Shared, Subject, adam_direction, ratio_or_one, spread_over, step_by, sum_of_squares};
use partita_base::Result;
use partita_ir::ops::UnaryKind;
use partita_ir::{GraphBuilder, ValueId};

/// The direction is Adam's plus the weight decay; its length becomes that of the parameter. Parameters without weight
/// decay (norms and biases) take Adam's own step, as in the published trainings.
pub(super) fn update(
    b: &mut GraphBuilder,
    shared: &Shared,
    subject: &Subject,
    betas: [f64; 2],
    epsilon: f64,
    weight_decay: f64,
) -> Result<(ValueId, Vec<ValueId>)> {
    let moments = [subject.states[0], subject.states[1]];
    let (direction, moments) = adam_direction(b, shared, subject.g, moments, betas, epsilon)?;
    if !subject.decay {
        return Ok((step_by(b, subject.p, direction, shared.step_size)?, moments.to_vec()));
    }
    // The step size contains the first bias correction, which the norm of the direction must contain too.
    let correction = b.divide(shared.step_size, shared.rate)?;
    let correction = spread_over(b, correction, direction)?;
    let mut direction = b.multiply(direction, correction)?;
    if weight_decay != 0.0 {
        let pull = b.scale(subject.p, weight_decay)?;
        direction = b.add(direction, pull)?;
    }
    let lengths = [subject.p, direction].map(|x| -> Result<ValueId> {
        let sum = sum_of_squares(b, x)?;
        b.unary(UnaryKind::Sqrt, sum)
    });
    let [of_parameter, of_direction] = lengths;
    let trust = ratio_or_one(b, of_parameter?, of_direction?)?;
    let dtype = b.ty(trust).dtype;
    let rate = b.convert(shared.rate, dtype)?;
    let size = b.multiply(rate, trust)?;
    Ok((step_by(b, subject.p, direction, size)?, moments.to_vec()))
}
