//! Optimizers as graphs, in PyTorch's formulas.
//!
//! Most rules move each element by itself (module `elementwise`); others see the whole tensor: its norm (LAMB), the means of
//! its rows and columns (Adafactor), its singular vectors (Muon), or blocks of it (8-bit states). All are ordinary ops,
//! so a sharded parameter is updated by the same formula on any mesh: reductions over a sharded dimension become
//! collectives like any other.

mod adafactor;
mod adam8bit;
mod elementwise;
mod lamb;
mod muon;
pub(crate) mod rounding;

use crate::accumulation_dtype;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};
use partita_ir::{GraphBuilder, Literal, Role, TensorType, ValueId, evaluate};

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
    /// `torch.optim.Adafactor` (Shazeer and Stern 2018): the second moments of a matrix are the product of a row and a
    /// column.
    Adafactor {
        /// The exponent of the step in the share of the new squared gradient.
        beta2_decay: f64,
        /// The least root mean square of gradients; `None` is the distance from 1 to the next number of the type.
        epsilon1: Option<f64>,
        /// The least root mean square of the parameter.
        epsilon2: f64,
        /// The root mean square beyond which an update is scaled down.
        clip: f64,
        /// Weight decay, relative to the parameter and per unit of learning rate.
        weight_decay: f64,
    },
    /// LAMB (You et al. 2020): Adam's direction, scaled to the norm of the parameter. Parameters without weight decay
    /// are not scaled.
    Lamb {
        /// Decay of the mean of gradients.
        beta1: f64,
        /// Decay of the mean of squared gradients.
        beta2: f64,
        /// Added to the denominator.
        epsilon: f64,
        /// Added to the direction, times the parameter.
        weight_decay: f64,
    },
    /// `torch.optim.Muon` (Jordan et al. 2024): the nearest orthogonal matrix to the momentum, by a Newton-Schulz
    /// iteration. Embeddings, the head, and parameters that are no matrices are moved by AdamW.
    Muon {
        /// Decay of the momentum.
        momentum: f64,
        /// Whether to use Nesterov momentum.
        nesterov: bool,
        /// Whether an update has the root mean square of AdamW's, 0.2 sqrt(max(rows, columns)) per entry of the
        /// orthogonal matrix; else the rate is scaled by sqrt(max(1, rows / columns)).
        match_rms: bool,
        /// Weight decay, relative to the parameter and per unit of learning rate.
        weight_decay: f64,
        /// AdamW's decay of the mean of gradients.
        beta1: f64,
        /// AdamW's decay of the mean of squared gradients.
        beta2: f64,
        /// Added to AdamW's denominator.
        epsilon: f64,
    },
    /// AdamW whose states have 8 bits (Dettmers et al. 2022): codes with a scale for each block of a row. Parameters of
    /// fewer than two dimensions keep full states.
    Adam8bit {
        /// Decay of the mean of gradients.
        beta1: f64,
        /// Decay of the mean of squared gradients.
        beta2: f64,
        /// Added to the denominator.
        epsilon: f64,
        /// Weight decay, relative to the parameter and per unit of learning rate.
        weight_decay: f64,
    },
}

/// Scalars that the parameters of a group share within a step, in f64 so that `1 - beta^step` keeps its
/// precision.
pub(crate) struct Shared {
    /// The learning rate; for the Adams divided by the first bias correction.
    step_size: ValueId,
    /// The learning rate.
    rate: ValueId,
    /// The square root of the second bias correction.
    denominator: Option<ValueId>,
    /// `1 - rate * weight_decay`, for decoupled weight decay.
    keep: Option<ValueId>,
    /// Adafactor's share of the new squared gradient, and its relative step.
    relative: Option<[ValueId; 2]>,
    /// The seed of stochastic rounding, where parameters in bf16 are rounded so.
    pub rounding: Option<ValueId>,
    /// See [`StepOptions::abridged`](crate::StepOptions).
    pub abridged: bool,
}

/// A parameter at its update: tensors in the type of the arithmetic.
struct Subject<'a> {
    /// The parameter.
    p: ValueId,
    /// Its gradient.
    g: ValueId,
    /// Its states.
    states: &'a [ValueId],
    /// Whether weight decay applies.
    decay: bool,
}

impl Optimizer {
    /// The names of all optimizers.
    pub const NAMES: [&'static str; 8] =
        ["sgd", "adam", "adamw", "lion", "adafactor", "lamb", "muon", "adam8bit"];

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

    /// Adafactor with PyTorch's defaults.
    pub fn adafactor() -> Optimizer {
        Optimizer::Adafactor {
            beta2_decay: -0.8,
            epsilon1: None,
            epsilon2: 1e-3,
            clip: 1.0,
            weight_decay: 0.0,
        }
    }

    /// LAMB with its paper's defaults.
    pub fn lamb() -> Optimizer {
        Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 }
    }

