//! From a parsed command line to the command that it names.

use crate::cli::{Cli, Command};
use crate::commands::bench::bench;
use crate::commands::calibrate::calibrate;
use crate::commands::checkpoint::checkpoint;
use crate::commands::estimate::estimate;
use crate::commands::eval::eval;
use crate::commands::explain::{explain, page};
use crate::commands::export::export;
use crate::commands::generate::generate;
use crate::commands::install::{completions, man};
use crate::commands::launch::launch;
use crate::commands::lower::lower;
use crate::commands::new::new;
use crate::commands::opt::opt;
use crate::commands::plan::plan;
use crate::commands::profile::profile;
use crate::commands::report::report;
use crate::commands::rows::rows;
use crate::commands::run::run_file;
use crate::commands::show::show;
use crate::commands::simulate::simulate;
use crate::commands::timetable::timetable;
use crate::commands::train::train;
use crate::commands::verify::verify;
use crate::env::Environment;
use crate::env::check::Checks;
use crate::interrupt;
use crate::output::Output;
use crate::output::events::Event;
use partita::config::Config;
use partita::engine::Host;
use partita::session::Session;
use partita_base::{Diagnostic, Result};

/// How a command ended whose input was valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It is done.
    Done,
    /// It is done, and the check failed.
    CheckFailed,
    /// It stopped early, because it was asked to.
    Stopped,
    /// It failed, and has reported why.
    Failed,
}

impl Ending {
    /// The exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Done => 0,
            Ending::CheckFailed => 1,
            Ending::Failed => 2,
            Ending::Stopped => interrupt::EXIT_CODE,
        }
    }
}

/// Runs a command in a program that has the engines of `host`.
///
/// # Errors
/// What the config and the command refuse.
pub fn run(cli: &Cli, host: &Host, output: &mut Output) -> Result<Ending> {
    cli.command.check_options()?;
    match &cli.command {
        Command::Train(args) => train(args, session(&args.config, args.overrides()?, output)?, host, output),
        Command::Verify(args) => {
            verify(args, &session(&args.config, args.flags.overrides()?, output)?, output)
        }
        Command::Show(args) => {
            show(args, output)?;
            Ok(Ending::Done)
        }
        Command::Lower(args) => {
            lower(args, &session(&args.config, args.flags.overrides()?, output)?, output)?;
            Ok(Ending::Done)
        }
        Command::Explain(args) => {
            match args.code() {
                Some(code) => answer(&page(code)?, |page| page.text(), output),
                None => explain(args, &session(&args.config, args.flags.overrides()?, output)?, output)?,
            }
            Ok(Ending::Done)
        }
        Command::Simulate(args) => {
            match (&args.rows, &args.config) {
                (Some(file), _) => rows(args, file, output)?,
                (None, config) => {
                    let config = config.as_deref().ok_or_else(|| {
                        Diagnostic::new("E033", "`partita simulate` needs a model or a table of runs")
                            .expected("a config, a model by name, or --rows FILE.csv")
                            .help("`partita simulate gpt3-175b --cluster a100-80g:128x8 ..`; docs/COST.md has examples")
                    })?;
                    simulate(args, &session(config, args.flags.overrides()?, output)?, output)?;
                }
            }
            Ok(Ending::Done)
        }
        Command::Estimate(args) => {
            estimate(args, &session(&args.config, args.flags.overrides()?, output)?, output)?;
            Ok(Ending::Done)
        }
        Command::Plan(args) => {
            plan(args, &session(&args.config, args.flags.overrides()?, output)?, output)?;
            Ok(Ending::Done)
        }
        Command::Profile(args) => {
            profile(args, &session(&args.config, args.flags.overrides()?, output)?, host, output)?;
            Ok(Ending::Done)
        }
        Command::Report(args) => {
            report(args, output)?;
            Ok(Ending::Done)
        }
        Command::Timetable(args) => timetable(args, output).map(|()| Ending::Done),
        Command::Eval(args) => eval(args, output).map(|()| Ending::Done),
        Command::Generate(args) => generate(args, output).map(|()| Ending::Done),
        Command::Export(args) => export(args, output).map(|()| Ending::Done),
        Command::Bench(args) => bench(args, output).map(|()| Ending::Done),
        Command::Checkpoint(args) => checkpoint(args, output),
        Command::Calibrate(args) => calibrate(args, output).map(|()| Ending::Done),
        Command::Launch(args) => launch(args, output),
        Command::Opt(args) => {
            output.text(opt(args)?);
            Ok(Ending::Done)
        }
        Command::Run(args) => run_file(args, output).map(|()| Ending::Done),
        Command::New(args) => new(args, output).map(|()| Ending::Done),
        Command::Completions(args) => {
            completions(args, output);
            Ok(Ending::Done)
        }
        Command::Man(args) => man(args, output).map(|()| Ending::Done),
        Command::Env(args) => {
            let environment = Environment::detect(host);
            if !args.check {
                answer(&environment, Environment::text, output);
                return Ok(Ending::Done);
            }
            let checks = Checks::run(&environment, output);
            answer(&checks, Checks::text, output);
            Ok(if checks.ok { Ending::Done } else { Ending::CheckFailed })
        }
    }
}

/// The session of a config; notes of the config go to standard error.
pub fn session(config: &str, overrides: Vec<String>, output: &mut Output) -> Result<Session> {
    let config = Config::load(config, &overrides)?;
    for note in &config.notes {
        output.waiting(note);
    }
    Session::new(config)
}

/// Prints a result: as an event with `--json`, as text without.
pub fn answer<E: Event>(result: &E, text: impl FnOnce(&E) -> String, output: &mut Output) {
    output.emit(result);
    if !output.is_json() {
        output.text(text(result));
    }
}
