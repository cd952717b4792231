//! The config of a run: strict TOML, bundled ones by name, any key overridable.

use crate::cluster::cluster;
use crate::feeds::BUNDLED_CORPUS;
use crate::keys::{Section, unknown};
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_cost::Cluster;
use partita_nn::{
    BertConfig, Decay, GptConfig, LlamaConfig, LrSchedule, MlpConfig, ModelConfig, Optimizer, StepOptions,
};
use partita_pipeline::Order;
use partita_runtime::{Cpu, KernelChoice, MemoryLimit};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The bundled configs: name and text.
pub const BUNDLED: &[(&str, &str)] = &[
    ("mlp", include_str!("../configs/mlp.toml")),
    ("gpt", include_str!("../configs/gpt.toml")),
    ("llama", include_str!("../configs/llama.toml")),
    ("bert", include_str!("../configs/bert.toml")),
];

/// Everything a run is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model and its sizes.
    pub model: ModelConfig,
    /// How long and on how much.
    pub train: Train,
    /// How parameters are updated.
    pub step: StepOptions,
    /// The learning rate over time.
    pub schedule: LrSchedule,
    /// Where text comes from.
    pub data: Data,
    /// The mesh, as on the command line.
    pub mesh: String,
    /// What links and devices cost.
    pub cluster: Cluster,
    /// How the mesh is used.
    pub plan: PlanConfig,
    /// When and where to save.
    pub checkpoint: CheckpointConfig,
    /// The config as one table, overrides included: what is written beside checkpoints.
    pub resolved: Table,
    /// What was left out of a bundled config.
    pub notes: Vec<String>,
}

/// The `[train]` section.
#[derive(Clone, Debug)]
pub struct Train {
    /// Optimizer steps.
    pub steps: u64,
    /// Rows of the whole batch.
    pub batch: usize,
    /// Number of microbatches per step.
    pub microbatches: usize,
    /// The order in which pipeline stages work on the microbatches.
    pub timetable: Order,
    /// Seed of initial values, data order and dropout.
    pub seed: u64,
    /// Type of parameters and activations.
    pub dtype: DType,
    /// Steps between validations; 0 validates at the end only.
    pub validate_every: u64,
    /// Batches per validation.
    pub validate_batches: u64,
    /// Bytes of the sample printed at the end; 0 for none.
    pub sample_bytes: usize,
    /// How much memory the process takes at most: `80%` of what there is, or bytes such as `8G`.
    pub memory_limit: MemoryLimit,
    /// Operations that a verification may cost on the interpreter.
    pub verify_limit: f64,
    /// Which machine code the kernels use.
    pub kernels: KernelChoice,
}

impl Train {
    /// Refuses counts with which nothing could be trained: E031. That there are no more microbatches than rows is
    /// checked where the batch is split (E225).
    pub fn check(&self) -> Result<()> {
        at_least_one("train.steps", self.steps)?;
        at_least_one("train.batch", self.batch as u64)?;
        at_least_one("train.microbatches", self.microbatches as u64)?;
        at_least_one("train.validate_batches", self.validate_batches)
    }
}

/// E031 for a count of zero.
fn at_least_one(key: &str, count: u64) -> Result<()> {
    if count > 0 {
        return Ok(());
    }
    Err(Diagnostic::new("E031", format!("`{key}` is zero")).expected("an integer of at least 1").found("0"))
}

/// The `[data]` section.
#[derive(Clone, Debug)]
pub struct Data {
    /// A file or folder of text; absent: [the bundled text](crate::feeds::bundled_corpus).
    pub path: Option<PathBuf>,
    /// File endings to read below `path`; absent: all that is text.
    pub extensions: Option<Vec<String>>,
    /// No more than this many bytes of `path` in total.
    pub max_bytes: Option<u64>,
    /// Share held out for validation.
    pub validation_fraction: f64,
}

/// The `[plan]` section.
#[derive(Clone, Debug, Default)]
pub struct PlanConfig {
    /// Module globs to styles, from the config.
    pub styles: Table,
    /// A plan file.
    pub file: Option<PathBuf>,
    /// The residual stream sharded on its sequence dimension over `tp`.
    pub sequence_parallel: bool,
    /// The embedding and the head sharded on the vocabulary over `tp`.
    pub vocab_parallel: bool,
    /// Ranks that hold nothing are an error rather than a note.
    pub strict: bool,
}

