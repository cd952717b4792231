//! Flags that stand for config keys, and how they become overrides.

use clap::Args;
use partita_base::{Diagnostic, Result};
use std::path::{Path, PathBuf};
use toml::Value;

/// Flags that change the config. Each is one key; `--set` sets any other key.
#[derive(Args, Clone, Debug, Default)]
#[command(allow_negative_numbers = true)]
pub struct ConfigFlags {
    /// The mesh of ranks, as named axes with their sizes: dp=2,tp=2. A size of -1 takes the remaining
    /// devices of the cluster, or cores of this machine.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<String>,
    /// The devices and links for predicted costs: laptop, a100-8, h100-8, h100-pod, a device with its count such as
    /// a100-80g:128x8, or a TOML file with the keys of the section `cluster`.
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
    /// Compute the model in this type, bf16 or f16, with parameters, their gradients and updates in that of --dtype; f16
    /// scales the loss. Or compute matmuls as in 8 bits: mxfp8, f8-block, f8-delayed.
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<String>,
    /// What to train on: a file or folder of text, or a file of tensors by input name (.npz, .npy, .safetensors). By default
    /// the bundled text.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// A plan file, which replaces the plan of the config; `auto` searches for a plan.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Shard the residual stream along the sequence over tp.
    #[arg(long)]
    pub sequence_parallel: bool,
    /// Shard the embedding and the head along the vocabulary over tp.
    #[arg(long)]
    pub vocab_parallel: bool,
    /// Fail if ranks have nothing to do, or all do the same work.
    #[arg(long)]
    pub strict: bool,
    /// The most memory that the process takes: a percentage such as 80%, the default, or bytes such as 8G.
    #[arg(long, value_name = "LIMIT")]
    pub memory_limit: Option<String>,
    /// Keep at most so many bytes of activations on each rank for the backward pass of a microbatch, such as 64M, and
    /// compute the others again. `partita lower CONFIG --activation-budgets` lists what each limit costs.
    #[arg(long, value_name = "BYTES")]
    pub activation_limit: Option<String>,
    /// Refuse a verification on the interpreter that takes more operations on elements than this; by default 1e11.
    #[arg(long, value_name = "OPERATIONS")]
    pub verify_limit: Option<f64>,
    /// The machine code of the kernels: portable, avx2, avx512 or native, the default. Only native may use AMX, whose
    /// matmuls round differently, so results differ in the last bits; the others give the same bits on every machine.
    #[arg(long, value_name = "LEVEL")]
    pub kernels: Option<String>,
    /// Set any key of the config, for instance train.steps=50; `partita show --keys` lists them. The last one wins,
    /// also over other flags.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// The key that each flag of [`ConfigFlags`] sets.
pub(crate) const KEYS: [(&str, &str); 18] = [
    ("--mesh", "mesh.shape"),
    ("--cluster", "cluster.name"),
    ("--steps", "train.steps"),
    ("--seed", "train.seed"),
    ("--batch", "train.batch"),
    ("--microbatches", "train.microbatches"),
    ("--timetable", "train.timetable"),
    ("--dtype", "train.dtype"),
    ("--precision", "train.precision"),
    ("--data", "data.path"),
    ("--plan", "plan.file"),
    ("--sequence-parallel", "plan.sequence_parallel"),
    ("--vocab-parallel", "plan.vocab_parallel"),
    ("--strict", "plan.strict"),
    ("--memory-limit", "train.memory_limit"),
    ("--activation-limit", "train.activation_limit"),
    ("--verify-limit", "train.verify_limit"),
    ("--kernels", "train.kernels"),
];

fn key_of(flag: &str) -> &'static str {
    KEYS.iter().find(|(name, _)| *name == flag).map(|(_, key)| *key).expect("a flag of the table")
}

/// `section.key=value`, the value a TOML literal that reads back as it was.
pub fn item(key: &str, value: impl Into<Value>) -> String {
    format!("{key}={}", value.into())
}

/// E034 for a path that is not UTF-8: configs, which are kept beside checkpoints, cannot hold it.
pub(crate) fn path_item(key: &str, path: &Path) -> Result<String> {
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
pub(crate) fn count_item(key: &str, count: i64) -> String {
    format!("{key}={count}")
}

impl ConfigFlags {
    /// The overrides these flags stand for, as [`partita::Config::load`] takes them: those of `--set` last.
    ///
    /// # Errors
    /// E034 for a path that is not UTF-8.
    pub fn overrides(&self) -> Result<Vec<String>> {
        Ok(self.given()?.into_iter().map(|(_, item)| item).collect())
    }

    /// Whether an option or `--set` sets a key.
    pub fn gives(&self, key: &str) -> bool {
        let sets =
            |item: &String| item.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
        self.overrides().is_ok_and(|items| items.iter().any(sets))
    }

    /// Each option that is given, and its override: those of `--set` last.
    pub(super) fn given(&self) -> Result<Vec<(&'static str, String)>> {
        let texts = [
            ("--mesh", &self.mesh),
            ("--timetable", &self.timetable),
            ("--dtype", &self.dtype),
            ("--precision", &self.precision),
            ("--memory-limit", &self.memory_limit),
            ("--activation-limit", &self.activation_limit),
            ("--kernels", &self.kernels),
        ];
        let paths = [("--cluster", &self.cluster), ("--data", &self.data), ("--plan", &self.plan)];
        let counts = [
            ("--steps", self.steps),
            ("--seed", self.seed),
            ("--batch", self.batch),
            ("--microbatches", self.microbatches),
        ];
        let switches = [
            ("--sequence-parallel", self.sequence_parallel),
            ("--vocab-parallel", self.vocab_parallel),
            ("--strict", self.strict),
        ];
        let mut given = Vec::new();
        for (flag, text) in texts {
            given.extend(text.as_ref().map(|text| (flag, item(key_of(flag), text.clone()))));
        }
        for (flag, path) in paths {
            if let Some(path) = path {
                given.push((flag, path_item(key_of(flag), path)?));
            }
        }
        for (flag, count) in counts {
            given.extend(count.map(|count| (flag, count_item(key_of(flag), count))));
        }
        given
            .extend(self.verify_limit.map(|limit| ("--verify-limit", item(key_of("--verify-limit"), limit))));
        for (flag, _) in switches.iter().filter(|(_, is_on)| *is_on) {
            given.push((flag, item(key_of(flag), true)));
        }
        given.extend(self.set.iter().map(|item| ("--set", item.clone())));
        Ok(given)
    }
}
