//! Flags of `launch`.

use clap::Args;
use std::ffi::OsString;

/// Flags of `launch`.
#[derive(Args, Clone, Debug)]
pub struct LaunchArgs {
    /// The number of processes.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub processes: u32,
    /// If a process dies, start all again up to N times; `partita train` continues from its last checkpoint.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub restarts: u32,
    /// Start again with one process fewer for each that died. The mesh stays, and with it every number.
    #[arg(long, requires = "restarts")]
    pub elastic: bool,
    /// The command that each process runs: `partita train ..`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
