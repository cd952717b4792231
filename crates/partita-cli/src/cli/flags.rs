//! Flags that stand for config keys, and how they become overrides.

use clap::Args;
use partita_base::{Diagnostic, Result};
use std::path::{Path, PathBuf};
use toml::Value;

/// Flags that change the config. Each is one key; `--set` sets any other key.
#[derive(Args, Clone, Debug, Default)]
#[command(allow_negative_numbers = true)]
pub struct ConfigFlags {
    /// The mesh of ranks, as named axes with their sizes: dp=2,tp=2. A size of -1 takes the remaining cores.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<String>,
    /// The cluster for predicted costs: laptop, a100-8, h100-8, h100-pod, or a TOML file with the keys of the section
    /// `cluster`.
    #[arg(long, value_name = "NAME|FILE")]
    pub cluster: Option<PathBuf>,
    /// Optimizer steps, at least one.
    #[arg(long, value_name = "N")]
    pub steps: Option<i64>,
    /// Seed of initial values, data order and dropout.
    #[arg(long, value_name = "N")]
    pub seed: Option<i64>,
    /// Rows of the whole batch, over all ranks.
    #[arg(long, value_name = "ROWS")]
    pub batch: Option<i64>,
    /// Microbatches of a step: parts of the batch that run one after another, and whose gradients add up.
    #[arg(long, value_name = "N")]
    pub microbatches: Option<i64>,
    /// The order in which pipeline stages work on the microbatches: 1f1b, gpipe, interleaved-1f1b, zb-h1 or another of
    /// docs/TIMETABLES.md, or a file in the CSV format of torch.distributed.pipelining.
    #[arg(long, value_name = "NAME")]
    pub timetable: Option<String>,
    /// Type of parameters and activations: f32, f64, bf16 or f16.
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<String>,
    /// A file or folder of text to train on; the bundled text otherwise.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// A plan file, which replaces the plan of the config.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Shard the residual stream on its sequence dimension over tp.
    #[arg(long)]
    pub sequence_parallel: bool,
    /// Shard the embedding and the head on the vocabulary over tp.
    #[arg(long)]
    pub vocab_parallel: bool,
    /// Fail if some ranks would compute nothing.
    #[arg(long)]
    pub strict: bool,
    /// The most memory that the process takes: a percentage such as 80%, the default, or bytes such as 8G.
    #[arg(long, value_name = "LIMIT")]
    pub memory_limit: Option<String>,
    /// The most element operations that a verification on the interpreter may take.
    #[arg(long, value_name = "OPERATIONS")]
    pub verify_limit: Option<f64>,
    /// The machine code of the kernels: portable, avx2, avx512 or native, the default. Only native may use AMX, whose
    /// matmuls round differently, so results differ in the last bits; the others give the same bits on every machine.
    #[arg(long, value_name = "LEVEL")]
    pub kernels: Option<String>,
    /// Set any key of the config: train.steps=50. Later ones win, and win over the flags above.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// `section.key=value`, the value a TOML literal that reads back as it was.
pub(super) fn item(key: &str, value: impl Into<Value>) -> String {
    format!("{key}={}", value.into())
}

/// E034 for a path that is not UTF-8: configs, which are kept beside checkpoints, cannot hold it.
pub(super) fn path_item(key: &str, path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| {
        Diagnostic::new("E034", "a path is not UTF-8")
            .at(key)
            .expected("a path that is valid UTF-8, as texts in configs are")
            .found(format!("{path:?}"))
            .help("rename the file or folder, or give it a link with such a name")
    })?;
    Ok(item(key, text))
}

/// A number, which is left for the config to refuse.
pub(super) fn count_item(key: &str, count: i64) -> String {
    format!("{key}={count}")
}

impl ConfigFlags {
    /// The overrides these flags stand for, as [`partita::Config::load`] takes them: those of `--set` last.
    ///
    /// # Errors
    /// E034 for a path that is not UTF-8.
    pub fn overrides(&self) -> Result<Vec<String>> {
        let mut items = Vec::new();
        items.extend(self.mesh.as_ref().map(|mesh| item("mesh.shape", mesh.clone())));
        items.extend(self.cluster.as_ref().map(|path| path_item("cluster.name", path)).transpose()?);
        let counts = [
            ("train.steps", self.steps),
            ("train.seed", self.seed),
            ("train.batch", self.batch),
            ("train.microbatches", self.microbatches),
        ];
        items.extend(counts.iter().filter_map(|(key, count)| Some(count_item(key, (*count)?))));
        items.extend(self.timetable.as_ref().map(|name| item("train.timetable", name.clone())));
        items.extend(self.dtype.as_ref().map(|dtype| item("train.dtype", dtype.clone())));
        items.extend(self.data.as_ref().map(|path| path_item("data.path", path)).transpose()?);
        items.extend(self.plan.as_ref().map(|path| path_item("plan.file", path)).transpose()?);
        items.extend(self.memory_limit.as_ref().map(|limit| item("train.memory_limit", limit.clone())));
        items.extend(self.verify_limit.map(|limit| item("train.verify_limit", limit)));
        items.extend(self.kernels.as_ref().map(|kernels| item("train.kernels", kernels.clone())));
        let switches = [
            ("plan.sequence_parallel", self.sequence_parallel),
            ("plan.vocab_parallel", self.vocab_parallel),
            ("plan.strict", self.strict),
        ];
        items.extend(switches.iter().filter(|(_, on)| *on).map(|(key, _)| item(key, true)));
        items.extend(self.set.iter().cloned());
        Ok(items)
    }
}