/// The `[checkpoint]` section.
#[derive(Clone, Debug)]
pub struct CheckpointConfig {
    /// Folder of the checkpoints, of this run alone; absent: `runs/<model>`, or the next such folder that no run uses.
    pub dir: Option<PathBuf>,
    /// Steps between checkpoints; 0 saves at the end only.
    pub every: u64,
    /// How many of this run's checkpoints are kept, the newest; 2 unless said otherwise, at least 1.
    pub keep: usize,
}

/// Operations that a verification may cost unless the config says otherwise: several minutes on the interpreter.
const VERIFY_LIMIT: f64 = 1e11;

const SECTIONS: &[&str] = &["model", "train", "optimizer", "data", "mesh", "cluster", "plan", "checkpoint"];

impl Config {
    /// Reads a config file or a bundled config and applies `overrides` (`section.key=value`).
    pub fn load(name: &str, overrides: &[String]) -> Result<Config> {
        let bundled = BUNDLED.iter().find(|(n, _)| *n == name);
        let text = match bundled {
            Some((_, text)) => text.to_string(),
            None => read_file(name)?,
        };
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |s| text[..s.start].matches('\n').count() + 1);
            Diagnostic::new("E003", "the config is not valid TOML")
                .at(format!("{name}:{line}"))
                .found(error.message().to_string())
        })?;
        let before = table.clone();
        for item in overrides {
            apply_override(&mut table, item)?;
        }
        let other_kind = |section: &str| kind_of(&before, section) != kind_of(&table, section);
        let changed: Vec<&str> = ["model", "optimizer"].into_iter().filter(|s| other_kind(s)).collect();
        if bundled.is_none() {
            return Config::from_table(table.clone()).map_err(|error| blame_file(error, name, &changed));
        }
        // Who asks for another kind has not written the keys that a bundled config holds for its own.
        let mut own = Optional::new();
        for section in &changed {
            let keys = before.get(*section).and_then(Value::as_table).into_iter().flat_map(Table::keys);
            let set = |key: &String| {
                let path = format!("{section}.{key}=");
                overrides.iter().any(|item| item.starts_with(&path))
            };
            own.insert(section, keys.filter(|key| !set(key)).cloned().collect());
        }
        Config::read(table, &own, name)
    }

    /// The device, with the kernels that `train.kernels` names.
    ///
    /// # Errors
    /// E465 where this machine lacks them.
    pub fn cpu(&self) -> Result<Cpu> {
        let options = self.train.kernels.options().map_err(|error| error.at("[train] kernels"))?;
        Ok(Cpu { kernel_options: options, ..Cpu::default() })
    }

    /// A config from its table.
    pub fn from_table(table: Table) -> Result<Config> {
        Config::read(table, &Optional::new(), "")
    }

    /// A config from its table; keys that are `optional` may be unknown, and are then left out.
    fn read(table: Table, optional: &Optional, name: &str) -> Result<Config> {
        let mut resolved = table.clone();
        let mut root = table;
        if !root.contains_key("model") {
            let sections: Vec<String> = root.keys().map(|section| format!("[{section}]")).collect();
            return Err(Diagnostic::new("E035", "the config has no model")
                .at("[model]")
                .expected("a section [model], such as the line `kind = \"gpt\"` below it")
                .found(if sections.is_empty() {
                    "no section at all".to_string()
                } else {
                    sections.join(", ")
                })
                .help("begin with a bundled config: `partita train gpt`; the README shows one"));
        }
        let may_lack = |section: &str| optional.get(section).map_or(&[][..], Vec::as_slice);
        let mut left_out = Vec::new();
        let section = Section::take(&mut root, "model")?.with_optional(may_lack("model"));
        let model = model(section, &mut left_out)?;
        let mut train = Section::take(&mut root, "train")?;
        let dtype = train.text("dtype")?.unwrap_or_else(|| "f32".into());
        let known = ["f32", "f64", "bf16", "f16"];
        let dtype = DType::from_name(&dtype).filter(|d| d.is_float()).ok_or_else(|| {
            Diagnostic::new("E004", format!("`train.dtype` cannot be {dtype}")).expected(known.join(", "))
        })?;
        let steps = train.count("steps")?.unwrap_or(100) as u64;
        let train_section = Train {
            steps,
            batch: train.count("batch")?.unwrap_or(32),
            microbatches: train.count("microbatches")?.unwrap_or(1),
            timetable: timetable(train.text("timetable")?)?,
            seed: train.count("seed")?.unwrap_or(1) as u64,
            dtype,
            validate_every: train.count("validate_every")?.unwrap_or(0) as u64,
            validate_batches: train.count("validate_batches")?.unwrap_or(8) as u64,
            sample_bytes: train.count("sample_bytes")?.unwrap_or(240),
            memory_limit: match train.value("memory_limit") {
                None => MemoryLimit::default(),
                Some(Value::String(text)) => MemoryLimit::parse(&text)?,
                Some(other) => MemoryLimit::parse(&other.to_string())?,
            },
            verify_limit: train.number("verify_limit")?.unwrap_or(VERIFY_LIMIT),
            kernels: match train.text("kernels")? {
                None => KernelChoice::default(),
                Some(text) => text.parse().map_err(|error: Box<Diagnostic>| error.at("[train] kernels"))?,
            },
        };
        train.end()?;
        train_section.check()?;
        let (step, schedule) = {
            let section = Section::take(&mut root, "optimizer")?.with_optional(may_lack("optimizer"));
            optimizer(section, steps, &mut left_out)?
        };
        let mut data = Section::take(&mut root, "data")?;
        let data_section = Data {
            path: data.text("path")?.map(PathBuf::from),
            extensions: data.texts("extensions")?,
            max_bytes: data.count("max_bytes")?.map(|b| b as u64),
            validation_fraction: data.number("validation_fraction")?.unwrap_or(0.05),
        };
        data.end()?;
        check_data(&data_section)?;
        let mut mesh = Section::take(&mut root, "mesh")?;
        let shape = mesh.text("shape")?.unwrap_or_else(|| "dp=1".into());
        mesh.end()?;
        let cluster = cluster(Section::take(&mut root, "cluster")?)?;
        let mut plan = Section::take(&mut root, "plan")?;
        let plan_section = PlanConfig {
            file: plan.text("file")?.map(PathBuf::from),
            sequence_parallel: plan.flag("sequence_parallel")?.unwrap_or(false),
            vocab_parallel: plan.flag("vocab_parallel")?.unwrap_or(false),
            strict: plan.flag("strict")?.unwrap_or(false),
            styles: plan.rest(),
        };
        let mut checkpoint = Section::take(&mut root, "checkpoint")?;
        let checkpoint_section = CheckpointConfig {
            dir: checkpoint.text("dir")?.map(PathBuf::from),
            every: checkpoint.count("every")?.unwrap_or(0) as u64,
            keep: checkpoint.count("keep")?.unwrap_or(2),
        };
        at_least_one("checkpoint.keep", checkpoint_section.keep as u64)?;
        checkpoint.end()?;
        check_sizes(&model, train_section.batch)?;
        if let Some(key) = root.keys().next() {
            let known: Vec<String> = SECTIONS.iter().map(|s| s.to_string()).collect();
            return Err(unknown("the top of the config", key, &known));
        }
        for path in &left_out {
            if let Some((section, key)) = path.split_once('.')
                && let Some(Value::Table(table)) = resolved.get_mut(section)
            {
                table.remove(key);
            }
        }
        let notes = match left_out.is_empty() {
            true => Vec::new(),
            false => vec![format!(
                "left out of the bundled config `{name}`, because the kind that was asked for does not have it: {}",
                left_out.join(", ")
            )],
        };
        Ok(Config {
            model,
            train: train_section,
            step,
            schedule,
            data: data_section,
            mesh: shape,
            cluster,
            plan: plan_section,
            checkpoint: checkpoint_section,
            resolved,
            notes,
        })
    }
}

