//! The command `partita` with the engine `mpi`: `mpirun -n 4 partita-mpi train --engine mpi ..`.
//!
//! MPI moves bytes between processes and does nothing else. Who sends what, and the order of every summation, is that
//! of `partita-comm`, so that a run has the bits of the same mesh in one process.

mod mpi;

use partita::engine::Host;
use partita_comm::MessageProcesses;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let mpi = match mpi::Mpi::start() {
        Ok(mpi) => Arc::new(mpi),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let host = Host { mpi: Some(MessageProcesses::join(mpi.clone())) };
    let code = partita_cli::run_on(std::env::args_os().collect(), &host);
    mpi.finish();
    ExitCode::from(code)
}
