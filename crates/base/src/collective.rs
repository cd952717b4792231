//! Ids of collectives, shared by the programs that name them and the transport that runs them.

use crate::id::Id;

/// The type that a [`CollectiveId`] is an id of.
#[derive(Debug)]
pub enum AnyCollective {}

/// An index into the list of collectives of a program set, and into that of its transport.
pub type CollectiveId = Id<AnyCollective>;
