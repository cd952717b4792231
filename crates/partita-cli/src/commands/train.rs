//! `partita train`: verify, train, validate, sample, save, summarise.

use crate::cli::TrainArgs;
use crate::commands::profile::{ROWS_SHOWN, Recorded, for_tensorboard, write_ranks, write_trace, written};
use crate::commands::verify::{Guard, refused_to_train};
use crate::commands::{launch, train_xla};
use crate::files::check_new;
use crate::interrupt::Interrupt;
use crate::metrics::Metrics;
use crate::output::Output;
use crate::output::events::{Step, Stopped, Summary, Validation};
use crate::run::{Ending, answer};
use partita::engine::{Engine, Host};
use partita::one_device;
use partita::profile::{By, Cycle, Recording, Sort};
use partita::run_files::{Saved, default_dir};
use partita::sample::Sampler;
use partita::session::{Execution, Session};
use partita::trainer::{Finished, Observer, StepDone, Trainer};
use partita_base::Result;
use partita_runtime::Runner;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The answer to the first Ctrl-C. The run tells of the checkpoint when it is saved: another process may end before that.
const STOPPING: &str = "stopping after this step; Ctrl-C again ends the run at once";

/// The text that the sample at the end continues.
const PROMPT: &[u8] = b"fn ";

/// Prints the progress of a run, and writes its metrics.
pub(super) struct Printing<'a> {
    pub output: &'a mut Output,
    pub metrics: Metrics,
}

impl Observer for Printing<'_> {
    fn ran(&mut self, runner: &Runner) {
        self.output.ran(runner);
    }

    fn step(&mut self, step: &StepDone) {
        let step = Step::from(step);
        self.output.step(&step);
        if let Some(note) = self.metrics.step(&step) {
            self.output.note(note);
        }
    }

    fn validation(&mut self, step: u64, loss: f64) {
        let validation = Validation { step, loss };
        self.output.validation(&validation);
        if let Some(note) = self.metrics.validation(&validation) {
            self.output.note(note);
        }
    }

    fn note(&mut self, note: &str) {
        self.output.note(note);
    }
}

/// Runs the command.
pub fn train(args: &TrainArgs, session: Session, host: &Host, output: &mut Output) -> Result<Ending> {
    args.engine.check(host)?;
    launch::check_alone(args.engine)?;
    let interrupt = Interrupt::catch();
    if let Err(error) = &interrupt {
        output.note(format!("Ctrl-C will end this run without a checkpoint: {error}"));
    }
    session.check_runs_here()?;
    let model = session.model()?;
    let feed = output.during("reading the data", || session.feed(&model))?;
    let ranks = session.mesh().rank_count();
    let execution = Execution {
        workers: args.workers,
        deterministic: args.deterministic,
        watchdog: args.watchdog.map(Duration::from_secs),
        ..Execution::default()
    };
    let config = session.config();
    output.note(format!(
        "{} with {} parameters on mesh {}, {} of {} rows a step",
        config.model.name(),
        model.parameter_count(),
        session.mesh(),
        config.train.dtype,
        config.train.batch
    ));
    output.note(feed.describe());
    let shared = launch::share_on(args.engine, host, execution.clone(), ranks)?;
    if args.engine == Engine::Xla {
        return train_xla::train(args, &session.with_execution(shared)?, output);
    }
    let session = session.with_execution(execution.clone())?.with_execution(shared)?;
    let config = session.config();

    // Errors of the checkpoint or the folder are reported before the verification, which takes a while.
    let resumed = match launch::restarted() {
        Some(path) => Some(Saved::at(&path)?),
        None => args.resume.as_ref().map(|path| Saved::find(config, path.as_deref())).transpose()?,
    };
    let resumed = resumed.map(|saved| saved.allowing_changes(args.resume_changed));
    let built = output.during("planning the step", || session.build_model(&model))?;
    for note in session.notes(&model, &built) {
        output.note(note);
    }
    let mut trainer = output.during("lowering the step", || {
        Trainer::new(&session, model.clone(), &built, feed.clone(), resumed.as_ref())
    })?;
    launch::record(trainer.folder());
    if let Some(saved) = &resumed {
        let (step, opened) = (saved.step(), saved.opened());
        saved.notes().iter().for_each(|note| output.note(note));
        output.note(format!("resumed {} after step {step}", saved.path.display()));
        trainer.changes().iter().for_each(|line| output.note(line));
        if opened.types().is_some() {
            output.note(format!("this process read {} of {} bytes", opened.bytes_read(), opened.bytes()));
        }
        if step >= config.train.steps {
            output.note(format!(
                "nothing left to do: this run has all of its {} steps; `--steps {}` trains on",
                config.train.steps,
                step.saturating_mul(2)
            ));
        }
        if trainer.first_batch() != step {
            output
                .note(format!("the data continues at step {} of this batch size", trainer.first_batch() + 1));
        }
    } else if let Some(folder) = trainer.folder()
        && config.checkpoint.dir.is_none()
        && folder != default_dir(config)
    {
        output.note(format!(
            "checkpoints go to {}: another run uses {}",
            folder.display(),
            default_dir(config).display()
        ));
    }

    // One process writes for all.
    let metrics = match trainer.folder() {
        Some(_) => Metrics::create(&args.metrics, args.tensorboard.as_deref())?,
        None => Metrics::default(),
    };
    if let Some(trace) = &args.profile {
        let cycle = Cycle::parse(&args.cycle)?;
        trace.as_ref().map(|path| check_new(path, "the trace", "--profile")).transpose()?;
        trainer.profile(cycle);
    }

    let verify_ok = match verified(args, &session, output)? {
        Some(false) => return Ok(Ending::CheckFailed),
        ok => ok,
    };
    trainer.initialize()?;
    note_slow_ops(trainer.step().train_loop.runner(), output);
    output.during("lowering the validation", || trainer.prepare_validation())?;

    if args.live && output.go_live(&format!("{} on mesh {}", config.model.name(), session.mesh())) {
        trainer.record(true);
    }
    output.begin(trainer.first() + 1, config.train.steps);
    let announcer = output.announcer();
    let mut printing = Printing { output: &mut *output, metrics };
    let mut run = |stop: &AtomicBool| trainer.fit(&mut printing, stop);
    let finished = match &interrupt {
        Ok(interrupt) => interrupt.defer(|| announcer(STOPPING), run),
        Err(_) => run(&AtomicBool::new(false)),
    }?;
    output.end();
    // Of several processes the first one prints the profile, that of all ranks.
    if let (Some(recording), Some(_)) = (trainer.take_recording()?, trainer.folder()) {
        write_profile(args, &session, &recording, feed.tokens_per_batch(), output)?;
    }
    if finished.is_stopped {
        output.stopped(&Stopped {
            step: finished.done,
            checkpoint: finished.saved.map(|(_, path)| path.display().to_string()),
            resume: trainer.folder().unwrap_or(&default_dir(config)).display().to_string(),
        });
        return Ok(Ending::Stopped);
    }

    if config.train.sample_bytes > 0 {
        let sampler = Sampler { seed: config.train.seed, ..Sampler::default() };
        if let Some(text) = trainer.sample(PROMPT, config.train.sample_bytes, &sampler)? {
            output.sample(PROMPT, &text);
        }
    }
    let Finished { done, last, validation_loss, saved, duration, .. } = finished;
    let steps = done - trainer.first();
    // Another step beside these would take more memory than was planned.
    drop(trainer);
    let one_device = match ranks > 1 && steps > 0 {
        true => one_device::tokens_per_s(&session, &model, feed.as_ref(), mean(duration, steps))?,
        false => None,
    };
    let baselines = feed.baselines(config.train.validate_batches);
    let seconds = duration.as_secs_f64().max(1e-9);
    output.summary(&Summary {
        steps: done,
        loss: last.map(|r| r.loss),
        validation_loss,
        model_nats: baselines.and(validation_loss),
        bigram_nats: baselines.map(|b| b.bigram_nats),
        unigram_nats: baselines.map(|b| b.unigram_nats),
        tokens_per_s: steps as f64 * feed.tokens_per_batch() as f64 / seconds,
        tokens_per_s_one_device: one_device,
        seconds,
        checkpoint: saved.map(|(_, path)| path.display().to_string()),
        verify_ok,
        peak_bytes_planned: last.map_or(0, |r| r.peak_bytes_planned as u64),
        peak_bytes_used: last.map(|r| r.peak_bytes_used as u64),
    });
    Ok(Ending::Done)
}

