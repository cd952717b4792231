//! Finds and reads checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::*;
use partita_base::read_file;

/// Bytes that the file `latest` may have: the name of a folder.
const MAX_NAME_BYTES: u64 = 4096;

/// The steps' folders in `dir`, oldest first. Empty if there is no such folder.
///
/// # Errors
/// E311 if `dir` exists but cannot be read.
pub fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let names = match FileStorage.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Diagnostic::new("E311", "cannot look for checkpoints")
                .at(dir.display().to_string())
                .found(error.to_string())
                .help("name the folder that a run writes its checkpoints to"));
        }
    };
    let mut found: Vec<((u64, u32), String)> =
        names.into_iter().filter_map(|name| Some((parse_folder_name(&name)?, name))).collect();
    found.sort();
    Ok(found.into_iter().map(|(_, name)| dir.join(name)).collect())
}

/// The checkpoint from which a run in `dir` continues: the one named in the file `latest`, or the
/// highest step if that file is missing or invalid. `None` if there is none.
///
/// # Errors
/// E311 if `dir` exists but cannot be read.
pub fn latest(dir: &Path) -> Result<Option<PathBuf>> {
    let all = list(dir)?;
    Ok(pointed(dir, &all).or_else(|| all.last().cloned()))
}

/// The one of all checkpoints of a run that the file `latest` names.
fn pointed(dir: &Path, all: &[PathBuf]) -> Option<PathBuf> {
    let name = String::from_utf8(read_file(&dir.join(LATEST_FILE), MAX_NAME_BYTES).ok()?).ok()?;
    Some(dir.join(name.trim())).filter(|path| all.contains(path))
}

/// Whether a path is the folder of a run, with its checkpoints in it: such a folder has not the name of a checkpoint.
fn is_run(path: &Path) -> bool {
    path.is_dir() && !path.join(STATE_FILE).exists() && run_folder(path).is_none()
}

/// The step's folder for a path: itself, or for a run's folder the [`latest`] in it. Any other path
/// is returned unchanged, so that [`load`] reports the error.
///
/// # Errors
/// E311 if the folder exists but cannot be read.
pub fn find(path: &Path) -> Result<PathBuf> {
    let newest = if is_run(path) { latest(path)? } else { None };
    Ok(newest.unwrap_or_else(|| path.to_path_buf()))
}

/// The run's folder that contains a step's folder; `None` unless the name is that of a step.
pub fn run_folder(step: &Path) -> Option<&Path> {
    parse_folder_name(step.file_name()?.to_str()?)?;
    step.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// Reads a checkpoint: a step's folder, or the [`latest`] one of a run's folder.
///
/// # Errors
/// E311 if there is none, with what was found instead; E312 if a file is truncated or damaged; E313
/// for safetensors files that are not from a run of Partita.
pub fn load(path: &Path) -> Result<Checkpoint> {
    Opened::open(path)?.load()
}

/// A checkpoint that is whole, and those that were passed over because they are not.
#[derive(Debug)]
pub struct Good {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with those that a run would rather have continued from.
    pub passed: Vec<Box<Diagnostic>>,
}

/// The newest checkpoint of a run that is whole: the [`latest`] one, or else the highest step. All that are looked at are
/// read and compared with their checksums. `None` if there is no checkpoint.
///
/// # Errors
/// E311 if `dir` exists but cannot be read; what is wrong with the newest one if none is whole.
pub fn newest_good(dir: &Path) -> Result<Option<Good>> {
    let Some(first) = latest(dir)? else { return Ok(None) };
    let others = list(dir)?.into_iter().rev().filter(|path| *path != first);
    let mut passed = Vec::new();
    for path in std::iter::once(first.clone()).chain(others) {
        match load(&path) {
            Ok(_) => return Ok(Some(Good { path, passed })),
            Err(error) => passed.push(error),
        }
    }
    Err(passed.swap_remove(0))
}

/// As [`find`]; of a run whose file `latest` is missing or invalid, the [`newest_good`] one.
///
/// # Errors
/// Those of [`find`] and [`newest_good`].
pub fn find_good(path: &Path) -> Result<Good> {
    let all = if is_run(path) { list(path)? } else { Vec::new() };
    if !all.is_empty() && pointed(path, &all).is_none() {
        return Ok(newest_good(path)?.expect("there is one"));
    }
    Ok(Good { path: find(path)?, passed: Vec::new() })
}

/// Reads the tensors of a safetensors file, or of all such files of a folder, from any source.
/// Names are unchanged.
///
/// # Errors
/// E311 if there is no such file; E312 if one is damaged; E313 for an element type that this crate
/// does not have.
pub fn import_weights(path: &Path) -> Result<IndexMap<String, TensorData>> {
    let files = safetensors_files(path);
    if files.is_empty() {
        let error = fs::metadata(path).err().unwrap_or_else(|| std::io::Error::other("no .safetensors file"));
        return Err(not_found(path, &error));
    }
    let mut tensors = IndexMap::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|error| not_found(&file, &error))?;
        parse(&file, &bytes, &mut tensors)?;
    }
    tensors.sort_keys();
    Ok(tensors)
}

