//! Flags of the commands that predict and search: `simulate`, `calibrate`, `estimate`, `plan`.

use super::ConfigFlags;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Flags of `simulate`.
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// A config file, a bundled config, a model by name such as gpt3-175b, or a config.json of Hugging Face.
    #[arg(value_name = "CONFIG|MODEL")]
    pub config: Option<String>,
    /// Predict every run of a table of measured runs, and compare.
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["config", "trace"])]
    pub rows: Option<PathBuf>,
    /// With --rows: only runs whose names begin with this text.
    #[arg(long, value_name = "TEXT", requires = "rows")]
    pub only: Option<String>,
    /// With --rows: fit a factor of compute, and one of communication or the seconds of a launch, to each source of
    /// runs, and write them to a new file.
    #[arg(long, value_name = "FILE.toml", requires = "rows")]
    pub fit: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Write the timeline to a new file, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
}

/// Flags of `calibrate`.
#[derive(Args, Clone, Debug)]
pub struct CalibrateArgs {
    /// A new file for the figures; by default they are printed.
    #[arg(long, value_name = "FILE.toml")]
    pub out: Option<PathBuf>,
    /// Timed runs of each measurement; the fastest counts.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeats: u32,
    /// Also measure ten steps of models under plans, and print them beside their predictions.
    #[arg(long)]
    pub compare: bool,
}

/// Flags of `estimate`.
#[derive(Args, Clone, Debug)]
pub struct EstimateArgs {
    /// A model by name such as gpt3-13b, a config.json of Hugging Face, a config file or a bundled config.
    #[arg(value_name = "MODEL|CONFIG")]
    pub config: String,
    /// The most devices to try.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub most: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
}

/// Flags of `plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// A config file, a bundled config, a model by name such as gpt-39b, or a config.json of Hugging Face.
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Search every mesh of so many devices instead of the one of the config; by default of all that --cluster names, if
    /// there is no --mesh.
    #[arg(long, value_name = "N", conflicts_with = "mesh", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub devices: Option<u32>,
    /// Price each line of the plan against the best layouts without it, which solves the search once more for each.
    #[arg(long)]
    pub why: bool,
    /// What the search over layouts minimises. Candidates are compared by the seconds of the cluster in either case.
    #[arg(long, value_enum, default_value = "cluster")]
    pub cost: CostModel,
    /// Also list the candidates of which no other is both faster and smaller.
    #[arg(long)]
    pub pareto: bool,
    /// Write the plan to a new file.
    #[arg(long, value_name = "FILE.toml")]
    pub out: Option<PathBuf>,
    /// Also write what each range of layers costs on each part of the cluster, as arrays of NumPy in a folder:
    /// compute-cost-TIME.npy, max-n-succ-stage-TIME.npy and memory-TIME.npy. The result is printed as Alpa prints it.
    #[arg(long, value_name = "FOLDER")]
    pub tables: Option<PathBuf>,
}

/// What a search over layouts minimises.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CostModel {
    /// Seconds of work and communication on the cluster.
    Cluster,
    /// Alpa's formula: bytes that collectives move, over the slowest mesh axis.
    Alpa,
}
