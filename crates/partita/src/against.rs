//! A planned step against what a framework recorded: outputs, loss and gradients for its inputs, so that agreement with the
//! gradients of this program is not the only proof.

use crate::session::{Session, own_outputs, with_loss};
use crate::signature::Signature;
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_import::stablehlo::dotted;
use partita_ir::port::{name_by_user, name_of_user};
use partita_ir::{Literal, TensorType};
use partita_nn::Model;
use partita_schedule::StepKind;
use partita_schedule::feed::{Fed, scalars};
use partita_schedule::tensors::{inputs_of, outputs_by_name, zero_states};
use partita_schedule::verify::bounds::unit;
use partita_schedule::verify::{Report, StepRunner, coarsest, compare, compare_beside_noise};

impl Session {
    /// Runs the gradients of the step on its mesh for recorded inputs, and compares each recorded output, loss and gradient.
    ///
    /// `recorded` has tensors by name: inputs, as they are called or as `input.<name>`; perhaps parameters and states,
    /// called in the same two ways, which otherwise have their initial values; outputs by name or as
    /// `output.<position>`, `loss`, `grad.<parameter>`, and
    /// `new.<name>` for a parameter or state after the step. Of a
    /// model without a loss, the gradients are those of the sum of its outputs, each times `cotangent.<output>` where that
    /// is recorded. Also returns the names in `recorded` that belong to nothing, which are not compared.
    ///
    /// # Errors
    /// E306 if an input is missing or a tensor has another shape, or if nothing is recorded that can be compared; what
    /// building and running refuse.
    pub fn verify_against(&self, recorded: &Fed, runner: &dyn StepRunner) -> Result<(Report, Vec<String>)> {
        let plain = self.model()?;
        let recorded = &by_own_names(recorded, &plain);
        let of_input = |name: &str| given(recorded, name);
        let names = self.signature(&plain).inputs;
        let rows = names.iter().find_map(|input| of_input(&input.name)?.ty.shape.first().copied());
        let session = self.clone().with_batch(rows.unwrap_or(self.config().train.batch));
        let own = session.model()?;
        let model = with_loss(own)?;
        let part = if model.is_step() { StepKind::Step } else { StepKind::Gradients };
        let built = session.build_compared(&model, part, runner)?;
        let mut tensors = zero_states(&built.step);
        tensors.extend(model.initial(session.config().train.seed)?);
        for (name, value) in &mut tensors {
            let mut aliases = model.ties.iter().filter(|(_, of)| of == name).map(|(alias, _)| alias.as_str());
            if let Some(given) = of_input(name).or_else(|| aliases.find_map(of_input)) {
                *value = typed(given, value, name)?;
            }
        }
        for input in &Signature::of(&model, false).inputs {
            let Some(given) = of_input(&input.name) else {
                let error = format!("nothing is recorded for the input `{}`", input.name);
                return Err(Diagnostic::new("E306", error)
                    .expected(format!("a tensor `{}` of type {}", input.name, input.ty))
                    .found(recorded.keys().cloned().collect::<Vec<_>>().join(", "))
                    .help(
                        "name the recorded tensors as `partita show` names the inputs of the model; of a program of JAX, \
                         they have the names of the arguments if it is written with `as_text(debug_info=True)`",
                    ));
            };
            let own = Literal::splat(&input.ty, 1.0);
            tensors.insert(input.name.clone(), typed(given, &own, &input.name)?);
        }
        for (name, ty) in cotangents(&model) {
            let ones = Literal::splat(&ty, 1.0);
            let given = of_input(&name).map(|given| typed(given, &ones, &name)).transpose()?;
            tensors.insert(name, given.unwrap_or(ones));
        }
        tensors.extend(scalars(&built.step, session.config().train.seed, 1, session.config().schedule.at(1)));
        let inputs = inputs_of(&built.step, &built.pieces, &tensors)?;
        let outputs = runner.run(&built, &inputs)?;
        let actual = outputs_by_name(&built.step, &built.pieces, outputs);
        let mut expected = Fed::new();
        let mut unknown = Vec::new();
        for (name, value) in recorded {
            let after = name.strip_prefix(AFTER).filter(|own| tensors.contains_key(*own));
            if let Some((own, after)) = after.and_then(|own| Some((own, actual.get(own)?))) {
                expected.insert(own.to_string(), typed(value, after, name)?);
                continue;
            }
            match actual.get(name) {
                // An output may have the name of an input that is recorded as `input.<name>`.
                Some(own)
                    if !tensors.contains_key(name) || recorded.contains_key(&format!("{INPUT}{name}")) =>
                {
                    expected.insert(name.clone(), typed(value, own, name)?);
                }
                Some(_) => {}
                None if of_known(name, &tensors, &model) => {}
                None => unknown.push(name.clone()),
            }
        }
        if expected.is_empty() {
            let error = Diagnostic::new("E306", "nothing is recorded that can be compared")
                .expected(actual.keys().cloned().collect::<Vec<_>>().join(", "))
                .found(recorded.keys().cloned().collect::<Vec<_>>().join(", "));
            // Of a step, what replaces a parameter or a state is no output of its own.
            return Err(match model.is_step() {
                true => error.help(
                    "results that replace an argument, which JAX donates, are recorded as `new.` and the name of the \
                     argument, such as `new.params.w`; `output.0`, `output.1`, .. count the other results alone",
                ),
                false => error.help("record outputs as `output.0`, `output.1`, .. or by their names, and gradients as `grad.NAME`"),
            });
        }
        let of_params = model.params.values().map(|spec| spec.ty.dtype).next();
        let dtype = coarsest(&built.step).or(of_params).unwrap_or(DType::F32);
        let report = compare(&expected, &actual, None, None, dtype);
        if report.ok {
            return Ok((report, unknown));
        }
        // Where terms cancel, as in the gradient of a key bias, what is left is rounding, and no two programs round alike.
        let moved = runner.run(&built, &inputs.iter().map(moved_by_rounding).collect::<Vec<_>>())?;
        let noise = noise(&actual, &outputs_by_name(&built.step, &built.pieces, moved));
        Ok((compare_beside_noise(&expected, &actual, &noise, dtype), unknown))
    }
}

