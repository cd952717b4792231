//! Finds text files and presents them as one sequence of bytes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_base::{Diagnostic, ReadFile, Result};

use super::{DATA, identity};

/// The prefix of a file that is examined to distinguish text from binary.
const SNIFF_BYTES: usize = 8 * 1024;

/// Of a folder with more files, each is opened again for a read.
const MAX_OPEN_FILES: usize = 256;

/// The files of a folder to read.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    /// Only files with one of these extensions (without the dot, any case). `None`: every file. A
    /// file that is named directly is always read.
    pub extensions: Option<Vec<String>>,
    /// Stop after this many bytes of text; the last file is truncated. `None`: no limit.
    pub max_bytes: Option<u64>,
}

/// Counts of what was read and what was skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorpusReport {
    /// Files read; 0 if the text was in memory.
    pub files: usize,
    /// Bytes of text in them.
    pub bytes: u64,
    /// Files that are not text.
    pub skipped_binary: usize,
    /// Files and folders that could not be opened, links that lead nowhere, pipes and devices.
    pub skipped_unreadable: usize,
    /// Empty files.
    pub skipped_empty: usize,
    /// Files with other extensions than requested.
    pub skipped_extension: usize,
    /// Entries of folders with names that begin with a dot.
    pub skipped_hidden: usize,
    /// Files skipped, wholly or in part, because of `max_bytes`.
    pub skipped_over_limit: usize,
}

