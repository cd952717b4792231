//! The commands, one file each.

pub mod bench;
pub mod calibrate;
pub mod checkpoint;
pub mod estimate;
pub mod eval;
pub mod explain;
pub mod export;
pub mod folded;
pub mod generate;
pub mod install;
pub mod kept;
pub mod launch;
pub mod lower;
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
mod train_xla;
pub mod verify;
