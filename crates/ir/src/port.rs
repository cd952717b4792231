//! The kinds of inputs and outputs of a training step. The naming protocol is defined only here:
//! builders of steps print names; feeders and readers of a step match on the kind.
//!
//! A name tells the kind because no name of a user can: where a program comes in (a file, a text, a traced function), an
//! input or output whose name has a meaning in a step gets another one, [`name_of_user`]; and a model that is written
//! with such a name is refused. Parameters and states keep their names, since their role tells their kind.

use crate::graph::{Role, Value};
use std::fmt;

/// The name of the loss.
pub const LOSS: &str = "loss";
/// The name of the norm of all gradients, before clipping.
pub const GRADIENT_NORM: &str = "grad_norm";
/// The name of the scalar input that the update multiplies with.
pub const LEARNING_RATE: &str = "learning_rate";
/// The name of the scalar input that the updates of a group of parameters multiply with: `learning_rate`,
/// `learning_rate.1`, ..
pub fn learning_rate_name(group: usize) -> String {
    if group == 0 { LEARNING_RATE.to_string() } else { format!("{LEARNING_RATE}.{group}") }
}

fn group_of_rate(name: &str) -> Option<usize> {
    let rest = name.strip_prefix(LEARNING_RATE)?;
    let number = if rest.is_empty() { Some("0") } else { rest.strip_prefix('.') }?;
    if is_number(number) { number.parse().ok() } else { None }
}

/// The name of the scalar input that counts steps, from 1.
pub const STEP: &str = "step";
/// The name of the scalar input that seeds random numbers.
pub const SEED: &str = "seed";
/// The batch tensor whose elements count as tokens in tokens per second.
pub const TOKENS: &str = "tokens";
/// The prefix of optimizer state names.
pub const OPTIMIZER_PREFIX: &str = "optimizer.";

/// The name of the state that holds the scale of the loss, an f32 scalar; 0 before the first step.
pub const LOSS_SCALE: &str = "optimizer.scale.loss";
/// The name of the state that counts steps with finite gradients since the scale of the loss last changed.
pub const GOOD_STEPS: &str = "optimizer.good_steps.loss";
/// The name of the state that counts steps that were skipped because gradients were not finite.
pub const SKIPPED_STEPS: &str = "optimizer.skipped_steps.loss";

const GRADIENT_PREFIX: &str = "grad.";
const COTANGENT_PREFIX: &str = "cotangent.";
const MICROBATCH_MARK: &str = ".micro";
/// What a stage of a pipeline receives is called `edge.<number>`, and a part of a split parameter `<name>#<number>`.
const RECEIVED_PREFIX: &str = "edge.";
const PART_MARK: char = '#';

/// The name of the gradient of a parameter or input: `grad.<parameter>`.
pub fn gradient_name(parameter: &str) -> String {
    format!("{GRADIENT_PREFIX}{parameter}")
}

/// The name of the gradient that the caller gives for an output: `cotangent.<output>`.
pub fn cotangent_name(output: &str) -> String {
    format!("{COTANGENT_PREFIX}{output}")
}

/// The name of an optimizer state: `optimizer.<slot>.<parameter>`.
pub fn state_name(slot: &str, parameter: &str) -> String {
    format!("{OPTIMIZER_PREFIX}{slot}.{parameter}")
}

/// The slot and the parameter from the name of an optimizer state. A slot has no dot.
pub fn state_of(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(OPTIMIZER_PREFIX)?.split_once('.')
}

/// The name of the rows of a batch tensor for one microbatch: `<name>.micro0`, `<name>.micro1`, ..
pub fn microbatch_name(name: &str, microbatch: usize) -> String {
    format!("{name}{MICROBATCH_MARK}{microbatch}")
}

