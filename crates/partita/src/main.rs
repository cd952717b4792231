//! The `partita` command. Exit codes: 0 done, 1 the check failed, 2 bad input or a run that failed (it diverged, the
//! disk is full); the diagnostic's code tells which.
#![forbid(unsafe_code)]

use clap::Parser;
use partita::cli::Cli;
use partita::output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut output = Output::new(cli.json, cli.command.log_every());
    match partita::run::run(&cli, &mut output) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(diagnostic) => {
            output.error(&diagnostic);
            ExitCode::from(2)
        }
    }
}
