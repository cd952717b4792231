//! Checkpoints: global tensors in safetensors files, readable by anything that reads safetensors
//! and by a run on any mesh.
//!
//! A run's folder ([`RunFolder`]) contains `step-00000123` folders, a file `latest` with the name
//! of one of them, and a lock file. Each step's folder contains
//!
//! * `model.safetensors`: the parameters, under their module paths;
//! * `optimizer.safetensors`: the optimizer's tensors, as `optimizer.<slot>.<module path>`;
//! * `state.json`: step, the run that wrote it, data position and other text;
//! * further files, such as the config of the run;
//! * `manifest.json`: the step, and size and digest of every other file, written last.
//!
//! Or, if every process writes its own shards, `shards-<rank>.safetensors` for each process in place
//! of the first two; `state.json` is an index of the parts then. Checkpoints without a manifest, of earlier versions, are
//! read too: their `state.json` has the checksums of the files of tensors.

#[cfg(test)]
mod damage_tests;
mod export;
mod folder;
mod manifest;
mod opened;
mod read;
mod save;
mod saving;
mod shards;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use indexmap::IndexMap;
use manifest::{MANIFEST_FILE, Manifest};
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::digest;

pub use export::export_weights;
pub use folder::{RunFolder, newest_run};
pub use opened::{Opened, Region};
pub use read::{Good, find, find_good, import_weights, latest, list, load, newest_good, run_folder};
pub use saving::{Saving, SharedStorage};
pub use shards::Shard;
pub use storage::{FileStorage, Storage};

const MODEL_FILE: &str = "model.safetensors";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const STATE_FILE: &str = "state.json";
const LATEST_FILE: &str = "latest";
/// The mark in the name of an unfinished folder or file.
const UNFINISHED: &str = ".tmp-";

/// A full tensor: its contents do not depend on how it was sharded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorData {
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Vec<usize>,
    /// Elements, row-major, little-endian; booleans are bytes 0 and 1.
    pub bytes: Vec<u8>,
}

impl TensorData {
    /// A tensor of these bytes.
    ///
    /// # Panics
    /// If the bytes do not fill the shape exactly.
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) -> TensorData {
        let size = shape.iter().product::<usize>() * dtype.size_bytes();
        assert_eq!(bytes.len(), size, "{dtype}{shape:?} takes {size} bytes");
        TensorData { dtype, shape, bytes }
    }
}

/// Everything that a run needs to continue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Parameters by module path and optimizer state as `optimizer.<slot>.<module path>`, in the order given.
    pub tensors: IndexMap<String, TensorData>,
    /// Steps taken.
    pub step: u64,
    /// Data position, seed, model config, optimizer name and the like.
    pub meta: BTreeMap<String, String>,
    /// Further text files of the folder, by name: written with the checkpoint, and not read with it.
    pub beside: BTreeMap<String, String>,
}

/// `state.json`.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    format: String,
    step: u64,
    /// The order in which runs beside each other were opened, of the run that wrote it.
    #[serde(default)]
    turn: u64,
    meta: BTreeMap<String, String>,
    /// The files of tensors, if there is no manifest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, FileState>,
    /// Names in the checkpoint's order; safetensors files have an order of their own.
    tensors: Vec<String>,
    /// Tensors in parts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    shards: BTreeMap<String, shards::Sharded>,
    /// What each file of parts begins with: the part of it that is no tensor.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    heads: BTreeMap<String, FileState>,
}

/// What the bytes of a file, or the first of them, are.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FileState {
    bytes: u64,
    checksum: String,
}

/// With a manifest.
const FORMAT: &str = "partita-checkpoint-3";
/// Without: of whole tensors, and of shards.
const OLD_FORMATS: [&str; 2] = ["partita-checkpoint-1", "partita-checkpoint-2"];

/// Compares the tensors that a program needs with those of a checkpoint.
///
/// # Errors
/// E314 with a table of missing and extra names, and of different shapes or types.
pub fn compare(expected: &[(String, DType, Vec<usize>)], checkpoint: &Checkpoint) -> Result<()> {
    let types = checkpoint.tensors.iter();
    let types =
        types.map(|(name, tensor)| (name.as_str(), (tensor.dtype, tensor.shape.as_slice()))).collect();
    compare_types(expected, &types)
}

