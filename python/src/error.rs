//! Diagnostics as the exception `partita.PartitaError`.

use crate::running::check_process;
use partita_base::Diagnostic;
use partita_runtime::check_address_space;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// Bytes that must be left where the address space is limited: a failed allocation would end the interpreter.
const MIN_FREE_BYTES: u64 = 256 << 20;

create_exception!(partita, PartitaError, PyException, "Input or a request that Partita refuses.");

/// The exception of a diagnostic: its text, and its parts as attributes.
pub fn raised(py: Python<'_>, diagnostic: &Diagnostic) -> PyErr {
    let error = PartitaError::new_err(diagnostic.to_string());
    let value = error.value(py);
    let Diagnostic { code, message, expected, found, at, notes, help } = diagnostic;
    let set = || -> PyResult<()> {
        value.setattr("code", *code)?;
        value.setattr("message", message)?;
        value.setattr("expected", expected)?;
        value.setattr("found", found)?;
        value.setattr("at", at)?;
        value.setattr("notes", notes)?;
        value.setattr("help", help)
    };
    match set() {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// Runs `work` without the interpreter lock, and raises its diagnostic.
pub fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> partita_base::Result<T> + Send,
) -> PyResult<T> {
    check_process().or_raise(py)?;
    check_address_space(MIN_FREE_BYTES, "planning").or_raise(py)?;
    py.detach(work).map_err(|diagnostic| raised(py, &diagnostic))
}

/// Raises a diagnostic.
pub trait OrRaise<T> {
    /// The value, or the exception of the diagnostic.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for partita_base::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|diagnostic| raised(py, &diagnostic))
    }
}
