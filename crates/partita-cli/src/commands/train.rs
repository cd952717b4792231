//! `partita train`: verify, train, validate, sample, save, summarise.

use crate::command::{Application, Command, ConfigFlags, count_item, path_item};
use crate::commands::launch;
use crate::commands::profile::{ROWS_SHOWN, Recorded, for_tensorboard, write_ranks, write_trace, written};
use crate::commands::verify::{Guard, refused_to_train};
use crate::files::check_new;
use crate::interrupt::Interrupt;
use crate::metrics::Metrics;
use crate::output::Output;
use crate::output::events::{Step, Stopped, Summary, Validation};
use crate::output::format::parameters;
use crate::output::progress::Working;
use crate::run::{Ending, answer, session};
use clap::Args;
use clap::builder::PossibleValuesParser;
use partita::config::{BUNDLED, Config};
use partita::engines::{Engine, EngineTrainer, TrainingRun};
use partita::profile::{By, Cycle, Recording, Sort};
use partita::run_files::{Saved, default_dir};
use partita::sample::Sampler;
use partita::session::{Execution, Session};
use partita::trainer::{Finished, Observer, StepDone};
use partita_base::Result;
use partita_runtime::Runner;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Flags of `train`.
#[derive(Args, Clone, Debug)]
pub struct TrainArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    #[arg(default_value = "gpt")]
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// What runs the ranks; help lists the engines of the program.
    #[arg(long, value_name = "ENGINE", default_value = "native", hide_default_value = true)]
    pub engine: String,
    /// The folder for checkpoints, which no other run uses. By default runs/MODEL, or the next of runs/MODEL-2,
    /// runs/MODEL-3, .. that is free.
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Steps between checkpoints.
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<i64>,
    /// Keep the newest N checkpoints of this run, by default 2; those of other runs are not touched.
    #[arg(long, value_name = "N")]
    pub checkpoint_keep: Option<i64>,
    /// Continue from a checkpoint, or from the newest one in a run's folder. Without PATH: from the newest one in
    /// --checkpoint-dir, or else of this model's newest run below runs/.
    #[arg(long, value_name = "PATH", num_args = 0..=1)]
    pub resume: Option<Option<PathBuf>>,
    /// With --resume: go on even if the model, or the rule of the optimizer, is another than that of the checkpoint, of the
    /// same tensors. By default that is refused; any other setting that differs is named.
    #[arg(long, requires = "resume")]
    pub resume_changed: bool,
    /// Threads in all, one per core by default. With fewer ranks than threads, each rank has several.
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Run all ranks on one thread, in a fixed order.
    #[arg(long, conflicts_with = "workers")]
    pub deterministic: bool,
    /// End the run if its ranks make no progress for so long, or another process of the run does not run; by default 120.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub watchdog: Option<u64>,
    /// Steps between printed lines.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub log_every: Option<u64>,
    /// Do not generate a sample at the end.
    #[arg(long)]
    pub no_sample: bool,
    /// Do not verify the plan before training. By default, a plan that fails verification is not trained.
    #[arg(long)]
    pub no_verify: bool,
    /// Record some steps, and print at the end where their time went; with a file, also write the timeline, as
    /// `partita profile` does.
    #[arg(long, value_name = "FILE.json", num_args = 0..=1)]
    pub profile: Option<Option<PathBuf>>,
    /// Write the figures of each step for other programs: JSON lines, which are added to a file that exists, or, if its
    /// name ends in .prom, the latest snapshot in the text format of Prometheus. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub metrics: Vec<PathBuf>,
    /// Write the figures of each step for TensorBoard, to a new file in this folder; with --profile also the work of each
    /// rank, below plugins/profile.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Draw loss, throughput, memory and what ranks do in place, instead of a line for each step; where standard output is
    /// no terminal, lines are printed as without it.
    #[arg(long, conflicts_with = "log_every")]
    pub live: bool,
    /// With --profile: the steps that are recorded, by default wait=1,warmup=1,active=3,repeat=1.
    #[arg(long, value_name = "COUNTS", requires = "profile", default_value = "")]
    pub cycle: String,
    /// For tests: forgets one reduction in the modules below this path while verifying.
    #[cfg(feature = "testing")]
    #[arg(long, value_name = "PATH", hide = true)]
    pub break_rule: Option<String>,
}

impl TrainArgs {
    /// As [`ConfigFlags::overrides`], with the flags only `train` has.
    ///
    /// # Errors
    /// E034 for a path that is not UTF-8.
    pub fn overrides(&self) -> Result<Vec<String>> {
        let mut items = Vec::new();
        items.extend(self.checkpoint_dir.as_ref().map(|path| path_item("checkpoint.dir", path)).transpose()?);
        items.extend(self.checkpoint_every.map(|every| count_item("checkpoint.every", every)));
        items.extend(self.checkpoint_keep.map(|keep| count_item("checkpoint.keep", keep)));
        items.extend(self.no_sample.then(|| count_item("train.sample_bytes", 0)));
        items.extend(self.flags.overrides()?);
        Ok(items)
    }
}