/// The batch tensor and the microbatch of a [`microbatch_name`].
pub fn microbatch_of(name: &str) -> Option<(&str, usize)> {
    let (whole, microbatch) = name.rsplit_once(MICROBATCH_MARK)?;
    Some((whole, microbatch.parse().ok()?))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The name of the parameter that a part `<name>#<number>` was split from; other names as they are.
pub fn whole_name(name: &str) -> &str {
    let part = name.rsplit_once(PART_MARK).filter(|(_, number)| is_number(number));
    part.map_or(name, |(whole, _)| whole)
}

/// Whether a step gives a meaning to an input or output of this name, or to the first part of it: the loss, the scalars
/// that a loop sets, gradients, states of the optimizer, the rows of a microbatch, what a stage receives.
pub fn is_name_of_step(name: &str) -> bool {
    let words = [LOSS, GRADIENT_NORM, STEP, SEED];
    let prefixes = [GRADIENT_PREFIX, COTANGENT_PREFIX, OPTIMIZER_PREFIX];
    let is_received = name.strip_prefix(RECEIVED_PREFIX).is_some_and(is_number);
    words.contains(&name)
        || group_of_rate(name).is_some()
        || prefixes.iter().any(|prefix| name.starts_with(prefix))
        || microbatch_of(name).is_some()
        || is_received
        || whole_name(name) != name
}

/// What an input or output is called in a step that a user's program calls `name`: the same, unless the step gives a meaning
/// to it ([`is_name_of_step`]), or it is taken. A `_` behind the word with the meaning makes it another one: `seed_`,
/// `grad_.w`, `tokens.micro0_`.
pub fn name_of_user(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut own = name.to_string();
    if is_name_of_step(name) {
        let mut prefixes = [GRADIENT_PREFIX, COTANGENT_PREFIX, OPTIMIZER_PREFIX, RECEIVED_PREFIX].into_iter();
        own = match prefixes.find(|prefix| name.starts_with(prefix)) {
            Some(prefix) => format!("{}_{}", &prefix[..prefix.len() - 1], &name[prefix.len() - 1..]),
            None => own,
        };
        if own == name || is_name_of_step(&own) {
            own.push('_');
        }
    }
    while own != name && is_taken(&own) {
        own.push('_');
    }
    own
}

/// The name that [`name_of_user`] has changed to this one; `None` for a name that stayed.
pub fn name_by_user(own: &str) -> Option<String> {
    let without_prefix = |name: &str| {
        let mut prefixes = [GRADIENT_PREFIX, COTANGENT_PREFIX, OPTIMIZER_PREFIX, RECEIVED_PREFIX].into_iter();
        prefixes.find_map(|prefix| {
            let rest = name.strip_prefix(&prefix[..prefix.len() - 1])?.strip_prefix("_.")?;
            Some(format!("{prefix}{rest}"))
        })
    };
    let restored = own.strip_suffix('_');
    let candidates = [restored.and_then(without_prefix), restored.map(str::to_string), without_prefix(own)];
    candidates
        .into_iter()
        .flatten()
        .find(|name| is_name_of_step(name) && name_of_user(name, |_| false) == own)
}

/// The kind of an input of a step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum InputKind {
    /// A trained tensor.
    Parameter(String),
    /// An optimizer state, or any other input that an output replaces.
    State(String),
    /// A tensor of the batch, or the rows of it for one microbatch.
    Batch {
        /// The name of the full tensor.
        name: String,
        /// The microbatch, if the batch is split.
        microbatch: Option<usize>,
    },
    /// The gradient with respect to the output of this name, of a function that the step does not contain. It is
    /// given after the forward pass: a step of one microbatch with such an input pauses there.
    Cotangent(String),
    /// The [learning rate](learning_rate_name) of a group of parameters, by its number.
    LearningRate(usize),
    /// [`STEP`].
    Step,
    /// [`SEED`].
    Seed,
}

impl InputKind {
    /// The kind of an input with this name and role; `is_replaced` if an output replaces it after
    /// the step.
    pub fn of(name: &str, role: &Role, is_replaced: bool) -> InputKind {
        match (role, name) {
            (Role::Param, _) => InputKind::Parameter(name.to_string()),
            (Role::StateOf(_), _) => InputKind::State(name.to_string()),
            _ if is_replaced => InputKind::State(name.to_string()),
            (_, STEP) => InputKind::Step,
            (_, SEED) => InputKind::Seed,
            _ => match (group_of_rate(name), microbatch_of(name), name.strip_prefix(COTANGENT_PREFIX)) {
                (Some(group), ..) => InputKind::LearningRate(group),
                (_, Some((whole, index)), _) => {
                    InputKind::Batch { name: whole.to_string(), microbatch: Some(index) }
                }
                (.., Some(output)) => InputKind::Cotangent(output.to_string()),
                (None, None, None) => InputKind::Batch { name: name.to_string(), microbatch: None },
            },
        }
    }

    /// Whether it persists from step to step.
    pub fn is_kept(&self) -> bool {
        matches!(self, InputKind::Parameter(_) | InputKind::State(_))
    }

    /// Whether it is a scalar of the step, not of the batch.
    pub fn is_scalar_of_step(&self) -> bool {
        matches!(self, InputKind::LearningRate(_) | InputKind::Step | InputKind::Seed)
    }
}

impl fmt::Display for InputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputKind::Parameter(name) | InputKind::State(name) => f.write_str(name),
            InputKind::Batch { name, microbatch: None } => f.write_str(name),
            InputKind::Batch { name, microbatch: Some(index) } => f.write_str(&microbatch_name(name, *index)),
            InputKind::Cotangent(output) => f.write_str(&cotangent_name(output)),
            InputKind::LearningRate(group) => f.write_str(&learning_rate_name(*group)),
            InputKind::Step => f.write_str(STEP),
            InputKind::Seed => f.write_str(SEED),
        }
    }
}

impl Value {
    /// Whether it is an input of the kind [`InputKind::Cotangent`].
    pub fn is_cotangent(&self) -> bool {
        self.definition.is_none()
            && matches!(InputKind::of(&self.name, &self.role, false), InputKind::Cotangent(_))
    }
}

/// The kind of an output of a step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum OutputKind {
    /// [`LOSS`].
    Loss,
    /// [`GRADIENT_NORM`].
    GradientNorm,
    /// The gradient of this parameter or input.
    Gradient(String),
    /// The new value of the input of this name.
    NewValue(String),
    /// Anything else that the model computes.
    Metric(String),
}

