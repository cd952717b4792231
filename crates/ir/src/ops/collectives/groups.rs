//! The groups of ranks that take part in a collective.

use std::ops::Deref;
use std::sync::Arc;

/// Lists of ranks. They grow with the mesh and most collectives of a step have one of a few, so copies of an op share
/// them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Groups(Arc<[Vec<usize>]>);

impl Default for Groups {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<Vec<usize>>> for Groups {
    fn from(groups: Vec<Vec<usize>>) -> Self {
        Groups(groups.into())
    }
}

impl Deref for Groups {
    type Target = [Vec<usize>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