    /// Muon with PyTorch's defaults, scaled to fit AdamW's learning rates.
    pub fn muon() -> Optimizer {
        Optimizer::Muon {
            momentum: 0.95,
            nesterov: true,
            match_rms: true,
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
        }
    }

    /// AdamW with 8-bit states, with AdamW's defaults.
    pub fn adam8bit() -> Optimizer {
        Optimizer::Adam8bit { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }

    /// The default of the optimizer with one of the [`Optimizer::NAMES`].
    pub fn from_name(name: &str) -> Option<Optimizer> {
        match name {
            "sgd" => Some(Optimizer::sgd()),
            "adam" => Some(Optimizer::adam()),
            "adamw" => Some(Optimizer::adamw()),
            "lion" => Some(Optimizer::lion()),
            "adafactor" => Some(Optimizer::adafactor()),
            "lamb" => Some(Optimizer::lamb()),
            "muon" => Some(Optimizer::muon()),
            "adam8bit" => Some(Optimizer::adam8bit()),
            _ => None,
        }
    }

    /// One of the [`Optimizer::NAMES`].
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Adam { .. } => "adam",
            Optimizer::AdamW { .. } => "adamw",
            Optimizer::Lion { .. } => "lion",
            Optimizer::Adafactor { .. } => "adafactor",
            Optimizer::Lamb { .. } => "lamb",
            Optimizer::Muon { .. } => "muon",
            Optimizer::Adam8bit { .. } => "adam8bit",
        }
    }

    /// The states that parameters have, by PyTorch's names; all start at 0. Where the rule is
    /// [elementwise](Optimizer::is_elementwise), each parameter has all of them.
    pub fn slots(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Optimizer::Sgd { .. } => &["momentum_buffer"],
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Lamb { .. } => {
                &["exp_avg", "exp_avg_sq"]
            }
            Optimizer::Lion { .. } => &["exp_avg"],
            Optimizer::Adafactor { .. } => &["row_var", "col_var", "variance"],
            Optimizer::Muon { .. } => &["momentum_buffer", "exp_avg", "exp_avg_sq"],
            Optimizer::Adam8bit { .. } => &["exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale"],
        }
    }

    /// The states of the parameter with this name and type: some of the [`Optimizer::slots`], each with its type.
    pub fn states(&self, name: &str, parameter: &TensorType) -> Vec<(&'static str, TensorType)> {
        let same = parameter.with_dtype(accumulation_dtype(parameter.dtype));
        match self {
            Optimizer::Adafactor { .. } => adafactor::states(&same),
            Optimizer::Muon { .. } if muon::is_hidden_matrix(name, parameter) => {
                vec![("momentum_buffer", same)]
            }
            Optimizer::Muon { .. } => vec![("exp_avg", same.clone()), ("exp_avg_sq", same)],
            Optimizer::Adam8bit { .. } => adam8bit::states(&same),
            Optimizer::Sgd { .. }
            | Optimizer::Adam { .. }
            | Optimizer::AdamW { .. }
            | Optimizer::Lion { .. }
            | Optimizer::Lamb { .. } => self.slots().iter().map(|&slot| (slot, same.clone())).collect(),
        }
    }

    /// Whether an element's update depends on no other element of its tensor; see [`Optimizer::element`].
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Optimizer::Sgd { .. } | Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Lion { .. }
        )
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
            | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay }
            | Optimizer::Lamb { beta1, beta2, epsilon, weight_decay }
            | Optimizer::Adam8bit { beta1, beta2, epsilon, weight_decay } => {
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
            Optimizer::Adafactor { beta2_decay, epsilon1, epsilon2, clip, weight_decay } => {
                if !(beta2_decay.is_finite() && beta2_decay <= 0.0) {
                    return Err(Diagnostic::new("E057", "adafactor `beta2_decay` out of range")
                        .expected("a finite number, at most 0")
                        .found(beta2_decay.to_string()));
                }
                amount("epsilon1", epsilon1.unwrap_or(0.0))?;
                amount("epsilon2", epsilon2)?;
                if !(clip.is_finite() && clip > 0.0) {
                    return Err(Diagnostic::new("E057", "adafactor `clip` out of range")
                        .expected("a finite number above 0")
                        .found(clip.to_string()));
                }
                amount("weight_decay", weight_decay)
            }
            Optimizer::Muon { momentum, weight_decay, beta1, beta2, epsilon, .. } => {
                share("momentum", momentum)?;
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                amount("epsilon", epsilon)?;
                amount("weight_decay", weight_decay)
            }
        }
    }

    /// The new parameter and states of one tensor after the first step with this gradient, computed on the reference
    /// interpreter. `before` are the parameter and its states, in the order of [`Optimizer::states`].
    ///
    /// # Errors
    /// E104 for tensors that are not of the types that the parameter requires.
    pub fn tensor(
        &self,
        name: &str,
        before: &[Literal],
        gradient: &Literal,
        rate: f64,
        decay: bool,
    ) -> Result<Vec<Literal>> {
        let mut b = GraphBuilder::new("update");
        let parameter = b.input(name, before[0].ty.clone(), Role::Param);
        let mut others = Vec::new();
        for (number, literal) in before[1..].iter().chain([gradient]).enumerate() {
            others.push(b.input(&format!("tensor{number}"), literal.ty.clone(), Role::Input));
        }
        let gradient_value = others.pop().expect("the gradient is the last input");
        let rate = b.scalar(DType::F64, rate);
        let step = b.constant(Literal::new([], vec![1i64]));
        let shared = self.shared(&mut b, rate, step)?;
        let (new, states) = self.update(&mut b, &shared, parameter, gradient_value, &others, decay)?;
        let outputs = [new].into_iter().chain(states).enumerate();
        let graph = b.finish_named(outputs.map(|(number, value)| (number.to_string(), value)).collect());
        let mut fed = before.to_vec();
        fed.push(gradient.clone());
        evaluate(&graph, &fed)
    }

    /// The scalars of a step from its `learning_rate` (a float) and `step` (i64, from 1).
    pub(crate) fn shared(&self, b: &mut GraphBuilder, rate: ValueId, step: ValueId) -> Result<Shared> {
        let rate = b.convert(rate, DType::F64)?;
        let mut shared = Shared {
            step_size: rate,
            rate,
            denominator: None,
            keep: None,
            relative: None,
            rounding: None,
            abridged: false,
        };
        match *self {
            Optimizer::Sgd { .. } => {}
            Optimizer::Adam { beta1, beta2, .. }
            | Optimizer::AdamW { beta1, beta2, .. }
            | Optimizer::Lamb { beta1, beta2, .. }
            | Optimizer::Muon { beta1, beta2, .. }
            | Optimizer::Adam8bit { beta1, beta2, .. } => {
                let step = b.convert(step, DType::F64)?;
                let correction = |b: &mut GraphBuilder, beta: f64| -> Result<ValueId> {
                    let beta = b.scalar(DType::F64, beta);
                    let power = b.binary(BinaryKind::Power, beta, step)?;
                    let power = b.negate(power)?;
                    b.offset(power, 1.0)
                };
                let first = correction(b, beta1)?;
                let second = correction(b, beta2)?;
                shared.keep = self.shrink(b, rate)?;
                shared.step_size = b.divide(rate, first)?;
                shared.denominator = Some(b.unary(UnaryKind::Sqrt, second)?);
            }
            Optimizer::Lion { .. } => shared.keep = self.shrink(b, rate)?,
            Optimizer::Adafactor { beta2_decay, .. } => {
                shared.keep = self.shrink(b, rate)?;
                let step = b.convert(step, DType::F64)?;
                let exponent = b.scalar(DType::F64, beta2_decay);
                let fresh = b.binary(BinaryKind::Power, step, exponent)?;
                let relative = b.unary(UnaryKind::Rsqrt, step)?;
                shared.relative = Some([fresh, b.minimum(rate, relative)?]);
            }
        }
        Ok(shared)
    }

    /// `1 - rate * weight_decay` for rules whose weight decay shrinks the parameter.
    fn shrink(&self, b: &mut GraphBuilder, rate: ValueId) -> Result<Option<ValueId>> {
        let weight_decay = match *self {
            Optimizer::AdamW { weight_decay, .. }
            | Optimizer::Lion { weight_decay, .. }
            | Optimizer::Adafactor { weight_decay, .. }
            | Optimizer::Muon { weight_decay, .. }
            | Optimizer::Adam8bit { weight_decay, .. } => weight_decay,
            Optimizer::Sgd { .. } | Optimizer::Adam { .. } | Optimizer::Lamb { .. } => 0.0,
        };
        if weight_decay == 0.0 {
            return Ok(None);
        }
        let taken = b.scale(rate, -weight_decay)?;
        Ok(Some(b.offset(taken, 1.0)?))
    }

    /// The new parameter and states from the old ones and the gradient; states, and the arithmetic, are in the
    /// accumulation type. `decay` tells whether weight decay applies.
    pub(crate) fn update(
        &self,
        b: &mut GraphBuilder,
        shared: &Shared,
        parameter: ValueId,
        gradient: ValueId,
        states: &[ValueId],
        decay: bool,
    ) -> Result<(ValueId, Vec<ValueId>)> {
        let (ty, name) = (b.ty(parameter).clone(), b.graph().value(parameter).name.clone());
        let wide = accumulation_dtype(ty.dtype);
        let (p, g) = (b.convert(parameter, wide)?, b.convert(gradient, wide)?);
        let subject = Subject { p, g, states, decay };
        let (p, states) = match *self {
            Optimizer::Adafactor { epsilon1, epsilon2, clip, .. } => {
                adafactor::update(b, shared, &subject, [epsilon1.unwrap_or(unit(ty.dtype)), epsilon2], clip)?
            }
            Optimizer::Lamb { beta1, beta2, epsilon, weight_decay } => {
                lamb::update(b, shared, &subject, [beta1, beta2], epsilon, weight_decay)?
            }
            Optimizer::Muon { momentum, nesterov, match_rms, .. } if muon::is_hidden_matrix(&name, &ty) => {
                muon::update(b, shared, &subject, momentum, nesterov, match_rms)?
            }
            Optimizer::Adam8bit { beta1, beta2, epsilon, .. } if ty.rank() >= 2 => {
                adam8bit::update(b, shared, &subject, [beta1, beta2], epsilon)?
            }
            Optimizer::Sgd { .. }
            | Optimizer::Adam { .. }
            | Optimizer::AdamW { .. }
            | Optimizer::Lion { .. }
            | Optimizer::Muon { .. }
            | Optimizer::Adam8bit { .. } => elementwise::update(self, b, shared, &subject)?,
        };
        let is_random = (ty.dtype, wide) == (DType::BF16, DType::F32) && ty.rank() > 0;
        let new = match shared.rounding.filter(|_| is_random) {
            Some(seed) => rounding::to_bf16(b, p, seed, &name)?,
            None => b.convert(p, ty.dtype)?,
        };
        Ok((new, states))
    }
}