/// Rounding of a tensor over the difference that a change of all inputs in their last place makes.
const ROUNDING_OVER_CHANGE: f64 = 10.0;

/// A tensor of floats with every element moved up or down in its last place.
fn moved_by_rounding(value: &Literal) -> Literal {
    if !value.ty.dtype.is_float() || value.ty.rank() == 0 {
        return value.clone();
    }
    let unit = unit(value.ty.dtype);
    let moved = value.to_f64().into_iter().enumerate().map(|(index, x)| {
        // The signs have no pattern along a row or a column.
        let sign = if (index.wrapping_mul(0x9e37_79b9) >> 7) & 1 == 0 { 1.0 } else { -1.0 };
        x * (1.0 + sign * unit)
    });
    Literal::from_f64(&value.ty, moved)
}

/// How much rounding alone may change each output, from a run on inputs that differ in their last place.
fn noise(outputs: &Fed, moved: &Fed) -> IndexMap<String, f64> {
    let of = |(name, value): (&String, &Literal)| {
        let changes = value.to_f64().into_iter().zip(moved.get(name)?.to_f64()).map(|(a, b)| (a - b).abs());
        let most = changes.filter(|change| change.is_finite()).fold(0.0, f64::max);
        Some((name.clone(), ROUNDING_OVER_CHANGE * most))
    };
    outputs.iter().filter_map(of).collect()
}

/// The record with outputs under the names of the model: `output.1` is its second output, and `output` its only one, unless
/// an output is called so. The same holds for their gradients, `cotangent.output.1`.
fn by_own_names(recorded: &Fed, model: &Model) -> Fed {
    let outputs = own_outputs(model);
    let own = |name: &str| {
        if outputs.iter().any(|own| own == name) {
            return None;
        }
        match name.strip_prefix("output") {
            // An output that has another name in a step, unless the step has one of its own of this name.
            None if !name.starts_with("grad.") => {
                let own = name_of_user(name, |_| false);
                outputs.iter().find(|output| own != name && **output == own)
            }
            Some("") => outputs.first().filter(|_| outputs.len() == 1),
            Some(place) => outputs.get(place.strip_prefix('.')?.parse::<usize>().ok()?),
            None => None,
        }
    };
    let renamed = |name: &String| match name.strip_prefix(COTANGENT) {
        Some(output) => own(output).map(|own| format!("{COTANGENT}{own}")),
        None => own(name).cloned(),
    };
    let mut by_name = Fed::new();
    for (name, value) in recorded {
        let name = &dotted(name);
        match renamed(name) {
            // A tensor that has the name of the model already wins.
            Some(own) if recorded.contains_key(&own) => {}
            own => drop(by_name.insert(own.unwrap_or_else(|| name.clone()), value.clone())),
        }
    }
    by_name
}

/// The prefix of a parameter or state as the step leaves it.
const AFTER: &str = "new.";

/// The prefix of the gradient with respect to an output.
const COTANGENT: &str = "cotangent.";

/// The prefix of an input, a parameter or a state in a record.
const INPUT: &str = "input.";

/// What is recorded for an input, a parameter or a state: as `input.<name>` or by its name, in the step or in the user's
/// program.
fn given<'r>(recorded: &'r Fed, name: &str) -> Option<&'r Literal> {
    let named = |name: &str| recorded.get(&format!("{INPUT}{name}")).or_else(|| recorded.get(name));
    named(name).or_else(|| named(&name_by_user(name)?))
}

/// Whether a recorded name is that of an input, a parameter or a state.
fn of_known(name: &str, tensors: &Fed, model: &Model) -> bool {
    let is_known = |name: &str| {
        let is_tied = || model.ties.iter().any(|(alias, _)| alias == name);
        tensors.contains_key(name) || tensors.contains_key(&name_of_user(name, |_| false)) || is_tied()
    };
    is_known(name) || name.strip_prefix(INPUT).is_some_and(is_known)
}

/// A recorded tensor in the type of the model. E306 for another shape.
fn typed(recorded: &Literal, own: &Literal, name: &str) -> Result<Literal> {
    if recorded.ty == own.ty {
        return Ok(recorded.clone());
    }
    if recorded.ty.shape != own.ty.shape {
        return Err(Diagnostic::new("E306", format!("the recorded `{name}` has another shape"))
            .expected(own.ty.to_string())
            .found(recorded.ty.to_string()));
    }
    Ok(match own.ty.dtype.is_float() || recorded.ty.dtype.is_float() {
        true => Literal::from_f64(&own.ty, recorded.to_f64().into_iter()),
        false => Literal::from_i128(&own.ty, recorded.to_i128().into_iter()),
    })
}

/// Whether an input is the gradient with respect to an output.
fn cotangents(model: &Model) -> Vec<(String, TensorType)> {
    let graph = &model.forward;
    let inputs = graph.inputs.iter().map(|&input| graph.value(input));
    inputs.filter(|value| value.is_cotangent()).map(|value| (value.name.clone(), value.ty.clone())).collect()
}
