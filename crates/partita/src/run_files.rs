//! The files of a training run: where its folder is, which checkpoint it resumes, and the config beside a checkpoint.

use crate::config::Config;
use crate::models::ModelKinds;
use indexmap::IndexMap;
use partita_base::Result;
use partita_nn::Model;
use partita_runtime::checkpoint::{self, Checkpoint, RunFolder, TensorData};
use std::path::{Path, PathBuf};

/// The parent of the default run folders.
const DEFAULT_DIR: &str = "runs";

/// The config beside a checkpoint.
pub const CONFIG_FILE: &str = "config.toml";

/// A checkpoint and its folder.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The folder of the checkpoint.
    pub path: PathBuf,
    /// Its contents.
    pub checkpoint: Checkpoint,
}

impl Saved {
    /// The checkpoint at `path`, which is the folder of a checkpoint or of a run; of a run, the newest.
    ///
    /// # Errors
    /// E311 to E313: what [`checkpoint::load`] says.
    pub fn at(path: &Path) -> Result<Saved> {
        let path = checkpoint::find(path)?;
        let checkpoint = checkpoint::load(&path)?;
        Ok(Saved { path, checkpoint })
    }

    /// The checkpoint at `path`; without a path, that of the folder which the config names, or else of the newest run of
    /// this model in the default place.
    ///
    /// # Errors
    /// Those of [`Saved::at`].
    pub fn find(config: &Config, path: Option<&Path>) -> Result<Saved> {
        match path.or(config.checkpoint.dir.as_deref()) {
            Some(path) => Saved::at(path),
            None => Saved::at(
                &checkpoint::newest_run(&default_dir(config))?.unwrap_or_else(|| default_dir(config)),
            ),
        }
    }

    /// The config of the run that wrote it, with overrides.
    ///
    /// # Errors
    /// Those of [`Config::load`]: E005 if there is no config beside the checkpoint.
    pub fn config(&self, kinds: &ModelKinds, overrides: &[String]) -> Result<Config> {
        Config::load_with(kinds, &self.path.join(CONFIG_FILE).to_string_lossy(), overrides)
    }

    /// The parameters and states of a model under their global names, without the states of the optimizer.
    ///
    /// # Errors
    /// E314 with a table if one is missing or has another shape or type.
    pub fn weights(&self, model: &Model) -> Result<IndexMap<String, TensorData>> {
        let wanted: Vec<_> =
            model.kept().map(|(name, spec)| (name.clone(), spec.ty.dtype, spec.ty.shape.to_vec())).collect();
        let found = wanted.iter().filter_map(|(name, ..)| self.checkpoint.tensors.get_key_value(name));
        let tensors = found.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        let weights = Checkpoint { tensors, ..Checkpoint::default() };
        checkpoint::compare(&wanted, &weights).map_err(|error| error.at(self.path.display().to_string()))?;
        Ok(weights.tensors)
    }
}

/// The folder of checkpoints if the config names none: `runs/<model>`; if another run uses it, `runs/<model>-2`, and so on.
pub fn default_dir(config: &Config) -> PathBuf {
    Path::new(DEFAULT_DIR).join(config.model.name())
}

/// The folder that a run saves to: a new one, or that of the run it resumes. If the config names another folder than that
/// of the resumed run, it is a new run there.
pub(crate) fn folder(config: &Config, resumed: Option<&Saved>) -> Result<RunFolder> {
    let keep = config.checkpoint.keep;
    let named = config.checkpoint.dir.as_deref();
    let home = resumed.and_then(|saved| Some((checkpoint::run_folder(&saved.path)?, &saved.checkpoint)));
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
