//! How far rounding alone may separate an output of the planned step from the same output of one
//! device.
//!
//! **Outputs of the model** (loss, predictions, the gradient norm) may differ by the tolerance
//! times the largest magnitude of the tensor.
//!
//! **Gradients** are the inputs of the update. Both sides add up the same terms in another order,
//! so they may differ by the *permitted difference* δ: the tolerance times the largest magnitude of
//! that gradient, or the noise that the element type makes in it where that is larger. The noise is
//! ten times the error of the reference against the same step in f64 where that is known, else a
//! few units in the last place of the largest gradient of all. It matters where terms cancel: the
//! gradient of a key bias is zero in exact arithmetic and pure rounding in practice.
//!
//! **Parameters and optimizer states** are the result of the optimizer's formula U for a gradient.
//! Old parameter, old states, learning rate and step are the same numbers on both sides. So only
//! two things can separate the results: the gradient, by at most δ, and rounding within U. Both
//! results lie in the range of U around the gradient, and the bound is
//!
//! ```text
//! |new' - new|  <=  max U(g + h) - min U(g + h), over all |h| <= δ,  +  rounding
//! ```
//!
//! To first order that range is 2 δ times the derivative of U. For SGD that is exact: twice the
//! learning rate times δ. For Adam it is not: its first step moves a parameter by rate x g /
//! (|g| + epsilon), whose derivative rises to rate / epsilon at g = 0 although the step itself
//! never exceeds the rate; Lion's sign has no derivative there at all. So U is evaluated at `g`,
//! and at both ends `g - δ` and `g + δ`. That gives the range, because in a first step (all states
//! are zero) every formula is monotone in the gradient. The second moment, g squared, is not
//! monotone if the interval contains zero, but then it falls below its value at g by less than it
//! rises above that value at the far end.
//!
//! Clipping multiplies the gradient by f = min(1, limit / norm). The norm may differ by the
//! tolerance τ, so that δ becomes f (δ + τ (|g| + δ)), and one step of the smallest numbers of the
//! gradient's type: in f16, a clipped gradient is often as small as that.
//!
//! **An optimizer that sees whole tensors**, such as Adafactor, has no formula for one element. There U is evaluated for the
//! whole tensor at `g`, at `g + δ`, at `g - δ`, and at gradients in which every element moves by δ up or down at random. The
//! range of these samples, widened by a factor, is taken as the range of U.
//!
//! Rounding within U is a few units in the last place of the old value and of the largest new one
//! in the type of the arithmetic, and one in the type of the parameter.
//!
//! **The learning rate** multiplies that range, so it cannot change the verdict on a right plan. It
//! also multiplies what a wrong update adds, such as a weight decay that is left out; but a change
//! smaller than the rounding of the parameter is invisible. No plan reads the learning rate, which
//! is an input of the step; therefore verification feeds at least [`visible_rate`].

use crate::feed::{Fed, rate_of_group};
use indexmap::IndexMap;
use partita_base::DType;
use partita_ir::port::{GRADIENT_NORM, gradient_name, state_name, state_of};
use partita_ir::{F8, Literal, OutputKind};
use partita_nn::{Rule, StepOptions, accumulation_dtype};

/// Below this magnitude a tensor counts as zero: a relative difference is then relative to it.
const TINY: f64 = 1e-6;
/// The same for parameters: a bias that starts at zero has no other magnitude.
const TINY_PARAMETER: f64 = 1e-3;
/// The noise of a gradient over the error of the reference against f64. The planned side rounds more often.
pub const NOISE_OVER_ERROR: f64 = 10.0;
/// The noise of a gradient where there is no step in f64, in units in the last place of the largest gradient.
pub const NOISE_UNITS: f64 = 64.0;
/// Gradients with random signs at which an optimizer of whole tensors is evaluated.
const RANDOM_SIGNS: u64 = 4;
/// The range of U over the range of its samples.
const RANGE_OVER_SAMPLES: f64 = 8.0;
/// Units in the last place that the arithmetic of an update may lose, of the old and of the new value.
const UPDATE_UNITS: f64 = 8.0;

