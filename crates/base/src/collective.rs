//! Ids of collectives: the same in the programs that name them and in the transport that runs them.

use crate::id::Id;

/// What a [`CollectiveId`] is an id of.
#[derive(Debug)]
pub enum AnyCollective {}

/// A position in the list of the collectives of a program set, and in that of the transport which runs them.
pub type CollectiveId = Id<AnyCollective>;
