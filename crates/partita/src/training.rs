//! A training run from its first step to its last: where it begins, when it validates and saves, and how it stops.

use crate::compile::{self, Build};
use crate::config::Config;
use crate::feeds::{Fed, Feed};
use crate::output::events::{Step, Validation};
use crate::play::{self, CpuStep};
use crate::trainer::Trainer;
use partita_base::{Diagnostic, Result};
use partita_ir::Pieces;
use partita_ir::{Registry, Role};
use partita_runtime::checkpoint::{self, Checkpoint, FileStorage, RunFolder};
use partita_runtime::{DIVERGED, RunnerOptions, StepReport, TrainLoop};
use partita_schedule::{Plan, Tools, build_evaluation};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where the default checkpoint folders are.
const DEFAULT_DIR: &str = "runs";

/// Where checkpoints go unless the config says so: `runs/<model>`. Where another run uses it, `runs/<model>-2`, and so on.
pub fn default_dir(config: &Config) -> PathBuf {
    Path::new(DEFAULT_DIR).join(config.model.name())
}

/// The checkpoint that `path` leads to, which is a checkpoint or a run's folder; without a path, that of the folder which
/// the config names, else of the run of this model that wrote last in the default place. With it, where it is.
///
/// # Errors
/// What [`checkpoint::load`] says.
pub fn find_checkpoint(config: &Config, path: Option<&Path>) -> Result<(PathBuf, Checkpoint)> {
    let path = match path.or(config.checkpoint.dir.as_deref()) {
        Some(path) => path.to_path_buf(),
        None => checkpoint::newest_run(&default_dir(config))?.unwrap_or_else(|| default_dir(config)),
    };
    let found = checkpoint::find(&path)?;
    let checkpoint = checkpoint::load(&found)?;
    Ok((found, checkpoint))
}

/// The folder that a run saves to: a new run's own, or that of the run it resumes. Where the config names another folder
/// than the resumed run's, it is a new run there.
fn folder(config: &Config, resumed: Option<&(PathBuf, Checkpoint)>) -> Result<RunFolder> {
    let keep = config.checkpoint.keep;
    let named = config.checkpoint.dir.as_deref();
    let home = resumed.and_then(|(path, checkpoint)| Some((checkpoint::run_folder(path)?, checkpoint)));
    match (home, named) {
        (Some((home, checkpoint)), named) if named.is_none_or(|dir| is_same(dir, home)) => {
            RunFolder::reopen(home, checkpoint, keep)
        }
        (_, Some(dir)) => RunFolder::create(dir, keep),
        (_, None) => RunFolder::create_numbered(&default_dir(config), keep),
    }
}

/// Whether two paths lead to one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// What a run tells while it goes on.
pub enum Progress {
    /// A step was done.
    Step(Step),
    /// A validation was done.
    Validation(Validation),
    /// Something worth knowing.
    Note(String),
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct Finished {
    /// Steps done, those of the resumed run included.
    pub done: u64,
    /// The last step, if there was one.
    pub last: Option<StepReport>,
    /// The last validation loss.
    pub validation_loss: Option<f64>,
    /// The last checkpoint, and after which step it was written.
    pub saved: Option<(u64, PathBuf)>,
    /// Time spent, validations excluded.
    pub duration: Duration,
    /// Whether it was asked to stop before its last step.
    pub is_stopped: bool,
}

/// A run that is ready to train.
pub struct Training<'a> {
    /// What is trained.
    pub trainer: Trainer,
    config: &'a Config,
    feed: &'a dyn Feed,
    /// Of the process that writes for all.
    folder: Option<RunFolder>,
    /// Steps of the resumed run.
    first: u64,
    /// The step of the data to go on with: not `first` where the resumed run had batches of another size.
    first_batch: u64,
}

