//! The training driver: trains a session to its last step, validates, saves, resumes and samples.
//!
//! It prints nothing and catches no signal: an [`Observer`] receives each step, and the caller sets a flag to stop the run.
//! In a run of several processes each has its own trainer, and all call the same methods in the same order.

use crate::agreement;
use crate::feeds::Feed;
use crate::planned_step::PlannedStep;
use crate::profile::{Cycle, Profiler, Recording};
use crate::resume::{self, Origin};
use crate::run_files::{Saved, beside, folder, metadata};
use crate::sample::{Decoder, Sampler};
use crate::session::{Session, has_loss};
use crate::validator::Validator;
use partita_base::{Diagnostic, Result};
use partita_nn::Model;
use partita_runtime::checkpoint::{Checkpoint, FileStorage, RunFolder, Saving};
use partita_runtime::{DIVERGED, Runner, StepReport};
use partita_schedule::{Built, Plan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A finished step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepDone {
    /// Steps done, this one included.
    pub step: u64,
    /// Its results.
    pub report: StepReport,
    /// Its learning rate.
    pub learning_rate: f64,
}

/// Receives the progress of a run.
pub trait Observer {
    /// A step is done, and this is what ran it: called before [`Observer::step`].
    fn ran(&mut self, runner: &Runner) {
        let _ = runner;
    }

    /// A step is done.
    fn step(&mut self, step: &StepDone) {
        let _ = step;
    }

    /// A validation after so many steps is done.
    fn validation(&mut self, step: u64, loss: f64) {
        let _ = (step, loss);
    }

    /// A part of bringing the run into memory begins that may take long; it ends with the next call of any method.
    fn begins(&mut self, work: &str) {
        let _ = work;
    }

    /// A fact for the user.
    fn note(&mut self, note: &str) {
        let _ = note;
    }
}

/// An observer that ignores everything.
pub struct Unobserved;

impl Observer for Unobserved {}

/// The results of a run so far.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Finished {
    /// Steps done, those of the resumed run included.
    pub done: u64,
    /// The last step, if there was one.
    pub last: Option<StepReport>,
    /// The last validation loss.
    pub validation_loss: Option<f64>,
    /// The last checkpoint, and the number of steps before it.
    pub saved: Option<(u64, PathBuf)>,
    /// Time of training, without validations.
    pub duration: Duration,
    /// Whether the run was asked to stop before its last step.
    pub is_stopped: bool,
}

/// A training run.
///
/// ```no_run
/// use partita::prelude::*;
/// use std::sync::atomic::AtomicBool;
/// let session = Session::load("gpt", &["mesh.shape=dp=2,tp=2".to_string()])?;
/// let mut trainer = Trainer::start(&session, None)?;
/// let finished = trainer.fit(&mut Unobserved, &AtomicBool::new(false))?;
/// println!("{:?}", finished.validation_loss);
/// # Ok::<(), Box<Diagnostic>>(())
/// ```
pub struct Trainer {
    session: Session,
    model: Model,
    plan: Plan,
    step: PlannedStep,
    feed: Arc<dyn Feed>,
    /// The loss without dropout; made when it is first needed.
    validator: Option<Validator>,
    /// Only the process of rank 0 has it, and writes for all.
    folder: Option<Arc<RunFolder>>,
    /// The checkpoint that is being written, and the number of steps before it.
    saving: Option<(u64, Saving)>,
    profiler: Option<Profiler>,
    /// Steps of the resumed run.
    first: u64,
    /// The step of the data to continue with: not `first` if the resumed run had another batch size.
    first_batch: u64,
    /// What its checkpoints say of the model and the rule.
    origin: Origin,
    changes: Vec<String>,
    /// Whether parameters have values.
    is_ready: bool,
    state: Finished,
}

/// That a step was skipped, if it was: the report before it counts fewer skipped steps.
fn skipped(before: Option<&StepReport>, report: &StepReport) -> Option<String> {
    let now = report.scaling?;
    let counted = |report: &StepReport| report.scaling.map(|scaling| scaling.skipped);
    // Of a resumed run, steps that were skipped before have no note.
    let is_more = match before.and_then(counted) {
        Some(before) => now.skipped > before,
        None => now.skipped > 0 && report.grad_norm == Some(0.0),
    };
    is_more.then(|| {
        format!(
            "step {} is skipped: its gradients are not finite. The loss is multiplied by {} from now on",
            report.step, now.scale
        )
    })
}

/// What processes agree on after a step.
#[derive(Clone, Copy, Default)]
struct Agreed {
    /// One of them is asked to stop.
    is_stopped: bool,
    /// One of them cannot read its data.
    is_lost: bool,
}