/// The file itself, or those in the folder, sorted.
pub(super) fn safetensors_files(path: &Path) -> Vec<PathBuf> {
    let is_one = |path: &Path| path.extension().is_some_and(|e| e == "safetensors") && path.is_file();
    if is_one(path) {
        return vec![path.to_path_buf()];
    }
    let names = FileStorage.list(path).unwrap_or_default();
    names.into_iter().map(|name| path.join(name)).filter(|file| is_one(file)).collect()
}

pub(super) fn parse(file: &Path, bytes: &[u8], into: &mut IndexMap<String, TensorData>) -> Result<()> {
    let parsed = SafeTensors::deserialize(bytes).map_err(|error| {
        damaged(file, file.parent().unwrap_or(file))
            .expected("a complete safetensors file")
            .found(format!("{} bytes: {error}", bytes.len()))
    })?;
    let mut tensors: Vec<(String, TensorView)> = parsed.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, view) in tensors {
        let Some(dtype) = from_safetensors(view.dtype()) else {
            return Err(Diagnostic::new("E313", format!("`{name}` has an element type that cannot be read"))
                .at(file.display().to_string())
                .expected(DType::ALL.map(DType::name).join(", "))
                .found(format!("{:?}", view.dtype()))
                .help("convert it to one of these first"));
        };
        into.insert(name, TensorData::new(dtype, view.shape().to_vec(), view.data().to_vec()));
    }
    Ok(())
}

pub(super) fn not_found(path: &Path, error: &std::io::Error) -> Box<Diagnostic> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let (folder, name) = match folder.as_os_str().is_empty() {
        true => (Path::new("."), "the current folder".to_string()),
        false => (folder, folder.display().to_string()),
    };
    let there = match FileStorage.list(folder) {
        Ok(names) if names.is_empty() => "nothing".to_string(),
        Ok(names) => shortened(names),
        Err(error) => error.to_string(),
    };
    Diagnostic::new("E311", "there is no checkpoint here")
        .at(path.display().to_string())
        .expected(format!("a folder with {STATE_FILE}, {MODEL_FILE} and {OPTIMIZER_FILE}"))
        .found(error.to_string())
        .note(format!("in {name}:\n{there}"))
        .help("name a step's folder or the folder a run writes its checkpoints to")
}

pub(super) fn damaged(file: &Path, checkpoint: &Path) -> Box<Diagnostic> {
    let diagnostic =
        Diagnostic::new("E312", "the checkpoint is damaged or incomplete").at(file.display().to_string());
    let others = checkpoint.parent().map(|dir| list(dir).unwrap_or_default()).unwrap_or_default();
    let others: Vec<String> =
        others.iter().rev().filter(|o| *o != checkpoint).map(|o| o.display().to_string()).collect();
    match others.is_empty() {
        true => diagnostic.help("restore the file from a copy"),
        false => diagnostic
            .note(format!("other checkpoints of this run, newest first:\n{}", shortened(others)))
            .help("restore the file from a copy, or continue from another checkpoint"),
    }
}

pub(super) fn foreign(path: &Path) -> Box<Diagnostic> {
    let files = safetensors_files(path);
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    Diagnostic::new("E313", "these are weights, not a checkpoint")
        .at(path.display().to_string())
        .expected(format!("a folder with {STATE_FILE}: step, data position and optimizer"))
        .found(shortened(names))
        .help(
            "a run cannot be resumed from weights alone; import them as the initial parameters of a new run",
        )
}
