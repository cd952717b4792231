//! Partita: one training program, one plan, a mesh of devices.
//!
//! The facade: it knows every crate, thinly, and adds configs and the command line.
#![forbid(unsafe_code)]

pub mod cli;
mod cluster;
pub mod commands;
pub mod compile;
pub mod config;
pub mod env;
pub mod feeds;
pub mod interrupt;
mod keys;
pub mod one_device;
pub mod opt;
pub mod output;
pub mod play;
pub mod prelude;
pub mod run;
pub mod sample;
mod trainer;
pub mod training;

pub use trainer::Trainer;
