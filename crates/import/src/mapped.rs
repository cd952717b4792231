//! Files mapped into memory: weights are read where they are used, and never copied as a whole.

use memmap2::Mmap;
use partita_base::{Diagnostic, Result};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Bytes that several tensors share: a mapped file, or memory.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Maps a file. It must not be changed or truncated while it is mapped. E350 if it cannot be read.
pub fn map(path: &Path) -> Result<Bytes> {
    let unreadable = |error: std::io::Error| {
        Diagnostic::new("E350", format!("cannot read {}", path.display()))
            .expected("a readable file")
            .found(error.to_string())
    };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Diagnostic::new("E350", format!("cannot read {}", path.display()))
            .expected("a file")
            .found(if metadata.is_dir() { "a folder" } else { "a device or pipe" }));
    }
    if metadata.len() == 0 {
        return Ok(Arc::new(Vec::new()));
    }
    Ok(Arc::new(private(&file).map_err(unreadable)?))
}

#[allow(unsafe_code)]
fn private(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is private and read-only. Its bytes are checked when they are parsed and
    // copied out when they are used, so that no reference relies on a value staying the same.
    // Truncating the file meanwhile ends the process with SIGBUS; `map` tells callers not to.
    unsafe { Mmap::map(file) }
}
