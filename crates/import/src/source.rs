//! Where the bytes of tensors are: in memory, or in a file that is read where they are used.
//!
//! Files are not mapped: one that is truncated or written while its weights are in use would end the process, or give other
//! numbers. Each read compares the file with what was opened ([`ReadFile`]).

use crate::Limits;
use crate::limits::exceeded;
use partita_base::{Diagnostic, FileKind, ReadFile, Result};
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are read at a time where a range is read in pieces.
const AT_ONCE: usize = 1 << 20;

/// Files of weights and models: E350 once they change.
const WEIGHTS: FileKind =
    FileKind { code: "E350", what: "weights", help: "put the file back, or open it again after the change" };

/// Bytes that several tensors share: in memory, or in an open file.
#[derive(Clone)]
pub struct Source(Kind);

#[derive(Clone)]
enum Kind {
    Memory(Arc<Vec<u8>>),
    File(Arc<ReadFile>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Memory(bytes) => write!(f, "{} bytes in memory", bytes.len()),
            Kind::File(file) => file.fmt(f),
        }
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Source {
        Source(Kind::Memory(Arc::new(bytes)))
    }
}

/// A file of any kind: what is read of it has the errors of that kind.
impl From<Arc<ReadFile>> for Source {
    fn from(file: Arc<ReadFile>) -> Source {
        Source(Kind::File(file))
    }
}

impl Source {
    /// Opens a file and keeps it open: its bytes can be read after its name is gone. E350 if it cannot be read.
    pub fn open(path: &Path) -> Result<Source> {
        Source::open_and(path, true)
    }

    /// [`Source::open`] of one of many files, which is opened again for each read unless it `keeps` open.
    pub(crate) fn open_and(path: &Path, keeps: bool) -> Result<Source> {
        let file = ReadFile::open(path, &WEIGHTS, keeps).map_err(|error| {
            Diagnostic::new("E350", format!("cannot read {}", path.display()))
                .expected("a readable file")
                .found(error.to_string())
        })?;
        Ok(Arc::new(file).into())
    }

    /// What identifies the file on this computer, as it was when it was opened; `None` for bytes in memory.
    pub(crate) fn file(&self) -> Option<String> {
        match &self.0 {
            Kind::Memory(_) => None,
            Kind::File(file) => Some(file.identity()),
        }
    }

