//! Flags of `checkpoint`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Flags of `checkpoint`.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CheckpointCommand,
}

/// What `checkpoint` does.
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List the checkpoints of a run.
    Ls {
        /// The folder of a run.
        #[arg(value_name = "RUN")]
        path: PathBuf,
    },
    /// Show what a checkpoint says of its run, and its tensors.
    Show {
        /// The folder of a checkpoint, or of a run for its newest one.
        #[arg(value_name = "RUN")]
        path: PathBuf,
    },
    /// Write a checkpoint of shards as one of whole tensors, in the folder of a new run.
    Convert {
        /// The folder of a checkpoint, or of a run for its newest one.
        #[arg(value_name = "RUN")]
        path: PathBuf,
        /// The new folder.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Read checkpoints whole and compare their files with the checksums; the exit code is 1 if one is damaged.
    Verify {
        /// The folder of a checkpoint, or of a run for all of them.
        #[arg(value_name = "RUN")]
        path: PathBuf,
    },
}
