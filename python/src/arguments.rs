//! Values of Python as arguments of plan lines, and the options of a step.

use crate::error::{OrRaise, raised};
use partita_base::Diagnostic;
use partita_nn::{Group, Optimizer, StepOptions};
use partita_schedule::{Argument, BuildOptions, Call};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::collections::BTreeSet;

/// A request from the name and the arguments of a call.
pub fn call(name: &str, positional: &Bound<'_, PyTuple>, named: &Bound<'_, PyDict>) -> PyResult<Call> {
    let mut call = Call::new(name);
    for value in positional {
        call = call.with(None, argument(&value, name)?);
    }
    for (key, value) in named {
        if !value.is_none() {
            call = call.with(Some(&key.extract::<String>()?), argument(&value, name)?);
        }
    }
    Ok(call)
}

/// One argument.
pub fn argument(value: &Bound<'_, PyAny>, of: &str) -> PyResult<Argument> {
    // A bool is an int of Python.
    if value.is_instance_of::<PyBool>() {
        Ok(Argument::Bool(value.extract()?))
    } else if value.is_instance_of::<PyInt>() {
        Ok(Argument::Int(value.extract()?))
    } else if value.is_instance_of::<PyFloat>() {
        Ok(Argument::Float(value.extract()?))
    } else if value.is_instance_of::<PyString>() {
        Ok(Argument::Text(value.extract()?))
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let values = value.try_iter()?.map(|value| argument(&value?, of)).collect::<PyResult<Vec<_>>>()?;
        Ok(Argument::List(values))
    } else {
        let found = value.repr().map_or_else(|_| "an object".to_string(), |text| text.to_string());
        let error = Diagnostic::new("E222", format!("`{of}`: an argument that a plan cannot hold"))
            .expected("a number, a text, True or False, or a list of these")
            .found(found);
        Err(raised(value.py(), &error))
    }
}

/// The options of a step, from a dictionary of the Python side.
///
/// # Errors
/// E004 for an unknown optimizer, constant or precision, E057 for a number out of range.
pub fn build_options(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<BuildOptions> {
    let mut optimizer = Optimizer::adamw();
    if let Some(value) = options.get_item("optimizer")? {
        let (kind, constants): (String, Vec<(String, f64)>) = value.extract()?;
        optimizer = read_optimizer(&kind, &constants).or_raise(py)?;
    }
    let mut step = StepOptions { decay_1d: true, grad_norm: false, ..StepOptions::new(optimizer) };
    if let Some(value) = options.get_item("groups")? {
        let groups: Vec<(BTreeSet<String>, String, Vec<(String, f64)>)> = value.extract()?;
        let groups = groups.into_iter().map(|(parameters, kind, constants)| {
            Ok(Group { parameters, optimizer: read_optimizer(&kind, &constants).or_raise(py)? })
        });
        step.groups = groups.collect::<PyResult<_>>()?;
    }
    if let Some(value) = options.get_item("clip_grad_norm")? {
        step.clip_grad_norm = value.extract()?;
    }
    if let Some(value) = options.get_item("decay_1d")? {
        step.decay_1d = value.extract()?;
    }
    if let Some(value) = options.get_item("precision")? {
        let name: Option<String> = value.extract()?;
        step = name.map_or(Ok(step.clone()), |name| step.in_precision(&name)).or_raise(py)?;
    }
    step.validate().or_raise(py)?;
    let mut built = BuildOptions::new(step);
    if let Some(value) = options.get_item("microbatches")? {
        built.microbatches = value.extract()?;
    }
    if let Some(value) = options.get_item("sequence_parallel")? {
        built.sequence_parallel = value.extract()?;
    }
    Ok(built)
}

fn read_optimizer(kind: &str, constants: &[(String, f64)]) -> partita_base::Result<Optimizer> {
    let mut optimizer = Optimizer::from_name(kind).ok_or_else(|| {
        Diagnostic::new("E004", format!("no optimizer `{kind}`"))
            .expected(Optimizer::NAMES.join(", "))
            .found(kind)
    })?;
    for (name, value) in constants {
        let slot = match (&mut optimizer, name.as_str()) {
            (Optimizer::Sgd { momentum, .. } | Optimizer::Muon { momentum, .. }, "momentum") => momentum,
            (Optimizer::Sgd { nesterov, .. } | Optimizer::Muon { nesterov, .. }, "nesterov") => {
                *nesterov = *value != 0.0;
                continue;
            }
            (Optimizer::Muon { match_rms, .. }, "match_rms") => {
                *match_rms = *value != 0.0;
                continue;
            }
            (
                Optimizer::Sgd { weight_decay, .. }
                | Optimizer::Adam { weight_decay, .. }
                | Optimizer::AdamW { weight_decay, .. }
                | Optimizer::Lion { weight_decay, .. }
                | Optimizer::Adafactor { weight_decay, .. }
                | Optimizer::Lamb { weight_decay, .. }
                | Optimizer::Muon { weight_decay, .. }
                | Optimizer::Adam8bit { weight_decay, .. },
                "weight_decay",
            ) => weight_decay,
            (
                Optimizer::Adam { beta1, .. }
                | Optimizer::AdamW { beta1, .. }
                | Optimizer::Lion { beta1, .. }
                | Optimizer::Lamb { beta1, .. }
                | Optimizer::Muon { beta1, .. }
                | Optimizer::Adam8bit { beta1, .. },
                "beta1",
            ) => beta1,
            (
                Optimizer::Adam { beta2, .. }
                | Optimizer::AdamW { beta2, .. }
                | Optimizer::Lion { beta2, .. }
                | Optimizer::Lamb { beta2, .. }
                | Optimizer::Muon { beta2, .. }
                | Optimizer::Adam8bit { beta2, .. },
                "beta2",
            ) => beta2,
            (
                Optimizer::Adam { epsilon, .. }
                | Optimizer::AdamW { epsilon, .. }
                | Optimizer::Lamb { epsilon, .. }
                | Optimizer::Muon { epsilon, .. }
                | Optimizer::Adam8bit { epsilon, .. },
                "epsilon",
            ) => epsilon,
            (Optimizer::Adafactor { beta2_decay, .. }, "beta2_decay") => beta2_decay,
            (Optimizer::Adafactor { epsilon1, .. }, "epsilon1") => {
                *epsilon1 = Some(*value);
                continue;
            }
            (Optimizer::Adafactor { epsilon2, .. }, "epsilon2") => epsilon2,
            (Optimizer::Adafactor { clip, .. }, "clip") => clip,
            _ => {
                return Err(Diagnostic::new("E004", format!("{kind} has no constant `{name}`"))
                    .expected("a constant of the section `[optimizer]` of a config with this kind")
                    .found(name));
            }
        };
        *slot = *value;
    }
    Ok(optimizer)
}
