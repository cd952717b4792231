//! Every integration test of the crate in one binary, which links once.

mod checks;
mod common;
mod device;
mod lowering;
mod offload;
mod pauses;
mod random;
