//! `xla`: devices of XLA, one for each rank, CPU, GPU or TPU. A PJRT plugin has them, which a child process loads; without
//! one, jaxlib.

mod process;
mod trainer;

pub use crate::xla::{PYTHON, python};
pub use trainer::XlaTrainer;

use super::{Engine, EngineState, EngineTrainer, TrainingRun, first_line};
use crate::launcher::Place;
use crate::trainer::Observer;
use crate::xla::plugins::{PluginState, Program, Tried, search};
use partita_base::{Diagnostic, Result};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The packages that the runner in Python imports.
pub const PACKAGES: [&str; 2] = ["jax", "jaxlib"];

/// The engine `xla`. By default steps run in Python.
#[derive(Clone, Debug, Default)]
pub struct Xla {
    program: Option<Program>,
    /// The plugin that the program uses, once it was searched for.
    tried: OnceLock<Tried>,
}

impl Xla {
    /// Steps run in `program`, where there is a PJRT plugin: when its first argument is
    /// [`COMMAND`](crate::xla::runner::COMMAND), it calls [`main`](crate::xla::runner::main).
    pub fn run_by(program: PathBuf) -> Xla {
        Xla { program: Some(Program(program)), tried: OnceLock::new() }
    }

    /// The program and the plugin that it uses.
    fn found(&self) -> Option<(&Program, &Tried)> {
        let program = self.program.as_ref()?;
        Some((program, self.tried.get_or_init(|| program.first())))
    }

    /// The plugins of this machine, with their devices if a program runs them.
    fn plugins(&self) -> Vec<PluginState> {
        match &self.program {
            Some(program) => program.states(),
            None => search().into_iter().map(PluginState::unknown).collect(),
        }
    }
}

impl Engine for Xla {
    fn name(&self) -> &'static str {
        "xla"
    }

    fn about(&self) -> &'static str {
        "devices of XLA through a PJRT plugin or jaxlib"
    }

    fn state(&self) -> EngineState {
        let versions = PACKAGES.map(|package| version(package).map(|version| format!("{package} {version}")));
        let found: Vec<String> = versions.into_iter().flatten().collect();
        let has_python = found.len() == PACKAGES.len();
        let plugins = self.plugins();
        let usable = plugins.iter().filter(|plugin| self.program.is_some() && plugin.error.is_none()).count();
        let about = match (usable, has_python) {
            (0, false) => process::nothing_here(),
            (0, true) => found.join(", "),
            (1, _) => "a PJRT plugin".to_string(),
            _ => format!("{usable} PJRT plugins"),
        };
        let about = match usable > 0 && has_python {
            true => format!("{about}, {}", found.join(", ")),
            false => about,
        };
        EngineState { name: self.name(), ready: usable > 0 || has_python, about, plugins }
    }

    fn check_records(&self) -> Result<()> {
        Err(Diagnostic::new("E060", "the engine xla cannot run this: its ops are not recorded here")
            .at("--profile")
            .expected("a run without --profile, or the engine native or mpi")
            .help("leave --profile away, or profile the same plan with `partita profile`"))
    }

    fn devices(&self) -> Option<usize> {
        Place::check_alone(|name| std::env::var(name).ok()).ok()?;
        let (_, found) = self.found()?.1.chosen.as_ref()?;
        (!found.is_for_cpus()).then_some(found.devices.len())
    }

    fn trainer(&self, run: &TrainingRun, observer: &mut dyn Observer) -> Result<Box<dyn EngineTrainer>> {
        let runner = process::choose(|| self.found(), run.session, observer)?;
        observer.begins("lowering the step");
        Ok(Box::new(XlaTrainer::new(run, runner)?))
    }
}

/// The version of a Python package, from what its installer wrote: the package itself is not imported.
fn version(package: &str) -> Option<String> {
    let program = format!("import importlib.metadata as m; print(m.version('{package}'))");
    first_line(&python(), &["-c", &program])
}
