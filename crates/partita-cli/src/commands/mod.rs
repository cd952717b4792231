//! The commands, one file each, and their list.

pub mod bench;
pub mod calibrate;
pub mod checkpoint;
pub mod completions;
pub mod env;
pub mod estimate;
pub mod eval;
pub mod explain;
pub mod export;
pub mod folded;
pub mod generate;
pub mod kept;
pub mod launch;
pub mod lower;
pub mod man;
pub mod new;
pub mod opt;
pub mod plan;
pub mod profile;
pub mod report;
pub mod rows;
pub mod run;
pub mod saved;
pub mod show;
pub mod simulate;
pub mod timetable;
pub mod train;
pub mod verify;

use crate::command::{Row, row};

/// The commands in the order of help.
pub const COMMANDS: &[Row] = &[
    row::<train::TrainArgs>(),
    row::<verify::VerifyArgs>(),
    row::<show::ShowArgs>(),
    row::<explain::ExplainArgs>(),
    row::<lower::LowerArgs>(),
    row::<eval::EvalArgs>(),
    row::<generate::GenerateArgs>(),
    row::<export::ExportArgs>(),
    row::<simulate::SimulateArgs>(),
    row::<estimate::EstimateArgs>(),
    row::<plan::PlanArgs>(),
    row::<profile::ProfileArgs>(),
    row::<report::ReportArgs>(),
    row::<timetable::TimetableArgs>(),
    row::<opt::OptArgs>(),
    row::<run::RunArgs>(),
    row::<checkpoint::CheckpointArgs>(),
    row::<bench::BenchArgs>(),
    row::<calibrate::CalibrateArgs>(),
    row::<launch::LaunchArgs>(),
    row::<new::NewArgs>(),
    row::<env::EnvArgs>(),
    row::<completions::CompletionsArgs>(),
    row::<man::ManArgs>(),
];

#[cfg(test)]
mod tests;
