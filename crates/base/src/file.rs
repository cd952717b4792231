//! Files that are read where their bytes are used, and must be then what they were when they were opened.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::{Diagnostic, Result};

/// Bytes that are read at a time where a range is visited.
const AT_ONCE: u64 = 1 << 20;

/// Bytes that a text such as a config, a plan or a table may have: 64 MiB.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The bytes of a file or pipe of at most `most` bytes; one that does not end, such as `/dev/zero`, is not read on.
///
/// # Errors
/// Those of the system, and one for more bytes.
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let stated = file.metadata()?.len();
    if stated > most { Err(too_large(&stated.to_string(), most)) } else { bounded(file, most) }
}

/// [`read_at_most`] of a file alone: a pipe could block for ever.
///
/// # Errors
/// As [`read_at_most`], and one for what is no file.
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    is_file(&fs::metadata(path)?)?;
    read_at_most(path, most)
}

/// A text of at most 64 MiB, from a file or pipe.
///
/// # Errors
/// As [`read_at_most`], and one for what is no UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    text(read_at_most(path.as_ref(), MAX_TEXT_BYTES)?)
}

/// [`read_text`] from standard input or another open source.
///
/// # Errors
/// As [`read_text`].
pub fn read_text_from(source: impl Read) -> io::Result<String> {
    text(bounded(source, MAX_TEXT_BYTES)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "text that is not UTF-8"))
}

fn bounded(source: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(&format!("more than {most}"), most)) } else { Ok(bytes) }
}

fn too_large(found: &str, most: u64) -> io::Error {
    io::Error::other(format!("{found} bytes, where at most {most} are read"))
}

/// An error for what is a folder, a device or a pipe.
fn is_file(metadata: &Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other(if metadata.is_dir() { "a folder" } else { "a device or pipe" })),
    }
}

/// What a file holds, and the message for a change of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileKind {
    /// The code of the message.
    pub code: &'static str,
    /// What it holds: "data".
    pub what: &'static str,
    /// What to do.
    pub help: &'static str,
}

/// A file that is read in pieces. It is not mapped: where it is truncated meanwhile, a read fails, and not the process.
///
/// Every read ends with a comparison of the size and the time of the last modification, so that bytes of a file that was
/// written in place are not taken for those that it had. A file system whose times are coarse (some milliseconds, on Linux
/// before 6.13) hides a change of the same size within that time after the file was opened.
pub struct ReadFile {
    path: PathBuf,
    kind: &'static FileKind,
    opened: Identity,
    /// Opened again for each read if `None`: a process may hold about a thousand files.
    file: Option<File>,
}

/// What identifies a file. Its ctime is left out, because a rename changes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl fmt::Debug for ReadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.path.display(), self.opened.bytes)
    }
}

impl ReadFile {
    /// Opens a file; `keeps` it open. A file that is kept open can lose its name, or another one can take its place: its own
    /// bytes are read still.
    ///
    /// # Errors
    /// Those of the system, and one for what is no file. Pipes and devices are not opened, because that could block for
    /// ever.
    pub fn open(path: &Path, kind: &'static FileKind, keeps: bool) -> io::Result<ReadFile> {
        is_file(&fs::metadata(path)?)?;
        ReadFile::of_file(path, File::open(path)?, kind, keeps)
    }

    /// [`ReadFile::open`] of a file that is open already.
    pub fn of_file(path: &Path, file: File, kind: &'static FileKind, keeps: bool) -> io::Result<ReadFile> {
        let opened = Identity::of(&file.metadata()?);
        Ok(ReadFile { path: path.to_path_buf(), kind, opened, file: keeps.then_some(file) })
    }

    /// What identifies it on this computer, as it was when it was opened: device, inode, size and time of modification.
    pub fn identity(&self) -> String {
        let Identity { device, inode, bytes, modified: (seconds, nanoseconds) } = self.opened;
        format!("{device}:{inode} of {bytes} bytes at {seconds}.{nanoseconds:09}")
    }

    /// Its size when it was opened, in bytes.
    pub fn len(&self) -> u64 {
        self.opened.bytes
    }

    /// Whether it had no bytes when it was opened.
    pub fn is_empty(&self) -> bool {
        self.opened.bytes == 0
    }

    /// Fills `window` with the bytes from `start`.
    ///
    /// # Errors
    /// The code of its kind if it cannot be read, or is no longer what was opened.
    pub fn read(&self, start: u64, window: &mut [u8]) -> Result<()> {
        self.reading(|file| file.read_exact_at(window, start))
    }

    /// Gives the bytes of a range to `visit`, piece by piece. Errors as [`ReadFile::read`].
    pub fn visit(&self, range: Range<u64>, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Range { mut start, end } = range;
        let mut piece = vec![0; AT_ONCE.min(end.saturating_sub(start)) as usize];
        while start < end {
            let count = AT_ONCE.min(end - start) as usize;
            self.read(start, &mut piece[..count])?;
            visit(&piece[..count]);
            start += count as u64;
        }
        Ok(())
    }

    /// Several reads, for which the file is compared once: what `read` returns is valid only if this returns it.
    ///
    /// # Errors
    /// As [`ReadFile::read`].
    pub fn reading<T>(&self, read: impl FnOnce(&File) -> io::Result<T>) -> Result<T> {
        let reopened;
        let file = match &self.file {
            Some(file) => file,
            None => {
                reopened = File::open(&self.path).map_err(|error| self.lost(None, &error))?;
                &reopened
            }
        };
        let result = read(file);
        // After the read, because the system sets the modification time before it writes.
        match (result, file.metadata()) {
            (Ok(value), Ok(now)) if Identity::of(&now) == self.opened => Ok(value),
            (Ok(_), Ok(now)) => Err(self.changed(Identity::of(&now))),
            (Err(error), Ok(now)) => Err(self.lost(Some(Identity::of(&now)), &error)),
            (_, Err(error)) => Err(self.lost(None, &error)),
        }
    }