/// E447: another process cannot read its data, and says so itself.
fn lost_elsewhere() -> Box<Diagnostic> {
    Diagnostic::new("E447", "another process of the run cannot read its data any more")
        .help("its own message names the file")
}

impl Trainer {
    /// A run of a session on the data that suits its model, from the beginning or from a checkpoint.
    ///
    /// # Errors
    /// Those of [`Session::feed`], [`Session::build_model`] and [`Trainer::new`].
    pub fn start(session: &Session, resumed: Option<&Saved>) -> Result<Trainer> {
        let model = session.model()?;
        let feed = session.feed(&model)?;
        let built = session.build_model(&model)?;
        Trainer::new(session, model, &built, feed, resumed)
    }

    /// A run of a step that was built before, on any data.
    ///
    /// # Errors
    /// E055 for a model without a loss; what lowering and the runner refuse; E304, E314 and E317 if the checkpoint belongs
    /// to other data, another model or another rule of the optimizer; E315 for a folder that cannot be written; E434 if the
    /// processes of the run have other settings or files.
    pub fn new(
        session: &Session,
        model: Model,
        built: &Built,
        feed: Arc<dyn Feed>,
        resumed: Option<&Saved>,
    ) -> Result<Trainer> {
        if !has_loss(&model) {
            return Err(Diagnostic::new(
                "E055",
                format!("`{}` has no loss to train on", session.config().model.name()),
            )
            .expected("an output that is a float scalar")
            .found(format!("the outputs {}", model.forward.output_names.join(", ")))
            .help("let the model return its loss, and name it if there are several: --set model.loss=NAME"));
        }
        let mut step = session.prepare(built)?;
        // From here on no other run removes the checkpoint that is read.
        let is_first = step.train_loop.runner().world().is_first();
        let folder = is_first.then(|| folder(session.config(), resumed)).transpose()?.map(Arc::new);
        let origin = Origin::of_config(session.config())?;
        let (mut first, mut first_batch, mut changes) = (0, 0, Vec::new());
        if let Some(saved) = resumed {
            // What is damaged names the file itself.
            let at = |error: Box<Diagnostic>| match error.at {
                Some(_) => error,
                None => error.at(saved.path.display().to_string()),
            };
            step.train_loop.resume(saved.opened()).map_err(at)?;
            first_batch = feed.resume(saved.opened().meta()).map_err(at)?;
            changes = resume::compare(session.config(), &origin, saved).map_err(at)?;
            first = saved.step();
        }
        let world = step.train_loop.runner().world();
        if !world.is_whole() {
            let data = feed.position(first_batch);
            agreement::check(world, &agreement::facts(session, &built.plan, &origin, data, resumed))?;
            if resumed.is_none() {
                agreement::check_values(world, &model)?;
            }
        }
        Ok(Trainer {
            session: session.clone(),
            model,
            plan: built.plan.clone(),
            step,
            feed,
            validator: None,
            folder,
            saving: None,
            profiler: None,
            first,
            first_batch,
            origin,
            changes,
            is_ready: resumed.is_some(),
            state: Finished { done: first, ..Finished::default() },
        })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The step in memory.
    pub fn step(&self) -> &PlannedStep {
        &self.step
    }

    /// What differs from the run that it resumes, a line for each difference.
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Steps of the resumed run; 0 for a new one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The step of the data to continue with, from 0.
    pub fn first_batch(&self) -> u64 {
        self.first_batch
    }

    /// The folder of the checkpoints; `None` in a process that does not write them.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(|folder| folder.path())
    }

    /// Gives parameters their initial values, unless the run resumes another. [`Trainer::fit`] does so if need be.
    ///
    /// # Errors
    /// Those of [`PlannedStep::initialize`].
    pub fn initialize(&mut self) -> Result<()> {
        if !self.is_ready {
            self.step.initialize(&self.model, self.session.config().train.seed)?;
            self.is_ready = true;
        }
        Ok(())
    }

    /// Brings the step of validations into memory. [`Trainer::validate`] does so if need be.
    ///
    /// # Errors
    /// What building and lowering refuse.
    pub fn prepare_validation(&mut self) -> Result<()> {
        if self.validator.is_none() {
            let validator = Validator::new(&self.session, &self.model, &self.plan)?;
            validator.takes_from(&self.step)?;
            self.validator = Some(validator);
        }
        Ok(())
    }

    /// Records the steps of the cycle in the next [`Trainer::fit`].
    pub fn profile(&mut self, cycle: Cycle) {
        self.profiler = Some(Profiler::new(cycle));
    }

