//! Every integration test of the crate in one binary, which links once.

mod attention;
mod common;
mod elementwise;
mod fused;
mod layers;
mod moving;
mod sums;
