//! The lowest layer: element types, combiners, typed ids, diagnostics, name suggestions, and files that must not change.
//!
//! Knows nothing of tensors, graphs, meshes or the formats of files; every other crate may use it.
#![forbid(unsafe_code)]

mod collective;
mod combiner;
mod diagnostic;
mod dtype;
mod file;
mod format;
mod id;
mod nearest;
mod note;

pub use collective::{AnyCollective, CollectiveId};
pub use combiner::Combiner;
pub use diagnostic::{Diagnostic, Result};
pub use dtype::{DType, InertType};
pub use file::{FileKind, ReadFile, read_at_most, read_file, read_text, read_text_from};
pub use format::{format_bytes, format_count, format_flops, format_parameters, format_seconds};
pub use id::Id;
pub use nearest::{did_you_mean, nearest};
pub use note::Note;