impl<'a> Training<'a> {
    /// A run of `trainer`. Where it resumes a checkpoint, parameters and states are taken from there.
    ///
    /// # Errors
    /// E304 and E314 where the checkpoint belongs to other data or to another model; what [`RunFolder::create`] and
    /// [`RunFolder::reopen`] say.
    pub fn new(
        mut trainer: Trainer,
        config: &'a Config,
        feed: &'a dyn Feed,
        resumed: Option<(PathBuf, Checkpoint)>,
    ) -> Result<Training<'a>> {
        let (mut first, mut first_batch) = (0, 0);
        if let Some((path, checkpoint)) = &resumed {
            let at = |error: Box<Diagnostic>| error.at(path.display().to_string());
            trainer.player.restore(checkpoint).map_err(at)?;
            first_batch = feed.resume(&checkpoint.meta).map_err(at)?;
            first = checkpoint.step;
        }
        let is_first = trainer.player.runner().world().is_first();
        let folder = is_first.then(|| folder(config, resumed.as_ref())).transpose()?;
        Ok(Training { trainer, config, feed, folder, first, first_batch })
    }

    /// Steps of the resumed run; 0 for a new one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The step of the data to go on with, from 0.
    pub fn first_batch(&self) -> u64 {
        self.first_batch
    }

    /// Where it saves; `None` where another process does.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(RunFolder::path)
    }

    /// Trains to the last step, or until `stop` is set on any process: then the step at hand is completed and saved.
    ///
    /// # Errors
    /// What the data, [`Trainer::step`] and [`RunFolder::save`] say. Where a step diverges, the state before it is saved.
    pub fn run(
        &mut self,
        validator: &mut Validator,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Finished> {
        let config = self.config;
        let total = config.train.steps;
        let mut finished = Finished { done: self.first, ..Finished::default() };
        let began = Instant::now();
        let mut validating = Duration::ZERO;
        for step in self.first..total {
            let batch = self.feed.batch(self.batch_of(step))?;
            let rate = config.schedule.at(step + 1);
            let report = match self.trainer.step(&batch, rate) {
                Ok(report) => report,
                Err(error) => return Err(self.rescue(error, &mut finished, tell)),
            };
            let done = step + 1;
            (finished.done, finished.last) = (done, Some(report));
            tell(Progress::Step(Step {
                step: done,
                loss: report.loss,
                grad_norm: report.grad_norm,
                tokens_per_s: report.tokens_per_s,
                peak_bytes_planned: report.peak_bytes_planned as u64,
                peak_bytes_used: Some(report.peak_bytes_used as u64),
                learning_rate: rate,
            }));
            let every = |period: u64| period > 0 && done.is_multiple_of(period);
            let is_last = done == total;
            let is_asked = |player: &TrainLoop| {
                Ok(!is_last && player.runner().world().any(stop.load(Ordering::SeqCst))?)
            };
            if is_last || every(config.train.validate_every) {
                let pause = Instant::now();
                let batches = config.train.validate_batches;
                if let Some(loss) = validator.loss(&self.trainer.player, self.feed, batches, &is_asked)? {
                    tell(Progress::Validation(Validation { step: done, loss }));
                    finished.validation_loss = Some(loss);
                }
                validating += pause.elapsed();
            }
            finished.is_stopped = is_asked(&self.trainer.player)?;
            if is_last || finished.is_stopped || every(config.checkpoint.every) {
                self.save(&mut finished, tell)?;
            }
            if finished.is_stopped {
                break;
            }
        }
        finished.duration = began.elapsed().saturating_sub(validating);
        Ok(finished)
    }

    /// The step of the data for a step of the run.
    fn batch_of(&self, step: u64) -> u64 {
        self.first_batch + (step - self.first)
    }

    /// Saves the state, and the config beside it.
    fn save(&self, finished: &mut Finished, tell: &mut dyn FnMut(Progress)) -> Result<()> {
        let meta = self.metadata(finished.done);
        let player = &self.trainer.player;
        let checkpoint = player.checkpoint(meta)?;
        let mut own = None;
        let told = player.runner().world().broadcast(0, || {
            let folder = self.folder.as_ref().expect("the process of rank 0 has the folder");
            let path = folder.save(&FileStorage, checkpoint)?;
            let resolved = toml::to_string(&self.config.resolved).expect("a table prints");
            // The checkpoint is complete without it: a failure here must not undo the run.
            if let Err(error) = std::fs::write(path.join("config.toml"), resolved) {
                tell(Progress::Note(format!("could not write config.toml beside the checkpoint: {error}")));
            }
            let told = path.to_string_lossy().into_owned().into_bytes();
            own = Some(path);
            Ok(told)
        })?;
        let path = own.unwrap_or_else(|| PathBuf::from(String::from_utf8_lossy(&told).into_owned()));
        finished.saved = Some((finished.done, path));
        Ok(())
    }

    /// Where a step diverged, saves the state before it, unless that was saved already.
    fn rescue(
        &self,
        error: Box<Diagnostic>,
        finished: &mut Finished,
        tell: &mut dyn FnMut(Progress),
    ) -> Box<Diagnostic> {
        if error.code != DIVERGED || finished.last.is_none() {
            return error;
        }
        if finished.saved.as_ref().is_none_or(|(step, _)| *step != finished.done)
            && let Err(unsaved) = self.save(finished, tell)
        {
            return error.note(format!("the state after step {} is lost: {unsaved}", finished.done));
        }
        match &finished.saved {
            Some((step, path)) => error.note(format!("the state after step {step} is in {}", path.display())),
            None => error,
        }
    }

    fn metadata(&self, done: u64) -> BTreeMap<String, String> {
        let config = self.config;
        let mut meta = self.feed.position(self.batch_of(done));
        meta.insert("model".into(), config.model.name().into());
        meta.insert("mesh".into(), config.mesh.clone());
        meta.insert("seed".into(), config.train.seed.to_string());
        meta.insert("optimizer".into(), config.step.optimizer.name().into());
        meta
    }
}

