//! The files of a training run: where its folder is, which checkpoint it resumes, and the config beside a checkpoint.

use crate::config::Config;
use crate::feeds::Feed;
use crate::models::ModelKinds;
use crate::resume::Origin;
use indexmap::IndexMap;
use partita_base::Result;
use partita_nn::Model;
use partita_runtime::checkpoint::{self, Checkpoint, Good, Opened, RunFolder, TensorData};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The parent of the default run folders.
const DEFAULT_DIR: &str = "runs";

/// The config beside a checkpoint.
pub const CONFIG_FILE: &str = "config.toml";

/// A checkpoint on disk and its folder. Its tensors are read later, as they are needed.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The folder of the checkpoint.
    pub path: PathBuf,
    opened: Arc<Opened>,
    notes: Vec<String>,
    may_change: bool,
}

impl Saved {
    /// The checkpoint at `path`, which is the folder of a checkpoint or of a run; of a run, the newest. If the run does not
    /// say which one that is, it is the newest that is whole.
    ///
    /// # Errors
    /// E311 to E313: what [`checkpoint::find_good`] and [`Opened::open`] say.
    pub fn at(path: &Path) -> Result<Saved> {
        let Good { path, passed } = checkpoint::find_good(path)?;
        let note = passed.iter().map(|error| {
            let at = error.at.as_deref().unwrap_or_default();
            format!("passed over a newer checkpoint, {} at {at}: {}", error.message, error.code)
        });
        let notes = note.collect();
        Ok(Saved { opened: Arc::new(Opened::open(&path)?), path, notes, may_change: false })
    }

    /// What the user should know of the choice.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether a run that resumes it may have another model, or another rule of the optimizer, of the same tensors.
    pub fn allowing_changes(self, may_change: bool) -> Saved {
        Saved { may_change, ..self }
    }

    /// See [`Saved::allowing_changes`].
    pub fn are_changes_allowed(&self) -> bool {
        self.may_change
    }

    /// The checkpoint as it was found, to read parts of it.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Steps taken.
    pub fn step(&self) -> u64 {
        self.opened.step()
    }

    /// Its contents.
    ///
    /// # Errors
    /// E312 and E313: those of [`Opened::load`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.opened.load()
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
        let checkpoint = self.checkpoint()?;
        let found = wanted.iter().filter_map(|(name, ..)| checkpoint.tensors.get_key_value(name));
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
    let home = resumed.and_then(|saved| Some((checkpoint::run_folder(&saved.path)?, saved.opened.meta())));
    match (home, named) {
        (Some((home, meta)), named) if named.is_none_or(|dir| is_same(dir, home)) => {
            RunFolder::reopen(home, meta, keep)
        }
        (_, Some(dir)) => RunFolder::create(dir, keep),
        (_, None) => RunFolder::create_numbered(&default_dir(config), keep),
    }
}

/// What a checkpoint says of its run: the data position is that before batch number `batch`.
pub(crate) fn metadata(
    config: &Config,
    feed: &dyn Feed,
    batch: u64,
    origin: &Origin,
) -> BTreeMap<String, String> {
    let mut meta = feed.position(batch);
    meta.extend(origin.metadata());
    meta.insert("model".into(), config.model.name().into());
    meta.insert("mesh".into(), config.mesh.clone());
    meta.insert("seed".into(), config.train.seed.to_string());
    meta
}

/// The files beside a checkpoint: the config.
pub(crate) fn beside(config: &Config) -> BTreeMap<String, String> {
    let resolved = toml::to_string(&config.resolved).expect("a table prints");
    BTreeMap::from([(CONFIG_FILE.to_string(), resolved)])
}

/// Whether two paths lead to one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