/// By section, the keys that may be unknown.
type Optional<'a> = BTreeMap<&'a str, Vec<String>>;

/// `kind` in a section.
fn kind_of<'a>(table: &'a Table, section: &str) -> Option<&'a Value> {
    table.get(section)?.get("kind")
}

/// Says of an unknown key where it comes from, if another kind was asked for than the file is written for.
fn blame_file(error: Box<Diagnostic>, file: &str, changed: &[&str]) -> Box<Diagnostic> {
    let of = |section: &&&str| error.at.as_ref().is_some_and(|at| at.starts_with(&format!("[{section}] ")));
    match changed.iter().find(of) {
        Some(section) if error.code == "E001" => {
            let note = format!("`{file}` holds the key; `{section}.kind` is another than there");
            error.note(note)
        }
        _ => error,
    }
}

/// A model with more layers than this is a typo.
const MOST_LAYERS: usize = 4096;

/// A timetable by name or from a CSV file, the default one where none is given. E462 for one that does not exist, E005
/// for a file that cannot be read.
fn timetable(name: Option<String>) -> Result<Order> {
    match name {
        None => Ok(Order::default()),
        Some(file) if file.ends_with(".csv") => {
            let text = std::fs::read_to_string(&file).map_err(|error| {
                Diagnostic::new("E005", format!("no timetable file `{file}`")).found(error.to_string())
            })?;
            Order::from_csv(&text, &file)
        }
        Some(name) => Order::named(&name).map_err(|error| error.at("train.timetable")),
    }
}

