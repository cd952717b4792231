//! The folder of a run: one run at a time writes to it, and a run removes only its own files.
//!
//! Every checkpoint records its run. A run that is resumed in its own folder keeps its name, so it
//! owns its earlier checkpoints. While a run writes, it locks a file in the folder; the system
//! releases the lock when the process ends, however it ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::save::write;
use super::*;

/// The file that is locked while a run writes.
const LOCK_FILE: &str = "lock";
/// The key of the run's name in a checkpoint.
const RUN_KEY: &str = "run";

/// The folder for the checkpoints of a run. While this value lives, no other run writes there.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    run: String,
    /// Higher than that of every run beside it that was opened before.
    turn: u64,
    keep: usize,
    _lock: File,
}

impl RunFolder {
    /// The folder of a new run, created if necessary. The `keep` newest checkpoints of this run (at
    /// least 1) are kept.
    ///
    /// # Errors
    /// E315 if it cannot be created or written to, or has the name of a checkpoint; E330 if it contains checkpoints, E331
    /// if another run writes there.
    pub fn create(path: &Path, keep: usize) -> Result<RunFolder> {
        if let Some(run) = run_folder(path) {
            return Err(Diagnostic::new("E315", "the folder of a run has the name of a checkpoint")
                .at(path.display().to_string())
                .expected("another name: the run makes folders of this form in it")
                .found(path.file_name().unwrap_or_default().to_string_lossy())
                .help(format!("name the folder around it: {}", run.display())));
        }
        prepare(path)?;
        unused(path)?;
        let folder = RunFolder::lock(path, new_run(), keep)?;
        // A run that held the lock a moment ago may have written one.
        unused(path)?;
        Ok(folder)
    }

    /// [`RunFolder::create`] in the first of the folders `base`, `base-2`, `base-3`, .. that no
    /// other run uses.
    ///
    /// # Errors
    /// E315 if a folder cannot be created or written to.
    pub fn create_numbered(base: &Path, keep: usize) -> Result<RunFolder> {
        let mut number = 1;
        loop {
            match RunFolder::create(&numbered(base, number), keep) {
                Err(error) if ["E330", "E331"].contains(&error.code) => number += 1,
                result => return result,
            }
        }
    }

    /// The folder of the run that wrote a checkpoint with this `meta` there and continues. It owns its
    /// earlier checkpoints.
    ///
    /// # Errors
    /// E315 if it cannot be written to, E331 if another run writes there.
    pub fn reopen(path: &Path, meta: &BTreeMap<String, String>, keep: usize) -> Result<RunFolder> {
        prepare(path)?;
        let run = meta.get(RUN_KEY).cloned().unwrap_or_else(new_run);
        RunFolder::lock(path, run, keep)
    }

