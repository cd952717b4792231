//! The extension module `partita._partita`: the Rust library as Python classes.
//!
//! Thin on purpose: names, defaults, documentation and everything about PyTorch are in the Python files beside it. Each
//! class holds a value of the library behind a lock. Work that takes time runs without the interpreter lock, so that
//! other Python threads continue while ranks run. Tensors cross as flat arrays of bytes with an element type and a shape;
//! parameters and gradients that a rank holds whole are arrays over the memory of the rank.
#![deny(unsafe_code)]

mod arguments;
mod built;
mod error;
mod executable;
#[allow(unsafe_code)]
mod lent;
mod mesh;
mod model;
mod placed;
mod plan;
mod profiler;
mod program;
mod running;
mod schedule;
mod step;
mod tensors;
mod trainer;

use crate::error::OrRaise;
use partita::launcher::Place;
use partita_base::DType;
use partita_mesh::AxisRole;
use partita_schedule::verify::{self, bounds};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command `partita` with these arguments, the name of the command first; returns its exit code.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<String>) -> u8 {
    let arguments = arguments.into_iter().map(OsString::from).collect();
    py.detach(|| partita_cli::run_with(arguments))
}

/// What the command `partita` prints with `--json` for these arguments, the name of the command first.
#[pyfunction]
fn ask(py: Python<'_>, arguments: Vec<String>) -> PyResult<String> {
    let arguments = arguments.into_iter().map(OsString::from).collect();
    error::detached(py, || partita_cli::ask(arguments))
}

/// Removes the folders in `parent` whose names begin so, and that processes of this user which have ended left there.
#[pyfunction]
fn remove_leftovers(parent: &str, beginning: &str) {
    partita::leftovers::remove(parent.as_ref(), beginning);
}

/// E393 in one of several processes of another launcher, each of which would run all ranks.
#[pyfunction]
fn check_alone(py: Python<'_>) -> PyResult<()> {
    Place::check_alone(|name| std::env::var(name).ok()).or_raise(py)
}

/// What an input or output is called in a step that a program of the user calls `name`: another name if the step gives a
/// meaning to this one.
#[pyfunction]
fn name_of_user(name: &str) -> String {
    partita_ir::port::name_of_user(name, |_| false)
}

/// The difference that verification permits for an element type, relative to a tensor's largest magnitude.
#[pyfunction]
fn tolerance(dtype: &str) -> PyResult<f64> {
    let known =
        DType::from_name(dtype).ok_or_else(|| PyValueError::new_err(format!("no element type {dtype}")))?;
    Ok(verify::tolerance(known))
}

/// The noise that verification permits in a gradient: over the error against a step in f64, and in units in the last place
/// of the largest gradient.
#[pyfunction]
fn gradient_noise() -> (f64, f64) {
    (bounds::NOISE_OVER_ERROR, bounds::NOISE_UNITS)
}

/// The axes with a built-in meaning, and whether each shards the batch.
#[pyfunction]
fn built_in_axes() -> Vec<(&'static str, bool)> {
    AxisRole::ALL.map(|role| (role.axis(), role.shards_batch())).to_vec()
}

#[pymodule]
mod _partita {
    #[pymodule_export]
    use super::ask;

    #[pymodule_export]
    use super::built_in_axes;
    #[pymodule_export]
    use super::check_alone;
    #[pymodule_export]
    use super::error::PartitaError;
    #[pymodule_export]
    use super::executable::Executable;
    #[pymodule_export]
    use super::gradient_noise;
    #[pymodule_export]
    use super::lent::Lease;
    #[pymodule_export]
    use super::mesh::Mesh;
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::name_of_user;
    #[pymodule_export]
    use super::placed::{Placed, vjp};
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::program::Program;
    #[pymodule_export]
    use super::remove_leftovers;
    #[pymodule_export]
    use super::run_command;
    #[pymodule_export]
    use super::schedule::{Report, Schedule};
    #[pymodule_export]
    use super::step::Step;
    #[pymodule_export]
    use super::tolerance;
    #[pymodule_export]
    use super::trainer::Trainer;
}
