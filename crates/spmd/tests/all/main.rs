//! Every integration test of the crate in one binary, which links once.

mod common;
mod every_split;
mod jax;
mod loops;
mod manual_loops;
mod models;
mod odd_input;
mod propagation;
mod random_graphs;
mod uniform;