    /// A read failed: since the file changed, or for a reason of the system.
    fn lost(&self, now: Option<Identity>, error: &io::Error) -> Box<Diagnostic> {
        match now {
            Some(now) if now != self.opened => self.changed(now),
            _ => self.error("cannot be read any more", error.to_string()),
        }
    }

    fn changed(&self, now: Identity) -> Box<Diagnostic> {
        let (bytes, before) = (now.bytes, self.opened);
        let found = match (bytes.cmp(&before.bytes), (now.device, now.inode) == (before.device, before.inode))
        {
            (_, false) => format!("another file, of {bytes} bytes: it was replaced"),
            (std::cmp::Ordering::Less, true) => format!("{bytes} bytes: it was truncated"),
            (std::cmp::Ordering::Greater, true) => format!("{bytes} bytes: something was appended"),
            (std::cmp::Ordering::Equal, true) => {
                format!("{bytes} bytes, written later: it was changed in place")
            }
        };
        self.error("changed while it was read", found)
    }

    fn error(&self, happened: &str, found: String) -> Box<Diagnostic> {
        Diagnostic::new(self.kind.code, format!("a file of {} {happened}", self.kind.what))
            .at(self.path.display().to_string())
            .expected(format!("the {} bytes that it had when it was opened", self.opened.bytes))
            .found(found)
            .help(self.kind.help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    const KIND: FileKind = FileKind { code: "E307", what: "data", help: "put it back" };

    /// A new file, last modified a while ago, so that a write now is later on every file system.
    fn written(path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
        let ago = SystemTime::now() - Duration::from_secs(60);
        File::options().write(true).open(path).unwrap().set_modified(ago).unwrap();
    }

    fn found(file: &ReadFile) -> String {
        let error = file.read(0, &mut [0; 2]).unwrap_err();
        assert_eq!((error.code, error.help.as_deref()), ("E307", Some("put it back")));
        assert!(error.at.as_ref().unwrap().ends_with("text"), "{error}");
        error.found.clone().unwrap()
    }

    #[test]
    fn a_file_that_changes_is_named_with_what_happened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for keeps in [true, false] {
            let opened = |bytes: &[u8]| {
                written(&path, bytes);
                ReadFile::open(&path, &KIND, keeps).unwrap()
            };
            let file = opened(b"abcdefgh");
            let mut window = [0; 3];
            file.read(4, &mut window).unwrap();
            assert_eq!((&window, file.len()), (b"efg", 8));
            let mut seen = Vec::new();
            file.visit(1..7, &mut |piece| seen.extend_from_slice(piece)).unwrap();
            assert_eq!(seen, b"bcdefg");
            File::options().write(true).open(&path).unwrap().set_len(5).unwrap();
            assert_eq!(found(&file), "5 bytes: it was truncated");

            let file = opened(b"abcdefgh");
            fs::write(&path, b"abcdefghi").unwrap();
            assert_eq!(found(&file), "9 bytes: something was appended");

            let file = opened(b"abcdefgh");
            fs::write(&path, b"ABCDEFGH").unwrap();
            assert_eq!(found(&file), "8 bytes, written later: it was changed in place");
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn what_is_read_whole_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        written(&path, b"abc");
        assert_eq!(read_at_most(&path, 3).unwrap(), b"abc");
        assert_eq!(read_text(&path).unwrap(), "abc");
        let message = |read: io::Result<Vec<u8>>| read.unwrap_err().to_string();
        assert_eq!(message(read_at_most(&path, 2)), "3 bytes, where at most 2 are read");
        let endless = Path::new("/dev/zero");
        assert_eq!(message(read_at_most(endless, 100)), "more than 100 bytes, where at most 100 are read");
        assert_eq!(message(read_file(endless, 100)), "a device or pipe");
        assert_eq!(message(read_file(folder.path(), 100)), "a folder");
        assert_eq!(read_text_from(&b"abc"[..]).unwrap(), "abc");
        assert!(read_text_from(io::repeat(b' ')).unwrap_err().to_string().contains("at most 67108864"));
        written(&path, &[0xff, 0xfe]);
        assert_eq!(read_text(&path).unwrap_err().to_string(), "text that is not UTF-8");
    }

    #[test]
    fn a_file_that_is_kept_open_may_lose_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("text"), folder.path().join("other"));
        let mut window = [0; 8];
        for keeps in [true, false] {
            written(&path, b"abcdefgh");
            let file = ReadFile::open(&path, &KIND, keeps).unwrap();
            written(&other, b"ABCDEFGHI");
            fs::rename(&other, &path).unwrap();
            match keeps {
                true => {
                    file.read(0, &mut window).unwrap();
                    assert_eq!(&window, b"abcdefgh");
                }
                false => assert_eq!(found(&file), "another file, of 9 bytes: it was replaced"),
            }
            fs::remove_file(&path).unwrap();
            match keeps {
                true => file.read(0, &mut window).unwrap(),
                false => assert!(found(&file).contains("No such file"), "{}", found(&file)),
            }
        }
        let refused = ReadFile::open(folder.path(), &KIND, true).unwrap_err();
        assert_eq!(refused.to_string(), "a folder");
    }
}
