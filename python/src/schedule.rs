//! Schedules: lines of a plan applied to a model, checked one by one.

use crate::arguments::{build_options, call};
use crate::built::{self, Collectives};
use crate::error::{OrRaise, detached};
use crate::mesh::Mesh;
use crate::model::{Model, Source};
use crate::plan::Plan;
use partita::execution::CpuStep;
use partita_schedule::{Entry, Pattern, Plan as Lines, verify};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model, a mesh, and the lines so far.
#[pyclass(frozen, module = "partita._partita")]
pub struct Schedule {
    schedule: Mutex<partita_schedule::Schedule>,
    source: Arc<Source>,
}

impl Schedule {
    fn locked(&self) -> MutexGuard<'_, partita_schedule::Schedule> {
        // A call that failed has changed nothing.
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Schedule {
    #[new]
    fn new(py: Python<'_>, model: &Model, mesh: &Mesh, options: &Bound<'_, PyDict>) -> PyResult<Schedule> {
        let options = build_options(py, options)?;
        let source = model.source.clone();
        let schedule = detached(py, || {
            let schedule = partita_schedule::Schedule::new(source.with_loss(), &mesh.mesh)?;
            let mut schedule = schedule.on(CpuStep::default());
            *schedule.options() = options;
            Ok(schedule)
        })?;
        Ok(Schedule { schedule: Mutex::new(schedule), source })
    }

    /// Adds a line.
    fn apply(
        &self,
        py: Python<'_>,
        modules: String,
        name: &str,
        positional: &Bound<'_, PyTuple>,
        named: &Bound<'_, PyDict>,
        origin: String,
    ) -> PyResult<()> {
        let entry = Entry::from_call(&modules, &call(name, positional, named)?, &origin).or_raise(py)?;
        detached(py, || self.locked().extend(&Lines { entries: vec![entry] }))
    }

    /// Adds the lines of a plan, all or none.
    fn extend(&self, py: Python<'_>, plan: &Plan) -> PyResult<()> {
        detached(py, || self.locked().extend(&plan.plan))
    }

    /// E221 if no module has this path.
    fn check_path(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        detached(py, || self.locked().at(path).map(|_| ()))
    }

    /// Removes the last line, and returns it as a call.
    fn undo(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let removed = detached(py, || self.locked().undo())?;
        Ok(removed.map(|entry| entry.describe()))
    }

    /// The plan so far.
    fn plan(&self, py: Python<'_>) -> Plan {
        Plan { plan: py.detach(|| self.locked().plan().clone()) }
    }

    /// The matches of a pattern below a path: one text each.
    fn find(&self, py: Python<'_>, path: &str, pattern: &str) -> PyResult<Vec<String>> {
        detached(py, || {
            let pattern = Pattern::parse(pattern)?;
            let mut schedule = self.locked();
            let at = if path.is_empty() { schedule.root() } else { schedule.at(path)? };
            Ok(at.find(&pattern)?.to_string().lines().map(|line| line.trim().to_string()).collect())
        })
    }

    /// The forward ops below a path: module path and op.
    fn ops(&self, py: Python<'_>, path: &str) -> PyResult<Vec<(String, String)>> {
        detached(py, || {
            let mut schedule = self.locked();
            let at = if path.is_empty() { schedule.root() } else { schedule.at(path)? };
            Ok(at.forward_ops().to_vec())
        })
    }

    /// Runs the planned step on the ranks and the step of one device, and compares them; then the forward and the backward
    /// pass, with the pause between them at which a caller gives the gradients of the outputs.
    fn verify(&self, py: Python<'_>) -> PyResult<Report> {
        detached(py, || {
            let schedule = self.locked();
            let step = schedule.compare()?;
            let shapes: Vec<String> =
                self.source.imported.inputs.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
            let at = format!("at {}", shapes.join(", "));
            let whole = "the program of a training step with plain SGD, with the interpreter on one device";
            let pieces = "the programs of forward and backward pass, piece by piece, with the interpreter on one device";
            let mut parts = vec![(format!("{whole}, {at}"), step)];
            // A model that is a whole step has no outputs whose gradients a caller gives.
            if !self.source.model.is_step() {
                let passes = schedule.compare_passes(&self.source.weighed)?;
                parts.push((format!("{pieces}, {at}"), passes));
            }
            Ok(Report { parts })
        })
    }

    /// Why the step is as it is: on one screen, or for one tensor or collective.
    fn explain(&self, py: Python<'_>, name: Option<String>) -> PyResult<String> {
        detached(py, || {
            let schedule = self.locked();
            built::explain(schedule.build()?, schedule.graph(), name)
        })
    }

    /// The collectives of a rank in a step: (phase, collective, count, bytes).
    #[pyo3(signature = (rank=0))]
    fn collectives(&self, py: Python<'_>, rank: usize) -> PyResult<Collectives> {
        detached(py, || built::collectives(&self.locked().build()?, rank))
    }

    /// The program of a rank as text.
    fn program(&self, py: Python<'_>, rank: usize) -> PyResult<String> {
        detached(py, || built::program(&self.locked().build()?, rank))
    }

    /// Builds the step and forgets it: what the build refuses, and its notes.
    fn check(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        detached(py, || Ok(self.locked().build()?.notes.into_iter().map(|note| note.text).collect()))
    }

    fn __str__(&self, py: Python<'_>) -> String {
        py.detach(|| self.locked().to_string())
    }

    /// The model.
    fn model(&self) -> Model {
        Model { source: self.source.clone() }
    }
}

/// The outcome of a verification: for each comparison what was compared with what, and how it ended.
#[pyclass(frozen, module = "partita")]
#[derive(Clone)]
pub struct Report {
    pub parts: Vec<(String, verify::Report)>,
}

impl Report {
    /// Of a single comparison.
    pub fn new(what: &str, report: verify::Report) -> Report {
        Report { parts: vec![(what.to_string(), report)] }
    }

