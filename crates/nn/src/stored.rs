//! Initial values that are stored, such as in a file of weights, and not drawn.

use partita_base::Result;
use partita_ir::Literal;
use std::fmt::Debug;
use std::sync::Arc;

/// A tensor whose elements are read where a shard is filled.
pub trait Values: Debug + Send + Sync {
    /// The elements of the box of `extent` at `offset`, row by row.
    ///
    /// # Errors
    /// E350 if they are in a file that has changed.
    ///
    /// # Panics
    /// If the box is not within the tensor.
    fn window(&self, offset: &[usize], extent: &[usize]) -> Result<Literal>;

    /// The file on this computer that has them, and where in it, if one does: equal places have equal values.
    fn place(&self) -> Option<String> {
        None
    }
}

/// Shared [`Values`]. Equal if they are the same values, not if they have the same elements.
#[derive(Clone, Debug)]
pub struct Stored(Arc<dyn Values>);

impl Stored {
    /// Values that specs share.
    pub fn new(values: impl Values + 'static) -> Stored {
        Stored(Arc::new(values))
    }

    /// See [`Values::window`].
    ///
    /// # Errors
    /// E350 if they are in a file that has changed.
    ///
    /// # Panics
    /// If the box is not within the tensor.
    pub fn window(&self, offset: &[usize], extent: &[usize]) -> Result<Literal> {
        self.0.window(offset, extent)
    }

    /// See [`Values::place`].
    pub fn place(&self) -> Option<String> {
        self.0.place()
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Stored) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Values for Literal {
    fn window(&self, offset: &[usize], extent: &[usize]) -> Result<Literal> {
        Ok(Literal::window(self, offset, extent))
    }
}
