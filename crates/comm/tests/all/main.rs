//! Every integration test of the crate in one binary, which links once.

mod collectives;
mod mailbox;
mod processes;
mod races;