/// The loss without dropout on what is held out, on the same mesh and plan.
pub struct Validator {
    player: TrainLoop,
    pieces: Vec<Pieces>,
    parameters: Vec<String>,
}

impl Validator {
    /// Of a run under this plan, with these options.
    ///
    /// # Errors
    /// What planning and lowering say.
    pub fn new(config: &Config, plan: &Plan, options: RunnerOptions) -> Result<Validator> {
        let mesh = compile::mesh(config)?;
        let model = config.model.build(config.train.batch, config.train.dtype, true)?;
        let build_options = compile::build_options(config, &Build::from_config(config));
        let runner = CpuStep { options: options.clone() };
        let tools = Tools { registry: &Registry::default(), runner: &runner };
        let placed = build_evaluation(&model, plan, &mesh, &build_options, &tools)?;
        let parameters = placed
            .step
            .inputs
            .iter()
            .filter(|&&v| placed.step.value(v).role == Role::Param)
            .map(|&v| placed.step.value(v).name.clone())
            .collect();
        let player = play::player(&placed, config.train.seed, options)?;
        Ok(Validator { player, pieces: placed.pieces, parameters })
    }

    /// The mean over up to `batches` held-out batches; `None` where nothing is held out, or where the run is to stop.
    fn loss(
        &mut self,
        trainer: &TrainLoop,
        feed: &dyn Feed,
        batches: u64,
        stop: &dyn Fn(&TrainLoop) -> Result<bool>,
    ) -> Result<Option<f64>> {
        debug_assert!(self.pieces.iter().all(|p| !self.parameters.contains(&p.name)));
        for name in &self.parameters {
            self.player.set_tensor(name, &trainer.tensor(name)?)?;
        }
        let batches = batches.min(feed.validation_batches());
        let mut sum = 0.0;
        for index in 0..batches {
            if stop(trainer)? {
                return Ok(None);
            }
            let batch: Fed = feed.validation(index)?;
            sum += play::with_batch(&batch, |batch| self.player.step(batch, 0.0))?.loss;
        }
        Ok((batches > 0).then(|| sum / batches as f64))
    }
}
