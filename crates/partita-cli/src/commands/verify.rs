//! `partita verify`: the planned step against one device.

use crate::command::{Application, Command, ConfigFlags, Unread, of_run};
use crate::output::Output;
use crate::output::format::{bytes, short};
use crate::output::progress::Working;
use crate::run::{Ending, session};
use clap::{Args, ValueEnum};
use partita::session::Session;
use partita_base::{Diagnostic, Result};
use partita_import::{Limits, Weights};
use partita_schedule::verify::{StepRunner, Task, Watcher, Work};
use std::path::PathBuf;

/// Flags of `verify`.
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// What runs the planned step: by default the CPU device, as training does, if the mesh fits here, else the interpreter.
    /// The step of one device always runs on the interpreter.
    #[arg(long, value_enum)]
    pub runner: Option<Runner>,
    /// Compare with what a framework recorded, not with one device: a .npz or .safetensors file with inputs, outputs (by
    /// name, or as output.0, output.1, ..), loss and grad.PARAMETER.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// For tests: forgets one reduction in the modules below this path.
    #[cfg(feature = "testing")]
    #[arg(long, value_name = "PATH", hide = true)]
    pub break_rule: Option<String>,
}

/// The runner of a planned step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Runner {
    /// The reference interpreter, on virtual ranks in lock step.
    Interpreter,
    /// The CPU device, as in training.
    Cpu,
}

impl Command for VerifyArgs {
    const NAME: &'static str = "verify";
    const ABOUT: &'static str = "Compare one planned step with the same step on one device";
    const UNREAD: Unread = of_run(&[("data", "the two steps are compared on random numbers")]);

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, Self::UNREAD))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        verify(self, &session(&self.config, self.flags.overrides()?, output)?, output)
    }
}

/// Runs the command.
fn verify(args: &VerifyArgs, session: &Session, output: &mut Output) -> Result<Ending> {
    let config = session.config();
    let chosen = match args.runner {
        Some(runner) => runner,
        None if session.check_runs_here().is_ok() => Runner::Cpu,
        None => Runner::Interpreter,
    };
    let (runner, place): (Box<dyn StepRunner>, _) = match chosen {
        Runner::Interpreter => (Box::new(session.interpreter()), INTERPRETER),
        Runner::Cpu => {
            session.check_runs_here()?;
            (Box::new(session.step_runner()), "the CPU device")
        }
    };
    if let Some(path) = &args.against {
        let weights = Weights::open(path, &Limits::default())?;
        let recorded = weights.iter().map(|(name, tensor)| Ok((name.to_string(), tensor.literal()?)));
        let recorded = recorded.collect::<Result<_>>()?;
        let compare = || session.verify_against(&recorded, runner.as_ref());
        let (report, unknown) = output.during("comparing with the record", compare)?;
        if !unknown.is_empty() {
            let names = unknown.join(", ");
            output.note(format!(
                "not compared, since the model has neither an input nor an output of the name: {names}"
            ));
        }
        output.verify_against(&report, &path.display().to_string());
        return Ok(if report.ok { Ending::Done } else { Ending::CheckFailed });
    }
    // The step that would be trained, not the small one that is compared, may have an axis or a line without effect.
    output.during("planning the step", || session.build())?;
    // A small batch suffices, unless the user names one.
    let rows = match args.flags.batch {
        Some(_) => config.train.batch,
        None => session.verification_rows(),
    };
    session.check_sizes(rows)?;
    #[cfg(feature = "testing")]
    let session = &session.clone().with_broken_rule(args.break_rule.clone());
    let (mesh, of) = (session.mesh(), if rows == config.train.batch { "" } else { " of the batch" });
    output.note(format!(
        "comparing the step of {mesh} on {place} with that of one device on the interpreter, {rows} rows{of}"
    ));
    let guard = Guard::new(session, output, place, true);
    let verified = session.verify(rows, runner.as_ref(), &guard)?;
    drop(guard);
    for note in verified.notes {
        output.note(note.text);
    }
    output.verify(&verified.report);
    Ok(if verified.report.ok { Ending::Done } else { Ending::CheckFailed })
}

/// The runner of one device, and by default of the planned step.
const INTERPRETER: &str = "the interpreter";

/// Tells how far a verification is, and refuses what costs more than a config allows.
pub struct Guard {
    most_operations: f64,
    working: Working,
    /// What runs the planned step.
    place: &'static str,
    /// Whether the cost is printed before the work begins.
    tells_cost: bool,
}

impl Guard {
    /// For a config, and a planned step that runs at `place`; `tells_cost` puts the cost on standard error before it
    /// begins.
    pub fn new(session: &Session, output: &Output, place: &'static str, tells_cost: bool) -> Guard {
        let config = session.config();
        Guard {
            most_operations: config.train.verify_limit,
            working: output.working("planning the step to verify"),
            place,
            tells_cost,
        }
    }
}

impl Watcher for Guard {
    fn begins(&self, task: Task, work: &Work) -> Result<()> {
        let cost = format!(
            "{} ranks, {} ops, {} operations on elements, {} of values",
            work.ranks,
            short(work.nodes as f64),
            short(work.operations),
            bytes(work.bytes)
        );
        if work.operations > self.most_operations {
            return Err(Diagnostic::new("E042", "the verification costs too much on the interpreter")
                .expected(format!("at most {} operations on elements", short(self.most_operations)))
                .found(cost)
                .help("use a smaller model, batch or mesh, or --verify-limit OPERATIONS; `train --no-verify` trains without"));
        }
        let (what, place) = match task {
            Task::Compare => ("verifying", self.place),
            Task::Trace => ("looking for the first value that differs", INTERPRETER),
        };
        if self.tells_cost {
            self.working.say(&format!("{what} on {place}: {cost}"));
        }
        self.working.becomes(what);
        self.working.expect(work.operations as u64);
        Ok(())
    }

    fn advances(&self, operations: f64) {
        self.working.advance(operations as u64);
    }
}

/// E030: why training does not start.
pub fn refused_to_train() -> Box<Diagnostic> {
    Diagnostic::new("E030", "training does not start: the plan changes the numbers")
        .expected("what one device computes")
        .found("a planned step that computes something else, as told above")
        .help("`partita verify CONFIG --runner cpu` tells more; `train --no-verify` trains all the same")
}
