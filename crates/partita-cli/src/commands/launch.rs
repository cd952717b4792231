//! `partita launch`: the processes of a run on this host, and what they are to each other.

use crate::cli::LaunchArgs;
use crate::interrupt::Requests;
use crate::output::Output;
use crate::run::Ending;
use partita::session::Execution;
use partita_base::{Diagnostic, Result};
use partita_runtime::{PEER_FAILED, PROCESS_ENDED, Processes};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Tells a process its place: `<index>/<count>:<folder>`.
const PLACE: &str = "PARTITA_LAUNCH";

/// The exit code of a launched process that ended only because another one failed.
pub const CONSEQUENCE: u8 = 3;

/// How long processes wait for each other at first.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the others have to end by themselves when one has failed.
const GRACE: Duration = Duration::from_secs(3);

/// How often the processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The execution of a process that may be one of several: it then joins them, and takes its part of the cores.
///
/// # Errors
/// E448 if it cannot join them; E449 if there are more processes than ranks, or if its place in the environment is not
/// valid.
pub fn share(execution: Execution, ranks: usize) -> Result<Execution> {
    let Some(place) = std::env::var_os(PLACE) else { return Ok(execution) };
    let wrong = || {
        Diagnostic::new("E449", format!("the variable {PLACE} names no place among processes"))
            .expected("what `partita launch` sets: <index>/<count>:<folder>")
            .found(place.to_string_lossy())
    };
    let (numbers, folder) = place.to_str().and_then(|text| text.split_once(':')).ok_or_else(wrong)?;
    let (index, count) = numbers.split_once('/').ok_or_else(wrong)?;
    let (index, count): (usize, usize) =
        (index.parse().map_err(|_| wrong())?, count.parse().map_err(|_| wrong())?);
    if count > ranks {
        return Err(Diagnostic::new("E449", format!("{count} processes have only {ranks} ranks to run"))
            .at("partita launch -n")
            .expected(format!("at most {ranks} processes: one for each rank of the mesh"))
            .found(count.to_string()));
    }
    let processes = Processes::join(Path::new(folder), index, count, PATIENCE)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = execution.workers.unwrap_or_else(|| (cores / count).max(1));
    Ok(Execution { workers: Some(workers), processes: Some(processes), ..execution })
}

/// Whether this is a launched process that ended because another one did, which tells why.
pub fn is_consequence(diagnostic: &Diagnostic) -> bool {
    std::env::var_os(PLACE).is_some() && matches!(diagnostic.code, PEER_FAILED | PROCESS_ENDED)
}

/// A process that was started.
struct Launched {
    child: Child,
    /// What it says on standard error, unless that goes to the terminal.
    said: Option<JoinHandle<String>>,
    /// How it ended by itself.
    ended: Option<ExitStatus>,
}

