//! Checkpoints in shards: every process writes the parts of tensors that its ranks hold, to a file of its own, and no
//! process holds a whole tensor (the idea of PyTorch's distributed checkpoints).
//!
//! `state.json` says for each tensor its global shape and where its parts are ([`Opened`] reads them). The folder is
//! complete, and renamed, only after every process has written its file. All processes see one file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_comm::World;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::save::finish;
use super::*;
use crate::sharded::place;

/// A part of a global tensor: dense elements, the first of them at `offset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The tensor's name.
    pub name: String,
    /// Its global shape.
    pub shape: Vec<usize>,
    /// The index of the part's first element.
    pub offset: Vec<usize>,
    /// The elements, in the shape of the part.
    pub part: TensorData,
}

/// A tensor in parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sharded {
    pub shape: Vec<usize>,
    /// The name of its element type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    pub parts: Vec<Part>,
}

/// A tensor in a file, and the index of its first element in the whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub key: String,
    pub offset: Vec<usize>,
    /// Where it can be read alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// Bytes of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub file: String,
    pub extents: Vec<usize>,
    pub begin: u64,
    pub bytes: u64,
    pub checksum: String,
}

/// What a process has written.
#[derive(Serialize, Deserialize)]
pub(super) struct Report {
    file: String,
    state: FileState,
    head: FileState,
    parts: Vec<(String, Sharded)>,
}

/// A checkpoint in shards that is not complete yet.
pub(super) struct Unfinished {
    folder: Option<Arc<RunFolder>>,
    storage: SharedStorage,
    checkpoint: Checkpoint,
    /// Its folder for now, that of the run, and the name that it will have.
    pub path: PathBuf,
    run: PathBuf,
    name: String,
}

impl Unfinished {
    /// Makes the folder in which every process writes its file.
    pub fn begin(
        folder: Option<&Arc<RunFolder>>,
        world: &World,
        storage: SharedStorage,
        checkpoint: Checkpoint,
    ) -> Result<Unfinished> {
        let own = || folder.expect("the process of rank 0 has the folder");
        let begun = world.broadcast(0, || own().begin(storage.as_ref(), checkpoint.step))?;
        let name = String::from_utf8_lossy(&begun).into_owned();
        let (run, name) = name.rsplit_once('\n').unwrap_or(("", &name));
        let (run, name) = (PathBuf::from(run), name.to_string());
        let path = run.join(unfinished_by(&name));
        Ok(Unfinished { folder: folder.cloned(), storage, checkpoint, path, run, name })
    }

    /// Completes it with what the thread of each process says of its file.
    pub fn end(self, world: &World, written: Result<Vec<u8>>) -> Result<PathBuf> {
        let Unfinished { folder, storage, checkpoint, path, run, name } = self;
        let told = match &written {
            Ok(report) => report.clone(),
            // What the process of rank 0 says has the rest.
            Err(error) => error.found.clone().unwrap_or_else(|| error.message.clone()).into_bytes(),
        };
        let all = world.gathered(&told)?;
        world.broadcast(0, || {
            let folder = folder.as_ref().expect("the process of rank 0 has the folder");
            let ended = folder.end(storage.as_ref(), &name, checkpoint, &all);
            if ended.is_err() {
                let _ = storage.remove(&path);
            }
            ended.map(|()| Vec::new()).map_err(|error| {
                let kept = save::previous(storage.as_ref(), folder.path());
                error.note(save::what_is_kept(folder.path(), kept.as_deref()))
            })
        })?;
        written?;
        Ok(run.join(name))
    }
}

impl RunFolder {
    /// Makes the folder that becomes the checkpoint; returns this folder's path and the checkpoint's name.
    fn begin(&self, storage: &dyn Storage, step: u64) -> Result<Vec<u8>> {
        self.check_held()?;
        let name = save::free_name(&storage.list(self.path()).unwrap_or_default(), step);
        let folder = self.path().join(unfinished_by(&name));
        // What an interrupted save has left.
        let _ = storage.remove(&folder);
        storage.create_folder(&folder).map_err(|error| unwritten(&folder, error.to_string()))?;
        Ok(format!("{}\n{name}", self.path().display()).into_bytes())
    }