impl Subject<'_> {
    /// The parameter after decoupled weight decay.
    fn decayed(&self, b: &mut GraphBuilder, shared: &Shared) -> Result<ValueId> {
        match (shared.keep, self.decay) {
            (Some(keep), true) => {
                let keep = spread_over(b, keep, self.p)?;
                b.multiply(self.p, keep)
            }
            _ => Ok(self.p),
        }
    }
}

/// `p - change * size`, for a scalar `size` of any float type.
fn step_by(b: &mut GraphBuilder, p: ValueId, change: ValueId, size: ValueId) -> Result<ValueId> {
    let size = spread_over(b, size, change)?;
    let change = b.multiply(change, size)?;
    b.subtract(p, change)
}

/// A scalar in the type and shape of `like`.
pub(crate) fn spread_over(b: &mut GraphBuilder, scalar: ValueId, like: ValueId) -> Result<ValueId> {
    let ty = b.ty(like).clone();
    let scalar = b.convert(scalar, ty.dtype)?;
    b.broadcast_scalar(scalar, &ty.shape)
}

/// `beta * old + (1 - beta) * new`.
fn blend(b: &mut GraphBuilder, old: ValueId, new: ValueId, beta: f64) -> Result<ValueId> {
    let old = b.scale(old, beta)?;
    let new = b.scale(new, 1.0 - beta)?;
    b.add(old, new)
}

