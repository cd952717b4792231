//! `partita launch`: the processes of a run on this host, and what they are to each other.

use crate::command::{Application, Command};
use crate::interrupt::Requests;
use crate::output::Output;
use crate::run::Ending;
use clap::Args;
use partita::engines::CONSEQUENCE;
use partita::launcher::LAUNCHED as PLACE;
use partita::leftovers;
use partita_base::{Diagnostic, Result};
use partita_runtime::checkpoint::newest_good;
use partita_runtime::{PEER_FAILED, PROCESS_ENDED, Processes};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Flags of `launch`.
#[derive(Args, Clone, Debug)]
pub struct LaunchArgs {
    /// The number of processes.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub processes: u32,
    /// If a process dies, start all again up to N times; `partita train` continues from its last checkpoint.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub restarts: u32,
    /// Start again with one process fewer for each that died. The mesh stays, and with it every number.
    #[arg(long, requires = "restarts")]
    pub elastic: bool,
    /// The command that each process runs: `partita train ..`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Command for LaunchArgs {
    const NAME: &'static str = "launch";
    const ABOUT: &'static str = "Run a command in several processes of this host that share the ranks";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        launch(self, output)
    }
}

/// Files in the folder in which processes meet: the checkpoint folder of their run, and after a restart the checkpoint to
/// continue from.
const RUN: &str = "run";
const RESTARTED: &str = "restarted";

/// Beginnings of names of files there, which end with the index of a process: one that ended because of another one
/// leaves what it knows of that, and one that fails marks that it has printed why.
const KNOWN: &str = "known-";
const TOLD: &str = "told-";

/// The most lines that are shown of what a failed process said on standard error.
const LINES_SHOWN: usize = 8;

/// How long the others have to end by themselves when one has failed.
const GRACE: Duration = Duration::from_secs(3);

/// The beginning of the name of the folder in which processes meet, which ends with the id of the launcher.
const FOLDER: &str = "partita-launch-";

/// How often the processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Whether this process is the first of a launch, or alone: it prints and writes files for all.
pub fn is_first() -> bool {
    let place = std::env::var(PLACE).unwrap_or_default();
    place.is_empty() || place.starts_with("0/")
}

/// Tells the first process why this one failed; it prints the first reason. All processes call this as they end. Where one
/// is stopped, the first of the others prints its own reason, or which one is stopped.
pub fn report_to_first(reason: Option<&Diagnostic>, processes: &Arc<dyn Processes>, output: &mut Output) {
    let text = reason.map(Diagnostic::to_string).unwrap_or_default();
    let world = processes.world(processes.count(), Vec::new());
    let told = world.and_then(|world| world.transport().control_all_gather(text.as_bytes()));
    let first = processes.first_running();
    if processes.index() != first {
        return;
    }
    // Processes behind the first one are silent otherwise.
    let mut own = Output::to(Box::new(std::io::sink()), Box::new(std::io::stderr()), false);
    let output = if first > 0 { &mut own } else { output };
    if let Some(reason) = reason {
        return output.error(reason);
    }
    if let (Err(error), false) = (&told, processes.stopped().is_empty()) {
        return output.error(error);
    }
    let all = told.unwrap_or_default();
    if let Some((index, said)) = all.iter().enumerate().find(|(_, said)| !said.is_empty()) {
        let count = processes.count();
        let said = String::from_utf8_lossy(said).trim_end().to_string();
        output.error(&Diagnostic::new("E449", format!("process {index} of {count} failed")).note(said));
    }
}

/// The index of a launched process, and the folder through which it finds the others.
fn place() -> Option<(usize, PathBuf)> {
    let place = std::env::var(PLACE).ok()?;
    let (numbers, folder) = place.split_once(':')?;
    let (index, _) = numbers.split_once('/')?;
    Some((index.parse().ok()?, PathBuf::from(folder)))
}

fn meeting() -> Option<PathBuf> {
    place().map(|(_, folder)| folder)
}

/// Tells the launcher that this process has failed and printed why.
pub fn mark_told() {
    if let Some((index, folder)) = place() {
        // Without the file the launcher tells the exit code as well.
        let _ = std::fs::File::create(folder.join(format!("{TOLD}{index}")));
    }
}

/// Leaves to the launcher what this process knows of another one because of which it ends.
pub fn leave(consequence: &Diagnostic) {
    if let Some((index, folder)) = place() {
        let lines: Vec<&str> =
            std::iter::once(&consequence.message).chain(&consequence.notes).map(String::as_str).collect();
        let _ = std::fs::write(folder.join(format!("{KNOWN}{index}")), lines.join("\n"));
    }
}