    /// Completes the checkpoint after the reports of all processes.
    fn end(&self, storage: &dyn Storage, name: &str, checkpoint: Checkpoint, all: &[Vec<u8>]) -> Result<()> {
        let folder = self.path().join(unfinished_by(name));
        let (mut files, mut heads) = (BTreeMap::new(), BTreeMap::new());
        let mut shards: IndexMap<String, Sharded> = IndexMap::new();
        for told in all {
            let report: Report = serde_json::from_slice(told)
                .map_err(|_| unwritten(&folder, String::from_utf8_lossy(told).into_owned()))?;
            heads.insert(report.file.clone(), report.head);
            files.insert(report.file, report.state);
            for (name, sharded) in report.parts {
                match shards.get_mut(&name) {
                    Some(known) => known.parts.extend(sharded.parts),
                    None => {
                        shards.insert(name, sharded);
                    }
                }
            }
        }
        let mut write = |name: &str, bytes: &[u8]| {
            files.insert(name.to_string(), FileState::from_bytes(bytes));
            let path = folder.join(name);
            storage.write(&path, bytes).map_err(|error| unwritten(&path, error.to_string()))
        };
        for (name, text) in &checkpoint.beside {
            write(name, text.as_bytes())?;
        }
        let mut meta = checkpoint.meta;
        self.sign(&mut meta);
        let state = State {
            format: FORMAT.to_string(),
            step: checkpoint.step,
            turn: self.turn(),
            meta,
            files: BTreeMap::new(),
            tensors: shards.keys().cloned().collect(),
            shards: shards.into_iter().collect(),
            heads,
        };
        let state = serde_json::to_vec_pretty(&state).expect("text and numbers are always JSON");
        write(STATE_FILE, &state)?;
        finish(storage, self.path(), &folder, &Manifest::new(checkpoint.step, files), name)
            .map_err(|refusal| unwritten(&refusal.path, refusal.error.to_string()))?;
        self.prune(storage, name);
        Ok(())
    }
}

/// The name of an unfinished checkpoint that several processes write: the process of the first rank removes its remains.
fn unfinished_by(name: &str) -> String {
    format!("{name}{UNFINISHED}0")
}

/// Writes the shards of a process to its file, which its first rank names.
pub(super) fn write_own(
    storage: &dyn Storage,
    folder: &Path,
    first_rank: usize,
    shards: &[Shard],
) -> Result<Report> {
    let file = format!("shards-{first_rank:05}.safetensors");
    let key = |shard: &Shard| {
        let offset: Vec<String> = shard.offset.iter().map(usize::to_string).collect();
        format!("{}@{}", shard.name, offset.join(","))
    };
    let views = shards.iter().map(|shard| {
        let TensorData { dtype, shape, bytes } = &shard.part;
        let view = TensorView::new(to_safetensors(*dtype), shape.clone(), bytes);
        (key(shard), view.expect("the bytes of a tensor fill its shape"))
    });
    let bytes = safetensors::serialize(views, None).expect("names are few enough for a header of 100 MB");
    let written = SafeTensors::deserialize(&bytes).expect("it was just serialized");
    let begin = |key: &str| {
        let data = written.tensor(key).expect("every shard was serialized").data();
        (data.as_ptr().addr() - bytes.as_ptr().addr()) as u64
    };
    let part = |shard: &Shard| {
        let TensorData { dtype, shape: extents, bytes } = &shard.part;
        let key = key(shard);
        let place = Place {
            file: file.clone(),
            extents: extents.clone(),
            begin: begin(&key),
            bytes: bytes.len() as u64,
            checksum: digest::of_bytes(bytes),
        };
        let part = Part { key, offset: shard.offset.clone(), place: Some(place) };
        let dtype = Some(dtype.name().to_string());
        (shard.name.clone(), Sharded { shape: shard.shape.clone(), dtype, parts: vec![part] })
    };
    // Eight bytes with the length of the header, and the header.
    let (length, _) = bytes.split_first_chunk().expect("every safetensors file has a header");
    let head = &bytes[..8 + u64::from_le_bytes(*length) as usize];
    let path = folder.join(&file);
    let states =
        || (FileState::from_bytes(&bytes), FileState::from_bytes(head), shards.iter().map(part).collect());
    let ((state, head, parts), written) = digest::beside(states, || storage.write(&path, &bytes));
    written.map_err(|error| unwritten(&path, error.to_string()))?;
    Ok(Report { file, state, head, parts })
}

impl Sharded {
    /// The whole tensor of the parts in `read`; what is wrong with them otherwise. Nothing larger than the parts is
    /// allocated.
    pub(super) fn join(&self, read: &mut IndexMap<String, TensorData>) -> Result<TensorData, String> {
        let mut parts = Vec::new();
        for Part { key, offset, .. } in &self.parts {
            let part = read.swap_remove(key).ok_or_else(|| format!("no part `{key}` in the files"))?;
            let fits = part.shape.len() == self.shape.len()
                && offset.len() == self.shape.len()
                && (0..self.shape.len())
                    .all(|d| offset[d].checked_add(part.shape[d]).is_some_and(|end| end <= self.shape[d]));
            if !fits {
                return Err(format!("part `{key}` of shape {:?} is outside {:?}", part.shape, self.shape));
            }
            parts.push((offset, part));
        }
        let dtype = parts.first().map_or(DType::F32, |(_, part)| part.dtype);
        let elements = self.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
        let held: usize = parts.iter().map(|(_, part)| part.shape.iter().product::<usize>()).sum();
        if elements != Some(held) || parts.iter().any(|(_, part)| part.dtype != dtype) {
            return Err(format!("{held} elements in parts, for a tensor of shape {:?}", self.shape));
        }
        let mut bytes = vec![0; held * dtype.size_bytes()];
        for (offset, part) in parts {
            place(dtype.size_bytes(), &part.bytes, &part.shape, &mut bytes, &self.shape, offset);
        }
        Ok(TensorData::new(dtype, self.shape.clone(), bytes))
    }
}
