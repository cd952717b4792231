//! The child process that runs the step: which program it is, how it is started, and what it says.

use super::{PACKAGES, PYTHON, python};
use crate::session::Session;
use crate::trainer::Observer;
use crate::xla::manifest::RUNNER_FILE;
use crate::xla::plugins::{Candidate, PLUGIN, Program, Tried, named, one_line, to_install};
use crate::xla::protocol::{Failure, Line, STOP, TRAIN};
use partita_base::{Diagnostic, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a line may take before its reader does something else.
const PATIENCE: Duration = Duration::from_millis(50);

/// What runs a step.
pub enum Runner {
    /// The script of the exported folder, in Python.
    Python,
    /// This program with a PJRT plugin.
    Plugin(Program, Candidate),
}

/// The runner of a session: a program with the first plugin that has devices, or else Python, which also runs the steps of
/// several processes. `find` gives the program and the plugins that it has tried.
///
/// # Errors
/// E061 without either of them, and what is wrong with the plugin that [`PLUGIN`] names.
pub fn choose<'a>(
    find: impl FnOnce() -> Option<(&'a Program, &'a Tried)>,
    session: &Session,
    observer: &mut dyn Observer,
) -> Result<Runner> {
    let is_alone = session.processes().is_none_or(|processes| processes.count() == 1);
    let found = if is_alone { find() } else { None };
    let named = named();
    let Some((program, tried)) = found else {
        if named.is_some() {
            let why = if is_alone { "in this program" } else { "with several processes" };
            observer.note(&format!("{PLUGIN} has no effect: {why} the engine xla runs in Python"));
        }
        check_packages()?;
        return Ok(Runner::Python);
    };
    if let Some((plugin, _)) = &tried.chosen {
        note_failed(&tried.failed, observer);
        return Ok(Runner::Plugin(program.clone(), plugin.clone()));
    }
    if let (Some(_), Some((_, error))) = (named, tried.failed.first()) {
        return Err(error.clone());
    }
    note_failed(&tried.failed, observer);
    check_packages()?;
    Ok(Runner::Python)
}

/// Says which plugins are here and not used.
fn note_failed(failed: &[(Candidate, Box<Diagnostic>)], observer: &mut dyn Observer) {
    for (Candidate { name, path }, error) in failed {
        observer.note(&format!(
            "the PJRT plugin {name} at {} is not used: {}",
            path.display(),
            one_line(error)
        ));
    }
}

impl Runner {
    /// Whether it stops after the current step when it is asked to.
    pub fn can_stop(&self) -> bool {
        matches!(self, Runner::Plugin(..))
    }

