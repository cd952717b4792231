//! Engines: what runs the ranks of a plan.
//!
//! The plan, its verification, the traces and the checkpoints are the same for all of them. An engine says what it cannot
//! do before it starts ([`Engine::check`]).

use crate::session::Session;
use crate::torch;
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
    /// The distributed runtime of PyTorch.
    Torch,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 4] = [Engine::Native, Engine::Mpi, Engine::Xla, Engine::Torch];

    /// The name, as `--engine` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Native => "native",
            Engine::Mpi => "mpi",
            Engine::Xla => "xla",
            Engine::Torch => "torch",
        }
    }

    /// Whether the engine can train a session from here.
    ///
    /// # Errors
    /// E060 with what it cannot do.
    pub fn check(self, session: &Session, host: &Host) -> Result<()> {
        let refused = |message: &str, expected: &str, found: String, help: &str| {
            Err(Diagnostic::new("E060", format!("the engine {} cannot run this: {message}", self.name()))
                .at("--engine")
                .expected(expected)
                .found(found)
                .help(help))
        };
        match self {
            Engine::Native => Ok(()),
            Engine::Mpi if host.mpi.is_some() => Ok(()),
            Engine::Mpi => refused(
                "this program was built without MPI",
                "the command partita-mpi, started by mpirun",
                "the command partita".to_string(),
                "build it with `cargo build --release --manifest-path crates/mpi/Cargo.toml`, which needs mpicc, and start it \
                 with `mpirun -n 4 partita-mpi train --engine mpi ..`",
            ),
            Engine::Xla => Ok(()),
            Engine::Torch => torch::check(session),
        }
    }
}

/// The engines beside the CPU device and XLA that this program was built with.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The processes that MPI started, this one among them.
    pub mpi: Option<Arc<dyn Processes>>,
}
