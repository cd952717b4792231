//! What the command line does, one file per command.

pub mod bench;
pub mod explain;
pub mod launch;
pub mod lower;
pub mod opt;
pub mod show;
pub mod train;
pub mod verify;
