//! Files of data, read where they are used.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use partita_base::{Diagnostic, Result};

/// Bytes that are read at a time.
const AT_ONCE: u64 = 1 << 20;

/// A file that is read in pieces. It is not mapped: where it is truncated meanwhile, a read fails, and the process can still
/// save its state.
#[derive(Debug)]
pub struct DataFile {
    path: PathBuf,
    bytes: u64,
    /// Device, inode and size, by which a file that is opened again is recognised.
    identity: (u64, u64, u64),
    /// Opened again for each read if `None`: a process may hold about a thousand files.
    file: Option<File>,
}

impl DataFile {
    /// Opens a file; `keeps` it open.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(path: &Path, keeps: bool) -> io::Result<DataFile> {
        DataFile::from_file(path, File::open(path)?, keeps)
    }

    /// [`DataFile::open`] of a file that is open already.
    pub(super) fn from_file(path: &Path, file: File, keeps: bool) -> io::Result<DataFile> {
        let metadata = file.metadata()?;
        let (bytes, identity) = (metadata.len(), identity(&metadata));
        Ok(DataFile { path: path.to_path_buf(), bytes, identity, file: keeps.then_some(file) })
    }

    /// Its size when it was opened, in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it had no bytes when it was opened.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Fills `window` with the bytes from `start`.
    ///
    /// # Errors
    /// E307 if the file cannot be read, is shorter now, or is another one.
    pub fn read(&self, start: u64, window: &mut [u8]) -> Result<()> {
        let read = |file: &File, window: &mut [u8]| file.read_exact_at(window, start);
        let result = match &self.file {
            Some(file) => read(file, window),
            None => {
                File::open(&self.path).and_then(|file| match identity(&file.metadata()?) == self.identity {
                    true => read(&file, window),
                    false => Err(io::Error::other("another file, or another size")),
                })
            }
        };
        result.map_err(|error| self.lost(&error))
    }

    /// Gives the bytes of a range to `visit`, piece by piece. E307 as [`DataFile::read`].
    pub(super) fn visit(&self, mut start: u64, end: u64, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut piece = vec![0; AT_ONCE.min(end - start) as usize];
        while start < end {
            let count = AT_ONCE.min(end - start) as usize;
            self.read(start, &mut piece[..count])?;
            visit(&piece[..count]);
            start += count as u64;
        }
        Ok(())
    }

    fn lost(&self, error: &io::Error) -> Box<Diagnostic> {
        let found = match fs::metadata(&self.path) {
            Ok(now) if now.len() < self.bytes => format!("{} bytes: it was truncated", now.len()),
            Ok(_) => error.to_string(),
            Err(gone) => gone.to_string(),
        };
        Diagnostic::new("E307", "a file of data changed while it was read")
            .at(self.path.display().to_string())
            .expected(format!("the {} bytes that it had when it was opened", self.bytes))
            .found(found)
            .help("put the file back, and resume from the last checkpoint")
    }
}

fn identity(metadata: &Metadata) -> (u64, u64, u64) {
    (metadata.dev(), metadata.ino(), metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_truncated_replaced_or_removed_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for keeps in [true, false] {
            fs::write(&path, b"abcdefgh").unwrap();
            let file = DataFile::open(&path, keeps).unwrap();
            let mut window = [0; 3];
            file.read(4, &mut window).unwrap();
            assert_eq!(&window, b"efg");
            let mut seen = Vec::new();
            file.visit(1, 7, &mut |piece| seen.extend_from_slice(piece)).unwrap();
            assert_eq!(seen, b"bcdefg");
            File::options().write(true).open(&path).unwrap().set_len(5).unwrap();
            let error = file.read(4, &mut window).unwrap_err();
            assert_eq!((error.code, error.found.as_deref()), ("E307", Some("5 bytes: it was truncated")));
            assert!(error.at.as_ref().unwrap().ends_with("text"), "{error}");
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, b"abcdefgh").unwrap();
        let file = DataFile::open(&path, false).unwrap();
        fs::write(folder.path().join("other"), b"ABCDEFGH").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert_eq!(
            file.read(0, &mut [0; 2]).unwrap_err().found.as_deref(),
            Some("another file, or another size")
        );
    }
}