/// E340 where a key says which part of `data.path` is read, and there is no path.
fn check_data(data: &Data) -> Result<()> {
    let keys = [("extensions", data.extensions.is_some()), ("max_bytes", data.max_bytes.is_some())];
    match keys.into_iter().find(|(_, given)| *given && data.path.is_none()) {
        None => Ok(()),
        Some((key, _)) => Err(Diagnostic::new("E340", format!("`data.{key}` without `data.path`"))
            .at(format!("[data] {key}"))
            .expected("a file or folder of text in `data.path`")
            .found(format!("no path: the bundled text {BUNDLED_CORPUS}, which is always read whole"))
            .help(format!("name the text with --data PATH, or remove `data.{key}`"))),
    }
}

/// A tensor with more elements than this (64 GiB in single precision) is a typo; products of sizes below it cannot
/// overflow either.
const MOST_ELEMENTS: f64 = (1u64 << 34) as f64;

/// E015 where a parameter or an activation of the model would not fit into memory.
fn check_sizes(model: &ModelConfig, batch: usize) -> Result<()> {
    let real = |size: usize| size as f64;
    let text = |vocab: usize, dim: usize, hidden: f64, heads: usize, sequence: usize| {
        let rows = real(batch) * real(sequence);
        let width = real(vocab).max(hidden).max(real(heads) * real(sequence));
        vec![
            ("batch x sequence x features", rows * width.max(real(dim))),
            ("vocab x dim", real(vocab) * real(dim)),
            ("dim x hidden", real(dim) * hidden.max(real(dim))),
        ]
    };
    let tensors = match model {
        ModelConfig::Gpt(c) => text(c.vocab, c.dim, real(c.dim) * real(c.mlp_ratio), c.heads, c.sequence),
        ModelConfig::Bert(c) => text(c.vocab, c.dim, real(c.dim) * real(c.mlp_ratio), c.heads, c.sequence),
        ModelConfig::Llama(c) => {
            text(c.vocab, c.dim, c.hidden.map_or(4.0 * real(c.dim), real), c.heads, c.sequence)
        }
        ModelConfig::Mlp(c) => {
            let widest = c.dims.iter().copied().max().map_or(0.0, real);
            vec![("batch x features", real(batch) * widest), ("features x features", widest * widest)]
        }
    };
    let layers = match model {
        ModelConfig::Gpt(c) => c.layers,
        ModelConfig::Bert(c) => c.layers,
        ModelConfig::Llama(c) => c.layers,
        ModelConfig::Mlp(c) => c.dims.len(),
    };
    if layers > MOST_LAYERS {
        return Err(Diagnostic::new("E015", "the model or its batch is too large for one process")
            .at("[model]")
            .expected(format!("at most {MOST_LAYERS} layers"))
            .found(format!("{layers} layers"))
            .help("check the sizes for a typo"));
    }
    match tensors.into_iter().find(|(_, elements)| *elements > MOST_ELEMENTS) {
        None => Ok(()),
        Some((what, elements)) => {
            Err(Diagnostic::new("E015", "the model or its batch is too large for one process")
                .at("[model], [train]")
                .expected(format!("tensors of at most {MOST_ELEMENTS:.1e} elements"))
                .found(format!("{what} = {elements:.1e}"))
                .help("check the sizes for a typo"))
        }
    }
}

