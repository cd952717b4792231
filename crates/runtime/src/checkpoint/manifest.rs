//! The manifest of a checkpoint: its step, and size and digest of every other file. It is written last, and has one form
//! for what it says, down to the byte, with a digest of that: so a bit that flips in any file is noticed, this one included.

use super::*;

/// The file.
pub(super) const MANIFEST_FILE: &str = "manifest.json";

const MANIFEST_FORMAT: &str = "partita-manifest-1";

/// `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    /// That of the folder, which thus cannot be taken for another.
    pub step: u64,
    /// Every other file of the checkpoint.
    pub files: BTreeMap<String, FileState>,
    /// Of this text while it is empty here.
    digest: String,
}

impl Manifest {
    /// The manifest of these files.
    pub fn new(step: u64, files: BTreeMap<String, FileState>) -> Manifest {
        let mut manifest =
            Manifest { format: MANIFEST_FORMAT.to_string(), step, files, digest: String::new() };
        manifest.digest = digest::of_bytes(&manifest.bytes());
        manifest
    }

    /// The file: the only form of what it says.
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("text and numbers are always JSON")
    }

    /// Reads the file; what is wrong with it otherwise.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        let wrong = |found: String| format!("{} bytes: {found}", bytes.len());
        let read: Manifest = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if read.format != MANIFEST_FORMAT {
            return Err(wrong(format!("format {}", read.format)));
        }
        let honest = Manifest::new(read.step, read.files);
        match honest.bytes() == bytes {
            true => Ok(honest),
            false => Err(wrong(format!("its text is another than that of checksum {}", read.digest))),
        }
    }
}

impl FileState {
    /// Size and digest of a file.
    pub fn from_bytes(bytes: &[u8]) -> FileState {
        FileState { bytes: bytes.len() as u64, checksum: digest::of_bytes(bytes) }
    }

    /// Size and checksum of bytes, if they are others than these: what was expected, and what was found.
    pub fn compare(&self, bytes: &[u8]) -> Result<(), [String; 2]> {
        let length = bytes.len() as u64;
        if length != self.bytes {
            return Err([format!("{} bytes", self.bytes), format!("{length} bytes")]);
        }
        compare(bytes, &self.checksum)
    }
}

/// Compares bytes with a checksum of either kind: what was expected, and what was found otherwise.
pub(super) fn compare(bytes: &[u8], expected: &str) -> Result<(), [String; 2]> {
    let found = if digest::is_one(expected) { digest::of_bytes(bytes) } else { checksum(bytes) };
    match found == expected {
        true => Ok(()),
        false => Err([format!("checksum {expected}"), format!("checksum {found} (the size is right)")]),
    }
}

/// The checksum of checkpoints without a manifest: mixes 64-bit words one after the other.
pub(super) fn checksum(bytes: &[u8]) -> String {
    let mut hash = bytes.len() as u64;
    let mut add = |word: u64| hash = (hash.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| add(u64::from_le_bytes(*word)));
    rest.iter().for_each(|&byte| add(u64::from(byte)));
    format!("{:016x}", hash ^ (hash >> 32))
}