    /// What was recorded since [`Trainer::profile`]: see [`Profiler::into_recording`].
    ///
    /// # Errors
    /// E447 if another process has ended.
    pub fn take_recording(&mut self) -> Result<Option<Recording>> {
        let profiler = self.profiler.take();
        profiler.map(|profiler| profiler.into_recording(self.step.train_loop.runner())).transpose()
    }

    /// Turns the recorder of events on or off, from the next step on, for an observer that looks at
    /// [`Runner::events`].
    pub fn record(&mut self, is_on: bool) {
        self.step.train_loop.runner_mut().record(is_on);
    }

    /// Trains to the last step, or until `stop` is set in any process: then the current step is completed and saved.
    ///
    /// # Errors
    /// Those of the data, of [`PlannedStep::step`] and of [`Trainer::save`]. If a step diverges, the state before it is
    /// saved.
    pub fn fit(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Finished> {
        self.initialize()?;
        self.prepare_validation()?;
        let train = self.session.config().train.clone();
        let (total, save_every) = (train.steps, self.session.config().checkpoint.every);
        let began = Instant::now();
        let mut validating = Duration::ZERO;
        let first = self.state.done;
        let mut next = if first < total { Some(self.feed.batch(self.batch_of(first))?) } else { None };
        for step in first..total {
            let Some(batch) = next.take() else { break };
            let rate = self.session.config().schedule.at(step + 1);
            if let Some(profiler) = &mut self.profiler {
                profiler.before(self.step.train_loop.runner_mut());
            }
            let report = match self.step.step(&batch, rate) {
                Ok(report) => report,
                Err(error) => return Err(self.rescue(error)),
            };
            let done = step + 1;
            if let Some(profiler) = &mut self.profiler {
                profiler.after(done, self.step.train_loop.runner_mut());
            }
            if let Some(note) = skipped(self.state.last.as_ref(), &report) {
                observer.note(&note);
            }
            (self.state.done, self.state.last) = (done, Some(report));
            observer.ran(self.step.train_loop.runner());
            observer.step(&StepDone { step: done, report, learning_rate: rate });
            let every = |period: u64| period > 0 && done.is_multiple_of(period);
            let is_last = done == total;
            if is_last || every(train.validate_every) {
                let pause = Instant::now();
                self.check_held_out(train.validate_batches)?;
                let stop = if is_last { None } else { Some(stop) };
                if let Some(loss) = self.validation_loss(train.validate_batches, stop)? {
                    observer.validation(done, loss);
                }
                validating += pause.elapsed();
            }
            // Read before the processes agree: where one of them cannot read its data, all save and end.
            let read = (!is_last).then(|| self.feed.batch(self.batch_of(done))).transpose();
            let agreed = if is_last { Agreed::default() } else { self.agree(stop, read.is_err())? };
            if agreed.is_lost {
                return Err(self.keep(read.err().unwrap_or_else(lost_elsewhere)));
            }
            self.state.is_stopped = agreed.is_stopped;
            next = read?;
            if is_last || self.state.is_stopped {
                self.save()?;
            } else if every(save_every) {
                self.begin_save()?;
            }
            if self.state.is_stopped {
                break;
            }
        }
        self.state.duration += began.elapsed().saturating_sub(validating);
        Ok(self.state.clone())
    }

    /// What the processes agree on after a step. `is_lost`: this one cannot read its next batch. The checkpoint that was
    /// written in the meantime is completed once all have written.
    fn agree(&mut self, stop: &AtomicBool, is_lost: bool) -> Result<Agreed> {
        const STOP: u64 = 1;
        const WRITING: u64 = 2;
        const LOST: u64 = 4;
        let is_writing = self.saving.as_ref().is_some_and(|(_, saving)| !saving.is_written());
        let flags = [(stop.load(Ordering::SeqCst), STOP), (is_writing, WRITING), (is_lost, LOST)];
        let own = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        let all = self.step.train_loop.runner().world().union(own)?;
        if all & WRITING == 0 {
            self.settle()?;
        }
        Ok(Agreed { is_stopped: all & STOP != 0, is_lost: all & LOST != 0 })
    }

    /// Reads what is held out before a validation: where one process cannot, all save and end.
    fn check_held_out(&mut self, batches: u64) -> Result<()> {
        let count = batches.min(self.feed.validation_batches());
        let read = (0..count).try_for_each(|index| self.feed.validation(index).map(drop));
        if !self.step.train_loop.runner().world().any(read.is_err())? {
            return Ok(());
        }
        Err(self.keep(read.err().unwrap_or_else(lost_elsewhere)))
    }

    /// Whether any process is asked to stop.
    fn is_asked(&self, stop: &AtomicBool) -> Result<bool> {
        self.step.train_loop.runner().world().any(stop.load(Ordering::SeqCst))
    }

    /// The step of the data for a step of the run.
    fn batch_of(&self, step: u64) -> u64 {
        self.first_batch + (step - self.first)
    }

    /// The mean loss without dropout over the first `batches` validation batches, or as many as there are; `None` if no
    /// data is held out.
    ///
    /// # Errors
    /// What building, lowering and running refuse.
    pub fn validate(&mut self, batches: u64) -> Result<Option<f64>> {
        self.initialize()?;
        self.prepare_validation()?;
        self.validation_loss(batches, None)
    }

    /// As [`Trainer::validate`]; `None` also if `stop` is set meanwhile.
    fn validation_loss(&mut self, batches: u64, stop: Option<&AtomicBool>) -> Result<Option<f64>> {
        let mut validator = self.validator.take().expect("validations are prepared");
        let is_asked = || stop.map_or(Ok(false), |stop| self.is_asked(stop));
        let copied = validator.copy_from(&self.step);
        let loss = copied.and_then(|()| validator.loss(self.feed.as_ref(), batches, &is_asked));
        self.validator = Some(validator);
        if let Ok(Some(loss)) = loss {
            self.state.validation_loss = Some(loss);
        }
        loss
    }

    /// Saves parameters, optimizer states and the position in the data, with the config beside them; returns the folder of
    /// the checkpoint once it is complete.
    ///
    /// # Errors
    /// E315 if the disk is full or a write fails.
    pub fn save(&mut self) -> Result<PathBuf> {
        self.begin_save()?;
        self.settle()?;
        Ok(self.state.saved.as_ref().expect("just saved").1.clone())
    }

    /// Begins to save a copy of the state. It is complete after the next call of [`Trainer::settle`]; without
    /// `checkpoint.async` that is at once. At most one checkpoint is being written, and this waits for the one before.
    fn begin_save(&mut self) -> Result<()> {
        self.settle()?;
        let (train_loop, config) = (&self.step.train_loop, self.session.config());
        let (meta, step) = (self.metadata(), self.state.done);
        let (checkpoint, shards) = match config.checkpoint.sharded {
            true => (Checkpoint { step, meta, ..Checkpoint::default() }, Some(train_loop.shards()?)),
            false => (train_loop.checkpoint(meta)?, None),
        };
        let checkpoint = Checkpoint { beside: beside(config), ..checkpoint };
        let world = train_loop.runner().world();
        let saving = Saving::begin(self.folder.as_ref(), world, Arc::new(FileStorage), checkpoint, shards)?;
        self.saving = Some((step, saving));
        if config.checkpoint.is_async { Ok(()) } else { self.settle() }
    }

    /// Waits for the checkpoint that is being written, if there is one.
    fn settle(&mut self) -> Result<()> {
        if let Some((step, saving)) = self.saving.take() {
            let path = saving.finish(self.step.train_loop.runner().world())?;
            self.state.saved = Some((step, path));
        }
        Ok(())
    }

    /// After a step that diverged, saves the state before it, unless that is saved already.
    fn rescue(&mut self, error: Box<Diagnostic>) -> Box<Diagnostic> {
        if error.code == DIVERGED { self.keep(error) } else { error }
    }

    /// Saves the state after the last step, unless that is saved already, and says where it is. All processes call it.
    fn keep(&mut self, error: Box<Diagnostic>) -> Box<Diagnostic> {
        if self.state.last.is_none() {
            return error;
        }
        let done = self.state.done;
        let settled = self.settle();
        if self.state.saved.as_ref().is_none_or(|(step, _)| *step != done)
            && let Err(unsaved) = settled.and_then(|()| self.save())
        {
            return error.note(format!("the state after step {done} is lost: {unsaved}"));
        }
        match &self.state.saved {
            Some((step, path)) => error.note(format!("the state after step {step} is in {}", path.display())),
            None => error,
        }
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        let batch = self.batch_of(self.state.done);
        metadata(self.session.config(), self.feed.as_ref(), batch, &self.origin)
    }

    /// `count` bytes that the model generates after `prompt`, on one rank. `None` if the model does not generate text, and
    /// in every process but the one of rank 0.
    ///
    /// # Errors
    /// E011 for a model of text without logits, E424 if no logit is finite.
    pub fn sample(&self, prompt: &[u8], count: usize, sampler: &Sampler) -> Result<Option<Vec<u8>>> {
        let Some(mut decoder) = Decoder::alone(&self.session)? else { return Ok(None) };
        let checkpoint = self.step.train_loop.checkpoint(BTreeMap::new())?;
        if !self.step.train_loop.runner().world().is_first() {
            return Ok(None);
        }
        decoder.restore(&checkpoint)?;
        decoder.generate(sampler, prompt, count).map(Some)
    }
}
