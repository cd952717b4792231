//! The command as users run it, and the rules of the house.

mod agreement;
mod bad_input;
mod bench;
mod command_line;
mod corpus;
mod documents;
mod engine_xla;
mod explain;
#[cfg(target_os = "linux")]
mod faults;
mod figures;
mod house;
mod imports;
mod install;
mod launch;
mod limits;
mod lower_and_show;
mod memory;
mod page;
mod pipelines;
mod plan;
mod profile;
mod reference;
mod report;
mod resumes;
mod rooms;
mod runs;
mod saved_runs;
#[cfg(target_os = "linux")]
mod security;
mod training;

use partita_testkit::Place;
use std::path::{Path, PathBuf};

/// A new folder in which the built command runs.
fn place() -> Place {
    Place::of(env!("CARGO_BIN_EXE_partita"))
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate lies in crates/")
}
