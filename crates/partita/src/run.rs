//! What each subcommand does.

use crate::cli::{Cli, Command, Runner};
use crate::commands::bench::bench;
use crate::commands::explain::{Explained, page};
use crate::commands::launch::launch;
use crate::commands::lower::{self, LowerRequest};
use crate::commands::opt;
use crate::commands::show;
use crate::commands::train::train;
use crate::commands::verify::{Guard, verification_batch, verify_watched};
use crate::compile::{self, Build};
use crate::config::Config;
use crate::env::Environment;
use crate::interrupt;
use crate::output::Output;
use crate::output::events::Counts;
use crate::play::{CpuStep, InterpretedCpuStep};
use partita_base::Result;
use partita_runtime::Cpu;
use partita_schedule::verify::StepRunner;
use std::time::{Duration, Instant};

/// Who waits longer hears how far it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a command ended that was given no bad input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It is done.
    Done,
    /// It is done, and the check failed.
    CheckFailed,
    /// It was asked to stop before it was done, and did.
    Stopped,
    /// It failed, and has said why.
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

/// Runs a command.
pub fn run(cli: &Cli, output: &mut Output) -> Result<Ending> {
    let config = match cli.command.config() {
        Some((name, overrides)) => Some(Config::load(name, &overrides?)?),
        None => None,
    };
    for note in config.iter().flat_map(|config| &config.notes) {
        output.waiting(note);
    }
    match (&cli.command, config) {
        (Command::Explain(args), None) => {
            let page = page(args.code().unwrap_or(&args.config))?;
            output.emit(&page);
            if !output.is_json() {
                output.text(page.text());
            }
            Ok(Ending::Done)
        }
        (Command::Explain(args), Some(config)) => {
            explain(args.name.as_deref(), &config, output)?;
            Ok(Ending::Done)
        }
        (Command::Bench(args), _) => bench(args, output).map(|()| Ending::Done),
        (Command::Launch(args), _) => launch(args, output),
        (Command::Opt(args), _) => {
            output.text(opt::opt(args)?);
            Ok(Ending::Done)
        }
        (Command::Env, _) | (_, None) => {
            let environment = Environment::detect();
            output.emit(&environment);
            if !output.is_json() {
                output.text(environment.text());
            }
            Ok(Ending::Done)
        }
        (Command::Train(args), Some(config)) => train(args, &config, output),
        (Command::Verify(args), Some(config)) => {
            let mesh = compile::mesh(&config)?;
            let runner: Box<dyn StepRunner> = match args.runner {
                Runner::Interpreter => {
                    let memory = config.train.memory_limit;
                    Box::new(InterpretedCpuStep { memory, ..InterpretedCpuStep::default() })
                }
                Runner::Cpu => {
                    compile::runs_here(&mesh)?;
                    Box::new(CpuStep::of(&config)?)
                }
            };
            if config.plan.strict {
                // Of the step as it would be trained, not of the small one that is compared.
                let build = Build::from_config(&config);
                let model = compile::model(&config, &build)?;
                output.during("planning the step", || compile::plan_step(&config, &model, &mesh, &build))?;
            }
            // A small batch shows as much; who names one gets it.
            let batch = match args.flags.batch {
                Some(_) => config.train.batch,
                None => verification_batch(&config, &mesh),
            };
            let guard = Guard::new(&config, output, true);
            let verified = verify_watched(&config, batch, runner.as_ref(), args.break_rule.clone(), &guard)?;
            drop(guard);
            for note in verified.notes {
                output.note(note);
            }
            output.verify(&verified.report);
            Ok(if verified.report.ok { Ending::Done } else { Ending::CheckFailed })
        }
        (Command::Show(args), Some(config)) => {
            let working = output.working("planning the step");
            let text = match (args.form, args.stage) {
                (Some(form), _) => show::plan_of(&config, form)?,
                (None, Some(stage)) => {
                    let planned = lower::plan(&config, LowerRequest::default())?;
                    lower::stage(&planned, stage, 0, &Cpu::default())?
                }
                (None, None) => show::show(&config, &Cpu::default())?,
            };
            drop(working);
            output.text(text);
            Ok(Ending::Done)
        }
        (Command::Lower(args), Some(config)) => {
            let request = LowerRequest { input_gradient: args.input_gradient };
            if !args.print_after.is_empty() {
                let planned = lower::plan(&config, request)?;
                output.text(lower::after_passes(&planned, &args.print_after, args.rank, &Cpu::default())?);
            } else if args.counts {
                let programs = output
                    .during("lowering the step", || lower::programs(&config, request, &Cpu::default()))?;
                let overlaps = lower::overlap(&programs, args.rank)?;
                output.counts(&Counts::from(&partita_program::counts(&programs)));
                output.overlaps(&overlaps);
            } else {
                let working = output.working("lowering the step");
                let planned = lower::plan(&config, request)?;
                let stage = lower::stage(&planned, args.stage, args.rank, &Cpu::default())?;
                drop(working);
                output.text(stage);
                if args.why {
                    output.text(lower::fusion(&planned, &Cpu::default())?.to_string());
                }
            }
            Ok(Ending::Done)
        }
    }
}

/// Says why the step of a config, or something in it, is as it is.
fn explain(name: Option<&str>, config: &Config, output: &mut Output) -> Result<()> {
    let explained = output.during("planning the step", || Explained::of(config))?;
    let text = match name {
        None => {
            let overview = explained.overview(&Cpu::default())?;
            output.emit(&overview);
            overview.text()
        }
        Some(name) => {
            let mut last = Instant::now();
            let answer = explained.about(name, &mut |done, total| {
                if last.elapsed() >= PATIENCE {
                    last = Instant::now();
                    output.waiting(&format!("tried {done} of {total} other layouts"));
                }
            })?;
            output.emit(&answer);
            answer.text()
        }
    };
    if !output.is_json() {
        output.text(text);
    }
    Ok(())
}
