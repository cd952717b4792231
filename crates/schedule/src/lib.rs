//! Stand-in.
pub mod verify;
