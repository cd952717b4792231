//! Every integration test of the crate in one binary, which links once.

mod common;
mod custom_kernels;
mod device;
mod executor;
mod models;
mod points;
#[path = "../../../import/tests/all/common/mod.rs"]
mod recorded;
mod regions;
mod train;
