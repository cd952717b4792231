//! Groups of ranks of a collective.

use std::ops::Deref;
use std::sync::Arc;

/// Lists of ranks. They grow with the mesh, and the collectives of a step share a few of them, so
/// copies of an op share the lists.
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