impl OutputKind {
    /// The kind of an output with this name; `replaces` if it is the new value of an input.
    pub fn of(name: &str, replaces: bool) -> OutputKind {
        match (name, name.strip_prefix(GRADIENT_PREFIX)) {
            _ if replaces => OutputKind::NewValue(name.to_string()),
            (LOSS, _) => OutputKind::Loss,
            (GRADIENT_NORM, _) => OutputKind::GradientNorm,
            (_, Some(parameter)) => OutputKind::Gradient(parameter.to_string()),
            _ => OutputKind::Metric(name.to_string()),
        }
    }
}

impl fmt::Display for OutputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutputKind::Loss => f.write_str(LOSS),
            OutputKind::GradientNorm => f.write_str(GRADIENT_NORM),
            OutputKind::Gradient(parameter) => f.write_str(&gradient_name(parameter)),
            OutputKind::NewValue(name) | OutputKind::Metric(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::Id;

    #[test]
    fn the_kind_of_an_input_follows_from_role_and_name_and_prints_the_name() {
        let batch = |name: &str, microbatch| InputKind::Batch { name: name.to_string(), microbatch };
        let state = state_name("momentum", "layers.0.weight");
        for (name, role, is_replaced, kind) in [
            ("loss", Role::Param, false, InputKind::Parameter("loss".into())),
            ("seed", Role::Param, true, InputKind::Parameter("seed".into())),
            (&state, Role::StateOf(Id::new(0)), true, InputKind::State(state.clone())),
            ("step", Role::Input, true, InputKind::State("step".into())),
            ("learning_rate", Role::Input, false, InputKind::LearningRate(0)),
            ("learning_rate.12", Role::Input, false, InputKind::LearningRate(12)),
            ("learning_rate.x", Role::Input, false, batch("learning_rate.x", None)),
            ("step", Role::Activation, false, InputKind::Step),
            ("seed", Role::Input, false, InputKind::Seed),
            ("cotangent.logits", Role::Input, false, InputKind::Cotangent("logits".into())),
            ("tokens", Role::Input, false, batch("tokens", None)),
            ("tokens.micro12", Role::Input, false, batch("tokens", Some(12))),
            ("a.micro1.micro0", Role::Input, false, batch("a.micro1", Some(0))),
            ("tokens.microscope", Role::Input, false, batch("tokens.microscope", None)),
        ] {
            let found = InputKind::of(name, &role, is_replaced);
            assert_eq!(found, kind, "{name}");
            assert_eq!(found.to_string(), name);
        }
    }

    #[test]
    fn a_name_of_a_user_is_never_one_of_the_step() {
        for (name, own) in [
            ("x", "x"),
            ("steps", "steps"),
            ("gradual", "gradual"),
            ("edges.0", "edges.0"),
            ("edge.weights", "edge.weights"),
            ("tokens.microscope", "tokens.microscope"),
            ("seed", "seed_"),
            ("step", "step_"),
            ("learning_rate", "learning_rate_"),
            ("learning_rate.1", "learning_rate.1_"),
            ("loss", "loss_"),
            ("grad_norm", "grad_norm_"),
            ("grad.w", "grad_.w"),
            ("grad.grad.w", "grad_.grad.w"),
            ("cotangent.y", "cotangent_.y"),
            ("optimizer.m.w", "optimizer_.m.w"),
            ("tokens.micro12", "tokens.micro12_"),
            ("grad.x.micro0", "grad_.x.micro0_"),
            ("edge.3", "edge_.3"),
            ("w#1", "w#1_"),
        ] {
            let found = name_of_user(name, |_| false);
            assert_eq!(found, own);
            assert!(!is_name_of_step(&found), "{found}");
            assert_eq!(
                InputKind::of(&found, &Role::Input, false),
                InputKind::Batch { name: found.clone(), microbatch: None }
            );
            assert_eq!(OutputKind::of(&found, false), OutputKind::Metric(found.clone()));
            assert_eq!(name_by_user(&found), (name != own).then(|| name.to_string()), "{name}");
        }
        assert_eq!(name_of_user("seed", |name| name == "seed_"), "seed__");
        assert_eq!(name_of_user("x", |_| true), "x");
    }

    #[test]
    fn the_kind_of_an_output_follows_from_its_name_and_prints_it() {
        for (name, replaces, kind) in [
            ("loss", false, OutputKind::Loss),
            ("loss", true, OutputKind::NewValue("loss".into())),
            ("grad_norm", false, OutputKind::GradientNorm),
            ("grad.a.weight", false, OutputKind::Gradient("a.weight".into())),
            ("gradual", false, OutputKind::Metric("gradual".into())),
            ("a.weight", true, OutputKind::NewValue("a.weight".into())),
        ] {
            let found = OutputKind::of(name, replaces);
            assert_eq!(found, kind, "{name}");
            assert_eq!(found.to_string(), name);
        }
        assert_eq!(state_of(&state_name("m", "a.b")), Some(("m", "a.b")));
        assert_eq!(state_of("optimizer.step"), None);
    }
}
