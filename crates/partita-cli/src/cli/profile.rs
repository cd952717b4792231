//! Flags of `profile` and `report`.

use super::ConfigFlags;
use crate::commands::profile::ROWS_SHOWN;
use clap::{Args, ValueEnum};
use partita::profile::{By, Cycle, Sort};
use partita_base::{Diagnostic, Result};
use std::path::PathBuf;

/// Names of a module path that a table keeps, unless the user says how many.
const DEPTH: usize = 8;

/// Flags of `profile`.
#[derive(Args, Clone, Debug)]
pub struct ProfileArgs {
    /// A config file or a bundled config.
    #[arg(default_value = "gpt")]
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub table: ProfileTable,
    /// Write the timeline to a new file, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// With --trace: also draw the step as `partita simulate` predicts it, on the same clock.
    #[arg(long, requires = "trace")]
    pub predicted: bool,
    /// Write the work of each rank to a new folder below DIR/plugins/profile, in the words of PyTorch's profiler, for the
    /// profiler plugin of TensorBoard and HolisticTraceAnalysis.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Threads in all, one per core by default. With fewer ranks than threads, each rank has several.
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
}

/// Which steps are recorded, and how their table looks.
#[derive(Args, Clone, Debug)]
pub struct ProfileTable {
    /// The steps that are recorded: wait=1,warmup=1,active=3,repeat=1 is the default. The recorder is off for `wait` steps,
    /// and drops what it sees in `warmup` steps.
    #[arg(long, value_name = "COUNTS", default_value = "")]
    pub cycle: String,
    /// What makes a row of the table.
    #[arg(long, value_enum, default_value_t = Grouping::Op)]
    pub by: Grouping,
    /// With --by module: names of a path that are kept, so that layers.0.mlp.up is layers.0 with 2; 8 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// The column that orders the table.
    #[arg(long, value_enum, default_value_t = Order::Time)]
    pub sort: Order,
    /// Rows that are shown; --json has all.
    #[arg(long, value_name = "N", default_value_t = ROWS_SHOWN, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
}

impl ProfileTable {
    /// The steps that are recorded.
    ///
    /// # Errors
    /// E530 for a text that does not say so.
    pub fn cycle(&self) -> Result<Cycle> {
        Cycle::parse(&self.cycle)
    }

    /// What makes a row.
    ///
    /// # Errors
    /// E033 for a depth of what has none.
    pub fn by(&self) -> Result<By> {
        if let (Some(depth), true) = (self.depth, self.by != Grouping::Module) {
            return Err(Diagnostic::new("E033", "only modules have a depth")
                .at("--depth")
                .expected("--depth together with --by module")
                .found(depth.to_string())
                .help("add --by module, or leave --depth away"));
        }
        Ok(match self.by {
            Grouping::Op => By::Op,
            Grouping::Module => By::Module(self.depth.map_or(DEPTH, |depth| depth as usize)),
            Grouping::Phase => By::Phase,
            Grouping::Stage => By::Stage,
            Grouping::Collective => By::Collective,
            Grouping::Rank => By::Rank,
            Grouping::Wait => By::Wait,
        })
    }

    /// What orders the rows.
    pub fn sort(&self) -> Sort {
        match self.sort {
            Order::Time => Sort::Time,
            Order::Calls => Sort::Calls,
            Order::Flops => Sort::Flops,
            Order::Bytes => Sort::Bytes,
            Order::Roofline => Sort::Roofline,
        }
    }
}

/// What makes a row of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Grouping {
    /// The op or the fused ops.
    Op,
    /// The module path.
    Module,
    /// Forward, backward or update.
    Phase,
    /// The pipeline stage.
    Stage,
    /// The collective; compute is left out.
    Collective,
    /// The rank.
    Rank,
    /// Which rank waited for which, or for data.
    Wait,
}

/// The column that orders a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Order {
    /// Time, largest first.
    Time,
    /// Instructions, most first.
    Calls,
    /// Floating-point operations, most first.
    Flops,
    /// Bytes read and written, most first.
    Bytes,
    /// Share of the roofline, smallest first: where there is most to win.
    Roofline,
}

/// Flags of `report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// A config file or a bundled config; the folder of a run, whose logs (*.jsonl) are drawn; or a plan file.
    #[arg(default_value = "gpt", value_name = "RUN|CONFIG|PLAN")]
    pub source: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// With a plan file: the config of the model that it plans.
    #[arg(long, value_name = "CONFIG")]
    pub model: Option<String>,
    /// Put another run, or config, beside it.
    #[arg(long, value_name = "RUN|CONFIG")]
    pub against: Option<String>,
    /// The new file that is written.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The form of the file; by default that of its name's end, .html, .md or .json.
    #[arg(long, value_enum, value_name = "FORM")]
    pub format: Option<ReportForm>,
    /// Also run some steps here, and show them beside the prediction.
    #[arg(long)]
    pub measured: bool,
    /// With --measured: the steps that are recorded, by default wait=1,warmup=1,active=3,repeat=1.
    #[arg(long, value_name = "COUNTS", requires = "measured", default_value = "")]
    pub cycle: String,
    /// A log of `partita train`, by --metrics or --json, whose losses are drawn; several logs are compared.
    #[arg(long, value_name = "LOG")]
    pub losses: Vec<PathBuf>,
}

/// The form of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ReportForm {
    /// A page for a browser, which needs nothing else.
    Html,
    /// Markdown.
    Md,
    /// JSON.
    Json,
}