/// Tells the launcher where the run of this process keeps its checkpoints, for a restart.
pub fn record(folder: Option<&Path>) {
    if let (Some(meeting), Some(folder)) = (meeting(), folder) {
        // Without the file a restart begins as the run did.
        let _ = std::fs::write(meeting.join(RUN), folder.as_os_str().as_encoded_bytes());
    }
}

/// After a restart: the checkpoint from which it continues; `None` for the beginning.
pub fn restarted() -> Option<PathBuf> {
    let path = std::fs::read_to_string(meeting()?.join(RESTARTED)).ok()?;
    Some(PathBuf::from(path))
}

/// The newest checkpoint of a run that is whole, for all processes of a restart.
///
/// # Errors
/// E312 if the run has checkpoints and none is whole.
fn whole(run: &[u8], output: &mut Output) -> Result<Option<PathBuf>> {
    let run = String::from_utf8_lossy(run).into_owned();
    let Some(good) = newest_good(Path::new(&run))? else { return Ok(None) };
    for passed in &good.passed {
        let at = passed.at.as_deref().unwrap_or_default();
        output
            .waiting(&format!("passed over a newer checkpoint, {} at {at}: {}", passed.message, passed.code));
    }
    Ok(Some(good.path))
}

/// Whether this is a launched process that ended because another one did, which tells why.
pub fn is_consequence(diagnostic: &Diagnostic, is_one_of_several: bool) -> bool {
    (is_one_of_several || std::env::var_os(PLACE).is_some())
        && matches!(diagnostic.code, PEER_FAILED | PROCESS_ENDED)
}

/// A process that was started.
struct Launched {
    child: Child,
    /// What it says on standard error, unless that goes to the terminal.
    said: Option<JoinHandle<String>>,
    /// How it ended by itself.
    ended: Option<ExitStatus>,
    /// Whether it was stopped, as by SIGSTOP, when another one had failed because of that.
    is_stopped: bool,
}

/// The folder in which processes meet, removed in the end.
struct Meeting(PathBuf);

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command in so many processes and shows the output of the first. If one fails, the others end too, and its
/// error is printed; if one dies and restarts are left, all start again. Ctrl-C, or SIGTERM, lets all of them save and end;
/// a second one ends them at once.
///
/// # Errors
/// E449 if a process cannot be started, or fails without an error message.
fn launch(args: &LaunchArgs, output: &mut Output) -> Result<Ending> {
    let mut count = args.processes as usize;
    let requests = Requests::catch().ok();
    let mut run: Option<Vec<u8>> = None;
    for restart in 0.. {
        let folder = Meeting(folder()?);
        if let Some(run) = &run
            && let Some(path) = whole(run, output)?
        {
            let _ = std::fs::write(folder.0.join(RESTARTED), path.as_os_str().as_encoded_bytes());
        }
        let processes = match attempt(args, count, &folder.0, requests.as_ref())? {
            Some(processes) => processes,
            None => return Ok(Ending::Stopped),
        };
        let dead = dead(&processes);
        let known = Known::read(&folder.0, count);
        if dead.is_empty() || restart == args.restarts {
            return report(processes, &known, output);
        }
        // A run that was restarted before its first checkpoint continues the one before it.
        run = std::fs::read(folder.0.join(RUN)).ok().or(run);
        let names: Vec<String> = dead.iter().map(usize::to_string).collect();
        let names = names.join(", ");
        if args.elastic {
            count = count.saturating_sub(dead.len()).max(1);
        }
        output.waiting(&format!(
            "process {names} died: restart {} of {} in {count} processes{}",
            restart + 1,
            args.restarts,
            known.of_others.map_or(String::new(), |known| format!("\n{known}"))
        ));
    }
    unreachable!("the last restart returns")
}

