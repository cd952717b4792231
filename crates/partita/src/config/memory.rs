//! The limits on memory: that of the process, and that on what a rank keeps for the backward pass.

use crate::keys::Section;
use partita_base::{Diagnostic, Result};
use partita_runtime::MemoryLimit;
use toml::Value;

/// Reads the limit of the process: a percentage, or bytes such as `8G`.
pub(super) fn memory_limit(s: &mut Section) -> Result<MemoryLimit> {
    let about = "memory that the process takes at most: a percentage, or bytes such as 8G";
    match s.raw("memory_limit", "limit", "\"80%\"", about) {
        None => Ok(MemoryLimit::default()),
        Some(Value::String(text)) => MemoryLimit::parse(&text),
        Some(other) => MemoryLimit::parse(&other.to_string()),
    }
}

/// Reads the limit of a rank: bytes such as `64M`. E041 for anything else, shares included.
pub(super) fn activation_limit(s: &mut Section) -> Result<Option<usize>> {
    let about = "activations that a rank keeps for the backward pass of a microbatch: bytes such as 64M";
    let Some(value) = s.raw("activation_limit", "bytes", "all that is read", about) else { return Ok(None) };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let read = match MemoryLimit::parse(&text) {
        Ok(MemoryLimit::Bytes(bytes)) => Ok(Some(bytes as usize)),
        Ok(_) => Err(Diagnostic::new("E041", format!("`{text}` is not a number of bytes"))
            .expected("bytes such as 8G, 512M or 1073741824")
            .found(text)),
        Err(error) => Err(error),
    };
    read.map_err(|error| error.at("train.activation_limit"))
}
