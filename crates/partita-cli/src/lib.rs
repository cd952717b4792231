//! The command line of Partita: flags, text for people, JSON for tools, Ctrl-C.
//!
//! Knows the library and how to present it; must not know how anything is computed. [`main`] is the whole command. Its exit
//! codes: 0 done; 1 the check failed; 2 bad input, or a run that failed (it diverged, the disk is full), with a code that
//! says which; 130 stopped by Ctrl-C.
#![forbid(unsafe_code)]

pub mod cli;
pub mod command;
pub mod commands;
pub mod files;
pub mod interrupt;
pub mod metrics;
pub mod output;
pub mod rank;
pub mod run;

use cli::usage_error;
use command::Application;
use commands::{COMMANDS, launch};
use output::Output;
use partita::engines::xla::Xla;
use partita::engines::{CONSEQUENCE, Engines};
use partita::xla::runner;
use partita_base::{Diagnostic, Result};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    name_lack_of_threads();
    // Its own file runs steps under XLA, in a process of their own.
    let xla = std::env::current_exe().map(Xla::run_by).unwrap_or_default();
    ExitCode::from(run_on(std::env::args_os().collect(), Engines::bundled().with(xla)))
}

/// Ends the process with E040 where the system gives it no thread, which needs memory for its stack: the scoped threads of
/// planning panic then.
fn name_lack_of_threads() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(|text| text.starts_with("failed to spawn thread")) {
            let error = Diagnostic::new("E040", "there is not enough memory for one more thread")
                .expected("an address space and a number of processes that allow threads")
                .found("a limit of this process: see `ulimit -v` and `ulimit -u`")
                .help("raise the limit");
            eprintln!("{error}");
            std::process::exit(2);
        }
        usual(panic);
    }));
}

/// Runs the command with these arguments, the name of the command first, and returns its exit code.
pub fn run_with(arguments: Vec<OsString>) -> u8 {
    run_on(arguments, Engines::bundled())
}

/// As [`run_with`], in a program with these engines. Of several processes, the first one prints.
pub fn run_on(arguments: Vec<OsString>, engines: Engines) -> u8 {
    if arguments.get(1).is_some_and(|word| word == runner::COMMAND) {
        return runner::main(&arguments[2..]);
    }
    let code = printed(arguments, engines);
    if code != 0 {
        launch::mark_told();
    }
    code
}

/// This command line, in a program with these engines.
pub fn application(engines: Engines) -> Application {
    Application { commands: COMMANDS, engines }
}

/// Runs the command, prints what it says, and returns its exit code.
fn printed(arguments: Vec<OsString>, engines: Engines) -> u8 {
    interrupt::survive_file_limits();
    let json = arguments.iter().any(|argument| argument == "--json");
    let application = application(engines);
    let cli = match application.read(arguments) {
        Ok(cli) => cli,
        Err(error) => return not_parsed(error, json),
    };
    let processes = application.engines.started().filter(|processes| processes.count() > 1);
    let mut output = match processes {
        Some(processes) if processes.index() > 0 => Output::silent(cli.json),
        _ => Output::new(cli.json),
    };
    let ended = cli.command.call(&application, &mut output);
    // The process that failed first reports the reason.
    let is_consequence = |diagnostic: &Diagnostic| launch::is_consequence(diagnostic, processes.is_some());
    let reason = ended.as_ref().err().filter(|diagnostic| !is_consequence(diagnostic));
    match processes {
        Some(processes) => launch::report_to_first(reason.map(|error| &**error), processes, &mut output),
        None => reason.into_iter().for_each(|error| output.error(error)),
    }
    match &ended {
        Ok(ending) => match output.lost() {
            None => ending.exit_code(),
            Some(lost) => {
                output.error(&lost);
                2
            }
        },
        Err(consequence) if reason.is_none() => {
            launch::leave(consequence);
            CONSEQUENCE
        }
        Err(_) => 2,
    }
}

/// What the command with these arguments, the name of the command first, prints with `--json`, for callers in this process.
///
/// # Errors
/// What the command refuses, and E020 for arguments that it does not have.
pub fn ask(arguments: Vec<OsString>) -> Result<String> {
    let application = application(Engines::bundled());
    let cli = match application.read(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage_error(error).map_or_else(|help| Ok(help.render().to_string()), Err),
    };
    let printed = Printed::default();
    let mut output = Output::to(Box::new(printed.clone()), Box::new(std::io::sink()), true);
    cli.command.call(&application, &mut output)?;
    let bytes = printed.0.take();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Keeps what is printed.
#[derive(Clone, Default)]
struct Printed(Rc<RefCell<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A command line that is wrong, or that requests help. With `--json`, help is an event too.
fn not_parsed(error: clap::Error, json: bool) -> u8 {
    let mut output = Output::new(json);
    match usage_error(error) {
        Ok(diagnostic) => {
            output.error(&diagnostic);
            2
        }
        Err(help) if json && !help.use_stderr() => {
            output.text(help.render().to_string());
            0
        }
        Err(help) => match help.print() {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                output.error(&output::incomplete(&error));
                2
            }
            _ => u8::try_from(help.exit_code()).unwrap_or(2),
        },
    }
}
