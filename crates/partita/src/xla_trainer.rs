//! Training on XLA: exports the step, starts the runner of [`crate::xla`] under Python, and follows it.
//!
//! The runner prints a line of JSON for each step and for each state that it wrote to a file. This side makes checkpoints of
//! these states, which are those of any other engine, so that a run continues on any of them.

use crate::engine::Engine;
use crate::feeds::Feed;
use crate::run_files::{Saved, beside, folder, metadata};
use crate::session::Session;
use crate::trainer::{Finished, Observer, StepDone};
use crate::validator::Validator;
use crate::xla::{self, Form};
use partita_base::{Diagnostic, Result};
use partita_nn::Model;
use partita_runtime::StepReport;
use partita_runtime::checkpoint::{Checkpoint, FileStorage, RunFolder, import_weights};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The variable that names another interpreter than `python3` for the engines in Python.
pub const PYTHON: &str = "PARTITA_PYTHON";

/// The interpreter that runs the engines in Python.
pub fn python() -> String {
    std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_string())
}

/// A training run on XLA.
pub struct XlaTrainer {
    session: Session,
    model: Model,
    feed: Arc<dyn Feed>,
    folder: RunFolder,
    exchange: Exchange,
    first: u64,
    first_batch: u64,
    state: Finished,
}

/// The folder through which both sides pass files; removed in the end.
struct Exchange(PathBuf);

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The runner, which ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A line of the runner.
#[derive(Deserialize)]
struct Line {
    step: u64,
    /// The results of the step.
    loss: Option<f64>,
    grad_norm: Option<f64>,
    seconds: Option<f64>,
    /// The file of the state after the step.
    saved: Option<PathBuf>,
}

impl XlaTrainer {
    /// Exports the step of a session with its state, initial or resumed, and with the batches of its steps.
    ///
    /// # Errors
    /// Those of [`xla::export`]; E315 for a folder of checkpoints that cannot be written, E061 without a Python with
    /// jaxlib, and for an exchange folder that cannot be written.
    pub fn new(session: &Session, resumed: Option<&Saved>) -> Result<XlaTrainer> {
        check_packages()?;
        let model = session.model()?;
        let feed = session.feed(&model)?;
        let step = xla::export(session, Form::Uniform, resumed)?;
        let path = std::env::temp_dir().join(format!("partita-xla-{}", std::process::id()));
        let exchange = Exchange(path.clone());
        std::fs::create_dir(&path).map_err(|error| failed("its folder cannot be made", error.to_string()))?;
        step.write(&path)?;
        let (first, first_batch) = match resumed {
            Some(saved) => (saved.step(), feed.resume(saved.opened().meta())?),
            None => (0, 0),
        };
        Ok(XlaTrainer {
            folder: folder(session.config(), resumed)?,
            session: session.clone(),
            model,
            feed,
            exchange,
            first,
            first_batch,
            state: Finished { done: first, ..Finished::default() },
        })
    }

    /// The folder of the checkpoints.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Trains to the last step. Validations run on the CPU device.
    ///
    /// # Errors
    /// E061 if the runner cannot be started or fails; those of saving and validating.
    pub fn fit(&mut self, observer: &mut dyn Observer) -> Result<Finished> {
        let total = self.session.config().train.steps;
        let every = self.session.config().checkpoint.every;
        let child = Command::new(python())
            .arg(self.exchange.0.join("run.py"))
            .arg("--json")
            .args(["--save-every", &every.to_string()])
            .arg("--save-in")
            .arg(&self.exchange.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| failed("Python cannot be started", error.to_string()))?;
        let mut pipe = child.stderr.take().expect("it is piped");
        let said = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut running = Running(child);
        for line in lines {
            let line = line.map_err(|error| failed("its output cannot be read", error.to_string()))?;
            let line: Line = serde_json::from_str(&line)
                .map_err(|_| failed("it printed something else than steps", line.clone()))?;
            match &line.saved {
                Some(file) => self.save(line.step, file, total, observer)?,
                None => self.step(&line, observer),
            }
        }
        let status = running.0.wait().map_err(|error| failed("it is lost", error.to_string()))?;
        if !status.success() {
            let said = said.join().unwrap_or_default();
            let last = said.trim_end().lines().last().unwrap_or_default().to_string();
            return Err(failed("the runner failed", format!("{status}: {last}")));
        }
        Ok(self.state.clone())
    }

    fn step(&mut self, line: &Line, observer: &mut dyn Observer) {
        let took = Duration::try_from_secs_f64(line.seconds.unwrap_or(0.0)).unwrap_or_default();
        let tokens = self.feed.tokens_per_batch() as f64;
        let report = StepReport {
            step: line.step,
            loss: line.loss.unwrap_or(f64::NAN),
            grad_norm: line.grad_norm,
            scaling: None,
            tokens_per_s: tokens / took.as_secs_f64().max(1e-9),
            peak_bytes_planned: 0,
            peak_bytes_used: 0,
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
        let meta = metadata(config, self.feed.as_ref(), self.first_batch + (step - self.first));
        let checkpoint = Checkpoint { tensors, step, meta, beside: beside(config) };
        if step == total && config.train.validate_batches > 0 && self.feed.validation_batches() > 0 {
            let plan = self.session.plan(&self.model)?;
            let mut validator = Validator::new(&self.session, &self.model, &plan)?;
            validator.restore(&checkpoint)?;
            let batches = config.train.validate_batches;
            self.state.validation_loss = validator.loss(self.feed.as_ref(), batches, &|| Ok(false))?;
            if let Some(loss) = self.state.validation_loss {
                observer.validation(step, loss);
            }
        }
        let path = self.folder.save(&FileStorage, checkpoint)?;
        self.state.saved = Some((step, path));
        Ok(())
    }
}

/// E061 unless there is a Python that finds the packages of the runner; they are not imported.
fn check_packages() -> Result<()> {
    let program = "import importlib.metadata as m; m.version('jax'); m.version('jaxlib')";
    let done = Command::new(python()).args(["-c", program]).output();
    let done = done.map_err(|error| failed("its Python cannot be started", error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().last().unwrap_or_default();
    Err(failed("its Python lacks a package", last.to_string()))
}

/// E061.
pub(crate) fn failed(what: &str, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E061", format!("the engine {} failed: {what}", Engine::Xla.name()))
        .at(python())
        .expected("a Python with jax and jaxlib")
        .found(found)
        .help(format!(
            "`pip install jax`, or name another Python with {PYTHON}; `partita env` shows what is here"
        ))
}
