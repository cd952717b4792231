//! Writes a checkpoint so that a complete one is on the disk at every moment.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use partita_base::{Diagnostic, Result};
use safetensors::tensor::TensorView;

use partita_ir::port::OPTIMIZER_PREFIX;

use super::*;

/// Writes a checkpoint to a new folder in `dir` and returns the folder's name.
///
/// # Errors
/// E315 if the disk is full or a write fails; earlier checkpoints stay.
pub(super) fn write(storage: &dyn Storage, dir: &Path, checkpoint: &Checkpoint, turn: u64) -> Result<String> {
    let files = encode(checkpoint, turn);
    let before = storage.list(dir).unwrap_or_default();
    let name = free_name(&before, checkpoint.step);
    commit(storage, dir, &files, checkpoint.step, &name).map_err(|error| {
        let _ = storage.remove(&dir.join(unfinished(&name)));
        refused(storage, dir, &before, &files, &error)
    })?;
    Ok(name)
}

/// The name of a step's folder that none of `before` has.
pub(super) fn free_name(before: &[String], step: u64) -> String {
    let own = before.iter().filter_map(|name| parse_folder_name(name)).filter(|(of, _)| *of == step);
    folder_name(step, own.map(|(_, revision)| revision + 1).max().unwrap_or(0))
}

/// The files of a checkpoint but its manifest, in the order in which they are written.
pub(super) fn encode(checkpoint: &Checkpoint, turn: u64) -> Vec<(&str, Vec<u8>)> {
    let of = |optimizer: bool| {
        let views =
            checkpoint.tensors.iter().filter(|(name, _)| name.starts_with(OPTIMIZER_PREFIX) == optimizer);
        let views = views.map(|(name, tensor)| {
            let view = TensorView::new(to_safetensors(tensor.dtype), tensor.shape.clone(), &tensor.bytes)
                .expect("the bytes of a tensor fill its shape");
            (name, view)
        });
        safetensors::serialize(views, None).expect("names are few enough for a header of 100 MB")
    };
    let mut files = vec![(MODEL_FILE, of(false)), (OPTIMIZER_FILE, of(true))];
    let state = State {
        format: FORMAT.to_string(),
        step: checkpoint.step,
        turn,
        meta: checkpoint.meta.clone(),
        files: BTreeMap::new(),
        tensors: checkpoint.tensors.keys().cloned().collect(),
        shards: BTreeMap::new(),
        heads: BTreeMap::new(),
    };
    files.extend(checkpoint.beside.iter().map(|(name, text)| (name.as_str(), text.clone().into_bytes())));
    let state = serde_json::to_vec_pretty(&state).expect("text and numbers are always JSON");
    files.push((STATE_FILE, state));
    files
}

/// The failed operation and its path.
pub(super) struct Refusal {
    pub(super) path: PathBuf,
    pub(super) error: io::Error,
}

fn on(path: &Path, result: io::Result<()>) -> Result<(), Refusal> {
    result.map_err(|error| Refusal { path: path.to_path_buf(), error })
}

fn commit(
    storage: &dyn Storage,
    dir: &Path,
    files: &[(&str, Vec<u8>)],
    step: u64,
    name: &str,
) -> Result<(), Refusal> {
    let folder = dir.join(unfinished(name));
    on(&folder, storage.create_folder(&folder))?;
    let states =
        || files.iter().map(|(file, bytes)| (file.to_string(), FileState::from_bytes(bytes))).collect();
    let (states, written) = digest::beside(states, || {
        files.iter().try_for_each(|(file, bytes)| {
            let path = folder.join(file);
            on(&path, storage.write(&path, bytes))
        })
    });
    written?;
    finish(storage, dir, &folder, &Manifest::new(step, states), name)
}

/// Gives a folder its manifest, which completes it, and its name, and lets `latest` point to it.
pub(super) fn finish(
    storage: &dyn Storage,
    dir: &Path,
    folder: &Path,
    manifest: &Manifest,
    name: &str,
) -> Result<(), Refusal> {
    let path = folder.join(MANIFEST_FILE);
    on(&path, storage.write(&path, &manifest.bytes()))?;
    on(folder, storage.sync_folder(folder))?;
    on(folder, storage.rename(folder, &dir.join(name)))?;
    on(dir, storage.sync_folder(dir))?;
    // Only now, with the folder on disk, does `latest` name it.
    let pointer = dir.join(unfinished(LATEST_FILE));
    on(&pointer, storage.write(&pointer, name.as_bytes()))?;
    on(&pointer, storage.rename(&pointer, &dir.join(LATEST_FILE)))?;
    on(dir, storage.sync_folder(dir))
}

/// The checkpoint that the file `latest` of a run names.
pub(super) fn previous(storage: &dyn Storage, dir: &Path) -> Option<String> {
    storage.read(&dir.join(LATEST_FILE)).ok().and_then(|name| String::from_utf8(name).ok())
}

/// What is left of a run whose checkpoint could not be written.
pub(super) fn what_is_kept(dir: &Path, previous: Option<&str>) -> String {
    match previous {
        Some(name) => format!("nothing is lost: {} is complete", dir.join(name).display()),
        None => "there is no earlier checkpoint".to_string(),
    }
}

fn refused(
    storage: &dyn Storage,
    dir: &Path,
    before: &[String],
    files: &[(&str, Vec<u8>)],
    refusal: &Refusal,
) -> Box<Diagnostic> {
    let full = matches!(refusal.error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let message = if full {
        "the disk is full: the checkpoint was not written"
    } else {
        "the checkpoint was not written"
    };
    let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let newest = before.iter().filter(|name| parse_folder_name(name).is_some());
    let newest = || newest.max_by_key(|name| parse_folder_name(name)).cloned();
    let note = what_is_kept(dir, previous(storage, dir).or_else(newest).as_deref());
    let help =
        if full { "free some space or name another folder" } else { "check the folder and its permissions" };
    Diagnostic::new("E315", message)
        .at(refusal.path.display().to_string())
        .expected(format!("{bytes} bytes can be written"))
        .found(refusal.error.to_string())
        .note(note)
        .help(help)
}