/// Units in the last place by which a value of a narrow type may differ. Sums are added in a wider type and round once, so
/// what differs between two orders of a sum is a unit at each of the few roundings between two sums.
const NARROW_UNITS: f64 = 4.0;

/// The tolerance for an element type, relative to a tensor's largest magnitude: 1e-9 for f64, 1e-4 for f32, four units in
/// the last place for narrower types (2^-5 for bf16, 2^-8 for f16). A model in mixed precision has that of the narrow type.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        narrow => NARROW_UNITS * unit(narrow),
    }
}

/// The tolerance of a step whose matmuls are in 8 bits. An element of an operand is rounded to another number of 8 bits
/// where two orders of a sum fall on two sides of the middle between them. That moves one term of a product by a unit of
/// the format, and a quarter of a unit is permitted for the whole. In f64 the sums are so near that this does not occur.
pub fn tolerance_of(dtype: DType, f8: Option<F8>) -> f64 {
    match f8 {
        Some(f8) if dtype != DType::F64 => tolerance(dtype).max(f8.unit() / 4.0),
        _ => tolerance(dtype),
    }
}

/// The smallest learning rate at which a weight decay of one percent (of ten in f16 and bf16)
/// exceeds the rounding of parameters of this type.
pub fn visible_rate(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-6,
        DType::F32 => 1e-3,
        _ => 1e-1,
    }
}

/// The distance from 1 to the next number of a float type.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        DType::F32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    }
}

/// The smallest number above zero of a float type.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-133),
        DType::F16 => 2f64.powi(-24),
        DType::F32 => 2f64.powi(-149),
        _ => f64::from_bits(1),
    }
}

/// The update that turned gradients into new parameters and states: the first step, with zero
/// states.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// Optimizer, clipping, decay.
    pub options: &'a StepOptions,
    /// Parameters and states before the step, by name.
    pub before: &'a Fed,
    /// The learning rate.
    pub learning_rate: f64,
}

impl<'a> Update<'a> {
    /// The old value of a parameter, its update rule and its learning rate.
    fn of_parameter(&self, name: &str) -> Option<(&'a Literal, Rule<'a>, f64)> {
        let old = self.before.get(name)?;
        let rule = self.options.rule_of(name, old.ty.rank());
        Some((old, rule, rate_of_group(self.learning_rate, rule.group)))
    }
}

/// The largest permitted difference of each element of one output.
pub(super) struct Bound {
    /// The tolerance: elements beyond it need an explanation.
    pub plain: f64,
    /// The magnitude that relative errors refer to.
    pub magnitude: f64,
    /// The difference that rounding explains, for each element.
    pub explained: Explained,
}

/// A difference that rounding explains.
pub(super) enum Explained {
    /// The same for every element.
    All(f64),
    /// For each element.
    Each(Vec<f64>),
}

impl Explained {
    pub fn of(&self, index: usize) -> f64 {
        match self {
            Explained::All(bound) => *bound,
            Explained::Each(bounds) => bounds[index],
        }
    }
}

/// The bounds of a comparison.
pub(super) struct Bounds<'a> {
    pub tolerance: f64,
    reference: &'a Fed,
    precise: Option<&'a Fed>,
    update: Option<Update<'a>>,
    /// How much rounding may change outputs, where that was measured.
    noise: Option<&'a IndexMap<String, f64>>,
    /// The largest magnitude of any gradient.
    largest_gradient: f64,
    /// The factor that clipping applies.
    clipping: f64,
}

fn is_gradient(name: &str) -> bool {
    matches!(OutputKind::of(name, false), OutputKind::Gradient(_))
}

