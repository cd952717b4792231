//! Engines: what runs the ranks of a plan, a folder each.
//!
//! The plan, its verification, the traces and the checkpoints are the same for all of them. An engine says what it cannot
//! do before it starts ([`Engine::check`]). One more is a folder here and a line in [`Engines::bundled`]; a program may
//! also bring its own ([`Engines::with`]).

mod launched;
pub mod mpi;
pub mod native;
pub mod xla;

pub use launched::CONSEQUENCE;

use crate::feeds::Feed;
use crate::launcher::Place;
use crate::profile::{Cycle, Recording};
use crate::run_files::Saved;
use crate::sample::Sampler;
use crate::session::{Execution, Session};
use crate::trainer::{Finished, Observer};
use crate::xla::plugins::PluginState;
use partita_base::{Diagnostic, Result};
use partita_nn::Model;
use partita_runtime::Processes;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What runs the ranks of a plan.
pub trait Engine: fmt::Debug + Send + Sync {
    /// The name, as `--engine` takes it.
    fn name(&self) -> &'static str;

    /// What runs the ranks, for help: `the CPU cores of this host`.
    fn about(&self) -> &'static str;

    /// Whether it can run here.
    fn state(&self) -> EngineState;

    /// Whether it can train a session from this process. By default any session, in a process that is alone or one of
    /// `partita launch`.
    ///
    /// # Errors
    /// E060 for what it lacks; E393 if another launcher started several processes, each of which would run all ranks.
    fn check(&self, session: &Session) -> Result<()> {
        let _ = session;
        Place::check_alone(|name| std::env::var(name).ok())
    }

    /// Whether its trainers record their steps: whether [`EngineTrainer::recorder`] gives something.
    ///
    /// # Errors
    /// E060 if they do not.
    fn check_records(&self) -> Result<()> {
        Ok(())
    }

    /// The processes that share so many ranks, if this one is among several: it joins them. By default those of
    /// `partita launch`.
    ///
    /// # Errors
    /// E448 if it cannot join them; E449 if there are more processes than ranks, or if its place in the environment is not
    /// valid.
    fn processes(&self, execution: &Execution, ranks: usize) -> Result<Option<Arc<dyn Processes>>> {
        launched::join(execution, ranks)
    }

    /// The processes that were started together with this one, before it read its command line: the first of them prints
    /// for all.
    fn started(&self) -> Option<&Arc<dyn Processes>> {
        None
    }

    /// How many devices it has here, if a mesh cannot have more ranks than that.
    fn devices(&self) -> Option<usize> {
        None
    }

    /// Brings a run into memory.
    ///
    /// # Errors
    /// What building and lowering refuse; E061 if the engine cannot be started.
    fn trainer(&self, run: &TrainingRun, observer: &mut dyn Observer) -> Result<Box<dyn EngineTrainer>>;

    /// How many tokens a second one device trains that has what the ranks share, if the engine can tell in passing: `step`
    /// is the time of a step on the mesh.
    ///
    /// # Errors
    /// What building, lowering and running refuse.
    fn one_device_tokens_per_s(&self, run: &TrainingRun, step: Duration) -> Result<Option<f64>> {
        let _ = (run, step);
        Ok(None)
    }

    /// The execution of a process that may be one of several: it then joins them, and takes its part of the cores.
    ///
    /// # Errors
    /// Those of [`Engine::processes`].
    fn share(&self, execution: Execution, ranks: usize) -> Result<Execution> {
        let Some(processes) = self.processes(&execution, ranks)? else { return Ok(execution) };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = execution.workers.unwrap_or_else(|| (cores / processes.count()).max(1));
        Ok(Execution { workers: Some(workers), processes: Some(processes), ..execution })
    }
}

/// A run to train: a session with its model, its data and the checkpoint from which it continues.
#[derive(Clone)]
pub struct TrainingRun<'a> {
    /// The session, with the execution that [`Engine::share`] gives.
    pub session: &'a Session,
    /// Its model.
    pub model: &'a Model,
    /// Its data.
    pub feed: Arc<dyn Feed>,
    /// The checkpoint.
    pub resumed: Option<&'a Saved>,
}

/// A run in memory. In a run of several processes each has its own, and all call the same methods in the same order.
pub trait EngineTrainer {
    /// Steps of the resumed run; 0 for a new one.
    fn first(&self) -> u64;

    /// The step of the data to continue with, from 0.
    fn first_batch(&self) -> u64;

    /// The folder of the checkpoints; `None` in a process that does not write them.
    fn folder(&self) -> Option<&Path>;