/// Adam's direction without the first bias correction, and the new moments.
fn adam_direction(
    b: &mut GraphBuilder,
    shared: &Shared,
    g: ValueId,
    moments: [ValueId; 2],
    betas: [f64; 2],
    epsilon: f64,
) -> Result<(ValueId, [ValueId; 2])> {
    let mean = blend(b, moments[0], g, betas[0])?;
    let squared = b.multiply(g, g)?;
    let square = blend(b, moments[1], squared, betas[1])?;
    let root = b.unary(UnaryKind::Sqrt, square)?;
    let correction = shared.denominator.expect("the Adams have a second correction");
    let correction = spread_over(b, correction, root)?;
    let root = b.divide(root, correction)?;
    let denominator = b.offset(root, epsilon)?;
    Ok((b.divide(mean, denominator)?, [mean, square]))
}

/// The sum of the squares of all elements.
fn sum_of_squares(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let squares = b.multiply(x, x)?;
    let dims: Vec<usize> = (0..b.ty(x).rank()).collect();
    if dims.is_empty() { Ok(squares) } else { b.reduce_sum(squares, &dims) }
}

/// `a / b` where both are above 0, else 1.
fn ratio_or_one(b: &mut GraphBuilder, numerator: ValueId, denominator: ValueId) -> Result<ValueId> {
    let zero = b.full_like(numerator, 0.0)?;
    let one = b.full_like(numerator, 1.0)?;
    let has_numerator = b.compare(Direction::Gt, numerator, zero)?;
    let has_denominator = b.compare(Direction::Gt, denominator, zero)?;
    let both = b.binary(BinaryKind::And, has_numerator, has_denominator)?;
    let ratio = b.divide(numerator, denominator)?;
    b.select(both, ratio, one)
}

/// The distance from 1 to the next number of a float type.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        DType::F32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    }
}
