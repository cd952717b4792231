//! The limit on what a rank keeps for the backward pass.

use crate::keys::Section;
use partita_base::{Diagnostic, Result};
use partita_runtime::MemoryLimit;

/// Reads it: bytes such as `64M`. E041 for anything else, shares included.
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
