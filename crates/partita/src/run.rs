//! What each subcommand does.

use crate::cli::{Cli, Command};
use crate::config::Config;
use crate::env::Environment;
use crate::output::Output;
use partita_base::{Diagnostic, Result};

/// Runs a command. `false`: it ran, and the check failed.
pub fn run(cli: &Cli, output: &mut Output) -> Result<bool> {
    if let Some((name, overrides)) = cli.command.config() {
        Config::load(name, &overrides)?;
    }
    match &cli.command {
        Command::Env => {
            let environment = Environment::detect();
            output.emit(&environment);
            if !output.is_json() {
                output.text(environment.text());
            }
            Ok(true)
        }
        Command::Train(_) => Err(missing("train")),
        Command::Verify(_) => Err(missing("verify")),
        Command::Show(_) => Err(missing("show")),
        Command::Lower(_) => Err(missing("lower")),
    }
}

fn missing(command: &str) -> Box<Diagnostic> {
    Diagnostic::new("E012", format!("`partita {command}` is not in this build"))
}