    fn all(&self) -> impl Iterator<Item = &verify::TensorError> {
        self.parts.iter().flat_map(|(_, report)| &report.tensors)
    }
}

#[pymethods]
impl Report {
    /// This report with one more comparison: what was compared with what, the permitted relative difference, and for each
    /// tensor its name, its largest relative difference, and the number of elements that differ by more than is permitted.
    fn also(&self, what: String, tolerance: f64, tensors: Vec<(String, f64, usize)>) -> Report {
        let error = |(tensor, rel_error, wrong): (String, f64, usize)| {
            let of_permitted = if wrong > 0 { f64::INFINITY } else { rel_error / tolerance };
            verify::TensorError { tensor, rel_error, of_permitted, excused: 0, wrong }
        };
        let tensors: Vec<verify::TensorError> = tensors.into_iter().map(error).collect();
        let ok = tensors.iter().all(|tensor| tensor.wrong == 0);
        let report = verify::Report { ok, tensors, tolerance, first_diverging: None };
        Report { parts: self.parts.iter().cloned().chain([(what, report)]).collect() }
    }

    /// Whether every difference is explained by rounding.
    #[getter]
    fn ok(&self) -> bool {
        self.parts.iter().all(|(_, report)| report.ok)
    }

    /// The permitted relative difference.
    #[getter]
    fn tolerance(&self) -> f64 {
        self.parts.iter().map(|(_, report)| report.tolerance).fold(0.0, f64::max)
    }

    /// The first value that differs, in words; None if none does.
    #[getter]
    fn first_diverging(&self) -> Option<String> {
        self.parts.iter().find_map(|(_, report)| report.first_diverging.clone())
    }

    /// What was compared with what, one line each.
    #[getter]
    fn compared(&self) -> Vec<String> {
        let line = |(what, report): &(String, verify::Report)| {
            let wrong = report.tensors.iter().filter(|tensor| tensor.wrong > 0).count();
            match (report.ok, report.tensors.len()) {
                (true, count) => format!("{what}: {count} tensors agree"),
                (false, count) => format!("{what}: {wrong} of {count} tensors differ"),
            }
        };
        self.parts.iter().map(line).collect()
    }

    /// Each compared tensor: name, largest relative difference, elements that differ by more than rounding.
    #[getter]
    fn tensors(&self) -> Vec<(String, f64, usize)> {
        self.all().map(|t| (t.tensor.clone(), t.rel_error, t.wrong)).collect()
    }

    /// The largest relative difference of all tensors.
    #[getter]
    fn largest_difference(&self) -> f64 {
        self.all().map(|t| t.rel_error).fold(0.0, f64::max)
    }

    fn __bool__(&self) -> bool {
        self.ok()
    }

    fn __repr__(&self) -> String {
        let largest = self.largest_difference();
        if self.ok() {
            let count = self.all().count();
            return format!("verified: {count} tensors agree, largest difference {largest:.1e}");
        }
        let wrong = self.parts.iter().find(|(_, report)| !report.ok);
        let first = wrong.and_then(|(what, report)| {
            let named = report
                .worst()
                .map(|worst| format!("{} off by {:.1e} ({what})", worst.tensor, worst.rel_error));
            report.first_diverging.clone().or(named)
        });
        match first {
            Some(first) => format!("the plan changes the numbers: {first}"),
            None => format!("the plan changes the numbers: largest difference {largest:.1e}"),
        }
    }
}
