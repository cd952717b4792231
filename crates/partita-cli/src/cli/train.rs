//! Flags of `train`.

use super::flags::{count_item, path_item};
use super::{ConfigFlags, engine};
use clap::Args;
use partita::engine::Engine;
use partita_base::Result;
use std::path::PathBuf;

/// Flags of `train`.
#[derive(Args, Clone, Debug)]
pub struct TrainArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    #[arg(default_value = "gpt")]
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// What runs the ranks: native, the CPU cores of this host; mpi, processes that mpirun started; xla, devices of XLA
    /// through jaxlib.
    #[arg(long, value_name = "ENGINE", default_value = "native", hide_default_value = true, value_parser = engine())]
    pub engine: Engine,
    /// The folder for checkpoints, which no other run uses. By default runs/MODEL, or the next of runs/MODEL-2,
    /// runs/MODEL-3, .. that is free.
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Steps between checkpoints.
    #[arg(long, value_name = "STEPS")]
    pub checkpoint_every: Option<i64>,
    /// Keep the newest N checkpoints of this run, by default 2; those of other runs are not touched.
    #[arg(long, value_name = "N")]
    pub checkpoint_keep: Option<i64>,
    /// Continue from a checkpoint, or from the newest one in a run's folder. Without PATH: from the newest one in
    /// --checkpoint-dir, or else of this model's newest run below runs/.
    #[arg(long, value_name = "PATH", num_args = 0..=1)]
    pub resume: Option<Option<PathBuf>>,
    /// With --resume: go on even if the model, or the rule of the optimizer, is another than that of the checkpoint, of the
    /// same tensors. By default that is refused; any other setting that differs is named.
    #[arg(long, requires = "resume")]
    pub resume_changed: bool,
    /// Threads in all, one per core by default. With fewer ranks than threads, each rank has several.
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Run all ranks on one thread, in a fixed order.
    #[arg(long, conflicts_with = "workers")]
    pub deterministic: bool,
    /// End the run if its ranks make no progress for so long, or another process of the run does not run; by default 120.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub watchdog: Option<u64>,
    /// Steps between printed lines.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub log_every: Option<u64>,
    /// Do not generate a sample at the end.
    #[arg(long)]
    pub no_sample: bool,
    /// Do not verify the plan before training. By default, a plan that fails verification is not trained.
    #[arg(long)]
    pub no_verify: bool,
    /// Record some steps, and print at the end where their time went; with a file, also write the timeline, as
    /// `partita profile` does.
    #[arg(long, value_name = "FILE.json", num_args = 0..=1)]
    pub profile: Option<Option<PathBuf>>,
    /// Write the figures of each step for other programs: JSON lines, which are added to a file that exists, or, if its
    /// name ends in .prom, the latest snapshot in the text format of Prometheus. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub metrics: Vec<PathBuf>,
    /// Write the figures of each step for TensorBoard, to a new file in this folder; with --profile also the work of each
    /// rank, below plugins/profile.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Draw loss, throughput, memory and what ranks do in place, instead of a line for each step; where standard output is
    /// no terminal, lines are printed as without it.
    #[arg(long, conflicts_with = "log_every")]
    pub live: bool,
    /// With --profile: the steps that are recorded, by default wait=1,warmup=1,active=3,repeat=1.
    #[arg(long, value_name = "COUNTS", requires = "profile", default_value = "")]
    pub cycle: String,
    /// For tests: forgets one reduction in the modules below this path while verifying.
    #[cfg(feature = "testing")]
    #[arg(long, value_name = "PATH", hide = true)]
    pub break_rule: Option<String>,
}

impl TrainArgs {
    /// As [`ConfigFlags::overrides`], with the flags only `train` has.
    ///
    /// # Errors
    /// E034 for a path that is not UTF-8.
    pub fn overrides(&self) -> Result<Vec<String>> {
        let mut items = Vec::new();
        items.extend(self.checkpoint_dir.as_ref().map(|path| path_item("checkpoint.dir", path)).transpose()?);
        items.extend(self.checkpoint_every.map(|every| count_item("checkpoint.every", every)));
        items.extend(self.checkpoint_keep.map(|keep| count_item("checkpoint.keep", keep)));
        items.extend(self.no_sample.then(|| count_item("train.sample_bytes", 0)));
        items.extend(self.flags.overrides()?);
        Ok(items)
    }
}
