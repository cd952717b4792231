//! The command line of Partita: flags, text for people, JSON for tools, Ctrl-C.
//!
//! Knows the library and how to present it; must not know how anything is computed. [`main`] is the whole command. Its exit
//! codes: 0 done; 1 the check failed; 2 bad input, or a run that failed (it diverged, the disk is full), with a code that
//! says which; 130 stopped by Ctrl-C.
#![forbid(unsafe_code)]

pub mod cli;
pub mod commands;
pub mod env;
pub mod files;
pub mod interrupt;
pub mod metrics;
pub mod output;
pub mod run;

use clap::Parser;
use cli::{Cli, usage_error};
use commands::launch;
use output::Output;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    ExitCode::from(run_with(std::env::args_os().collect()))
}

/// Runs the command with these arguments, the name of the command first, and returns its exit code.
pub fn run_with(arguments: Vec<OsString>) -> u8 {
    let json = arguments.iter().any(|argument| argument == "--json");
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return not_parsed(error, json),
    };
    let mut output = Output::new(cli.json, cli.command.log_every());
    match run::run(&cli, &mut output) {
        Ok(ending) => ending.exit_code(),
        // The process that failed first reports the reason.
        Err(diagnostic) if launch::is_consequence(&diagnostic) => launch::CONSEQUENCE,
        Err(diagnostic) => {
            output.error(&diagnostic);
            2
        }
    }
}

/// A command line that is wrong, or that requests help. With `--json`, help is an event too.
fn not_parsed(error: clap::Error, json: bool) -> u8 {
    let mut output = Output::new(json, None);
    match usage_error(error) {
        Ok(diagnostic) => {
            output.error(&diagnostic);
            2
        }
        Err(help) if json && !help.use_stderr() => {
            output.text(help.render().to_string());
            0
        }
        Err(help) => {
            // A closed pipe is no reason to fail.
            let _ = help.print();
            u8::try_from(help.exit_code()).unwrap_or(2)
        }
    }
}
