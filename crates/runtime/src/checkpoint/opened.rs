//! A checkpoint on disk whose tensors are read later: all of them, or only the parts that a process needs.
//!
//! Of a checkpoint in shards, `state.json` is an index: where each part is in which file, and its checksum. So a process
//! reads the parts that overlap what its ranks hold, and nothing else. Every size in the index is a claim: it is compared
//! with the files before anything is allocated.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::read::{damaged, find, foreign, not_found, parse, safetensors_files};
use super::shards::{Part, Place};
use super::*;
use crate::sharded::copy_shared;
use partita_base::read_file;

/// A checkpoint that was found, with its state, and without its tensors.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    state: State,
    /// The files of tensors.
    files: BTreeMap<String, FileState>,
    has_manifest: bool,
    /// Bytes read so far, those of the state included.
    read: AtomicU64,
}

/// Bytes that a manifest or a state may have: names and digests of files and tensors.
const MAX_METADATA_BYTES: u64 = 256 << 20;

/// Whether a file of a checkpoint has tensors, by its name.
fn has_tensors(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// A box of a tensor: the index of its first element, and its extents.
pub type Region = (Vec<usize>, Vec<usize>);

impl Opened {
    /// Opens a step's folder, or the newest one of a run's folder. Files other than those of tensors are compared with the
    /// manifest.
    ///
    /// # Errors
    /// E311 if there is none, with what was found instead; E312 if a file is damaged, or a file of tensors has another size,
    /// or if the folder has the name of another step; E313 for safetensors files that are not from a run of Partita.
    pub fn open(path: &Path) -> Result<Opened> {
        let path = find(path)?;
        let read = AtomicU64::new(0);
        let counted = |bytes: Vec<u8>| {
            read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            bytes
        };
        let (manifest_path, state_path) = (path.join(MANIFEST_FILE), path.join(STATE_FILE));
        let manifest = match read_file(&manifest_path, MAX_METADATA_BYTES).map(counted) {
            Ok(bytes) => match Manifest::parse(&bytes) {
                Ok(manifest) => Some(manifest),
                // That of something else, such as a step that was exported.
                Err(_) if !state_path.exists() => None,
                Err(found) => {
                    let expected = "the manifest of a checkpoint, whole";
                    return Err(damaged(&manifest_path, &path).expected(expected).found(found));
                }
            },
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(error) => return Err(damaged(&manifest_path, &path).found(error.to_string())),
        };
        let bytes = match read_file(&state_path, MAX_METADATA_BYTES).map(counted) {
            Ok(bytes) => bytes,
            Err(error) if manifest.is_some() => {
                return Err(damaged(&state_path, &path).found(error.to_string()));
            }
            Err(_) if !safetensors_files(&path).is_empty() => return Err(foreign(&path)),
            Err(error) => return Err(not_found(&path, &error)),
        };
        if let Some(Manifest { files, .. }) = &manifest {
            let expected = files.get(STATE_FILE).ok_or_else(|| {
                damaged(&manifest_path, &path).expected(format!("a file {STATE_FILE}")).found("none")
            })?;
            let compared = expected.compare(&bytes);
            compared
                .map_err(|[expected, found]| damaged(&state_path, &path).expected(expected).found(found))?;
        }
        let state: State = serde_json::from_slice(&bytes).map_err(|error| {
            damaged(&state_path, &path)
                .expected("the state of a checkpoint, as JSON")
                .found(format!("{} bytes: {error}", bytes.len()))
        })?;
        if state.format == FORMAT && manifest.is_none() {
            return Err(damaged(&manifest_path, &path)
                .expected(format!("a manifest, which every checkpoint of format {FORMAT} has"))
                .found("no such file"));
        }
        if state.format != FORMAT && !OLD_FORMATS.contains(&state.format.as_str()) {
            let known = format!("format {FORMAT}, {}", OLD_FORMATS.join(" or "));
            return Err(damaged(&state_path, &path).expected(known).found(state.format));
        }
        let named = path.file_name().and_then(|name| parse_folder_name(name.to_str()?));
        let steps = [named.map(|(step, _)| step), manifest.as_ref().map(|manifest| manifest.step)];
        if let Some(step) = steps.into_iter().flatten().find(|step| *step != state.step) {
            return Err(damaged(&path, &path)
                .expected(format!("the state after step {step}, as its folder or manifest says"))
                .found(format!("the state after step {}", state.step))
                .note("a checkpoint was copied or renamed over the name of another"));
        }
        let has_manifest = manifest.is_some();
        let files = manifest.map_or_else(|| state.files.clone(), |manifest| manifest.files);
        let (tensors, others) = files.into_iter().partition(|(name, _)| !has_manifest || has_tensors(name));
        let opened = Opened { path, state, files: tensors, has_manifest, read };
        opened.compare_files(others)?;
        Ok(opened)
    }

    /// Compares the sizes of the files of tensors, and whatever else the process may read of the checkpoint as a whole.
    fn compare_files(&self, others: BTreeMap<String, FileState>) -> Result<()> {
        for (name, expected) in &self.files {
            let file = self.file(name)?;
            let found = fs::metadata(&file).map_err(|error| self.damaged(&file).found(error.to_string()))?;
            if found.len() != expected.bytes {
                let expected = format!("{} bytes", expected.bytes);
                return Err(self.damaged(&file).expected(expected).found(format!("{} bytes", found.len())));
            }
        }
        for (name, expected) in others.iter().filter(|(name, _)| *name != STATE_FILE) {
            let file = self.file(name)?;
            let bytes = read_file(&file, expected.bytes)
                .map_err(|error| self.damaged(&file).found(error.to_string()))?;
            self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.whole(&file, expected.compare(&bytes))?;
        }
        for (name, expected) in &self.state.heads {
            let file = self.file(name)?;
            self.whole(&file, expected.compare(&self.bytes_of(name, 0, expected.bytes)?))?;
        }
        Ok(())
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Steps taken.
    pub fn step(&self) -> u64 {
        self.state.step
    }

    /// See [`State::turn`].
    pub(super) fn turn(&self) -> u64 {
        self.state.turn
    }

    /// Data position, seed, model config, optimizer name and the like.
    pub fn meta(&self) -> &BTreeMap<String, String> {
        &self.state.meta
    }

    /// The bytes of its files of tensors.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// One digest of all that it says: equal for equal checkpoints, wherever they are.
    pub fn digest(&self) -> String {
        let Opened { state, files, .. } = self;
        digest::of_bytes(format!("{} {:?} {files:?} {:?}", state.step, state.meta, state.heads).as_bytes())
    }

    /// Whether its manifest has the digests of all its files; without one it is of an earlier version, and only its files of
    /// tensors have checksums.
    pub fn has_manifest(&self) -> bool {
        self.has_manifest
    }

    /// The bytes of its files that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Reads all of it and compares the files with their checksums.
    ///
    /// # Errors
    /// E312 if a file is damaged, E313 for an unsupported element type.
    pub fn load(&self) -> Result<Checkpoint> {
        let mut read = IndexMap::new();
        for (name, expected) in &self.files {
            let file = self.file(name)?;
            let bytes = fs::read(&file).map_err(|error| self.damaged(&file).found(error.to_string()))?;
            self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let mut tensors = IndexMap::new();
            let (compared, parsed) =
                digest::beside(|| expected.compare(&bytes), || parse(&file, &bytes, &mut tensors));
            self.whole(&file, compared)?;
            parsed?;
            read.extend(tensors);
        }
        let state_path = self.path.join(STATE_FILE);
        // Restore the order in which they were saved.
        let mut tensors = IndexMap::with_capacity(read.len());
        for name in &self.state.tensors {
            if let Some(sharded) = self.state.shards.get(name) {
                let whole = sharded.join(&mut read);
                let whole = whole.map_err(|found| {
                    self.damaged(&state_path).expected(format!("all parts of `{name}`")).found(found)
                })?;
                tensors.insert(name.clone(), whole);
                continue;
            }
            let Some(tensor) = read.swap_remove(name) else {
                let expected = format!("a tensor `{name}`");
                return Err(self.damaged(&state_path).expected(expected).found("none in the files"));
            };
            tensors.insert(name.clone(), tensor);
        }
        Ok(Checkpoint {
            tensors,
            step: self.state.step,
            meta: self.state.meta.clone(),
            beside: BTreeMap::new(),
        })
    }

    /// Element type and global shape of each tensor, if all of them are in parts that can be read alone.
    pub fn types(&self) -> Option<IndexMap<&str, (DType, &[usize])>> {
        self.state.tensors.iter().map(|name| self.indexed(name)).collect()
    }

    /// A tensor whose parts can be read alone: its name, and its type.
    fn indexed<'a>(&'a self, name: &'a str) -> Option<(&'a str, (DType, &'a [usize]))> {
        let sharded = self.state.shards.get(name)?;
        let is_indexed = sharded.parts.iter().all(|part| part.place.is_some());
        let dtype = DType::from_name(sharded.dtype.as_deref()?).filter(|_| is_indexed)?;
        Some((name, (dtype, sharded.shape.as_slice())))
    }

    /// Regions of a tensor, each as dense bytes. Only the parts that overlap them are read, each of them once.
    ///
    /// # Errors
    /// E312 if such a part is damaged, or does not cover the regions.
    pub fn regions(&self, name: &str, regions: &[Region]) -> Result<Vec<Vec<u8>>> {
        let state_path = self.path.join(STATE_FILE);
        let wrong =
            |found: String| self.damaged(&state_path).expected(format!("all parts of `{name}`")).found(found);
        let (Some(sharded), Some((_, (dtype, shape)))) = (self.state.shards.get(name), self.indexed(name))
        else {
            return Err(wrong("no index of parts".to_string()));
        };
        let size = dtype.size_bytes();
        let elements = |(_, extents): &Region| extents.iter().product::<usize>();
        let mut read: Vec<Vec<u8>> = regions.iter().map(|region| vec![0; elements(region) * size]).collect();
        let mut missing: Vec<usize> = regions.iter().map(elements).collect();
        for Part { key, offset, place } in &sharded.parts {
            let place = place.as_ref().expect("the parts are indexed");
            let fits = offset.len() == shape.len()
                && place.extents.len() == shape.len()
                && (0..shape.len())
                    .all(|d| offset[d].checked_add(place.extents[d]).is_some_and(|end| end <= shape[d]));
            if !fits {
                return Err(wrong(format!("part `{key}` of shape {:?} is outside {shape:?}", place.extents)));
            }
            let mut bytes = None;
            for (place_of, region) in regions.iter().enumerate() {
                let from = (offset.as_slice(), place.extents.as_slice());
                let to = (region.0.as_slice(), region.1.as_slice());
                if crate::sharded::shared(from, to).is_none() {
                    continue;
                }
                if bytes.is_none() {
                    bytes = Some(self.part(place, size)?);
                }
                let bytes = bytes.as_ref().expect("just read");
                let copied = copy_shared(size, (bytes, from), (&mut read[place_of], to));
                missing[place_of] = missing[place_of].saturating_sub(copied);
            }
        }
        match missing.iter().find(|&&missing| missing > 0) {
            Some(missing) => Err(wrong(format!("{missing} elements in no part"))),
            None => Ok(read),
        }
    }

    /// The bytes of a part, whose elements have `size` bytes.
    fn part(&self, place: &Place, size: usize) -> Result<Vec<u8>> {
        let file = self.file(&place.file)?;
        let elements = place.extents.iter().try_fold(size, |all, &extent| all.checked_mul(extent));
        if elements.map(|bytes| bytes as u64) != Some(place.bytes) {
            return Err(self.outside(&file, place));
        }
        let bytes = self.bytes_of(&place.file, place.begin, place.bytes)?;
        self.whole(&file, manifest::compare(&bytes, &place.checksum))?;
        Ok(bytes)
    }

    /// Bytes of a file of tensors. E312 if it does not have them.
    fn bytes_of(&self, name: &str, begin: u64, count: u64) -> Result<Vec<u8>> {
        let file = self.file(name)?;
        let whole = self.files.get(name).map_or(0, |file| file.bytes);
        if begin.checked_add(count).is_none_or(|end| end > whole) {
            return Err(self.outside(&file, &format_args!("{count} bytes from {begin} of {whole}")));
        }
        let read = || {
            let mut bytes = vec![0; count as usize];
            let mut file = File::open(&file)?;
            file.seek(SeekFrom::Start(begin))?;
            file.read_exact(&mut bytes).map(|()| bytes)
        };
        let bytes = read().map_err(|error: std::io::Error| self.damaged(&file).found(error.to_string()))?;
        self.read.fetch_add(count, Ordering::Relaxed);
        Ok(bytes)
    }

    /// E312 for what an index claims of a file.
    fn outside(&self, file: &Path, found: &dyn std::fmt::Debug) -> Box<Diagnostic> {
        self.damaged(file).expected("parts inside their files").found(format!("{found:?}"))
    }

    /// E312 unless the bytes of a file are what they should be.
    fn whole(&self, file: &Path, compared: Result<(), [String; 2]>) -> Result<()> {
        compared.map_err(|[expected, found]| self.damaged(file).expected(expected).found(found))
    }

    /// A file of the checkpoint. E312 for a name that leads out of its folder.
    fn file(&self, name: &str) -> Result<PathBuf> {
        if Path::new(name).file_name().is_some_and(|file| file == name) {
            return Ok(self.path.join(name));
        }
        let state = self.path.join(STATE_FILE);
        Err(self.damaged(&state).expected("names of files in its folder").found(name))
    }

    fn damaged(&self, file: &Path) -> Box<Diagnostic> {
        damaged(file, &self.path)
    }
}