impl CorpusReport {
    /// A summary in one line: `12 files, 34567 bytes (skipped: 2 binary)`.
    pub fn summary(&self) -> String {
        let skipped: Vec<String> = [
            (self.skipped_binary, "binary"),
            (self.skipped_unreadable, "unreadable"),
            (self.skipped_empty, "empty"),
            (self.skipped_extension, "with another extension"),
            (self.skipped_hidden, "hidden"),
            (self.skipped_over_limit, "over the byte limit"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        let mut text = match self.files {
            0 if self.bytes > 0 => String::new(),
            1 => "1 file, ".to_string(),
            files => format!("{files} files, "),
        };
        text += &format!("{} bytes", self.bytes);
        if !skipped.is_empty() {
            text += &format!(" (skipped: {})", skipped.join(", "));
        }
        text
    }
}

/// A file or folder of text, read where it is used and seen as one sequence of bytes: the files one
/// after another, in path order. Or bytes that are in memory already.
#[derive(Debug)]
pub struct Corpus {
    text: Arc<Text>,
    report: CorpusReport,
}

impl Corpus {
    /// The default share of the bytes held out for validation.
    pub const VALIDATION_FRACTION: f64 = 0.05;

    /// Opens a file, or every text file of a folder and its subfolders. Links are followed, each
    /// target once, so loops end.
    ///
    /// # Errors
    /// E301 if there is nothing at `path`; E302 if it contains no text, with the counts of what was
    /// skipped; E307 if a file changes meanwhile.
    pub fn open(path: &Path, filter: &FileFilter) -> Result<Corpus> {
        let metadata = fs::metadata(path).map_err(|error| missing(path, &error))?;
        let mut walk =
            Walk { filter, report: CorpusReport::default(), seen: BTreeSet::new(), files: Vec::new() };
        if metadata.is_dir() {
            walk.folder(path);
        } else {
            walk.files.push(path.to_path_buf());
        }
        let Walk { mut report, files, .. } = walk;
        let mut text = Text::named(path.display().to_string());
        for file in &files {
            let room = filter.max_bytes.unwrap_or(u64::MAX) - text.length();
            match read(file, files.len() <= MAX_OPEN_FILES) {
                Contents::Binary => report.skipped_binary += 1,
                Contents::Unreadable => report.skipped_unreadable += 1,
                Contents::Empty => report.skipped_empty += 1,
                Contents::Text(piece) => {
                    let length = piece.len().min(room);
                    report.skipped_over_limit += usize::from(length < piece.len());
                    if length > 0 {
                        report.files += 1;
                        text.push(Piece::OnDisk(piece), length);
                    }
                }
            }
        }
        report.bytes = text.length();
        if report.bytes == 0 {
            return Err(Diagnostic::new("E302", "no text to train on")
                .at(path.display().to_string())
                .expected("at least one non-empty text file")
                .found(report.summary())
                .help("name a text file or a folder of text files, or widen the extensions"));
        }
        Ok(Corpus { text: Arc::new(text.finish()?), report })
    }

    /// A corpus of bytes already in memory, with a display name.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Corpus {
        let report = CorpusReport { bytes: bytes.len() as u64, ..CorpusReport::default() };
        let mut text = Text::named(name.to_string());
        text.push(Piece::Owned(bytes), report.bytes);
        Corpus { text: Arc::new(text.finish().expect("bytes in memory can be read")), report }
    }

    /// A description in one line: name, size, what was skipped, and the beginning of the digest.
    pub fn describe(&self) -> String {
        let digest = identity::short(&self.text.digest);
        format!("{}, {}, {digest}", self.text.name, self.report.summary())
    }

    /// Counts of what was read and what was skipped.
    pub fn report(&self) -> CorpusReport {
        self.report
    }

    /// All of it, without validation part.
    pub fn whole(&self) -> Split {
        Split { text: self.text.clone(), range: 0..self.text.length() }
    }

    /// Splits into (train, validation): the last `validation_fraction` of the bytes is held out,
    /// but at least one window of `sequence_length + 1`. A fraction of 0 holds nothing out.
    ///
    /// # Errors
    /// E303 if either part is too short for one window.
    pub fn split(&self, validation_fraction: f64, sequence_length: usize) -> Result<(Split, Split)> {
        assert!((0.0..1.0).contains(&validation_fraction), "a fraction is at least 0 and below 1");
        let (total, window) = (self.text.length(), sequence_length as u64 + 1);
        let held_out = match validation_fraction {
            0.0 => 0,
            fraction => ((total as f64 * fraction) as u64).max(window),
        };
        if total < held_out + window {
            let parts =
                if held_out == 0 { "one window" } else { "one window to train on and one to validate on" };
            return Err(Diagnostic::new(
                "E303",
                format!("too little text for sequences of {sequence_length} bytes"),
            )
            .expected(format!("{} bytes or more: {parts}, each of {window} bytes", held_out + window))
            .found(self.report.summary())
            .help("use shorter sequences or more text"));
        }
        let cut = total - held_out;
        let part = |range| Split { text: self.text.clone(), range };
        Ok((part(0..cut), part(cut..total)))
    }
}

/// A contiguous part of a [`Corpus`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Split {
    text: Arc<Text>,
    range: Range<u64>,
}

impl Split {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Its range in the corpus, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Fills `window` with the bytes from `start` (counted within the split).
    ///
    /// # Errors
    /// E307 if a file cannot be read any more.
    ///
    /// # Panics
    /// If the window reaches over the end.
    pub fn read(&self, start: u64, window: &mut [u8]) -> Result<()> {
        assert!(start + window.len() as u64 <= self.len(), "a window lies within its split");
        let first = self.range.start + start;
        let mut filled = 0;
        self.text.pieces(first..first + window.len() as u64, &mut |piece, from, to| {
            let into = &mut window[filled..filled + (to - from) as usize];
            filled += into.len();
            match piece {
                Piece::OnDisk(file) => file.read(from, into),
                Piece::Owned(bytes) => {
                    into.copy_from_slice(&bytes[from as usize..to as usize]);
                    Ok(())
                }
            }
        })
    }

