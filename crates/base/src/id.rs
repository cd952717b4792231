//! Typed indices into vectors.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// An index into an arena of `T`: as cheap as two `u32`, but an id of one kind cannot index
/// another. It may carry the owner of its arena; ids of equal index are equal regardless of owner.
pub struct Id<T> {
    index: u32,
    owner: u32,
    marker: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// The id of the element at `index`.
    pub fn new(index: usize) -> Self {
        Id::owned(index, 0)
    }

    /// [`Id::new`] for the arena of this owner; 0 is no owner.
    pub fn owned(index: usize, owner: u32) -> Self {
        let index = u32::try_from(index).expect("an arena holds fewer than 2^32 elements");
        Id { index, owner, marker: PhantomData }
    }

    /// The owner of its arena; 0 if unknown.
    pub fn owner(self) -> u32 {
        self.owner
    }

    /// The index of the element in its arena.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

// Written out because derives would require the same traits of `T`.
impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}
impl<T> Eq for Id<T> {}
impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.index.cmp(&other.index)
    }
}
impl<T> Hash for Id<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state)
    }
}
impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index)
    }
}
