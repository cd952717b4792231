//! A planned step against what a framework recorded: outputs, loss and gradients for its inputs, so that agreement with the
//! gradients of this program is not the only proof.

use crate::session::{Part, Session, own_outputs, with_loss};
use crate::signature::Signature;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{InputKind, Literal, Role};
use partita_nn::Model;
use partita_schedule::feed::{Fed, scalars};
use partita_schedule::tensors::{inputs_of, outputs_by_name, zero_states};
use partita_schedule::verify::{Report, StepRunner, compare};

impl Session {
    /// Runs the gradients of the step on its mesh for recorded inputs, and compares each recorded output, loss and gradient.
    ///
    /// `recorded` has tensors by name: inputs, as they are called or as `input.<name>`; perhaps parameters and states, which
    /// otherwise have their initial values; outputs by name or as `output.<position>`, `loss`, `grad.<parameter>`, and
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
        let of_input = |name: &str| recorded.get(name).or_else(|| recorded.get(&format!("input.{name}")));
        let names = self.signature(&plain).inputs;
        let rows = names.iter().find_map(|input| of_input(&input.name)?.ty.shape.first().copied());
        let session = self.clone().with_batch(rows.unwrap_or(self.config().train.batch));
        let own = session.model()?;
        let model = with_loss(own)?;
        let part = if model.is_step() { Part::Step } else { Part::Gradients };
        let built = session.build_compared(&model, part, runner)?;
        let mut tensors = zero_states(&built.step);
        tensors.extend(model.initial(session.config().train.seed));
        for (name, value) in &mut tensors {
            if let Some(given) = recorded.get(name) {
                *value = typed(given, value, name)?;
            }
        }
        let signature = Signature::of(&model, false);
        for input in &signature.inputs {
            let value = Literal::splat(&input.ty, 1.0);
            let given = match of_input(&input.name) {
                Some(given) => typed(given, &value, &input.name)?,
                None if is_cotangent(&input.name) => value,
                None => {
                    return Err(Diagnostic::new(
                        "E306",
                        format!("nothing is recorded for the input `{}`", input.name),
                    )
                    .expected(format!("a tensor `{}` of type {}", input.name, input.ty))
                    .found(recorded.keys().cloned().collect::<Vec<_>>().join(", ")));
                }
            };
            tensors.insert(input.name.clone(), given);
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
                Some(own) if !tensors.contains_key(name) || name.starts_with("grad.") => {
                    expected.insert(name.clone(), typed(value, own, name)?);
                }
                Some(_) => {}
                None if of_known(name, &tensors) => {}
                None => unknown.push(name.clone()),
            }
        }
        if expected.is_empty() {
            return Err(Diagnostic::new("E306", "nothing is recorded that can be compared")
                .expected(actual.keys().cloned().collect::<Vec<_>>().join(", "))
                .found(recorded.keys().cloned().collect::<Vec<_>>().join(", ")));
        }
        let dtype = model.params.values().map(|spec| spec.ty.dtype).next().unwrap_or(DType::F32);
        Ok((compare(&expected, &actual, None, None, dtype), unknown))
    }
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
        // A tensor that has the name of the model already wins.
        let name = renamed(name).filter(|own| !recorded.contains_key(own)).unwrap_or_else(|| name.clone());
        by_name.insert(name, value.clone());
    }
    by_name
}

/// The prefix of a parameter or state as the step leaves it.
const AFTER: &str = "new.";

/// The prefix of the gradient with respect to an output.
const COTANGENT: &str = "cotangent.";

/// Whether a recorded name is that of an input.
fn of_known(name: &str, tensors: &Fed) -> bool {
    tensors.contains_key(name) || name.strip_prefix("input.").is_some_and(|name| tensors.contains_key(name))
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
fn is_cotangent(name: &str) -> bool {
    matches!(InputKind::of(name, &Role::Input, false), InputKind::Cotangent(_))
}
