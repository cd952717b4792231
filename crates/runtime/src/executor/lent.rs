//! Addresses of tensors in the memory of ranks, for callers that read and write them in place.
//!
//! Parameters and states keep their addresses as long as the runner exists. An output keeps its buffer until the next
//! step, whose temporary values may overwrite it. The caller keeps the runner alive, and accesses the memory only between
//! steps, as [`Runner::write_input`] and [`Runner::read_output`] do.

use partita_base::{DType, Result};
use partita_program::BufferKind;

use super::Runner;

/// A dense tensor in the memory of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lent {
    /// The address of its first byte, with exposed provenance.
    pub address: usize,
    /// The number of bytes.
    pub bytes: usize,
    /// Element type.
    pub dtype: DType,
    /// The shape on the rank.
    pub shape: Vec<usize>,
}

impl Runner {
    /// The address of a parameter or state. `None` for an input that is written for every step: it may share its memory.
    ///
    /// # Errors
    /// E414 for an unknown name, E446 for a rank of another process.
    pub fn lend_input(&mut self, rank: usize, name: &str) -> Result<Option<Lent>> {
        self.lend(rank, name, true, BufferKind::Persistent)
    }

    /// The address of an output until the next step. `None` for one that replaces an input.
    ///
    /// # Errors
    /// E414 for an unknown name, E446 for a rank of another process.
    pub fn lend_output(&mut self, rank: usize, name: &str) -> Result<Option<Lent>> {
        self.lend(rank, name, false, BufferKind::Output)
    }

    fn lend(&self, rank: usize, name: &str, is_input: bool, kind: BufferKind) -> Result<Option<Lent>> {
        let (program, buffer, mut guard) = self.place(rank, name, is_input)?;
        if program.buffer(buffer).kind != kind {
            return Ok(None);
        }
        let ty = &program.buffer(buffer).ty;
        let place = guard.place(program, buffer);
        Ok(Some(Lent {
            address: place.as_mut_ptr().expose_provenance(),
            bytes: place.len(),
            dtype: ty.dtype,
            shape: ty.shape.clone(),
        }))
    }
}
