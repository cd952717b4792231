//! The command `partita` with the engine `mpi`: `mpirun -n 4 partita-mpi train --engine mpi ..`.
//!
//! MPI moves bytes between processes and does nothing else. Who sends what, and the order of every summation, is that
//! of `partita-comm`, so that a run has the bits of the same mesh in one process.

mod mpi;

use partita::engines::Engines;
use partita::engines::mpi::Mpi;
use partita_comm::MessageProcesses;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// What a process may take to say why a run ends without another one.
const TO_SAY_WHY: Duration = Duration::from_secs(2);
/// What mpirun may take to find out that a host is lost, and to end all itself.
const TO_LOSE_A_HOST: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let mpi = match mpi::Mpi::start() {
        Ok(mpi) => Arc::new(mpi),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let processes = MessageProcesses::join(mpi.clone());
    let engines = Engines::bundled().with(Mpi { processes: Some(processes.clone()) });
    let code = partita_cli::run_on(std::env::args_os().collect(), engines);
    if code == 0 || processes.stopped().is_empty() {
        mpi.finish();
    } else {
        // MPI ends on all processes together, which a stopped one would never do. mpirun ends all after the first that
        // fails: that is the one that says why.
        let is_first = processes.first_running() == processes.index();
        std::thread::sleep(TO_LOSE_A_HOST + if is_first { Duration::ZERO } else { TO_SAY_WHY });
    }
    ExitCode::from(code)
}