    /// What differs from the run that it resumes, a line for each difference.
    fn changes(&self) -> &[String];

    /// What records its steps, if anything does.
    fn recorder(&mut self) -> Option<&mut dyn Recorder> {
        None
    }

    /// Does what remains before the first step: initial values, the step of validations.
    ///
    /// # Errors
    /// What building, lowering and initial values refuse.
    fn prepare(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let _ = observer;
        Ok(())
    }

    /// Whether [`EngineTrainer::fit`] looks at its flag.
    fn can_stop(&self) -> bool {
        false
    }

    /// Trains to the last step, or until `stop` is set in any process, if it [can stop](EngineTrainer::can_stop): then the
    /// current step is completed and saved.
    ///
    /// # Errors
    /// Those of the data, of steps, of saving and of validating; E061 if the engine fails.
    fn fit(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Finished>;

    /// `count` bytes that the model generates after `prompt`, in the process that prints; `None` if the engine or the model
    /// does not generate text.
    ///
    /// # Errors
    /// E011 for a model of text without logits, E424 if no logit is finite.
    fn sample(&self, prompt: &[u8], count: usize, sampler: &Sampler) -> Result<Option<Vec<u8>>> {
        let _ = (prompt, count, sampler);
        Ok(None)
    }
}

/// Records what ranks do in the steps of a run.
pub trait Recorder {
    /// Records the steps of the cycle in the next [`EngineTrainer::fit`].
    fn profile(&mut self, cycle: Cycle);

    /// What was recorded since [`Recorder::profile`].
    ///
    /// # Errors
    /// E447 if another process has ended.
    fn take_recording(&mut self) -> Result<Option<Recording>>;

    /// Turns the recorder on or off, from the next step on, for an observer that looks at what ran a step.
    fn record(&mut self, is_on: bool);
}

/// An engine on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EngineState {
    /// The engine.
    pub name: &'static str,
    /// Whether `--engine` takes it here.
    pub ready: bool,
    /// Its version, or what is missing.
    pub about: String,
    /// The PJRT plugins that it finds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PluginState>,
}

/// The engines of a program.
#[derive(Clone, Debug, Default)]
pub struct Engines(Vec<Arc<dyn Engine>>);

impl Engines {
    /// `native`, `mpi` without processes of its own, and `xla`.
    pub fn bundled() -> Engines {
        Engines::default().with(native::Native).with(mpi::Mpi::default()).with(xla::Xla::default())
    }

    /// These engines and one more. An engine of the same name is replaced, in its place.
    pub fn with(mut self, engine: impl Engine + 'static) -> Engines {
        let engine: Arc<dyn Engine> = Arc::new(engine);
        match self.0.iter_mut().find(|other| other.name() == engine.name()) {
            Some(other) => *other = engine,
            None => self.0.push(engine),
        }
        self
    }

    /// The engines, in the order of help.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Engine> {
        self.0.iter().map(|engine| &**engine)
    }

    /// The engine of this name.
    ///
    /// # Errors
    /// E060 if there is none.
    pub fn named(&self, name: &str) -> Result<&dyn Engine> {
        self.iter().find(|engine| engine.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.iter().map(Engine::name).collect();
            Diagnostic::new("E060", format!("this program has no engine {name}"))
                .at("--engine")
                .expected(names.join(", "))
                .found(name)
        })
    }

    /// The processes that were started together with this one, by any of the engines.
    pub fn started(&self) -> Option<&Arc<dyn Processes>> {
        self.iter().find_map(Engine::started)
    }
}

/// The first line that a program prints, if it ends well.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let done = Command::new(program).args(arguments).output().ok().filter(|done| done.status.success())?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_string()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_names_of_their_own_and_one_of_the_same_name_takes_its_place() {
        let names = |engines: &Engines| engines.iter().map(|engine| engine.name()).collect::<Vec<_>>();
        assert_eq!(names(&Engines::bundled()), ["native", "mpi", "xla"]);
        let engines = Engines::bundled().with(mpi::Mpi::default());
        assert_eq!(names(&engines), ["native", "mpi", "xla"]);
        assert!(
            engines.iter().all(|engine| engine.name() == engine.state().name && !engine.about().is_empty())
        );
        assert!(engines.started().is_none());
        assert_eq!(engines.named("xla").unwrap().name(), "xla");
        let error = engines.named("cuda").unwrap_err();
        assert_eq!((error.code, error.expected.as_deref()), ("E060", Some("native, mpi, xla")));
    }
}
