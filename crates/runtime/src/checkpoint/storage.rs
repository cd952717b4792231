//! The few things a checkpoint asks of a file system, so that tests can make each of them fail.

use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::Path;

/// Files and folders as a checkpoint is written. After each operation the process may die.
pub trait Storage {
    /// Makes a folder and those above it; one that is there already is fine.
    fn create_folder(&self, path: &Path) -> Result<()>;
    /// Makes a file of these bytes, replacing one that is there, and returns when they are on the disk.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()>;
    /// Returns when the entries of a folder (not what is in them) are on the disk.
    fn sync_folder(&self, path: &Path) -> Result<()>;
    /// Moves a file or folder in one step: others see it under the old name or the new one. A file that is
    /// there is replaced.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// The names in a folder, sorted.
    fn list(&self, folder: &Path) -> Result<Vec<String>>;
    /// Removes a file, or a folder and all in it, one by one.
    fn remove(&self, path: &Path) -> Result<()>;
    /// The bytes of a file.
    fn read(&self, path: &Path) -> Result<Vec<u8>>;
}

/// The real thing.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileStorage;

impl Storage for FileStorage {
    fn create_folder(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn sync_folder(&self, path: &Path) -> Result<()> {
        // Elsewhere a folder cannot be opened as a file, and renames reach the disk in order.
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to)
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        fs::read(path)
    }
}