    /// Gives every byte in order to `visit`, piece by piece. E307 as [`Split::read`].
    pub fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.text.visit(self.range.clone(), visit)
    }

    /// All of its bytes, in memory. E307 as [`Split::read`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        self.visit(&mut |piece| all.extend_from_slice(piece))?;
        Ok(all)
    }

    /// The name of the whole corpus.
    pub fn corpus_name(&self) -> &str {
        &self.text.name
    }

    /// The identity of the whole corpus: `sha256:` and the SHA-256 of its bytes in hexadecimal, as `sha256sum` prints it.
    /// For a text over 64 MiB it is `xxh3-128:` and its XXH3, as `xxhsum -H128` prints it; for one over 16 GiB
    /// `sha256-of-samples:` and the hash of its length and of 64 samples of 1 MiB, evenly spaced from the first byte to the
    /// last.
    pub fn corpus_digest(&self) -> &str {
        &self.text.digest
    }

    /// The identity by samples, as versions before had it of texts over 64 MiB.
    pub(super) fn digest_of_samples(&self) -> Result<String> {
        identity::of_samples(self.text.length(), &|range, visit| self.text.visit(range, visit))
    }
}

#[derive(Debug)]
enum Piece {
    OnDisk(ReadFile),
    Owned(Vec<u8>),
}

/// Concatenated files; `ends[i]` is the end of file i, and only bytes up to there are used.
#[derive(Debug)]
struct Text {
    name: String,
    digest: String,
    pieces: Vec<Piece>,
    ends: Vec<u64>,
}

impl Text {
    fn named(name: String) -> Text {
        Text { name, digest: String::new(), pieces: Vec::new(), ends: Vec::new() }
    }

    /// Computes the digest of the files.
    fn finish(mut self) -> Result<Text> {
        let visit = |range: Range<u64>, visit: &mut dyn FnMut(&[u8])| self.visit(range, visit);
        self.digest = identity::of_bytes(self.length(), identity::MAX_BYTES, &visit)?;
        Ok(self)
    }

    fn push(&mut self, piece: Piece, length: u64) {
        self.ends.push(self.length() + length);
        self.pieces.push(piece);
    }

    fn length(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The pieces that have bytes of `range`, each with the part of it that is meant.
    fn pieces(&self, range: Range<u64>, each: &mut dyn FnMut(&Piece, u64, u64) -> Result<()>) -> Result<()> {
        let first = self.ends.partition_point(|&end| end <= range.start);
        for (i, piece) in self.pieces.iter().enumerate().skip(first) {
            let start = if i == 0 { 0 } else { self.ends[i - 1] };
            let (from, to) = (range.start.max(start), range.end.min(self.ends[i]));
            if from >= to {
                break;
            }
            each(piece, from - start, to - start)?;
        }
        Ok(())
    }

    /// Gives the bytes of `range` to `visit`, piece by piece.
    fn visit(&self, range: Range<u64>, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.pieces(range, &mut |piece, from, to| match piece {
            Piece::OnDisk(file) => file.visit(from..to, visit),
            Piece::Owned(bytes) => {
                visit(&bytes[from as usize..to as usize]);
                Ok(())
            }
        })
    }
}

/// Collects the files of a folder, in path order.
struct Walk<'a> {
    filter: &'a FileFilter,
    report: CorpusReport,
    seen: BTreeSet<PathBuf>,
    files: Vec<PathBuf>,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Path) {
        let Ok(real) = folder.canonicalize() else { return self.report.skipped_unreadable += 1 };
        if !self.seen.insert(real) {
            return;
        }
        let Ok(entries) = fs::read_dir(folder) else { return self.report.skipped_unreadable += 1 };
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) if entry.file_name().as_encoded_bytes().starts_with(b".") => {
                    self.report.skipped_hidden += 1
                }
                Ok(entry) => paths.push(entry.path()),
                Err(_) => self.report.skipped_unreadable += 1,
            }
        }
        paths.sort();
        for path in paths {
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.folder(&path),
                Ok(_) if !self.wanted(&path) => self.report.skipped_extension += 1,
                Ok(_) => {
                    if path.canonicalize().is_ok_and(|real| self.seen.insert(real)) {
                        self.files.push(path);
                    }
                }
                Err(_) => self.report.skipped_unreadable += 1,
            }
        }
    }

    fn wanted(&self, path: &Path) -> bool {
        let Some(extensions) = &self.filter.extensions else { return true };
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        extensions.iter().any(|e| e.trim_start_matches('.').eq_ignore_ascii_case(extension))
    }
}

