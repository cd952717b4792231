//! Partita: one training program, one plan, a mesh of devices.
//!
//! The facade: it knows every crate, thinly, and adds configs and the command line.
#![forbid(unsafe_code)]

pub mod config;
mod keys;
