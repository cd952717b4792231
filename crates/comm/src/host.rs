//! Memory beside the arenas of ranks, in a file: what a rank keeps there takes no memory while nothing uses it.
//!
//! The file is mapped, and has no name from its creation on. The system writes pages back when it needs their memory, and
//! reads them ahead of their use on request.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapMut;
use partita_base::{Diagnostic, Result, format_bytes};

/// The memory of one rank, initially zero.
pub struct HostMemory {
    map: MmapMut,
}

impl HostMemory {
    /// So many bytes in a file in this folder. Its space on disk is taken at once, so that it cannot run out later.
    ///
    /// # Errors
    /// E429 if the file cannot be made, or the disk has too little space.
    pub fn new(folder: &Path, bytes: usize) -> Result<HostMemory> {
        let refused = |error: std::io::Error| {
            Diagnostic::new("E429", format!("cannot keep {} of a rank in a file", format_bytes(bytes as u64)))
                .at(folder.display().to_string())
                .expected("a folder with so much space on its disk")
                .found(error.to_string())
                .help("set TMPDIR to another folder, or offload less")
        };
        let file = nameless(folder, bytes).map_err(refused)?;
        // SAFETY: the file has no name and was created by this call, so no one else maps it, changes it or makes it shorter.
        let map = unsafe { MmapMut::map_mut(&file) }.map_err(refused)?;
        Ok(HostMemory { map })
    }

    /// The bytes of a range.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.map[range]
    }

    /// The bytes of a range, to be written.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.map[range]
    }

    /// Asks the system to read a range from disk in the background. Only a hint.
    pub fn prefetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Asks the system to write a range to disk in the background. Only a hint.
    pub fn write_back(&self, range: Range<usize>) {
        let _ = self.map.flush_async_range(range.start, range.len());
    }
}

/// A file of zeros without a name.
fn nameless(folder: &Path, bytes: usize) -> std::io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("partita-host-{}-{number}", std::process::id()));
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    const CHUNK: usize = 1 << 20;
    let zeros = vec![0; CHUNK.min(bytes.max(1))];
    let mut left = bytes.max(1);
    while left > 0 {
        let count = left.min(zeros.len());
        file.write_all(&zeros[..count])?;
        left -= count;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_file_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut memory = HostMemory::new(folder.path(), (3 << 20) + 5).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(memory.bytes(0..(3 << 20) + 5).iter().all(|&byte| byte == 0));
        memory.bytes_mut(4093..4099).copy_from_slice(b"across");
        memory.write_back(4093..4099);
        memory.prefetch(4093..4099);
        assert_eq!(memory.bytes(4093..4099), b"across");
        assert_eq!(HostMemory::new(folder.path(), 0).unwrap().bytes(0..0), b"");
    }

    #[test]
    fn a_folder_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = HostMemory::new(&folder.path().join("missing"), 64).err().unwrap();
        assert_eq!(error.code, "E429");
        assert!(error.to_string().contains("TMPDIR"), "{error}");
    }
}
