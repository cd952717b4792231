//! Every integration test of the crate in one binary, which links once.

mod attention;
mod bad_files;
mod changed;
mod common;
mod damage;
mod dialects;
mod families;
mod fuzz;
mod jax_names;
mod points;
mod recorded;
mod torch_dialect;
