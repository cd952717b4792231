//! Tensors by name: safetensors files, in one file or in shards with an index; NumPy's files by their ending.
//!
//! A file is a length, a JSON header and the bytes of all tensors. The header is read and checked when a file is opened;
//! tensors are read where they are used. Names are kept as they are in the file.

use crate::source::{check_text, located};
use crate::stablehlo::dotted;
use crate::{Limits, Source, Tensor, numpy};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, InertType, Result};
use partita_ir::{Literal, TensorType};
use safetensors::tensor::{Dtype, Metadata, TensorView};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Tensors by name, of one or more files, sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    tensors: IndexMap<String, Tensor>,
}

/// The index of a sharded checkpoint, `model.safetensors.index.json`.
#[derive(serde::Deserialize, serde::Serialize)]
struct Index {
    #[serde(default)]
    metadata: BTreeMap<String, serde_json::Value>,
    weight_map: BTreeMap<String, String>,
}

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Of a checkpoint in more shards, each is opened again for a read: a process may hold about a thousand files.
const MAX_OPEN_FILES: usize = 256;

fn malformed(what: &str, found: impl Into<String>) -> Box<Diagnostic> {
    Diagnostic::new("E361", format!("{what} cannot be read"))
        .expected("a file of tensors: .safetensors or an index of such files, .npz or .npy")
        .found(found)
        .help("save it again, or copy it again")
}

fn dtype(name: &str, dtype: Dtype) -> Result<DType> {
    Ok(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::U16 => DType::U16,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::I64 => DType::I64,
        Dtype::U64 => DType::U64,
        Dtype::C64 => DType::Inert(InertType::Complex64),
        other => {
            return Err(Diagnostic::new("E354", format!("`{name}` has an unsupported element type"))
                .expected("floats of 16, 32 or 64 bits, integers, or booleans")
                .found(format!("{other:?}"))
                .help("convert it before it is saved"));
        }
    })
}

fn stored_dtype(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::U16 => Dtype::U16,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::I64 => Dtype::I64,
        DType::U64 => Dtype::U64,
        DType::Inert(InertType::Complex64) => Dtype::C64,
        DType::Inert(_) => return None,
    })
}

impl Weights {
    /// Opens a file, an index (`*.index.json`), or a folder that contains `model.safetensors` or its
    /// index. `.npz` files are read as NumPy writes them; a `.npy` file is one tensor with the name of
    /// the file. A file that is replaced while its tensors are in use is read on as it was; one that is truncated or written
    /// in place gives E350 where a tensor is read, and so does a replaced one of more than 256 shards.
    ///
    /// # Errors
    /// E350 if a file cannot be read or changes meanwhile, E361 for a damaged one, E351 for a damaged archive, E354 for an
    /// element type without arithmetic, E352 for a pickle, E358 if a limit is exceeded.
    pub fn open(path: &Path, limits: &Limits) -> Result<Weights> {
        if path.is_dir() {
            let index = path.join(INDEX);
            let file = if index.exists() { index } else { path.join(SINGLE) };
            return Weights::open(&file, limits);
        }
        if path.extension().is_some_and(|extension| extension == "json") {
            return Weights::sharded(path, limits).map_err(|error| located(path, error));
        }
        Weights::of_file(path, Source::open(path)?, limits)
    }

    /// Reads the one file that was opened from `path`, whose ending says its kind. Errors as [`Weights::open`], or those of
    /// the source.
    pub fn of_file(path: &Path, source: Source, limits: &Limits) -> Result<Weights> {
        let weights = match path.extension().and_then(|extension| extension.to_str()) {
            Some("npz") => numpy::npz(source, limits).map(|tensors| Weights { tensors }),
            Some("npy") => {
                let name =
                    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                numpy::npy(&name, source, limits)
                    .map(|array| Weights { tensors: IndexMap::from([(name, array)]) })
            }
            _ => Weights::read(source, limits),
        };
        let mut weights = weights.map_err(|error| located(path, error))?;
        weights.tensors.sort_keys();
        Ok(weights)
    }

    /// Reads the header of one safetensors file. Errors as [`Weights::open`].
    pub fn read(source: Source, limits: &Limits) -> Result<Weights> {
        const WHAT: &str = "the file";
        let first = source.read(0..8)?.into_owned();
        let refused = |found: String| match first[..] {
            // A header of the right length may begin with the same bytes, so they count only now.
            [0x80, 2..=5, ..] => crate::pt2::pickle(WHAT),
            [b'P', b'K', 3, 4, ..] => crate::pt2::pickle("the archive, a checkpoint of `torch.save`,"),
            _ => malformed(WHAT, found),
        };
        let Some(length) = first.first_chunk::<8>() else {
            return Err(refused(format!("{} bytes, without the length of a header", first.len())));
        };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let start = length.saturating_add(8);
        if start > source.len() {
            return Err(refused(format!("{} bytes, of which the header would take {start}", source.len())));
        }
        check_text("the header", length, limits)?;
        let header: Metadata =
            serde_json::from_slice(&source.read(8..start)?).map_err(|error| refused(error.to_string()))?;
        if start.checked_add(header.data_len()) != Some(source.len()) {
            let (held, stated) = (source.len() - start, header.data_len());
            return Err(refused(format!("{held} bytes of tensors, {stated} by the header")));
        }
        let mut tensors = IndexMap::new();
        for (name, info) in header.tensors() {
            let ty = TensorType::new(dtype(&name, info.dtype)?, info.shape.clone());
            let place = start + info.data_offsets.0..start + info.data_offsets.1;
            let tensor = Tensor::dense(&name, ty, source.clone(), place, limits)?;
            tensors.insert(name, tensor);
        }
        tensors.sort_keys();
        Ok(Weights { tensors })
    }

