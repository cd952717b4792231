//! Partita: one training program, one plan, a mesh of devices.
//!
//! The library, from a config to a run: [`session`] is where everything is built, [`trainer`] trains, [`infer`] runs a
//! model forward; [`engines`], [`models`] and [`feeds`] are the open sets of what runs ranks, of models and of data. It
//! knows every crate below it, each thinly; it must not know flags, printing or signals, which are those of the command
//! line.
#![forbid(unsafe_code)]

mod against;
mod agreement;
#[allow(clippy::too_many_arguments)]
pub mod auto_plan;
pub mod auto_step;
mod cluster;
pub mod config;
mod cores;
pub mod engines;
pub mod execution;
pub mod feeds;
pub mod figures;
pub mod function;
pub mod infer;
pub mod keys;
pub mod launcher;
pub mod layouts;
pub mod leftovers;
pub mod listing;
pub mod memory;
pub mod models;
pub mod one_device;
pub mod opt;
pub mod planned_step;
#[allow(clippy::too_many_arguments)]
pub mod predict;
pub mod prelude;
pub mod price;
pub mod profile;
pub mod report;
pub mod resume;
pub mod run_files;
pub mod sample;
pub mod session;
pub mod signature;
pub mod stage_table;
pub mod target;
pub mod trainer;
pub mod validator;
pub mod xla;

pub use config::Config;
pub use function::run_function;
pub use planned_step::PlannedStep;
pub use session::Session;
pub use trainer::Trainer;
