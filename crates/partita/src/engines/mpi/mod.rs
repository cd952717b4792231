//! `mpi`: the CPU device in processes that MPI connects, on one host or on many.
//!
//! This crate has no MPI. A program that has it, such as `partita-mpi`, gives the processes that MPI started.

use super::launched::fits;
use super::{Engine, EngineState, EngineTrainer, TrainingRun, first_line, native};
use crate::one_device;
use crate::session::{Execution, Session};
use crate::trainer::Observer;
use partita_base::{Diagnostic, Result};
use partita_runtime::{Patience, Processes};
use std::sync::Arc;
use std::time::Duration;

/// The engine `mpi`.
#[derive(Clone, Debug, Default)]
pub struct Mpi {
    /// The processes that MPI started, this one among them; `None` in a program without MPI.
    pub processes: Option<Arc<dyn Processes>>,
}

impl Engine for Mpi {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn about(&self) -> &'static str {
        "processes that mpirun started"
    }

    fn state(&self) -> EngineState {
        let about = match (&self.processes, first_line("mpirun", &["--version"])) {
            (Some(processes), _) => format!("process {} of {}", processes.index(), processes.count()),
            (None, Some(library)) => format!("{library} is here; it runs partita-mpi, built from crates/mpi"),
            (None, None) => "no mpirun; install an MPI library and build crates/mpi".to_string(),
        };
        EngineState { name: self.name(), ready: self.processes.is_some(), about, plugins: Vec::new() }
    }

    fn check(&self, _: &Session) -> Result<()> {
        if self.processes.is_some() {
            return Ok(());
        }
        Err(Diagnostic::new("E060", "the engine mpi cannot run this: this program was built without MPI")
            .at("--engine")
            .expected("the command partita-mpi, started by mpirun")
            .found("the command partita")
            .help(
                "build it with `cargo build --release --manifest-path crates/mpi/Cargo.toml`, which needs mpicc, and start it \
                 with `mpirun -n 4 partita-mpi train --engine mpi ..`",
            ))
    }

    fn processes(&self, execution: &Execution, ranks: usize) -> Result<Option<Arc<dyn Processes>>> {
        let Some(processes) = &self.processes else { return Ok(None) };
        processes.tolerate(execution.watchdog.unwrap_or(Patience::default().silence));
        fits(processes.count(), ranks, "mpirun -n")?;
        Ok(Some(processes.clone()))
    }

    fn started(&self) -> Option<&Arc<dyn Processes>> {
        self.processes.as_ref()
    }

    fn trainer(&self, run: &TrainingRun, observer: &mut dyn Observer) -> Result<Box<dyn EngineTrainer>> {
        native::trainer(run, observer)
    }

    fn one_device_tokens_per_s(&self, run: &TrainingRun, step: Duration) -> Result<Option<f64>> {
        one_device::tokens_per_s(run.session, run.model, run.feed.as_ref(), step)
    }
}