/// Prints the table of recorded steps, and writes the timelines.
fn write_profile(
    args: &TrainArgs,
    session: &Session,
    recording: &Recording,
    tokens: usize,
    output: &mut Output,
) -> Result<()> {
    if recording.steps.is_empty() {
        output.note("no step was recorded: the run ended before; --cycle wait=0,warmup=0,active=1 records the first one");
        return Ok(());
    }
    let recorded = Recorded::of(session, recording, By::Op, Sort::Time);
    answer(&recorded, |recorded| recorded.text(ROWS_SHOWN as usize), output);
    if let Some(path) = args.profile.iter().flatten().next() {
        write_trace(path, "--profile", recording, tokens, None)?;
        output.note(written(path));
    }
    if let Some(folder) = &args.tensorboard {
        output.note(for_tensorboard(folder, &write_ranks(folder, recording)?));
    }
    Ok(())
}

/// Whether the plan changes no number; `None` with `--no-verify`.
pub(super) fn verified(args: &TrainArgs, session: &Session, output: &mut Output) -> Result<Option<bool>> {
    if args.no_verify {
        return Ok(None);
    }
    let verified = session.clone();
    #[cfg(feature = "testing")]
    let verified = verified.with_broken_rule(args.break_rule.clone());
    let guard = Guard::new(&verified, output, "the CPU device", false);
    let verified = verified.verify(verified.verification_rows(), &verified.step_runner(), &guard)?;
    drop(guard);
    output.verify(&verified.report);
    if !verified.report.ok {
        output.error(&refused_to_train());
    }
    Ok(Some(verified.report.ok))
}

fn mean(duration: Duration, steps: u64) -> Duration {
    duration.div_f64(steps as f64)
}

/// Names the instructions without a kernel.
fn note_slow_ops(runner: &Runner, output: &mut Output) {
    let slow_ops = runner.slow_ops();
    if let Some(slow) = slow_ops.first() {
        output.note(format!(
            "{} of {} instructions run on the reference interpreter, slowly; most often {} in {}",
            slow_ops.iter().map(|op| op.count).sum::<usize>(),
            runner.programs().iter().map(|p| p.instructions.len()).sum::<usize>(),
            slow.op,
            slow.path
        ));
    }
}