    fn sharded(path: &Path, limits: &Limits) -> Result<Weights> {
        let source = Source::open(path)?;
        let text = source.text("the index", limits)?;
        let index: Index =
            serde_json::from_slice(&text).map_err(|error| malformed("the index", error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let files: BTreeSet<&String> = index.weight_map.values().collect();
        let keeps = files.len() <= MAX_OPEN_FILES;
        let mut shards: BTreeMap<&String, Weights> = BTreeMap::new();
        for file in files {
            // A shard is a file beside its index.
            let is_plain =
                !file.contains(['/', '\\', ':', '\0']) && !file.is_empty() && file != ".." && file != ".";
            if !is_plain {
                return Err(malformed(
                    "the index",
                    format!("a shard named {file:?}, which could be a file elsewhere"),
                ));
            }
            let source = Source::open_and(&folder.join(file), keeps)?;
            shards.insert(file, Weights::read(source, limits)?);
        }
        let mut tensors = IndexMap::new();
        for (name, file) in &index.weight_map {
            let tensor = shards[file].get(name).ok_or_else(|| {
                malformed("the index", format!("`{name}` in `{file}`, which does not have it"))
            })?;
            tensors.insert(name.clone(), tensor.clone());
        }
        Ok(Weights { tensors })
    }

    /// The tensor with this name, or the one whose path of JAX says the same: `p['w']` for `p.w`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let says_the_same = |own: &String| own.contains('[') && dotted(own) == name;
        let by_path = || self.tensors.iter().find(|(own, _)| says_the_same(own)).map(|(_, tensor)| tensor);
        self.tensors.get(name).or_else(by_path)
    }

    /// Every name and tensor, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

/// Writes tensors to one safetensors file, which `safetensors.torch.load_file` reads. E354 for an
/// element type that such files do not have, E362 if the file cannot be written.
pub fn save(path: &Path, tensors: &IndexMap<String, Literal>) -> Result<()> {
    write(path, tensors.iter().map(|(name, literal)| (name.as_str(), literal)))
}

/// Writes tensors to a folder, in shards of at most `shard_bytes` (but at least one tensor), with an
/// index as Hugging Face has it; one shard is `model.safetensors` without an index. Errors as
/// [`save`].
pub fn save_sharded(folder: &Path, tensors: &IndexMap<String, Literal>, shard_bytes: usize) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| unwritten(folder, error.to_string()))?;
    let mut shards: Vec<Vec<(&str, &Literal)>> = vec![Vec::new()];
    let mut filled = 0;
    for (name, literal) in tensors {
        let bytes = literal.ty.bytes();
        let shard = shards.last_mut().expect("at least one");
        if filled + bytes > shard_bytes && !shard.is_empty() {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("at least one").push((name, literal));
    }
    let count = shards.len();
    if count == 1 {
        return save(&folder.join(SINGLE), tensors);
    }
    let mut weight_map = BTreeMap::new();
    for (number, shard) in shards.into_iter().enumerate() {
        let file = format!("model-{:05}-of-{count:05}.safetensors", number + 1);
        weight_map.extend(shard.iter().map(|(name, _)| (name.to_string(), file.clone())));
        write(&folder.join(&file), shard.into_iter())?;
    }
    let total: usize = tensors.values().map(|literal| literal.ty.bytes()).sum();
    let index = Index { metadata: BTreeMap::from([("total_size".to_string(), total.into())]), weight_map };
    let path = folder.join(INDEX);
    let text = serde_json::to_vec_pretty(&index).map_err(|error| unwritten(&path, error.to_string()))?;
    replace(&path, |temporary| fs::write(temporary, text).map_err(|error| error.to_string()))
}

fn unwritten(path: &Path, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E362", format!("cannot write {}", path.display()))
        .expected("a folder to write to")
        .found(found)
}

/// Writes beside the file and renames: a reader never sees half of it.
fn replace(path: &Path, write: impl FnOnce(&Path) -> std::result::Result<(), String>) -> Result<()> {
    let mut name = path.file_name().map_or_else(Default::default, ToOwned::to_owned);
    name.push(".partial");
    let temporary: PathBuf = path.with_file_name(name);
    let written =
        write(&temporary).and_then(|()| fs::rename(&temporary, path).map_err(|error| error.to_string()));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        unwritten(path, error)
    })
}

fn write<'a>(path: &Path, tensors: impl Iterator<Item = (&'a str, &'a Literal)>) -> Result<()> {
    let mut bytes = Vec::new();
    for (name, literal) in tensors {
        let dtype = stored_dtype(literal.ty.dtype).ok_or_else(|| {
            Diagnostic::new("E354", format!("`{name}` has an unsupported element type"))
                .expected("floats of 16, 32 or 64 bits, integers, or booleans")
                .found(literal.ty.dtype.to_string())
        })?;
        bytes.push((name, dtype, literal.ty.shape.clone(), literal.bytes()));
    }
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in &bytes {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        views.push((*name, view.map_err(|error| unwritten(path, error.to_string()))?));
    }
    // What PyTorch's writer states, and Hugging Face's reader expects.
    let metadata = std::collections::HashMap::from([("format".to_string(), "pt".to_string())]);
    replace(path, |temporary| {
        safetensors::serialize_to_file(views, Some(metadata), temporary).map_err(|error| error.to_string())
    })
}