impl<'a> Bounds<'a> {
    /// From the reference outputs by name, the same in f64 if both sides ran in a narrower type,
    /// and the description of the update.
    pub fn new(
        reference: &'a Fed,
        precise: Option<&'a Fed>,
        update: Option<Update<'a>>,
        tolerance: f64,
    ) -> Bounds<'a> {
        let gradients = || reference.iter().filter(|(name, _)| is_gradient(name)).map(|(_, g)| g);
        let norm = || match reference.get(GRADIENT_NORM) {
            Some(norm) => norm.to_f64()[0],
            None => gradients().flat_map(Literal::to_f64).map(|g| g * g).sum::<f64>().sqrt(),
        };
        let limit = update.and_then(|update| update.options.clip_grad_norm);
        Bounds {
            tolerance,
            reference,
            precise,
            update,
            noise: None,
            largest_gradient: gradients().map(magnitude).fold(0.0, f64::max),
            clipping: limit.map_or(1.0, |limit| (limit / (norm() + 1e-6)).min(1.0)),
        }
    }

    /// These bounds where so much noise was measured in each output.
    pub fn beside(self, noise: &'a IndexMap<String, f64>) -> Bounds<'a> {
        Bounds { noise: Some(noise), ..self }
    }

    /// The bound of an output.
    pub fn of(&self, name: &str, expected: &Literal) -> Bound {
        let is_parameter = self.reference.contains_key(&gradient_name(name));
        let magnitude = magnitude(expected).max(if is_parameter { TINY_PARAMETER } else { TINY });
        let plain = self.tolerance * magnitude;
        let explained = match (self.noise.and_then(|noise| noise.get(name)), is_gradient(name)) {
            (Some(noise), _) => Explained::All(noise.max(plain)),
            (None, true) => Explained::All(self.gradient_difference(name, expected)),
            (None, false) => self.updated(name).unwrap_or(Explained::All(plain)),
        };
        Bound { plain, magnitude, explained }
    }

    /// δ: by how much a gradient may differ.
    fn gradient_difference(&self, name: &str, gradient: &Literal) -> f64 {
        let measured = self.precise.and_then(|precise| {
            let (rounded, exact) = (gradient.to_f64(), precise.get(name)?.to_f64());
            let errors = rounded.iter().zip(&exact).map(|(a, b)| (a - b).abs());
            Some(NOISE_OVER_ERROR * errors.fold(0.0, f64::max))
        });
        let noise = measured.unwrap_or_else(|| {
            (NOISE_UNITS * unit(gradient.ty.dtype)).min(self.tolerance) * self.largest_gradient
        });
        (self.tolerance * magnitude(gradient)).max(noise)
    }

    /// The difference of a new parameter or state that its gradient's permitted difference and
    /// rounding explain; `None` for other outputs.
    fn updated(&self, name: &str) -> Option<Explained> {
        let update = self.update?;
        let (slot, parameter) = match state_of(name) {
            Some((slot, parameter)) => (Some(slot), parameter),
            None => (None, name),
        };
        let (old, Rule { optimizer, decays, .. }, rate) = update.of_parameter(parameter)?;
        if !optimizer.is_elementwise() {
            return self.updated_whole(update, slot, parameter);
        }
        // The position of this tensor among the results of the formula.
        let place = match slot {
            Some(slot) => 1 + optimizer.slots().iter().position(|known| *known == slot)?,
            None => 0,
        };
        let gradient = self.reference.get(&gradient_name(parameter))?;
        let difference = self.gradient_difference(&gradient_name(parameter), gradient);
        let states: Vec<Vec<f64>> = optimizer
            .slots()
            .iter()
            .map(|slot| Some(update.before.get(&state_name(slot, parameter))?.to_f64()))
            .collect::<Option<_>>()?;
        let own = if slot.is_none() { old.ty.dtype } else { accumulation_dtype(old.ty.dtype) };
        let arithmetic = unit(accumulation_dtype(old.ty.dtype));
        let clips = update.options.clip_grad_norm.is_some();
        let bounds = old.to_f64().into_iter().zip(gradient.to_f64()).enumerate().map(|(index, (old, g))| {
            let h = self.moved(g, difference, clips, gradient.ty.dtype);
            let g = self.clipping * g;
            let mut before = [old, 0.0, 0.0];
            states.iter().zip(&mut before[1..]).for_each(|(state, place)| *place = state[index]);
            let after = |g: f64| {
                let new = optimizer.element(before, g, rate, 1, decays);
                new.expect("the rule is elementwise")[place]
            };
            let (low, new, high) = (after(g - h), after(g), after(g + h));
            let largest = low.abs().max(new.abs()).max(high.abs());
            let rounding = UPDATE_UNITS * arithmetic * (before[place].abs() + largest) + unit(own) * largest;
            low.max(new).max(high) - low.min(new).min(high) + rounding
        });
        Some(Explained::Each(bounds.collect()))
    }

    /// By how much an element of a gradient that may differ by `difference` may differ after clipping.
    fn moved(&self, g: f64, difference: f64, clips: bool, dtype: DType) -> f64 {
        let clipped = self.clipping * difference;
        match clips {
            true => clipped + self.tolerance * self.clipping * (g.abs() + difference) + smallest(dtype),
            false => clipped,
        }
    }

    /// [`Bounds::updated`] for an optimizer that sees whole tensors.
    fn updated_whole(&self, update: Update, slot: Option<&str>, parameter: &str) -> Option<Explained> {
        let (old, Rule { optimizer, decays, .. }, rate) = update.of_parameter(parameter)?;
        let gradient = self.reference.get(&gradient_name(parameter))?;
        let difference = self.gradient_difference(&gradient_name(parameter), gradient);
        let slots = optimizer.states(parameter, &old.ty);
        let place = match slot {
            Some(slot) => 1 + slots.iter().position(|(known, _)| *known == slot)?,
            None => 0,
        };
        let states = slots.iter().map(|(slot, _)| update.before.get(&state_name(slot, parameter)));
        let before: Vec<Literal> =
            [Some(old)].into_iter().chain(states).map(Option::<&_>::cloned).collect::<Option<_>>()?;
        let clips = update.options.clip_grad_norm.is_some();
        let after = |sign: &dyn Fn(usize) -> f64| -> Option<Vec<f64>> {
            let moved = gradient.to_f64().into_iter().enumerate().map(|(index, g)| {
                self.clipping * g + sign(index) * self.moved(g, difference, clips, gradient.ty.dtype)
            });
            let moved = Literal::from_f64(&gradient.ty, moved);
            let new = optimizer.tensor(parameter, &before, &moved, rate, decays).ok()?;
            Some(new[place].to_f64())
        };
        let new = after(&|_| 0.0)?;
        let mut samples = vec![after(&|_| 1.0)?, after(&|_| -1.0)?];
        for seed in 1..=RANDOM_SIGNS {
            samples.push(after(&|index| random_sign(seed, index))?);
        }
        let own = before[place].ty.dtype;
        // Codes of a state are whole numbers without rounding of their own.
        let [arithmetic, own] = match own.is_float() {
            true => [unit(accumulation_dtype(old.ty.dtype)), unit(own)],
            false => [0.0, 0.0],
        };
        let old = before[place].to_f64();
        let bounds = new.iter().enumerate().map(|(index, &new)| {
            let range = samples.iter().fold(0.0, |range: f64, sample| range.max((sample[index] - new).abs()));
            let largest = new.abs() + range;
            let rounding = UPDATE_UNITS * arithmetic * (old[index].abs() + largest) + own * largest;
            RANGE_OVER_SAMPLES * range + rounding
        });
        Some(Explained::Each(bounds.collect()))
    }
}