    /// Starts it on an exported step, to save the state after every `every`-th step and the last one. `place` are the
    /// variables that tell it which of several processes it is.
    ///
    /// # Errors
    /// E061 if it cannot be started.
    pub fn start(&self, folder: &Path, every: u64, place: Vec<(&'static str, String)>) -> Result<Running> {
        let mut command = match self {
            Runner::Python => {
                let mut command = Command::new(python());
                command.arg(folder.join(RUNNER_FILE)).args(["--json", "--end-with-stdin"]);
                command.args(["--save-every", &every.to_string()]).arg("--save-in").arg(folder);
                command
            }
            Runner::Plugin(program, plugin) => {
                let mut command = program.command(plugin);
                command.arg(TRAIN).arg(&plugin.path).arg(folder).arg(every.to_string());
                apart(&mut command);
                command
            }
        };
        // It ends when its input does, however this process ended.
        let command = command.envs(place).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| self.failed("it cannot be started", error.to_string()))?;
        let mut pipe = child.stderr.take().expect("it is piped");
        let said = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in out.lines().map_while(std::io::Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Ok(Running { child, stdin, lines, said: Some(said), other: None, failure: None })
    }

    /// E061.
    pub fn failed(&self, what: &str, found: String) -> Box<Diagnostic> {
        let at = match self {
            Runner::Python => python(),
            Runner::Plugin(_, plugin) => plugin.path.display().to_string(),
        };
        failed(what, found).at(at)
    }
}

/// Keeps Ctrl-C from a process: only the program that started it stops it.
#[cfg(unix)]
fn apart(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

#[cfg(not(unix))]
fn apart(_command: &mut Command) {}

/// A runner, which ends with this value.
pub struct Running {
    child: Child,
    /// Open until it has ended.
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// What it prints on its standard error.
    said: Option<JoinHandle<String>>,
    /// A line that is none of its protocol.
    other: Option<String>,
    /// Why it ends, in its own words.
    failure: Option<Failure>,
}

/// What a runner says next.
pub enum Next {
    /// A step, or a state.
    Line(Box<Line>),
    /// Nothing yet.
    Wait,
    /// Nothing more.
    End,
}

impl Running {
    /// Its next line, if it comes soon.
    pub fn next(&mut self) -> Next {
        match self.lines.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => Next::Wait,
            Err(RecvTimeoutError::Disconnected) => Next::End,
            Ok(text) => match serde_json::from_str::<Line>(&text) {
                Ok(Line { error: Some(failure), .. }) => {
                    self.failure = Some(failure);
                    Next::Wait
                }
                Ok(line) => Next::Line(Box::new(line)),
                Err(_) => {
                    self.other = Some(text);
                    Next::End
                }
            },
        }
    }

    /// Asks it to stop after the current step.
    pub fn stop(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            // It may have ended.
            let _ = writeln!(stdin, "{STOP}").and_then(|()| stdin.flush());
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Its own diagnostic; E061 if it ended otherwise, and for lines that are none of its protocol.
    pub fn finish(mut self, runner: &Runner) -> Result<()> {
        let status = match &self.other {
            // Of a process that ends, the last line may be cut off.
            Some(_) => self.child.try_wait().transpose().or_else(|| {
                std::thread::sleep(PATIENCE);
                self.child.try_wait().transpose()
            }),
            None => Some(self.child.wait()),
        };
        let status = status.transpose().map_err(|error| runner.failed("it is lost", error.to_string()))?;
        drop(self.stdin.take());
        if let Some(failure) = self.failure.take() {
            return Err(failure.into());
        }
        match (status, self.other.take()) {
            (Some(status), other) if !status.success() || other.is_none() => {
                if status.success() {
                    return Ok(());
                }
                let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
                let last = said.trim_end().lines().last().unwrap_or_default().to_string();
                let help = match runner {
                    Runner::Python => "`partita env` shows the Python and the packages that run it",
                    Runner::Plugin(..) => {
                        "`partita env` lists the PJRT plugins; `--resume` continues from the last checkpoint"
                    }
                };
                let found = if last.is_empty() { status.to_string() } else { format!("{status}: {last}") };
                Err(runner.failed("the runner failed", found).help(help))
            }
            (_, other) => {
                Err(runner.failed("it printed something else than steps", other.unwrap_or_default()))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is missing on a machine without a plugin and without the packages.
pub fn nothing_here() -> String {
    let install = to_install();
    format!("no PJRT plugin is found, and {} finds no package {}: {install}", python(), PACKAGES[0])
}

/// E061 unless there is a Python that finds the packages of the runner; they are not imported.
fn check_packages() -> Result<()> {
    let program = "import importlib.metadata as m, sys; [m.version(name) for name in sys.argv[1:]]";
    let done = Command::new(python()).args(["-c", program]).args(PACKAGES).output();
    let done = done.map_err(|error| {
        failed("no PJRT plugin is found, and its Python cannot be started", error.to_string())
            .at(python())
            .help(format!(
                "`{}`, or name a plugin with {PLUGIN}, or another Python with {PYTHON}",
                to_install()
            ))
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().last().map_or(PACKAGES.join(" "), str::to_string);
    let install = PACKAGES.join(" ");
    Err(failed("no PJRT plugin is found, and its Python lacks a package", last)
        .at(python())
        .expected(format!("a PJRT plugin, or a Python with {}", PACKAGES.join(" and ")))
        .help(format!(
            "`{}`, or `{} -m pip install {install}`, or name a plugin with {PLUGIN} or another Python with {PYTHON}; \
             `partita env` shows what is here",
            to_install(),
            python()
        )))
}

/// E061.
pub fn failed(what: &str, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E061", format!("the engine xla failed: {what}")).found(found)
}
