//! Every integration test of the crate in one binary, which links once.

mod common;
mod init;
mod models;
mod modules;
mod moe;
mod optim;
mod optimizers;
mod zoo;