/// The kind of a file.
enum Contents {
    Text(ReadFile),
    Binary,
    Unreadable,
    Empty,
}

/// Opens a file and examines its beginning. Pipes and devices are never opened, because that could
/// block for ever.
fn read(path: &Path, keeps: bool) -> Contents {
    let open = || -> std::io::Result<Contents> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Ok(Contents::Unreadable);
        }
        if metadata.len() == 0 {
            return Ok(Contents::Empty);
        }
        let mut file = File::open(path)?;
        let mut head = Vec::with_capacity(SNIFF_BYTES);
        file.by_ref().take(SNIFF_BYTES as u64).read_to_end(&mut head)?;
        if head.is_empty() {
            return Ok(Contents::Empty);
        }
        if is_binary(&head) {
            return Ok(Contents::Binary);
        }
        Ok(Contents::Text(ReadFile::of_file(path, file, &DATA, keeps)?))
    };
    open().unwrap_or(Contents::Unreadable)
}

/// The identity of the bytes of a file: see [`Split::corpus_digest`].
///
/// # Errors
/// E307 if it cannot be read.
pub fn file_identity(file: &ReadFile) -> Result<String> {
    identity::of_bytes(file.len(), identity::MAX_BYTES, &|range, visit| file.visit(range, visit))
}

/// A NUL byte, or more than one control byte in twenty: compressed or machine data in any encoding has both,
/// text in any 8-bit encoding has neither.
fn is_binary(head: &[u8]) -> bool {
    let control =
        head.iter().filter(|&&b| b < 32 && !matches!(b, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b)).count();
    head.contains(&0) || control * 20 > head.len()
}

