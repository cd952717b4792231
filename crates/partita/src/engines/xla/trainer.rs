//! Training under XLA: exports the step, starts its runner, and follows it.
//!
//! The runner prints a line of JSON for each step and for each state that it wrote to a file. This side makes checkpoints of
//! these states, which are those of any other engine, so that a run continues on any of them.

use super::process::{Next, Runner, failed};
use crate::engines::{EngineTrainer, TrainingRun};
use crate::execution::state_layout;
use crate::feeds::Feed;
use crate::leftovers;
use crate::resume::{self, Origin};
use crate::run_files::{beside, folder, metadata};
use crate::session::Session;
use crate::trainer::{Finished, Observer, StepDone};
use crate::validator::Validator;
use crate::xla::runner::Line;
use crate::xla::{Form, export};
use partita_base::{Result, format_seconds};
use partita_runtime::StepReport;
use partita_runtime::checkpoint::{Checkpoint, FileStorage, RunFolder, import_weights};
use partita_schedule::{Built, StepKind};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The beginning of the name of the folder through which both sides pass files.
const EXCHANGE: &str = "partita-xla-";

/// A training run under XLA.
pub struct XlaTrainer {
    session: Session,
    runner: Runner,
    /// The step of validations, if there are any, which takes the state that the runner saves.
    validation: Option<Built>,
    feed: Arc<dyn Feed>,
    /// The folder of the checkpoints; `None` in a process that does not write them.
    folder: Option<RunFolder>,
    exchange: Exchange,
    first: u64,
    first_batch: u64,
    /// What its checkpoints say of the model and the rule.
    origin: Origin,
    changes: Vec<String>,
    state: Finished,
}

/// The folder through which both sides pass files; removed in the end.
struct Exchange(PathBuf);

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl XlaTrainer {
    /// Exports the step of a run with its state, initial or resumed, and with the batches of its steps.
    ///
    /// # Errors
    /// Those of [`export`]; E432 if a validation could not take the state; E315 for a folder of checkpoints that cannot be
    /// written, E061 for an exchange folder that cannot be written.
    pub(super) fn new(run: &TrainingRun, runner: Runner) -> Result<XlaTrainer> {
        let TrainingRun { session, model, feed, resumed } = run.clone();
        let processes = session.processes();
        let is_first = processes.is_none_or(|processes| processes.index() == 0);
        leftovers::remove(&std::env::temp_dir(), EXCHANGE);
        let path = std::env::temp_dir().join(format!("{EXCHANGE}{}", std::process::id()));
        let exchange = Exchange(path.clone());
        std::fs::create_dir(&path).map_err(|error| failed("its folder cannot be made", error.to_string()))?;
        let step = export(session, Form::Uniform, resumed)?;
        step.write(&path)?;
        let alone = session.clone().in_this_process();
        let validation = match session.config().train.validate_batches > 0 && feed.validation_batches() > 0 {
            true => Some(alone.build_part(model, &alone.plan(model)?, StepKind::Loss)?),
            false => None,
        };
        if let Some(built) = &validation {
            step.layout.gives(&state_layout(built)?)?;
        }
        let origin = Origin::of_config(session.config())?;
        let (first, first_batch, changes) = match resumed {
            Some(saved) => (
                saved.step(),
                feed.resume(saved.opened().meta())?,
                resume::compare(session.config(), &origin, saved)
                    .map_err(|error| error.at(saved.path.display().to_string()))?,
            ),
            None => (0, 0, Vec::new()),
        };
        Ok(XlaTrainer {
            folder: is_first.then(|| folder(session.config(), resumed)).transpose()?,
            session: session.clone(),
            runner,
            validation,
            feed,
            exchange,
            first,
            first_batch,
            origin,
            changes,
            state: Finished { done: first, ..Finished::default() },
        })
    }

    /// The variables that tell the runner its place among those of the other processes of `partita launch`, as torchrun
    /// sets them; none for one process, whose runner has all ranks.
    fn place(&self) -> Result<Vec<(&'static str, String)>> {
        let Some(processes) = self.session.processes() else { return Ok(Vec::new()) };
        let (index, count) = (processes.index(), processes.count());
        // The first runner listens at a port that is free now.
        let free = || TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = match index {
            0 => free().map_err(|error| failed("no port is free", error.to_string()))?.port(),
            _ => 0,
        };
        let told = processes.world(count, Vec::new())?.transport().control_all_gather(&port.to_le_bytes())?;
        let port = told.first().and_then(|bytes| bytes[..].try_into().ok()).map_or(0, u16::from_le_bytes);
        Ok(vec![
            ("RANK", index.to_string()),
            ("LOCAL_RANK", index.to_string()),
            ("WORLD_SIZE", count.to_string()),
            ("LOCAL_WORLD_SIZE", count.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_string()),
            ("MASTER_PORT", port.to_string()),
        ])
    }

    fn step(&mut self, line: &Line, observer: &mut dyn Observer) {
        let took = Duration::try_from_secs_f64(line.seconds.unwrap_or(0.0)).unwrap_or_default();
        let tokens = self.feed.tokens_per_batch() as f64;
        let bytes = |count: Option<u64>| count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let figure = |name: &str| line.figures.get(name).copied();
        let report = StepReport {
            step: line.step,
            loss: figure("loss").flatten().unwrap_or(f64::NAN),
            grad_norm: figure("grad_norm").map(|norm| norm.unwrap_or(f64::NAN)),
            scaling: None,
            tokens_per_s: tokens / took.as_secs_f64().max(1e-9),
            peak_bytes_planned: bytes(line.planned_bytes),
            peak_bytes_used: bytes(line.used_bytes),
        };
        self.state.done = line.step;
        self.state.last = Some(report);
        self.state.duration += took;
        let learning_rate = self.session.config().schedule.at(line.step);
        observer.step(&StepDone { step: line.step, report, learning_rate });
    }

    /// Makes a checkpoint of a state that the runner wrote; after the last step, validates it.
    fn save(&mut self, step: u64, file: &Path, total: u64, observer: &mut dyn Observer) -> Result<()> {
        let tensors = import_weights(file)?;
        let _ = std::fs::remove_file(file);
        let config = self.session.config();
        let batch = self.first_batch + (step - self.first);
        let meta = metadata(config, self.feed.as_ref(), batch, &self.origin);
        let checkpoint = Checkpoint { tensors, step, meta, beside: beside(config) };
        if let Some(built) = self.validation.as_ref().filter(|_| step == total) {
            let mut validator = Validator::from_built(&self.session.clone().in_this_process(), built)?;
            validator.restore(&checkpoint)?;
            let batches = config.train.validate_batches;
            self.state.validation_loss = validator.loss(self.feed.as_ref(), batches, &|| Ok(false))?;
            if let Some(loss) = self.state.validation_loss {
                observer.validation(step, loss);
            }
        }
        if let Some(folder) = &mut self.folder {
            self.state.saved = Some((step, folder.save(&FileStorage, checkpoint)?));
        }
        Ok(())
    }
}

