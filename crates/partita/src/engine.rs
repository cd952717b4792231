//! Engines: what runs the ranks of a plan.
//!
//! The plan, its verification, the traces and the checkpoints are the same for all of them. An engine says what it cannot
//! do before it starts ([`Engine::check`]).

use partita_base::{Diagnostic, Result};
use partita_runtime::Processes;
use std::sync::Arc;

/// What runs the ranks of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// The CPU device: threads of this process, or of the processes of `partita launch` on one host.
    #[default]
    Native,
    /// The CPU device in processes that MPI connects, on one host or on many.
    Mpi,
    /// XLA through jaxlib: CPU, GPU or TPU devices, one for each rank.
    Xla,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 3] = [Engine::Native, Engine::Mpi, Engine::Xla];

    /// The name, as `--engine` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Native => "native",
            Engine::Mpi => "mpi",
            Engine::Xla => "xla",
        }
    }

    /// Whether the engine can train from here.
    ///
    /// # Errors
    /// E060 for the engine mpi in a program without MPI.
    pub fn check(self, host: &Host) -> Result<()> {
        if self != Engine::Mpi || host.mpi.is_some() {
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
}

/// The engines beside the CPU device and XLA that this program was built with.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The processes that MPI started, this one among them.
    pub mpi: Option<Arc<dyn Processes>>,
}
