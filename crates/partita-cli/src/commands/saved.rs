//! RUN|CONFIG on the command line: the folder of a saved run, or a config.

use partita::config::{BUNDLED, Config};
use partita::models::ModelKinds;
use partita::run_files::Saved;
use partita::session::Session;
use partita_base::{Diagnostic, Result};
use std::path::Path;

/// A session, and the checkpoint that was named with it.
pub struct Source {
    /// The session.
    pub session: Session,
    /// The checkpoint of RUN or of `--from`; `None` for a config alone.
    pub saved: Option<Saved>,
}

/// A run whose model this program does not have, or no longer finds.
fn of_other_program(error: Box<Diagnostic>, saved: &Saved) -> Box<Diagnostic> {
    let run = saved.path.display();
    if error.code == "E004" && error.message.starts_with("no model of kind") {
        return error.at(run.to_string()).note(
            "the run was made by a program with a model of its own, and only that program can build it: \
             `Saved::config` with its `ModelKinds`, or `Session::infer` with the checkpoint",
        );
    }
    if error.code == "E350" && error.message.starts_with("cannot read") {
        return error.note(format!(
            "{run}/config.toml names the model's file relative to where the run was started: go there, or give its place \
             with --set model.path=FILE"
        ));
    }
    error
}

impl Source {
    /// Opens what `name` names: a bundled config, the folder of a run or of one of its checkpoints (its config is that
    /// beside the checkpoint), or a config file. `from` names another checkpoint.
    ///
    /// # Errors
    /// E311 to E313 for a folder without a usable checkpoint, and what the config refuses.
    pub fn open(name: &str, from: Option<&Path>, overrides: &[String]) -> Result<Source> {
        let is_bundled = BUNDLED.iter().any(|(bundled, _)| *bundled == name);
        let run = match !is_bundled && Path::new(name).is_dir() {
            true => Some(Saved::at(Path::new(name))?),
            false => None,
        };
        let config = match &run {
            Some(saved) => {
                let config = saved.config(&ModelKinds::bundled(), overrides);
                config.map_err(|error| of_other_program(error, saved))?
            }
            None => Config::load(name, overrides).map_err(|mut error| {
                let is_missing = error.code == "E005" && !Path::new(name).exists();
                if is_missing {
                    error.message = format!("no run and no config `{name}`");
                    let of_run = |others: String| format!("the folder of a run, such as runs/gpt, {others}");
                    error.expected = error.expected.map(of_run);
                }
                error
            })?,
        };
        let saved = match from {
            Some(path) => Some(Saved::at(path)?),
            None => run,
        };
        Ok(Source { session: Session::new(config)?, saved })
    }

    /// The checkpoint; without one on the command line, that of the newest run of the model.
    ///
    /// # Errors
    /// E311 if there is none.
    pub fn saved(&self) -> Result<Saved> {
        match &self.saved {
            Some(saved) => Ok(saved.clone()),
            None => Saved::find(self.session.config(), None),
        }
    }
}
