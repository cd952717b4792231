//! Every integration test of the crate in one binary, which links once.

mod charts;
mod csv;
mod published;
mod random;
