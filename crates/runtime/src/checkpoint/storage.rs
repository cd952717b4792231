//! The file system operations of checkpoints, as a trait so that tests can make each of them fail.

use std::fs::{self, File};
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

/// Files and folders of a checkpoint. The process may die after each operation.
pub trait Storage {
    /// Creates a folder in one that exists; an existing one is fine.
    fn create_folder(&self, path: &Path) -> Result<()>;
    /// Creates or replaces a file with these bytes, and returns when they are on disk.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()>;
    /// Returns when the entries of a folder (not their contents) are on disk.
    fn sync_folder(&self, path: &Path) -> Result<()>;
    /// Renames a file or folder atomically: others see either the old name or the new one. An
    /// existing file is replaced.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// The names in a folder, sorted.
    fn list(&self, folder: &Path) -> Result<Vec<String>>;
    /// Removes a file, or a folder and its contents one by one.
    fn remove(&self, path: &Path) -> Result<()>;
    /// The bytes of a file.
    fn read(&self, path: &Path) -> Result<Vec<u8>>;
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileStorage;

impl Storage for FileStorage {
    fn create_folder(&self, path: &Path) -> Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
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