/// As [`compare`], with the types of the tensors of a checkpoint.
///
/// # Errors
/// As [`compare`].
pub fn compare_types(
    expected: &[(String, DType, Vec<usize>)],
    tensors: &IndexMap<&str, (DType, &[usize])>,
) -> Result<()> {
    let wanted: IndexMap<&str, (DType, &[usize])> =
        expected.iter().map(|(name, dtype, shape)| (name.as_str(), (*dtype, shape.as_slice()))).collect();
    let extra: Vec<&str> = tensors.keys().copied().filter(|name| !wanted.contains_key(name)).collect();
    let (mut missing, mut different) = (Vec::new(), Vec::new());
    for (&name, &(dtype, shape)) in &wanted {
        match tensors.get(name) {
            None => {
                let hint =
                    did_you_mean(name, extra.iter().copied()).map_or(String::new(), |h| format!("  ({h})"));
                missing.push(format!("{name}: {dtype}{shape:?}{hint}"));
            }
            Some(found) if *found != (dtype, shape) => {
                different.push(format!("{name}: expected {dtype}{shape:?}, found {}{:?}", found.0, found.1));
            }
            Some(_) => {}
        }
    }
    if missing.is_empty() && different.is_empty() && extra.is_empty() {
        return Ok(());
    }
    let counts = format!("{} missing, {} extra, {} different", missing.len(), extra.len(), different.len());
    let mut diagnostic = Diagnostic::new("E314", "the checkpoint does not fit the model and its optimizer")
        .expected(format!("{} tensors", wanted.len()))
        .found(format!("{} tensors: {counts}", tensors.len()));
    let extra = extra.iter().map(|name| {
        let (dtype, shape) = tensors[*name];
        format!("{name}: {dtype}{shape:?}")
    });
    for (label, rows) in [("missing", missing), ("different", different), ("extra", extra.collect())] {
        if !rows.is_empty() {
            diagnostic = diagnostic.note(format!("{label}:\n{}", shortened(rows)));
        }
    }
    Err(diagnostic.help("use the model and optimizer settings the checkpoint was made with"))
}

/// The first rows, and how many more there are.
fn shortened(mut rows: Vec<String>) -> String {
    const MOST: usize = 12;
    let more = rows.len().saturating_sub(MOST);
    rows.truncate(MOST);
    if more > 0 {
        rows.push(format!("and {more} more"));
    }
    rows.join("\n")
}

fn to_safetensors(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::Inert(inert) => unreachable!("no parameter is of type {}", inert.name()),
    }
}

/// The element type, or `None` if this crate has no such type (8-bit floats, complex numbers).
fn from_safetensors(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&ours| to_safetensors(ours) == dtype)
}

/// E315 of a checkpoint of which a part could not be written.
fn unwritten(path: &Path, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E315", "the checkpoint was not written")
        .at(path.display().to_string())
        .expected("a folder that all processes can write to")
        .found(found)
        .help("check the space on the disk, the folder and its permissions")
}

/// The name of a folder or file before it is complete, or while it is removed.
fn unfinished(name: &str) -> String {
    format!("{name}{UNFINISHED}{}", std::process::id())
}

/// Whether a name is [`unfinished`], of any process.
fn is_unfinished(name: &str) -> bool {
    name.split_once(UNFINISHED).is_some_and(|(name, process)| {
        process.parse::<u32>().is_ok() && (name == LATEST_FILE || parse_folder_name(name).is_some())
    })
}

/// The name of a step's folder; `revision` is above 0 if that step was saved before.
fn folder_name(step: u64, revision: u32) -> String {
    match revision {
        0 => format!("step-{step:08}"),
        _ => format!("step-{step:08}.{revision}"),
    }
}

/// The (step, revision) of a [`folder_name`]; `None` for every other name.
fn parse_folder_name(name: &str) -> Option<(u64, u32)> {
    let (step, revision) = match name.strip_prefix("step-")?.split_once('.') {
        Some((step, revision)) => (step, revision.parse().ok()?),
        None => (name.strip_prefix("step-")?, 0),
    };
    Some((step.parse().ok()?, revision))
}