impl Command for TrainArgs {
    const NAME: &'static str = "train";
    const ABOUT: &'static str = "Train a model on a mesh";

    fn arguments(command: clap::Command, application: &Application) -> clap::Command {
        let engines = || application.engines.iter();
        let about: Vec<String> =
            engines().map(|engine| format!("{}, {}", engine.name(), engine.about())).collect();
        let names = PossibleValuesParser::new(engines().map(Engine::name));
        // In place, so that the argument keeps its position.
        Self::augment_args(command).mut_args(|argument| match argument.get_id().as_str() {
            "engine" => argument
                .value_parser(names.clone())
                .help(format!("What runs the ranks: {}", about.join("; "))),
            _ => argument,
        })
    }

    fn run(&self, application: &Application, output: &mut Output) -> Result<Ending> {
        output.log_every(self.log_every);
        let engine = application.engines.named(&self.engine)?;
        let mut overrides = self.overrides()?;
        overrides.extend(mesh_of_devices(&self.config, &overrides, engine));
        train(self, engine, session(&self.config, overrides, output)?, output)
    }
}

/// The mesh of all devices of an engine, for a bundled config: its own is an example for CPUs.
pub(super) fn mesh_of_devices(config: &str, overrides: &[String], engine: &dyn Engine) -> Option<String> {
    let is_bundled = BUNDLED.iter().any(|(name, _)| name.eq_ignore_ascii_case(config));
    let is_chosen = overrides.iter().any(|item| item.starts_with("mesh.") || item.starts_with("plan."));
    let devices = (is_bundled && !is_chosen).then(|| engine.devices()).flatten()?;
    Some(format!("mesh.shape=dp={devices}"))
}

/// The answer to the first Ctrl-C. The run tells of the checkpoint when it is saved: another process may end before that.
const STOPPING: &str = "stopping after this step; Ctrl-C again ends the run at once";

/// The text that the sample at the end continues.
const PROMPT: &[u8] = b"fn ";

/// Prints the progress of a run, and writes its metrics.
struct Printing<'a> {
    output: &'a mut Output,
    metrics: Metrics,
    /// Tokens of a row of the batch; 1 without tokens.
    tokens_per_row: f64,
}

impl Observer for Printing<'_> {
    fn ran(&mut self, runner: &Runner) {
        self.output.ran(runner);
    }

    fn step(&mut self, step: &StepDone) {
        let step = Step::new(step, self.tokens_per_row);
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

/// Prints how a run is brought into memory.
struct Preparing<'a> {
    output: &'a mut Output,
    working: Option<Working>,
}

impl Observer for Preparing<'_> {
    fn begins(&mut self, work: &str) {
        // The work before it has ended.
        self.working = None;
        self.working = Some(self.output.working(work));
    }

    fn note(&mut self, note: &str) {
        self.working = None;
        self.output.note(note);
    }
}