    /// The number of bytes; of a file, when it was opened.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Memory(bytes) => bytes.len(),
            Kind::File(file) => file.len() as usize,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether both are the same bytes, not equal ones.
    pub(crate) fn is(&self, other: &Source) -> bool {
        match (&self.0, &other.0) {
            (Kind::Memory(one), Kind::Memory(other)) => Arc::ptr_eq(one, other),
            (Kind::File(one), Kind::File(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The bytes of a range, cut at the end.
    ///
    /// # Errors
    /// E350 if the file changed, or another code for a file of another kind.
    pub fn read(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>> {
        let end = range.end.min(self.len());
        let range = range.start.min(end)..end;
        match &self.0 {
            Kind::Memory(bytes) => Ok(Cow::Borrowed(&bytes[range])),
            Kind::File(file) => {
                let mut bytes = vec![0; range.len()];
                file.read(range.start as u64, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// All bytes. E358 if `what` has more than a text may have; errors as [`Source::read`].
    pub(crate) fn text(&self, what: &str, limits: &Limits) -> Result<Cow<'_, [u8]>> {
        check_text(what, self.len(), limits)?;
        self.read(0..self.len())
    }

    /// Gives the bytes of a range within the source to `visit`, piece by piece. Errors as [`Source::read`].
    pub(crate) fn visit(&self, range: Range<usize>, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        match &self.0 {
            Kind::Memory(bytes) => {
                visit(&bytes[range]);
                Ok(())
            }
            Kind::File(file) => file.visit(range.start as u64..range.end as u64, visit),
        }
    }

    /// Reads of several places, after which the file is compared once. Errors as [`Source::read`].
    pub(crate) fn reading<T>(&self, read: impl FnOnce(&mut Pieces) -> io::Result<T>) -> Result<T> {
        match &self.0 {
            Kind::Memory(bytes) => read(&mut Pieces::Memory(bytes)).map_err(|error| {
                Diagnostic::new("E354", "a tensor is not within its bytes")
                    .expected(format!("a place within {} bytes", bytes.len()))
                    .found(error.to_string())
            }),
            Kind::File(file) => {
                file.reading(|file| read(&mut Pieces::File { file, held: Vec::new(), start: 0 }))
            }
        }
    }
}

/// E358: `what` has more bytes than a text may have.
pub(crate) fn check_text(what: &str, bytes: usize, limits: &Limits) -> Result<()> {
    match bytes > limits.json_bytes {
        true => Err(exceeded(what, format!("at most {} bytes", limits.json_bytes), format!("{bytes} bytes"))),
        false => Ok(()),
    }
}

/// An error with the file that it is about.
pub(crate) fn located(path: &Path, mut error: Box<Diagnostic>) -> Box<Diagnostic> {
    let path = path.display().to_string();
    error.at = Some(match error.at.take() {
        Some(at) if at != path => format!("{path}: {at}"),
        _ => path,
    });
    error
}

/// Reads of one source.
pub(crate) enum Pieces<'a> {
    Memory(&'a [u8]),
    File {
        file: &'a File,
        /// What was read ahead, and where it begins.
        held: Vec<u8>,
        start: usize,
    },
}

impl Pieces<'_> {
    /// Fills `into` with the bytes from `at`.
    pub fn copy(&mut self, at: usize, into: &mut [u8]) -> io::Result<()> {
        match self {
            Pieces::Memory(bytes) => {
                into.copy_from_slice(within(bytes, at..at + into.len())?);
                Ok(())
            }
            Pieces::File { file, .. } => file.read_exact_at(into, at as u64),
        }
    }

    /// The bytes from `at`, at least `least` of them, and none from `end` on. Of a file, those behind them are read with
    /// them: successive places cost one read for many.
    pub fn ahead(&mut self, at: usize, least: usize, end: usize) -> io::Result<&[u8]> {
        match self {
            Pieces::Memory(bytes) => within(bytes, at..end),
            Pieces::File { file, held, start } => {
                if at < *start || at + least > *start + held.len() {
                    held.resize(AT_ONCE.max(least).min(end - at), 0);
                    *start = at;
                    if let Err(error) = file.read_exact_at(held, at as u64) {
                        held.clear();
                        return Err(error);
                    }
                }
                within(held, at - *start..held.len().min(end - *start))
            }
        }
    }
}

fn within(bytes: &[u8], range: Range<usize>) -> io::Result<&[u8]> {
    bytes.get(range).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::{Duration, SystemTime};

    #[test]
    fn bytes_come_from_memory_and_from_files_alike() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let bytes: Vec<u8> = (0..3 * AT_ONCE / 2).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let sources = [Source::from(bytes.clone()), Source::open(&path).unwrap()];
        for source in &sources {
            assert_eq!((source.len(), source.is_empty()), (bytes.len(), false));
            assert_eq!(*source.read(5..9).unwrap(), bytes[5..9]);
            assert_eq!(*source.read(bytes.len() - 2..bytes.len() + 9).unwrap(), bytes[bytes.len() - 2..]);
            assert!(source.read(bytes.len() + 3..bytes.len() + 9).unwrap().is_empty());
            let mut seen = Vec::new();
            source.visit(1..bytes.len(), &mut |piece| seen.extend_from_slice(piece)).unwrap();
            assert_eq!(seen, bytes[1..]);
            let ends = source.reading(|pieces| {
                let mut first = [0; 4];
                pieces.copy(2, &mut first)?;
                let ahead = pieces.ahead(3, 2, bytes.len())?;
                let reach = ahead.len();
                assert_eq!(ahead, &bytes[3..3 + reach]);
                assert_eq!(pieces.ahead(9, 2, 12)?, &bytes[9..12]);
                assert_eq!(pieces.ahead(0, 2, 12)?, &bytes[..12]);
                Ok((first, reach >= 2))
            });
            assert_eq!(ends.unwrap(), ([2, 3, 4, 5], true));
            assert!(source.reading(|pieces| pieces.copy(bytes.len() - 1, &mut [0; 2])).is_err());
        }
        assert!(sources[0].is(&sources[0].clone()) && sources[1].is(&sources[1].clone()));
        assert!(!sources[0].is(&sources[1]) && !sources[1].is(&Source::open(&path).unwrap()));
    }

    #[test]
    fn a_file_that_changes_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let written = || {
            fs::write(&path, b"abcdefgh").unwrap();
            let ago = SystemTime::now() - Duration::from_secs(60);
            File::options().write(true).open(&path).unwrap().set_modified(ago).unwrap();
            Source::open(&path).unwrap()
        };
        let refused = |source: &Source, why: &str| {
            let mut visited = Vec::new();
            let results = [
                source.read(0..2).map(|_| ()),
                source.visit(0..8, &mut |piece| visited.extend_from_slice(piece)),
                source.reading(|pieces| pieces.copy(0, &mut [0; 2])),
                source.reading(|pieces| pieces.ahead(1, 1, 8).map(|_| ())),
            ];
            for result in results {
                let error = result.unwrap_err();
                assert_eq!((error.code, error.found.as_deref()), ("E350", Some(why)));
                assert_eq!(error.expected.as_deref(), Some("the 8 bytes that it had when it was opened"));
                assert_eq!(error.at.as_deref(), Some(path.to_str().unwrap()));
                assert_eq!(located(&path, error.clone()).at, error.at);
            }
        };
        let source = written();
        File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
        refused(&source, "3 bytes: it was truncated");
        let source = written();
        fs::write(&path, b"ABCDEFGH").unwrap();
        refused(&source, "8 bytes, written later: it was changed in place");
        // Another file in its place, and no file: what was opened is read still.
        let source = written();
        fs::write(folder.path().join("new"), b"ABCDEFGH").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(*source.read(0..8).unwrap(), *b"abcdefgh");
        fs::remove_file(&path).unwrap();
        assert_eq!(*source.read(0..8).unwrap(), *b"abcdefgh");
        assert_eq!(Source::open(&path).unwrap_err().code, "E350");
        assert_eq!(Source::open(folder.path()).unwrap_err().found.as_deref(), Some("a folder"));
        // One of many files is opened by its name again.
        let _ = written();
        let source = Source::open_and(&path, false).unwrap();
        fs::write(folder.path().join("new"), b"ABCDEFGH").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        refused(&source, "another file, of 8 bytes: it was replaced");
    }
}
