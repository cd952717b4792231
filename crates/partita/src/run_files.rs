//! The files of a training run: where its folder is, which checkpoint it resumes, and the config beside a checkpoint.

use crate::config::Config;
use crate::feeds::Feed;
use crate::models::ModelKinds;
use crate::trainer::Observer;
use indexmap::IndexMap;
use partita_base::Result;
use partita_nn::Model;
use partita_runtime::checkpoint::{self, Checkpoint, FileStorage, RunFolder, TensorData};
use std::collections::BTreeMap;
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

/// What a checkpoint says of its run: the data position is that before batch number `batch`.
pub(crate) fn metadata(config: &Config, feed: &dyn Feed, batch: u64) -> BTreeMap<String, String> {
    let mut meta = feed.position(batch);
    meta.insert("model".into(), config.model.name().into());
    meta.insert("mesh".into(), config.mesh.clone());
    meta.insert("seed".into(), config.train.seed.to_string());
    meta.insert("optimizer".into(), config.step.optimizer.name().into());
    meta
}

/// Writes a checkpoint with the config beside it; returns its folder.
///
/// # Errors
/// E315 if the disk is full or a write fails.
pub(crate) fn save(
    folder: &RunFolder,
    config: &Config,
    checkpoint: Checkpoint,
    observer: &mut dyn Observer,
) -> Result<PathBuf> {
    let path = folder.save(&FileStorage, checkpoint)?;
    save_config(&path, config, observer);
    Ok(path)
}

/// Writes the config beside a checkpoint.
pub(crate) fn save_config(path: &Path, config: &Config, observer: &mut dyn Observer) {
    let resolved = toml::to_string(&config.resolved).expect("a table prints");
    // The checkpoint is complete without the config: a failure here must not end the run.
    if let Err(error) = std::fs::write(path.join(CONFIG_FILE), resolved) {
        observer.note(&format!("could not write {CONFIG_FILE} beside the checkpoint: {error}"));
    }
}

/// Whether two paths lead to one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
