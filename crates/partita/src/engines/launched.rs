//! The processes of `partita launch`, which share the ranks of a run on one host.

use crate::launcher::LAUNCHED;
use crate::session::Execution;
use partita_base::{Diagnostic, Result};
use partita_runtime::{HostProcesses, Patience, Processes};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The exit code of a launched process that ended only because another one failed.
pub const CONSEQUENCE: u8 = 3;

/// Joins the other processes of a launch; `None` in a process that was not launched.
///
/// # Errors
/// E448 if it cannot join them; E449 if there are more processes than ranks, or if its place in the environment is not
/// valid.
pub(super) fn join(execution: &Execution, ranks: usize) -> Result<Option<Arc<dyn Processes>>> {
    let Some(place) = std::env::var_os(LAUNCHED) else { return Ok(None) };
    let wrong = || {
        Diagnostic::new("E449", format!("the variable {LAUNCHED} names no place among processes"))
            .expected("what `partita launch` sets: <index>/<count>:<folder>")
            .found(place.to_string_lossy())
    };
    let (numbers, folder) = place.to_str().and_then(|text| text.split_once(':')).ok_or_else(wrong)?;
    let (index, count) = numbers.split_once('/').ok_or_else(wrong)?;
    let (index, count): (usize, usize) =
        (index.parse().map_err(|_| wrong())?, count.parse().map_err(|_| wrong())?);
    fits(count, ranks, "partita launch -n")?;
    end_with_launcher(PathBuf::from(folder));
    let patience = Patience::default();
    let patience = Patience { silence: execution.watchdog.unwrap_or(patience.silence), ..patience };
    Ok(Some(HostProcesses::join(Path::new(folder), index, count, patience)?))
}

/// E449 if there are more processes than ranks; `at` is what says how many.
pub(super) fn fits(count: usize, ranks: usize, at: &str) -> Result<()> {
    if count <= ranks {
        return Ok(());
    }
    Err(Diagnostic::new("E449", format!("{count} processes have only {ranks} ranks to run"))
        .at(at)
        .expected(format!("at most {ranks} processes: one for each rank of the mesh"))
        .found(count.to_string()))
}

/// Ends this process when the launcher is gone, however it ended: the launcher holds the other end of standard input, and
/// writes nothing to it. The folder in which the processes meet goes too.
fn end_with_launcher(folder: PathBuf) {
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while std::io::stdin().read(&mut bytes).is_ok_and(|count| count > 0) {}
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(i32::from(CONSEQUENCE));
    });
}
