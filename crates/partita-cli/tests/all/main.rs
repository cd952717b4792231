//! The command as users run it, and the rules of the house.

mod bad_input;
mod bench;
mod command_line;
mod corpus;
mod documents;
mod explain;
#[cfg(target_os = "linux")]
mod faults;
mod house;
mod imports;
mod install;
mod launch;
mod limits;
mod lower_and_show;
mod memory;
mod pipelines;
mod plan;
mod profile;
mod report;
mod resumes;
mod runs;
mod saved_runs;
#[cfg(target_os = "linux")]
mod security;
mod training;

use partita_testkit::Place;

/// A new folder in which the built command runs.
fn place() -> Place {
    Place::of(env!("CARGO_BIN_EXE_partita"))
}
