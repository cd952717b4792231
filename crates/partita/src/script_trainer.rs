//! Training on an engine in Python, XLA or PyTorch: exports the step, starts its runner, and follows it.
//!
//! The runner prints a line of JSON for each step and for each state that it wrote to a file. This side makes checkpoints of
//! these states, which are those of any other engine, so that a run continues on any of them.

use crate::engine::Engine;
use crate::execution::state_layout;
use crate::feeds::Feed;
use crate::resume::{self, Origin};
use crate::run_files::{Saved, beside, folder, metadata};
use crate::session::{Part, Session};
use crate::torch;
use crate::trainer::{Finished, Observer, StepDone};
use crate::validator::Validator;
use crate::xla::{self, Form};
use partita_base::{Diagnostic, Result};
use partita_runtime::StepReport;
use partita_runtime::checkpoint::{Checkpoint, FileStorage, RunFolder, import_weights};
use partita_schedule::Built;
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The variable that names another interpreter than `python3` for the engines in Python.
pub const PYTHON: &str = "PARTITA_PYTHON";

/// The interpreter that runs the engines in Python.
pub fn python() -> String {
    std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_string())
}

/// A training run on an engine in Python.
pub struct ScriptTrainer {
    engine: Engine,
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

/// The line of a runner that cannot run the plan.
#[derive(Deserialize)]
struct Refusal {
    refused: Refused,
}

#[derive(Deserialize)]
struct Refused {
    code: String,
    message: String,
    expected: Option<String>,
    found: Option<String>,
    at: Option<String>,
    help: Option<String>,
}

impl Refused {
    fn diagnostic(self) -> Box<Diagnostic> {
        let known = ["E221", "E223", "E390", "E394", "E462"].into_iter().find(|known| *known == self.code);
        let mut diagnostic = Diagnostic::new(known.unwrap_or("E061"), self.message);
        diagnostic.expected = self.expected;
        diagnostic.found = self.found;
        diagnostic.at = self.at;
        diagnostic.help = self.help;
        diagnostic
    }
}

impl ScriptTrainer {
    /// Exports the step of a session with its state, initial or resumed, and with the batches of its steps.
    ///
    /// # Errors
    /// Those of [`xla::export`] and [`torch::export`]; E432 if a validation could not take the state; E315 for a folder
    /// of checkpoints that cannot be written, E061 without a Python with the packages of the engine, and for an
    /// exchange folder that cannot be written.
    pub fn new(session: &Session, engine: Engine, resumed: Option<&Saved>) -> Result<ScriptTrainer> {
        check_packages(engine)?;
        let failed = |what: &str, found: String| failed(engine, what, found);
        let model = session.model()?;
        let feed = session.feed(&model)?;
        let processes = session.processes();
        let is_first = processes.is_none_or(|processes| processes.index() == 0);
        let path = std::env::temp_dir().join(format!("partita-{}-{}", engine.name(), std::process::id()));
        let exchange = Exchange(path.clone());
        std::fs::create_dir(&path).map_err(|error| failed("its folder cannot be made", error.to_string()))?;
        let layout = match engine {
            Engine::Torch => {
                let step = torch::export(session, resumed)?;
                step.write(&path)?;
                step.layout
            }
            _ => {
                let step = xla::export(session, Form::Uniform, resumed)?;
                step.write(&path)?;
                step.layout
            }
        };
        let alone = session.clone().in_this_process();
        let validation = match session.config().train.validate_batches > 0 && feed.validation_batches() > 0 {
            true => Some(alone.build_part(&model, &alone.plan(&model)?, Part::Loss)?),
            false => None,
        };
        if let Some(built) = &validation {
            layout.gives(&state_layout(built)?)?;
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
        Ok(ScriptTrainer {
            engine,
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

    /// What it has otherwise than the run that it resumes, a line for each of it.
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// The folder of the checkpoints; `None` in a process that does not write them.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(RunFolder::path)
    }

    /// The variables that tell the runner its place among those of the other processes of `partita launch`, as torchrun
    /// sets them; none for one process, whose runner has all ranks.
    fn place(&self) -> Result<Vec<(&'static str, String)>> {
        let Some(processes) = self.session.processes() else { return Ok(Vec::new()) };
        let (index, count) = (processes.index(), processes.count());
        // The first runner listens at a port that is free now.
        let free = || TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = match index {
            0 => free().map_err(|error| failed(self.engine, "no port is free", error.to_string()))?.port(),
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

    /// Trains to the last step. Validations run on the CPU device.
    ///
    /// # Errors
    /// E061 if the runner cannot be started or fails; those of saving and validating.
    pub fn fit(&mut self, observer: &mut dyn Observer) -> Result<Finished> {
        let engine = self.engine;
        let failed = |what: &str, found: String| failed(engine, what, found);
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
            if let Ok(Refusal { refused }) = serde_json::from_str(&line) {
                return Err(refused.diagnostic());
            }
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

/// The packages that the runner of an engine imports.
pub fn packages(engine: Engine) -> &'static [&'static str] {
    match engine {
        Engine::Xla => &["jax", "jaxlib"],
        Engine::Torch => &["torch", "numpy"],
        Engine::Native | Engine::Mpi => &[],
    }
}

/// E061 unless there is a Python that finds the packages of the runner; they are not imported.
fn check_packages(engine: Engine) -> Result<()> {
    let names = packages(engine).join(" ");
    let program = "import importlib.metadata as m, sys; [m.version(name) for name in sys.argv[1:]]";
    let done = Command::new(python()).args(["-c", program]).args(packages(engine)).output();
    let done = done.map_err(|error| failed(engine, "its Python cannot be started", error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().last().unwrap_or(&names);
    Err(failed(engine, "its Python lacks a package", last.to_string()))
}

/// E061.
fn failed(engine: Engine, what: &str, found: String) -> Box<Diagnostic> {
    let (names, install) = (packages(engine).join(" and "), packages(engine).join(" "));
    Diagnostic::new("E061", format!("the engine {} failed: {what}", engine.name()))
        .at(python())
        .expected(format!("a Python with {names}"))
        .found(found)
        .help(format!(
            "`pip install {install}`, or name another Python with {PYTHON}; `partita env` shows what is here"
        ))
}
