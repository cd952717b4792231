//! Partita: one training program, one plan, a mesh of devices.
//!
//! The facade: it knows every crate, thinly, and adds configs and the command line.
#![forbid(unsafe_code)]

pub mod commands;
pub mod compile;
pub mod config;
pub mod feeds;
mod keys;
pub mod random;
pub mod sample;