/// 1 or -1, by the highest bit of a hash (the finaliser of SplitMix64).
fn random_sign(seed: u64, index: usize) -> f64 {
    let mut hash = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index as u64);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    if hash >> 63 == 1 { 1.0 } else { -1.0 }
}

fn magnitude(tensor: &Literal) -> f64 {
    tensor.to_f64().iter().fold(0.0f64, |largest, v| largest.max(v.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::compare;
    use partita_ir::TensorType;
    use partita_nn::Optimizer;

    fn fed(dtype: DType, values: &[(&str, f64)]) -> Fed {
        let ty = |name: &str| match name {
            GRADIENT_NORM => TensorType::scalar(accumulation_dtype(dtype)),
            _ => TensorType::new(dtype, [1]),
        };
        values.iter().map(|(name, value)| (name.to_string(), Literal::splat(&ty(name), *value))).collect()
    }

    /// Elements wrong and excused of a parameter that starts at zero, with these gradients and new values on both sides.
    fn of_parameter(dtype: DType, gradients: [f64; 2], values: [f64; 2]) -> (usize, usize) {
        let options = StepOptions { clip_grad_norm: Some(1.0), ..StepOptions::new(Optimizer::adamw()) };
        let mut before = fed(dtype, &[("w", 0.0)]);
        let states = ["exp_avg", "exp_avg_sq"].map(|slot| state_name(slot, "w"));
        before.extend(states.map(|name| (name, Literal::splat(&TensorType::new(DType::F32, [1]), 0.0))));
        let side = |i: usize| fed(dtype, &[("grad.w", gradients[i]), ("w", values[i]), ("grad_norm", 1.5)]);
        let update = Update { options: &options, before: &before, learning_rate: 0.5 };
        let precise = fed(DType::F64, &[("grad.w", 0.0)]);
        let report = compare(&side(0), &side(1), Some(&precise), Some(update), dtype);
        let tensor = report.tensors.iter().find(|tensor| tensor.tensor == "w").expect("it is compared");
        (tensor.wrong, tensor.excused)
    }

    #[test]
    fn a_step_may_point_either_way_where_its_gradient_is_noise_and_no_further() {
        // One and four steps of the smallest f16: clipping rounds the first up, so that its parameter moves further than
        // the exact formula says.
        let smallest = smallest(DType::F16);
        for (values, expected) in [
            ([-0.428, 0.48], (0, 1)),
            ([-0.428, -0.428], (0, 0)),
            ([-0.428, 0.6], (1, 0)),
            ([-0.428, f64::NAN], (1, 0)),
        ] {
            assert_eq!(of_parameter(DType::F16, [smallest, -4.0 * smallest], values), expected, "{values:?}");
        }
        // A gradient beyond its noise settles the direction.
        assert_eq!(of_parameter(DType::F32, [1e-3, 1e-3], [-0.5, -0.5]), (0, 0));
        let settled = |value| {
            let options = StepOptions::new(Optimizer::adamw());
            let mut before = fed(DType::F32, &[("w", 0.0)]);
            before.extend(fed(DType::F32, &[("optimizer.exp_avg.w", 0.0), ("optimizer.exp_avg_sq.w", 0.0)]));
            let side = |value| fed(DType::F32, &[("grad.w", 1e-3), ("w", value)]);
            let update = Update { options: &options, before: &before, learning_rate: 0.5 };
            let exact = fed(DType::F64, &[("grad.w", 1e-3)]);
            compare(&side(-0.5), &side(value), Some(&exact), Some(update), DType::F32).ok
        };
        assert!(settled(-0.5) && settled(-0.5000002) && !settled(-0.50001) && !settled(0.5));
    }

    #[test]
    fn the_far_end_rounds_in_the_parameters_own_type() {
        // Zero on one side; 0.49999 on the other, which is 0.5 in bf16.
        assert_eq!(of_parameter(DType::BF16, [0.0, 0.0], [0.0, 0.0]), (0, 0));
        assert_eq!(of_parameter(DType::BF16, [1e-4, -1e-4], [-0.5, 0.5]), (0, 1));
        assert_eq!(of_parameter(DType::BF16, [1e-4, -1e-4], [-0.5, 0.52]), (1, 0));
    }
}