/// Runs the command once in `count` processes, to their end; `None` if they were ended by a second Ctrl-C.
fn attempt(
    args: &LaunchArgs,
    count: usize,
    folder: &Path,
    requests: Option<&Requests>,
) -> Result<Option<Vec<Launched>>> {
    let mut processes: Vec<Launched> = Vec::new();
    for index in 0..count {
        match start(args, index, count, folder) {
            Ok(process) => processes.push(process),
            Err(error) => {
                processes.iter_mut().for_each(end);
                return Err(error);
            }
        }
    }
    let (mut stopped_at, mut requested): (Option<Instant>, usize) = (None, 0);
    while processes.iter().any(|process| process.ended.is_none()) {
        if requests.is_some_and(Requests::take) {
            requested += 1;
            let running = processes.iter_mut().filter(|process| process.ended.is_none());
            if requested > 1 {
                running.for_each(end);
                return Ok(None);
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
            for process in processes.iter_mut().filter(|process| process.ended.is_none()) {
                process.is_stopped = is_stopped(process.child.id());
                end(process);
            }
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(Some(processes))
}

/// The processes that died by a signal, or had to be ended since they were stopped.
fn dead(processes: &[Launched]) -> Vec<usize> {
    let is_dead =
        |process: &Launched| process.ended.map_or(process.is_stopped, |status| status.code().is_none());
    (0..processes.len()).filter(|&index| is_dead(&processes[index])).collect()
}

/// Whether a process is stopped by a signal or a debugger, as Linux tells it.
fn is_stopped(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses and may have some of its own.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}

/// Where processes meet: in memory, where the system has a place for that and the user names no other.
fn folder() -> Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let is_named = std::env::var_os("TMPDIR").is_some();
    let parent = if memory.is_dir() && !is_named { memory.to_path_buf() } else { std::env::temp_dir() };
    leftovers::remove(&parent, FOLDER);
    let path = parent.join(format!("{FOLDER}{}", process::id()));
    let mut builder = std::fs::DirBuilder::new();
    // What processes tell each other is for their user alone.
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&path).map_err(|error| {
        Diagnostic::new("E449", "the folder in which processes meet cannot be made")
            .at(path.display().to_string())
            .found(error.to_string())
    })?;
    Ok(path)
}

/// Starts a process. Only the first one has the terminal.
fn start(args: &LaunchArgs, index: usize, count: usize, folder: &Path) -> Result<Launched> {
    let (program, arguments) = args.command.split_first().expect("clap asks for a command");
    let is_first = index == 0;
    let pipe = |first: Stdio, other: Stdio| if is_first { first } else { other };
    let mut command = process::Command::new(program);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command
        .args(arguments)
        .env(PLACE, format!("{index}/{count}:{}", folder.display()))
        .stdin(Stdio::piped())
        .stdout(pipe(Stdio::inherit(), Stdio::null()))
        .stderr(pipe(Stdio::inherit(), Stdio::piped()))
        .spawn();
    let mut child = child.map_err(|error| {
        Diagnostic::new("E449", format!("process {index} of {count} cannot be started"))
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
    Ok(Launched { child, said, ended: None, is_stopped: false })
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

/// What processes have left in the folder in which they met.
struct Known {
    /// Whether a process has printed why it failed.
    told: Vec<bool>,
    /// What the first of those knows that ended because of another one.
    of_others: Option<String>,
}

impl Known {
    fn read(folder: &Path, count: usize) -> Known {
        let file = |kind: &str, index: usize| folder.join(format!("{kind}{index}"));
        Known {
            told: (0..count).map(|index| file(TOLD, index).exists()).collect(),
            of_others: (0..count).find_map(|index| std::fs::read_to_string(file(KNOWN, index)).ok()),
        }
    }
}

/// What the processes came to: what the first of them says that has a reason of its own.
fn report(processes: Vec<Launched>, known: &Known, output: &mut Output) -> Result<Ending> {
    let count = processes.len();
    let (mut stopped, mut failed) = (false, false);
    for (index, process) in processes.into_iter().enumerate() {
        let Some(status) = process.ended else {
            failed = true;
            continue;
        };
        let ending = match code(status) {
            Some(0) => continue,
            Some(CONSEQUENCE) if known.told[index] => {
                failed = true;
                continue;
            }
            Some(130) => {
                stopped = true;
                continue;
            }
            Some(1) if index == 0 => Ending::CheckFailed,
            _ => Ending::Failed,
        };
        // The first one has the terminal.
        if index == 0 && known.told[index] {
            return Ok(ending);
        }
        let mut error = Diagnostic::new("E449", format!("process {index} of {count} failed: {status}"));
        let said = process.said.and_then(|said| said.join().ok()).unwrap_or_default();
        let said = said.trim_end();
        let shown = match said.rfind("error[") {
            Some(start) => said[start..].to_string(),
            None => {
                let lines: Vec<&str> = said.lines().collect();
                lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
            }
        };
        if !shown.is_empty() {
            error = error.note(shown);
        }
        if let (None, Some(known)) = (status.code(), &known.of_others) {
            error = error.note(known.clone());
        }
        output.error(&error);
        return Ok(ending);
    }
    match failed {
        true => Err(Diagnostic::new("E449", "the processes ended without telling why")),
        false => Ok(if stopped { Ending::Stopped } else { Ending::Done }),
    }
}