impl EngineTrainer for XlaTrainer {
    fn first(&self) -> u64 {
        self.first
    }

    fn first_batch(&self) -> u64 {
        self.first_batch
    }

    fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(RunFolder::path)
    }

    fn changes(&self) -> &[String] {
        &self.changes
    }

    fn can_stop(&self) -> bool {
        self.runner.can_stop()
    }

    /// Validations run on the CPU device.
    fn fit(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Finished> {
        let total = self.session.config().train.steps;
        let every = self.session.config().checkpoint.every;
        let mut running = self.runner.start(&self.exchange.0, every, self.place()?)?;
        let mut is_asked = false;
        loop {
            match running.next() {
                Next::Line(line) => match (&line.programs, &line.saved) {
                    (Some(programs), _) => observer.note(&compiled(*programs, &line)),
                    (None, Some(file)) => self.save(line.step, file, total, observer)?,
                    (None, None) => self.step(&line, observer),
                },
                Next::Wait => {}
                Next::End => break,
            }
            if !is_asked && self.can_stop() && stop.load(Ordering::SeqCst) {
                running.stop();
                is_asked = true;
            }
        }
        running.finish(&self.runner)?;
        self.state.is_stopped = is_asked && self.state.done < total;
        Ok(self.state.clone())
    }
}

/// What the runner has compiled.
fn compiled((count, known): (usize, usize), line: &Line) -> String {
    let seconds = format_seconds(line.seconds.unwrap_or(0.0));
    let programs = if count == 1 { "1 program".to_string() } else { format!("{count} programs") };
    match count - known.min(count) {
        0 => format!("{programs} compiled by an earlier run, loaded in {seconds}"),
        new if new == count => format!("XLA compiled {programs} in {seconds}"),
        new => format!("XLA compiled {new} of {programs} in {seconds}, an earlier run the others"),
    }
}