/// The folder in which processes meet, removed in the end.
struct Meeting(PathBuf);

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command in so many processes and shows the output of the first. If one fails, the others end too, and its
/// error is printed. Ctrl-C, or SIGTERM, lets all of them save and end; a second one ends them at once.
///
/// # Errors
/// E449 if a process cannot be started, or fails without an error message.
pub fn launch(args: &LaunchArgs, output: &mut Output) -> Result<Ending> {
    let count = args.processes as usize;
    let folder = Meeting(folder()?);
    let mut processes: Vec<Launched> = Vec::new();
    for index in 0..count {
        match start(args, index, &folder.0) {
            Ok(process) => processes.push(process),
            Err(error) => {
                processes.iter_mut().for_each(end);
                return Err(error);
            }
        }
    }
    let requests = Requests::catch().ok();
    let (mut stopped_at, mut requested): (Option<Instant>, usize) = (None, 0);
    while processes.iter().any(|process| process.ended.is_none()) {
        if requests.as_ref().is_some_and(Requests::take) {
            requested += 1;
            let running = processes.iter_mut().filter(|process| process.ended.is_none());
            if requested > 1 {
                running.for_each(end);
                return Ok(Ending::Stopped);
            }
            running.for_each(request_stop);
        }
        for process in &mut processes {
            if process.ended.is_none()
                && let Ok(Some(status)) = process.child.try_wait()
            {
                process.ended = Some(status);
                if !status.success() {
                    stopped_at.get_or_insert_with(Instant::now);
                }
            }
        }
        // Those that were asked to stop take their time to save.
        let is_asked = processes.iter().filter_map(|p| p.ended).any(|status| code(status) == Some(130));
        if !is_asked && stopped_at.is_some_and(|at| at.elapsed() > GRACE) {
            processes.iter_mut().filter(|process| process.ended.is_none()).for_each(end);
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    report(processes, output)
}

/// Where processes meet: in memory, where the system has a place for that and the user names no other.
fn folder() -> Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let is_named = std::env::var_os("TMPDIR").is_some();
    let parent = if memory.is_dir() && !is_named { memory.to_path_buf() } else { std::env::temp_dir() };
    let path = parent.join(format!("partita-launch-{}", std::process::id()));
    std::fs::create_dir(&path).map_err(|error| {
        Diagnostic::new("E449", "the folder in which processes meet cannot be made")
            .at(path.display().to_string())
            .found(error.to_string())
    })?;
    Ok(path)
}

/// Starts a process. Only the first one has the terminal.
fn start(args: &LaunchArgs, index: usize, folder: &Path) -> Result<Launched> {
    let (program, arguments) = args.command.split_first().expect("clap asks for a command");
    let is_first = index == 0;
    let pipe = |first: Stdio, other: Stdio| if is_first { first } else { other };
    let mut command = Command::new(program);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command
        .args(arguments)
        .env(PLACE, format!("{index}/{}:{}", args.processes, folder.display()))
        .stdin(Stdio::null())
        .stdout(pipe(Stdio::inherit(), Stdio::null()))
        .stderr(pipe(Stdio::inherit(), Stdio::piped()))
        .spawn();
    let mut child = child.map_err(|error| {
        Diagnostic::new("E449", format!("process {index} of {} cannot be started", args.processes))
            .at(program.to_string_lossy())
            .found(error.to_string())
            .help("name the program and its arguments after `--`")
    })?;
    let said = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    Ok(Launched { child, said, ended: None })
}

/// Lets a process save and end: what a signal to the launcher means. The processes have a process group of their own, so
/// that a Ctrl-C on the terminal reaches them only through the launcher, once.
fn request_stop(process: &mut Launched) {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        let _ = kill_process(Pid::from_child(&process.child), Signal::TERM);
    }
    #[cfg(not(unix))]
    end(process);
}

/// Ends a process at once.
fn end(process: &mut Launched) {
    let _ = process.child.kill();
    let _ = process.child.wait();
}

fn code(status: ExitStatus) -> Option<u8> {
    status.code().and_then(|code| u8::try_from(code).ok())
}

/// What the processes came to: what the first of them says that has a reason of its own.
fn report(processes: Vec<Launched>, output: &mut Output) -> Result<Ending> {
    let count = processes.len();
    let (mut stopped, mut failed) = (false, false);
    for (index, process) in processes.into_iter().enumerate() {
        let Some(status) = process.ended else {
            failed = true;
            continue;
        };
        match code(status) {
            Some(0) => continue,
            Some(CONSEQUENCE) => {
                failed = true;
                continue;
            }
            Some(130) => {
                stopped = true;
                continue;
            }
            _ => {}
        }
        // The first one has spoken itself, unless it was killed.
        match code(status) {
            Some(1) if index == 0 => return Ok(Ending::CheckFailed),
            Some(_) if index == 0 => return Ok(Ending::Failed),
            _ => {}
        }
        let mut error = Diagnostic::new("E449", format!("process {index} of {count} failed: {status}"));
        let said = process.said.and_then(|said| said.join().ok()).unwrap_or_default();
        if let Some(start) = said.rfind("error[") {
            error = error.note(said[start..].trim_end().to_string());
        }
        output.error(&error);
        return Ok(Ending::Failed);
    }
    match failed {
        true => Err(Diagnostic::new("E449", "the processes ended without telling why")),
        false => Ok(if stopped { Ending::Stopped } else { Ending::Done }),
    }
}
