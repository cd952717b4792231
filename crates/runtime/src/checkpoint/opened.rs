//! A checkpoint on disk whose tensors are read later: all of them, or only the parts that a process needs.
//!
//! Of a checkpoint in shards, `state.json` is an index: where each part is in which file, and its checksum. So a process
//! reads the parts that overlap what its ranks hold, and nothing else. Every size in the index is a claim: it is compared
//! with the files before anything is allocated.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::read::{damaged, find, foreign, not_found, parse, safetensors_files};
use super::shards::{Part, Place};
use super::*;
use crate::sharded::copy_shared;

/// A checkpoint that was found, with its state, and without its tensors.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    state: State,
    /// Bytes read so far, those of the state included.
    read: AtomicU64,
}

/// A box of a tensor: the index of its first element, and its extents.
pub type Region = (Vec<usize>, Vec<usize>);

impl Opened {
    /// Opens a step's folder, or the newest one of a run's folder.
    ///
    /// # Errors
    /// E311 if there is none, with what was found instead; E312 if its state is damaged, or a file has another size; E313
    /// for safetensors files that are not from a run of Partita.
    pub fn open(path: &Path) -> Result<Opened> {
        let path = find(path)?;
        let state_path = path.join(STATE_FILE);
        let bytes = match fs::read(&state_path) {
            Ok(bytes) => bytes,
            Err(_) if !safetensors_files(&path).is_empty() => return Err(foreign(&path)),
            Err(error) => return Err(not_found(&path, &error)),
        };
        let state: State = serde_json::from_slice(&bytes).map_err(|error| {
            damaged(&state_path, &path)
                .expected("the state of a checkpoint, as JSON")
                .found(format!("{} bytes: {error}", bytes.len()))
        })?;
        if ![FORMAT, SHARDED_FORMAT].contains(&state.format.as_str()) {
            let known = format!("format {FORMAT} or {SHARDED_FORMAT}");
            return Err(damaged(&state_path, &path).expected(known).found(state.format));
        }
        let opened = Opened { path, state, read: AtomicU64::new(bytes.len() as u64) };
        for (name, expected) in &opened.state.files {
            let file = opened.file(name)?;
            let found =
                fs::metadata(&file).map_err(|error| opened.damaged(&file).found(error.to_string()))?.len();
            if found != expected.bytes {
                let expected = format!("{} bytes", expected.bytes);
                return Err(opened.damaged(&file).expected(expected).found(format!("{found} bytes")));
            }
        }
        Ok(opened)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Steps taken.
    pub fn step(&self) -> u64 {
        self.state.step
    }

    /// Data position, seed, model config, optimizer name and the like.
    pub fn meta(&self) -> &BTreeMap<String, String> {
        &self.state.meta
    }

    /// The bytes of its files of tensors.
    pub fn bytes(&self) -> u64 {
        self.state.files.values().map(|file| file.bytes).sum()
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
        for (name, expected) in &self.state.files {
            let file = self.file(name)?;
            let bytes = fs::read(&file).map_err(|error| self.damaged(&file).found(error.to_string()))?;
            self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if bytes.len() as u64 != expected.bytes {
                return Err(self
                    .damaged(&file)
                    .expected(format!("{} bytes", expected.bytes))
                    .found(format!("{} bytes", bytes.len())));
            }
            self.compare(&file, &bytes, &expected.checksum)?;
            parse(&file, &bytes, &mut read)?;
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
        let whole = self.state.files.get(&place.file).map_or(0, |file| file.bytes);
        let elements = place.extents.iter().try_fold(size, |all, &extent| all.checked_mul(extent));
        let is_inside = place.begin.checked_add(place.bytes).is_some_and(|end| end <= whole);
        if elements.map(|bytes| bytes as u64) != Some(place.bytes) || !is_inside {
            return Err(self.damaged(&file).expected("parts inside their files").found(format!("{place:?}")));
        }
        let read = || {
            let mut bytes = vec![0; place.bytes as usize];
            let mut file = File::open(&file)?;
            file.seek(SeekFrom::Start(place.begin))?;
            file.read_exact(&mut bytes).map(|()| bytes)
        };
        let bytes = read().map_err(|error: std::io::Error| self.damaged(&file).found(error.to_string()))?;
        self.read.fetch_add(place.bytes, Ordering::Relaxed);
        self.compare(&file, &bytes, &place.checksum)?;
        Ok(bytes)
    }

    /// E312 unless the bytes have this checksum.
    fn compare(&self, file: &Path, bytes: &[u8], expected: &str) -> Result<()> {
        let found = checksum(bytes);
        if found == expected {
            return Ok(());
        }
        Err(self
            .damaged(file)
            .expected(format!("checksum {expected}"))
            .found(format!("checksum {found} (the size is right)")))
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
