//! What the command line does, one file per command.

pub mod train;
pub mod verify;
