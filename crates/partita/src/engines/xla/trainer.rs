//! Training under XLA: exports the step, starts its runner, and follows it.
//!
//! The runner prints a line of JSON for each step and for each state that it wrote to a file. This side makes checkpoints of
//! these states, which are those of any other engine, so that a run continues on any of them.

use super::{PACKAGES, PYTHON, python};
use crate::engines::{EngineTrainer, TrainingRun};
use crate::execution::state_layout;
use crate::feeds::Feed;
use crate::leftovers;
use crate::resume::{self, Origin};
use crate::run_files::{beside, folder, metadata};
use crate::session::Session;
use crate::trainer::{Finished, Observer, StepDone};
use crate::validator::Validator;
use crate::xla::{Form, export};
use partita_base::{Diagnostic, Result};
use partita_runtime::StepReport;
use partita_runtime::checkpoint::{Checkpoint, FileStorage, RunFolder, import_weights};
use partita_schedule::{Built, StepKind};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The beginning of the name of the folder through which both sides pass files.
const EXCHANGE: &str = "partita-xla-";

/// A training run under XLA.
pub struct XlaTrainer {
    session: Session,
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

/// The runner, which ends with this value, and its standard input, which stays open until it has ended.
struct Running(Child, Option<ChildStdin>);

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
    /// Exports the step of a run with its state, initial or resumed, and with the batches of its steps.
    ///
    /// # Errors
    /// Those of [`export`]; E432 if a validation could not take the state; E315 for a folder of checkpoints that cannot be
    /// written, E061 without a Python with [`PACKAGES`], and for an exchange folder that cannot be written.
    pub fn new(run: &TrainingRun) -> Result<XlaTrainer> {
        check_packages()?;
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

    /// Validations run on the CPU device.
    fn fit(&mut self, observer: &mut dyn Observer, _: &AtomicBool) -> Result<Finished> {
        let total = self.session.config().train.steps;
        let every = self.session.config().checkpoint.every;
        let child = Command::new(python())
            .arg(self.exchange.0.join("run.py"))
            .envs(self.place()?)
            .args(["--json", "--end-with-stdin"])
            .args(["--save-every", &every.to_string()])
            .arg("--save-in")
            .arg(&self.exchange.0)
            // Nothing is written: the runner ends when this pipe does, however this process ended.
            .stdin(Stdio::piped())
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
        let stdin = child.stdin.take();
        let mut running = Running(child, stdin);
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
        drop(running.1.take());
        if !status.success() {
            let said = said.join().unwrap_or_default();
            let last = said.trim_end().lines().last().unwrap_or_default().to_string();
            return Err(failed("the runner failed", format!("{status}: {last}"))
                .help("`partita env` shows the Python and the packages that run it"));
        }
        Ok(self.state.clone())
    }
}

/// E061 unless there is a Python that finds the packages of the runner; they are not imported.
fn check_packages() -> Result<()> {
    let program = "import importlib.metadata as m, sys; [m.version(name) for name in sys.argv[1:]]";
    let done = Command::new(python()).args(["-c", program]).args(PACKAGES).output();
    let done = done.map_err(|error| {
        failed("its Python cannot be started", error.to_string())
            .help(format!("name another Python with {PYTHON}"))
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().last().map_or(PACKAGES.join(" "), str::to_string);
    let install = PACKAGES.join(" ");
    Err(failed("its Python lacks a package", last)
        .expected(format!("a Python with {}", PACKAGES.join(" and ")))
        .help(format!(
            "`{} -m pip install {install}`, or name another Python with {PYTHON}; `partita env` shows what is here",
            python()
        )))
}

/// E061.
fn failed(what: &str, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E061", format!("the engine xla failed: {what}")).at(python()).found(found)
}
