//! Every integration test of the crate in one binary, which links once.

mod attention;
mod attention_part;
mod common;
mod convolution;
mod elementwise;
mod fused;
mod layers;
mod long_sums;
mod moving;
mod sums;