fn read_file(name: &str) -> Result<String> {
    let path = Path::new(name);
    std::fs::read_to_string(path).map_err(|error| {
        let names: Vec<&str> = BUNDLED.iter().map(|(n, _)| *n).collect();
        let mut diagnostic = Diagnostic::new("E005", format!("no config `{name}`"))
            .expected(format!("a TOML file, or one of {}", names.join(", ")))
            .found(error.to_string());
        if let Some(help) = did_you_mean(name, names) {
            diagnostic = diagnostic.help(help);
        }
        diagnostic
    })
}

/// `train.steps=50`: the value is TOML; what is not is taken as a string.
fn apply_override(table: &mut Table, item: &str) -> Result<()> {
    let (path, text) = item.split_once('=').ok_or_else(|| {
        Diagnostic::new("E006", format!("cannot read the override `{item}`")).expected("section.key=value")
    })?;
    let value = format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_string()));
    let (section, key) = path.split_once('.').ok_or_else(|| {
        Diagnostic::new("E006", format!("cannot read the override `{item}`"))
            .expected("section.key=value")
            .found(format!("`{path}` without a section"))
    })?;
    if !SECTIONS.contains(&section) {
        let known: Vec<String> = SECTIONS.iter().map(|s| s.to_string()).collect();
        return Err(unknown(&format!("--set {item}"), section, &known));
    }
    let entry = table.entry(section.to_string()).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(inner) = entry {
        inner.insert(key.trim_matches('"').to_string(), value);
    }
    Ok(())
}

fn model(mut s: Section, left_out: &mut Vec<String>) -> Result<ModelConfig> {
    let kind = s.text("kind")?.unwrap_or_else(|| "gpt".into());
    let config = match kind.as_str() {
        "gpt" => {
            let d = GptConfig::default();
            ModelConfig::Gpt(GptConfig {
                vocab: s.count("vocab")?.unwrap_or(d.vocab),
                dim: s.count("dim")?.unwrap_or(d.dim),
                layers: s.count("layers")?.unwrap_or(d.layers),
                heads: s.count("heads")?.unwrap_or(d.heads),
                kv_heads: s.count("kv_heads")?.or(d.kv_heads),
                sequence: s.count("sequence")?.unwrap_or(d.sequence),
                mlp_ratio: s.count("mlp_ratio")?.unwrap_or(d.mlp_ratio),
                dropout: s.number("dropout")?.unwrap_or(d.dropout),
                tied: s.flag("tied")?.unwrap_or(d.tied),
                fused_qkv: s.flag("fused_qkv")?.unwrap_or(d.fused_qkv),
                bias: s.flag("bias")?.unwrap_or(d.bias),
            })
        }
        "llama" => {
            let d = LlamaConfig::default();
            ModelConfig::Llama(LlamaConfig {
                vocab: s.count("vocab")?.unwrap_or(d.vocab),
                dim: s.count("dim")?.unwrap_or(d.dim),
                layers: s.count("layers")?.unwrap_or(d.layers),
                heads: s.count("heads")?.unwrap_or(d.heads),
                kv_heads: s.count("kv_heads")?.or(d.kv_heads),
                sequence: s.count("sequence")?.unwrap_or(d.sequence),
                hidden: s.count("hidden")?.or(d.hidden),
                rotary_base: s.number("rotary_base")?.unwrap_or(d.rotary_base),
                epsilon: s.number("epsilon")?.unwrap_or(d.epsilon),
                dropout: s.number("dropout")?.unwrap_or(d.dropout),
                tied: s.flag("tied")?.unwrap_or(d.tied),
                fused_qkv: s.flag("fused_qkv")?.unwrap_or(d.fused_qkv),
            })
        }
        "bert" => {
            let d = BertConfig::default();
            ModelConfig::Bert(BertConfig {
                vocab: s.count("vocab")?.unwrap_or(d.vocab),
                dim: s.count("dim")?.unwrap_or(d.dim),
                layers: s.count("layers")?.unwrap_or(d.layers),
                heads: s.count("heads")?.unwrap_or(d.heads),
                sequence: s.count("sequence")?.unwrap_or(d.sequence),
                mlp_ratio: s.count("mlp_ratio")?.unwrap_or(d.mlp_ratio),
                dropout: s.number("dropout")?.unwrap_or(d.dropout),
                types: s.count("types")?.unwrap_or(d.types),
                padding_mask: s.flag("padding_mask")?.unwrap_or(d.padding_mask),
                tied: s.flag("tied")?.unwrap_or(d.tied),
                fused_qkv: s.flag("fused_qkv")?.unwrap_or(d.fused_qkv),
            })
        }
        "mlp" => {
            let d = MlpConfig::default();
            ModelConfig::Mlp(MlpConfig {
                dims: s.counts("dims")?.unwrap_or(d.dims),
                activation: d.activation,
                bias: s.flag("bias")?.unwrap_or(d.bias),
                classify: s.flag("classify")?.unwrap_or(d.classify),
            })
        }
        other => {
            let mut error = Diagnostic::new("E004", format!("no model of kind `{other}`"))
                .expected("mlp, gpt, llama or bert");
            if let Some(help) = did_you_mean(other, ["mlp", "gpt", "llama", "bert"]) {
                error = error.help(help);
            }
            return Err(error);
        }
    };
    left_out.extend(s.end()?);
    config.validate()?;
    Ok(config)
}