/// Runs the command.
fn train(args: &TrainArgs, engine: &dyn Engine, session: Session, output: &mut Output) -> Result<Ending> {
    engine.check(&session)?;
    let interrupt = Interrupt::catch();
    if let Err(error) = &interrupt {
        output.note(format!("Ctrl-C will end this run without a checkpoint: {error}"));
    }
    session.check_runs_here()?;
    let model = session.model()?;
    let feed = output.during("reading the data", || session.feed(&model))?;
    let execution = Execution {
        workers: args.workers,
        deterministic: args.deterministic,
        watchdog: args.watchdog.map(Duration::from_secs),
        ..Execution::default()
    };
    let config = session.config();
    output.note(format!(
        "{} with {} parameters on mesh {}, {} of {} rows a step",
        config.model_name(),
        parameters(model.parameter_count() as f64),
        session.mesh(),
        config.train.dtype,
        config.train.batch
    ));
    output.note(feed.describe());
    let execution = engine.share(execution, session.mesh().rank_count())?;
    let session = session.with_execution(execution)?;
    let config = session.config();
    args.profile.as_ref().map(|_| engine.check_records()).transpose()?;

    // Errors of the checkpoint or the folder are reported before the verification, which takes a while.
    let resumed = resumed(args, config)?;
    let run = TrainingRun { session: &session, model: &model, feed, resumed: resumed.as_ref() };
    let mut trainer = engine.trainer(&run, &mut Preparing { output: &mut *output, working: None })?;
    launch::record(trainer.folder());
    note_start(&run, trainer.as_ref(), output);
    // One process writes for all.
    let metrics = match trainer.folder() {
        Some(_) => Metrics::create(&args.metrics, args.tensorboard.as_deref())?,
        None => Metrics::default(),
    };
    if let (Some(trace), Some(recorder)) = (&args.profile, trainer.recorder()) {
        let cycle = Cycle::parse(&args.cycle)?;
        trace.as_ref().map(|path| check_new(path, "the trace", "--profile")).transpose()?;
        recorder.profile(cycle);
    }

    let verify_ok = match verified(args, &session, output)? {
        Some(false) => return Ok(Ending::CheckFailed),
        ok => ok,
    };
    trainer.prepare(&mut Preparing { output: &mut *output, working: None })?;
    if let (true, Some(recorder)) = (args.live, trainer.recorder())
        && output.go_live(&format!("{} on mesh {}", config.model.name(), session.mesh()))
    {
        recorder.record(true);
    }
    let finished = fit(&run, trainer.as_mut(), metrics, interrupt.as_ref().ok(), output)?;
    let recording = trainer.recorder().map_or(Ok(None), |recorder| recorder.take_recording())?;
    // Of several processes the first one prints the profile, that of all ranks.
    if let (Some(recording), Some(_)) = (recording, trainer.folder()) {
        write_profile(args, &session, &recording, run.feed.tokens_per_batch(), output)?;
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
    let steps = finished.done - trainer.first();
    // Another step beside these would take more memory than was planned.
    drop(trainer);
    let summary = Summary { verify_ok, ..summary(&run, engine, finished, steps)? };
    output.summary(&summary);
    Ok(Ending::Done)
}

/// The checkpoint from which the run continues, if any.
fn resumed(args: &TrainArgs, config: &Config) -> Result<Option<Saved>> {
    let resumed = match launch::restarted() {
        Some(path) => Some(Saved::at(&path)?),
        None => args.resume.as_ref().map(|path| Saved::find(config, path.as_deref())).transpose()?,
    };
    Ok(resumed.map(|saved| saved.allowing_changes(args.resume_changed)))
}

/// Says from where a run continues, or where its checkpoints go.
fn note_start(run: &TrainingRun, trainer: &dyn EngineTrainer, output: &mut Output) {
    let config = run.session.config();
    if let Some(saved) = run.resumed {
        let (step, opened) = (saved.step(), saved.opened());
        saved.notes().iter().for_each(|note| output.note(note));
        output.note(format!("resumed {} after step {step}", saved.path.display()));
        trainer.changes().iter().for_each(|line| output.note(line));
        if opened.types().is_some() {
            output.note(format!(
                "this process read {} bytes; the tensors of the checkpoint have {}",
                opened.bytes_read(),
                opened.bytes()
            ));
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
}

/// Trains to the last step, or until a signal stops the run.
fn fit(
    run: &TrainingRun,
    trainer: &mut dyn EngineTrainer,
    metrics: Metrics,
    interrupt: Option<&Interrupt>,
    output: &mut Output,
) -> Result<Finished> {
    let train = &run.session.config().train;
    output.begin(trainer.first() + 1, train.steps);
    let announcer = output.announcer();
    let tokens_per_row = run.feed.tokens_per_batch() as f64 / train.batch.max(1) as f64;
    // A process whose trainer does not look at the flag ends at the first signal.
    let interrupt = interrupt.filter(|_| trainer.can_stop());
    let mut printing = Printing { output: &mut *output, metrics, tokens_per_row };
    let mut fit = |stop: &AtomicBool| trainer.fit(&mut printing, stop);
    let finished = match interrupt {
        Some(interrupt) => interrupt.defer(|| announcer(STOPPING), fit),
        None => fit(&AtomicBool::new(false)),
    }?;
    output.end();
    Ok(finished)
}

/// What so many steps of a run came to.
fn summary(run: &TrainingRun, engine: &dyn Engine, finished: Finished, steps: u64) -> Result<Summary> {
    let Finished { done, last, validation_loss, saved, duration, .. } = finished;
    let train = &run.session.config().train;
    let one_device = match run.session.mesh().rank_count() > 1 && steps > 0 {
        true => engine.one_device_tokens_per_s(run, duration.div_f64(steps as f64))?,
        false => None,
    };
    let baselines = run.feed.baselines(train.validate_batches);
    let seconds = duration.as_secs_f64().max(1e-9);
    Ok(Summary {
        steps: done,
        loss: last.map(|r| r.loss),
        validation_loss,
        model_nats: baselines.and(validation_loss),
        bigram_nats: baselines.map(|b| b.bigram_nats),
        unigram_nats: baselines.map(|b| b.unigram_nats),
        rows_per_s: steps as f64 * train.batch as f64 / seconds,
        tokens_per_s: steps as f64 * run.feed.tokens_per_batch() as f64 / seconds,
        tokens_per_s_one_device: one_device,
        seconds,
        checkpoint: saved.map(|(_, path)| path.display().to_string()),
        verify_ok: None,
        peak_bytes_planned: last.map_or(0, |r| r.peak_bytes_planned as u64),
        // An engine that does not count has none.
        peak_bytes_used: last.map(|r| r.peak_bytes_used as u64).filter(|used| *used > 0),
    })
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
fn verified(args: &TrainArgs, session: &Session, output: &mut Output) -> Result<Option<bool>> {
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
