//! `xla`: devices of XLA through jaxlib, CPU, GPU or TPU, one for each rank.

mod trainer;

pub use trainer::XlaTrainer;

use super::{Engine, EngineState, EngineTrainer, TrainingRun, first_line};
use crate::trainer::Observer;
use partita_base::{Diagnostic, Result};

/// The variable that names another interpreter of Python than `python3`.
pub const PYTHON: &str = "PARTITA_PYTHON";

/// The packages that the runner imports.
pub const PACKAGES: [&str; 2] = ["jax", "jaxlib"];

/// The interpreter that runs the runner.
pub fn python() -> String {
    std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_string())
}

/// The engine `xla`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Xla;

impl Engine for Xla {
    fn name(&self) -> &'static str {
        "xla"
    }

    fn about(&self) -> &'static str {
        "devices of XLA through jaxlib"
    }

    fn state(&self) -> EngineState {
        let versions = PACKAGES.map(|package| version(package).map(|version| format!("{package} {version}")));
        let found: Vec<String> = versions.into_iter().flatten().collect();
        let ready = found.len() == PACKAGES.len();
        let about = match ready {
            true => found.join(", "),
            false => format!("{} finds no package {name}: pip install {name}", python(), name = PACKAGES[0]),
        };
        EngineState { name: self.name(), ready, about }
    }

    fn check_records(&self) -> Result<()> {
        Err(Diagnostic::new("E060", "the engine xla cannot run this: its ops are not recorded here")
            .at("--profile")
            .expected("a run without --profile, or the engine native or mpi")
            .help("leave --profile away, or profile the same plan with `partita profile`"))
    }

    fn trainer(&self, run: &TrainingRun, observer: &mut dyn Observer) -> Result<Box<dyn EngineTrainer>> {
        observer.begins("lowering the step");
        Ok(Box::new(XlaTrainer::new(run)?))
    }
}

/// The version of a Python package, from what its installer wrote: the package itself is not imported.
fn version(package: &str) -> Option<String> {
    let program = format!("import importlib.metadata as m; print(m.version('{package}'))");
    first_line(&python(), &["-c", &program])
}