fn optimizer(mut s: Section, steps: u64, left_out: &mut Vec<String>) -> Result<(StepOptions, LrSchedule)> {
    let kind = s.text("kind")?.unwrap_or_else(|| "adamw".into());
    let mut optimizer = Optimizer::from_name(&kind).ok_or_else(|| {
        Diagnostic::new("E004", format!("no optimizer `{kind}`")).expected("sgd, adam, adamw or lion")
    })?;
    let mut set = |slot: &mut f64, key: &str| -> Result<()> {
        if let Some(value) = s.number(key)? {
            *slot = value;
        }
        Ok(())
    };
    match &mut optimizer {
        Optimizer::Sgd { momentum, weight_decay, .. } => {
            set(momentum, "momentum")?;
            set(weight_decay, "weight_decay")?;
        }
        Optimizer::Adam { beta1, beta2, epsilon, weight_decay }
        | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
            set(beta1, "beta1")?;
            set(beta2, "beta2")?;
            set(epsilon, "epsilon")?;
            set(weight_decay, "weight_decay")?;
        }
        Optimizer::Lion { beta1, beta2, weight_decay } => {
            set(beta1, "beta1")?;
            set(beta2, "beta2")?;
            set(weight_decay, "weight_decay")?;
        }
    }
    if let Optimizer::Sgd { nesterov, .. } = &mut optimizer {
        *nesterov = s.flag("nesterov")?.unwrap_or(*nesterov);
    }
    let peak = s.number("learning_rate")?.unwrap_or(1e-3);
    let decay = s.text("decay")?.unwrap_or_else(|| "constant".into());
    let decay = Decay::from_name(&decay).ok_or_else(|| {
        Diagnostic::new("E004", format!("no learning-rate decay `{decay}`"))
            .expected("constant, cosine or linear")
    })?;
    let schedule = LrSchedule {
        peak,
        floor: s.number("floor")?.unwrap_or(peak * 0.1),
        warmup_steps: s.count("warmup_steps")?.unwrap_or(0) as u64,
        total_steps: s.count("decay_steps")?.map_or(steps, |v| v as u64),
        decay,
    };
    let mut options = StepOptions::new(optimizer);
    options.clip_grad_norm = s.number("clip_grad_norm")?.filter(|n| *n > 0.0);
    options.decay_1d = s.flag("decay_1d")?.unwrap_or(false);
    left_out.extend(s.end()?);
    options.validate()?;
    schedule.validate()?;
    Ok((options, schedule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bundled_config_loads() {
        for (name, _) in BUNDLED {
            let config = Config::load(name, &[]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(config.model.name(), *name);
        }
    }

    #[test]
    fn an_override_replaces_a_key() {
        let overrides = ["train.steps=7".to_string(), "mesh.shape=tp=4".to_string()];
        let config = Config::load("gpt", &overrides).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((config.train.steps, config.mesh.as_str()), (7, "tp=4"));
    }

    #[test]
    fn an_unknown_key_names_its_neighbours() {
        let error = Config::load("gpt", &["train.stepz=7".into()]).map(|_| ()).unwrap_err();
        assert_eq!(error.code, "E001");
        assert!(error.to_string().contains("did you mean `steps`"), "{error}");
    }

    #[test]
    fn a_wrong_type_says_what_was_expected() {
        let error = Config::load("gpt", &["train.steps=\"many\"".into()]).map(|_| ()).unwrap_err();
        assert_eq!(error.code, "E002");
    }
}