fn missing(path: &Path, error: &std::io::Error) -> Box<Diagnostic> {
    let mut diagnostic = Diagnostic::new("E301", format!("cannot open the data at {}", path.display()))
        .expected("a text file or a folder of text files")
        .found(error.to_string())
        .help("check the path; relative paths start at the folder the command runs in");
    let folder = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return diagnostic,
    };
    let siblings: Vec<String> = fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if let Some(hint) = partita_base::did_you_mean(&name, siblings.iter().map(String::as_str)) {
        diagnostic = diagnostic.note(hint);
    }
    diagnostic
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn all(corpus: &Corpus) -> Vec<u8> {
        corpus.whole().to_vec().unwrap()
    }

    #[test]
    fn files_are_joined_in_the_order_of_their_paths() {
        let folder = folder(&[("b.txt", b"two "), ("a/z.txt", b"one "), ("c.md", b"three")]);
        let corpus = Corpus::open(folder.path(), &FileFilter::default()).unwrap();
        assert_eq!(all(&corpus), b"one two three");
        assert_eq!(corpus.report(), CorpusReport { files: 3, bytes: 13, ..Default::default() });
        let one = Corpus::open(&folder.path().join("c.md"), &FileFilter::default()).unwrap();
        assert_eq!(all(&one), b"three");
    }

    #[test]
    fn what_is_not_text_is_left_out_and_counted() {
        let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8 | 1).collect();
        let folder = folder(&[
            ("a.txt", "caf\u{e9} \u{65e5}\u{672c}".as_bytes()),
            ("latin.txt", b"caf\xe9 au lait"),
            ("nul.bin", b"text\0text"),
            ("noise.bin", &noise),
            ("empty.txt", b""),
            (".hidden", b"secret"),
        ]);
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path().join("nowhere"), folder.path().join("dangling")).unwrap();
        let report = Corpus::open(folder.path(), &FileFilter::default()).unwrap().report();
        let dangling = usize::from(cfg!(unix));
        assert_eq!(
            report,
            CorpusReport {
                files: 2,
                bytes: 12 + 12,
                skipped_binary: 2,
                skipped_unreadable: dangling,
                skipped_empty: 1,
                skipped_hidden: 1,
                ..Default::default()
            }
        );
    }

    #[cfg(unix)]
    #[test]
    fn links_back_up_the_tree_end_and_do_not_double_text() {
        use std::os::unix::fs::symlink;
        let folder = folder(&[("a/one.txt", b"one"), ("b/two.txt", b"two")]);
        symlink(folder.path(), folder.path().join("a/up")).unwrap();
        symlink(folder.path().join("b/two.txt"), folder.path().join("b/again.txt")).unwrap();
        let text = all(&Corpus::open(folder.path(), &FileFilter::default()).unwrap());
        assert_eq!(text, b"onetwo".to_vec().as_slice());
    }

    #[test]
    fn extensions_and_the_byte_limit_narrow_the_choice() {
        let folder = folder(&[("a.rs", b"fn main"), ("b.TXT", b"12345"), ("c.txt", b"67890")]);
        let filter = FileFilter { extensions: Some(vec![".txt".into()]), max_bytes: Some(7) };
        let corpus = Corpus::open(folder.path(), &filter).unwrap();
        assert_eq!(all(&corpus), b"1234567");
        assert_eq!((corpus.report().skipped_extension, corpus.report().skipped_over_limit), (1, 1));
    }

    #[test]
    fn missing_and_empty_paths_are_told_apart() {
        let folder = folder(&[("corpus.txt", b""), ("x.bin", b"\0")]);
        let error = Corpus::open(&folder.path().join("corpsu.txt"), &FileFilter::default()).unwrap_err();
        assert_eq!(error.code, "E301");
        assert!(error.notes[0].contains("corpus.txt"), "{error}");
        let error = Corpus::open(folder.path(), &FileFilter::default()).unwrap_err();
        assert_eq!(error.code, "E302");
        assert!(error.found.as_ref().unwrap().contains("1 binary, 1 empty"), "{error}");
    }

    #[test]
    fn the_end_is_held_out_and_never_smaller_than_a_window() {
        let corpus = Corpus::from_bytes("counting", (0..100).collect());
        for (fraction, sequence, held_out) in [(0.2, 7, 20), (0.01, 7, 8), (0.0, 99, 0), (0.5, 49, 50)] {
            let (train, validation) = corpus.split(fraction, sequence).unwrap();
            assert_eq!((train.range().end, validation.range().start), (100 - held_out, 100 - held_out));
            let joined = [train.to_vec().unwrap(), validation.to_vec().unwrap()].concat();
            assert_eq!(joined, all(&corpus));
        }
        let error = corpus.split(0.05, 50).unwrap_err();
        assert_eq!(error.code, "E303");
        assert!(error.expected.as_ref().unwrap().starts_with("102 bytes"), "{error}");
    }

    #[test]
    fn windows_cross_files() {
        let folder = folder(&[("1", b"abc"), ("2", b"d"), ("3", b"efgh")]);
        let split = Corpus::open(folder.path(), &FileFilter::default()).unwrap().whole();
        for start in 0..8u64 {
            for length in 0..=(8 - start as usize) {
                let mut window = vec![0; length];
                split.read(start, &mut window).unwrap();
                assert_eq!(window, b"abcdefgh"[start as usize..][..length]);
            }
        }
    }

    #[test]
    fn a_digest_is_the_hash_of_the_text_however_it_lies_in_files() {
        // `printf abc | sha256sum`; FIPS 180-2, example B.1.
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let folder = folder(&[("1", b"a"), ("2", b"bc")]);
        let corpus = Corpus::open(folder.path(), &FileFilter::default()).unwrap();
        assert_eq!(corpus.whole().corpus_digest(), abc);
        assert_eq!(corpus.split(0.0, 1).unwrap().0.corpus_digest(), abc);
        let path = folder.path().display();
        assert_eq!(corpus.describe(), format!("{path}, 2 files, 3 bytes, sha256:ba7816bf8f01"));
        let memory = Corpus::from_bytes("abc", b"abc".to_vec());
        assert_eq!(memory.describe(), "abc, 3 bytes, sha256:ba7816bf8f01");
        assert_eq!(memory.whole().corpus_name(), "abc");
    }
}