    fn lock(path: &Path, run: String, keep: usize) -> Result<RunFolder> {
        let file = path.join(LOCK_FILE);
        let lock = OpenOptions::new().create(true).append(true).open(&file);
        let lock = lock.map_err(|error| unwritable(path, error.to_string()))?;
        match lock.try_lock() {
            Ok(()) => {
                // One that cannot be read does not count.
                let turns = turns(&base_of(path)).unwrap_or_default();
                let turns = turns.into_iter().filter_map(|(turn, ..)| turn.ok());
                let turn = 1 + turns.max().unwrap_or(0);
                Ok(RunFolder { path: path.to_path_buf(), run, turn, keep: keep.max(1), _lock: lock })
            }
            Err(TryLockError::WouldBlock) => {
                Err(Diagnostic::new("E331", "another run writes its checkpoints here")
                    .at(path.display().to_string())
                    .expected("a folder that no other process trains in")
                    .found(format!("a lock on {}", file.display()))
                    .help("wait until that run ends, or name another folder (`--checkpoint-dir`)"))
            }
            Err(TryLockError::Error(error)) => Err(unwritable(path, error.to_string())),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a checkpoint to `step-<step>` in the folder and returns that path; a step saved
    /// before gets a folder with a number at the end (`step-00000100.1`). Old checkpoints of this
    /// run beyond the number to keep are removed, and so are the remains of an interrupted save.
    ///
    /// The checkpoint is written under another name, synced to disk and renamed; then the file
    /// `latest` is replaced in the same way. A crash in between leaves the last good checkpoint
    /// intact.
    ///
    /// # Errors
    /// E315 if the disk is full or a write fails; earlier checkpoints stay. Failing to remove old
    /// ones is no error: the next save tries again.
    pub fn save(&self, storage: &dyn Storage, mut checkpoint: Checkpoint) -> Result<PathBuf> {
        self.sign(&mut checkpoint.meta);
        let name = write(storage, &self.path, &checkpoint, self.turn)?;
        self.prune(storage, &name);
        Ok(self.path.join(name))
    }

    /// See [`State::turn`].
    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// Records this run.
    pub(super) fn sign(&self, meta: &mut BTreeMap<String, String>) {
        meta.insert(RUN_KEY.to_string(), self.run.clone());
    }

    /// Removes unfinished files, and checkpoints of this run that are too old. A folder is renamed
    /// first, so that none is ever visible half removed.
    pub(super) fn prune(&self, storage: &dyn Storage, newest: &str) {
        let Ok(names) = storage.list(&self.path) else { return };
        for name in names.iter().filter(|name| is_unfinished(name)) {
            let _ = storage.remove(&self.path.join(name));
        }
        let mut own: Vec<((u64, u32), &String)> = names
            .iter()
            .filter(|name| *name != newest)
            .filter_map(|name| parse_folder_name(name).map(|key| (key, name)))
            .filter(|(_, name)| self.wrote(storage, name))
            .collect();
        own.sort();
        for (_, name) in own.iter().rev().skip(self.keep - 1) {
            let doomed = self.path.join(unfinished(name));
            if storage.rename(&self.path.join(name), &doomed).is_ok() {
                let _ = storage.remove(&doomed);
            }
        }
    }

    /// Whether a checkpoint records this run.
    fn wrote(&self, storage: &dyn Storage, name: &str) -> bool {
        let state = storage.read(&self.path.join(name).join(STATE_FILE)).ok();
        let state = state.and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
        state.is_some_and(|state| state.meta.get(RUN_KEY) == Some(&self.run))
    }
}

/// The folder of the run that was opened last, among `base`, `base-2`, `base-3`, ..; `None` if none contains a checkpoint.
/// Checkpoints count the runs beside them, so no clock decides.
///
/// # Errors
/// E311 if one exists but cannot be read; E312 if all checkpoints of one are damaged: it may be the newest.
pub fn newest_run(base: &Path) -> Result<Option<PathBuf>> {
    let known = turns(base)?.into_iter().map(|(turn, number, path)| Ok((turn?, number, path)));
    Ok(known.collect::<Result<Vec<_>>>()?.into_iter().max().map(|(_, _, path)| path))
}

/// The runs among `base`, `base-2`, .. that have a checkpoint: turn, number, folder. E311 if one cannot be read. The turn is
/// what the newest checkpoint says that is not damaged, of its files but those of tensors.
fn turns(base: &Path) -> Result<Vec<(Result<u64>, usize, PathBuf)>> {
    let parent = base.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = base.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let number = |found: &String| match found.strip_prefix(&name)? {
        "" => Some(1),
        rest => rest.strip_prefix('-')?.parse::<usize>().ok().filter(|&number| number > 1),
    };
    let mut runs = Vec::new();
    for number in FileStorage.list(parent).unwrap_or_default().iter().filter_map(number) {
        let path = numbered(base, number);
        if !path.is_dir() {
            continue;
        }
        if let Some(newest) = latest(&path)? {
            let turn = |checkpoint: &Path| Opened::open(checkpoint).map(|opened| opened.turn());
            let others = || list(&path).unwrap_or_default().into_iter().rev();
            let turn = turn(&newest).or_else(|error| others().find_map(|path| turn(&path).ok()).ok_or(error));
            runs.push((turn, number, path));
        }
    }
    Ok(runs)
}

/// The folder whose numbered neighbours a folder is one of: `base` of `base-2`.
fn base_of(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match name.rsplit_once('-') {
        Some((base, number))
            if !base.is_empty() && number.parse::<usize>().is_ok_and(|number| number > 1) =>
        {
            path.with_file_name(base)
        }
        _ => path.to_path_buf(),
    }
}

/// `base`, or `base-2`, `base-3`, ..
fn numbered(base: &Path, number: usize) -> PathBuf {
    if number == 1 {
        return base.to_path_buf();
    }
    let mut path = base.as_os_str().to_os_string();
    path.push(format!("-{number}"));
    PathBuf::from(path)
}

/// A unique name for a run.
fn new_run() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", now.as_nanos(), std::process::id())
}

/// Creates the folder if necessary. E315.
fn prepare(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| {
        unwritable(path, if path.is_file() { "a file of this name".to_string() } else { error.to_string() })
    })
}

fn unwritable(path: &Path, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E315", "the checkpoint folder cannot be written to")
        .at(path.display().to_string())
        .expected("a folder in which files can be created")
        .found(found)
        .help("name another one (`--checkpoint-dir`), or check the permissions")
}

/// E330 if a folder contains checkpoints.
fn unused(path: &Path) -> Result<()> {
    let all = list(path)?;
    let Some(newest) = all.last() else { return Ok(()) };
    let name = newest.file_name().unwrap_or_default().to_string_lossy();
    Err(Diagnostic::new("E330", "the checkpoint folder belongs to another run")
        .at(path.display().to_string())
        .expected("a folder without checkpoints")
        .found(match all.len() {
            1 => name.to_string(),
            count => format!("{count} checkpoints, up to {name}"),
        })
        .help(format!(
            "continue that run with --resume {}, or name another folder (`--checkpoint-dir`)",
            path.display()
        )))
}
