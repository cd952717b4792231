//! The config of a run: strict TOML, bundled ones by name, any key overridable.

pub(crate) mod argument;
mod bundled;
mod memory;
mod optimizer;
mod precision;
mod reader;

use crate::cluster::cluster;
use crate::feeds::BUNDLED_CORPUS;
use crate::keys::{Key, unknown};
use crate::models::{ModelKinds, ModelSource, Terms};
use argument::{apply_override, blame_file};
pub use bundled::{BUNDLED, bundled};
use partita_base::{DType, Diagnostic, Result};
use partita_cost::Cluster;
use partita_mesh::Mesh;
use partita_nn::{LrSchedule, Optimizer, StepOptions};
use partita_pipeline::Order;
use partita_runtime::{Cpu, KernelChoice, MemoryLimit};
use precision::Mixed;
pub(crate) use precision::notes_on_halves;
use reader::{Optional, Reader};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use toml::{Table, Value};

/// Everything a run is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model and its sizes.
    pub model: Arc<dyn ModelSource>,
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
    /// By `section.key`, the value of every key as TOML, or what its absence means.
    pub values: BTreeMap<String, String>,
    /// Keys of a bundled config that were left out, in a sentence for the user.
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
    /// The most bytes of activations that a rank keeps for the backward pass of a microbatch; others are computed again.
    pub activation_limit: Option<usize>,
    /// Which gathers before matmuls and reduce-scatters behind them become permutes under them: `off`, `on` or `auto`.
    pub collective_matmul: String,
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
    /// Whether the rows of a file of tensors are shuffled in each epoch. Text always is.
    pub shuffle: bool,
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
    /// Whether every process writes the shards of its ranks, and none a whole tensor.
    pub sharded: bool,
    /// Whether training continues while a copy of the state is written.
    pub is_async: bool,
}

/// Operations that a verification may cost unless the config says otherwise: several minutes on the interpreter.
const VERIFY_LIMIT: f64 = 1e11;

const SECTIONS: &[&str] = &["model", "train", "optimizer", "data", "mesh", "cluster", "plan", "checkpoint"];

impl Config {
    /// The type in which matmuls compute: that of `--precision`, else that of parameters.
    pub fn matmul_dtype(&self) -> DType {
        self.step.precision.unwrap_or(self.train.dtype)
    }

    /// What the model is called: by its published name if it has one's sizes, else by its kind.
    pub fn model_name(&self) -> &str {
        let section = self.resolved.get("model").and_then(Value::as_table);
        section.and_then(crate::models::named::name_of).unwrap_or_else(|| self.model.name())
    }

    /// Reads a config file or a bundled config and applies `overrides` (`section.key=value`). A plan file that says for
    /// which mesh and how many microbatches it was made replaces these keys, unless `overrides` has them.
    ///
    /// # Errors
    /// E001 to E006, E015, E031, E035, E340 and others of the sections, with the key or the line.
    pub fn load(name: &str, overrides: &[String]) -> Result<Config> {
        Config::load_with(&ModelKinds::bundled(), name, overrides)
    }

    /// [`Config::load`] with the models of a program's own.
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn load_with(kinds: &ModelKinds, name: &str, overrides: &[String]) -> Result<Config> {
        let bundled = BUNDLED.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        let mut table = argument::table(name, bundled.map(|(_, text)| *text))?;
        let before = table.clone();
        for item in overrides {
            apply_override(&mut table, item)?;
        }
        let made_for = argument::apply_plan_file(&mut table, overrides);
        let other_kind = |section: &str| kind_of(&before, section) != kind_of(&table, section);
        let changed: Vec<&str> = ["model", "optimizer"].into_iter().filter(|s| other_kind(s)).collect();
        if bundled.is_none() {
            if !table.contains_key("model") {
                return Err(argument::no_model(&before));
            }
            let config = Config::read(kinds, table, Optional::new(), "");
            let config = config.map_err(|error| blame_file(error, name, &changed, &before))?;
            return Ok(config.noting(made_for));
        }
        // A user who chooses another kind did not write the keys that the bundled config has for its own kind.
        let mut own = Optional::new();
        for section in &changed {
            let keys = before.get(*section).and_then(Value::as_table).into_iter().flat_map(Table::keys);
            let set = |key: &String| {
                let path = format!("{section}.{key}=");
                overrides.iter().any(|item| item.starts_with(&path))
            };
            own.insert(section, keys.filter(|key| !set(key)).cloned().collect());
        }
        Ok(Config::read(kinds, table, own, name)?.noting(made_for))
    }

    fn noting(mut self, notes: Vec<String>) -> Config {
        self.notes.extend(notes);
        self
    }

    /// The config of a model that no config names, with the defaults of all other sections.
    pub fn of(model: Arc<dyn ModelSource>) -> Config {
        let mut reader = Reader::new(Table::new(), Optional::new());
        // A checkpoint of it says what the model is called, though only the program that has it can build it.
        let kind = Table::from_iter([("kind".to_string(), Value::from(model.name()))]);
        let resolved = Table::from_iter([("model".to_string(), Value::Table(kind))]);
        let config = Config::with_model(model, &mut reader).expect("the defaults fit together");
        Config { resolved, ..config }
    }

    /// The device, with the kernels that `train.kernels` names.
    ///
    /// # Errors
    /// E465 if this machine lacks them.
    pub fn cpu(&self) -> Result<Cpu> {
        let options = self.train.kernels.options().map_err(|error| error.at("[train] kernels"))?;
        Ok(Cpu { kernel_options: options, ..Cpu::default() })
    }

    /// A config from its table.
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn from_table(table: Table) -> Result<Config> {
        Config::read(&ModelKinds::bundled(), table, Optional::new(), "")
    }

    /// Every key that a config may have, in the order of the sections. A key that only some kinds of models or optimizers
    /// have names those kinds; so does one whose default depends on the kind.
    pub fn keys(kinds: &ModelKinds) -> Vec<Key> {
        let models = kinds.names().into_iter().map(|kind| ("model", kind));
        let optimizers = Optimizer::NAMES.into_iter().map(|kind| ("optimizer", kind));
        let choices: Vec<(&str, &str)> = models.chain(optimizers).collect();
        let mut all: Vec<Key> = Vec::new();
        for &(chosen, kind) in &choices {
            let section = Table::from_iter([("kind".to_string(), kind.into())]);
            let mut reader =
                Reader::new(Table::from_iter([(chosen.to_string(), section.into())]), Optional::new());
            if chosen == "model" {
                model(kinds, &mut reader).expect("the defaults of a kind are valid");
            } else {
                let model = crate::models::from_fn("none", |_, _| Ok(Vec::new()));
                Config::with_model(model, &mut reader).expect("the defaults fit together");
            }
            for key in reader.keys {
                let of = (key.section == chosen && key.name != "kind").then(|| kind.to_string());
                match all.iter_mut().find(|other| Key { kinds: Vec::new(), ..(*other).clone() } == key) {
                    Some(other) => other.kinds.extend(of),
                    None => all.push(Key { kinds: of.into_iter().collect(), ..key }),
                }
            }
        }
        // A key of every kind is a key of the section.
        for key in &mut all {
            let count = choices.iter().filter(|(section, _)| *section == key.section).count();
            if key.kinds.len() == count {
                key.kinds.clear();
            }
        }
        // Sections in their order, and all keys of one name beside each other.
        let section = |key: &Key| SECTIONS.iter().position(|section| *section == key.section);
        let first = |key: &Key| all.iter().position(|k| (&k.section, &k.name) == (&key.section, &key.name));
        let places: Vec<_> = all.iter().map(|key| (section(key), first(key))).collect();
        let mut placed: Vec<(_, Key)> = places.into_iter().zip(all).collect();
        placed.sort_by_key(|(place, _)| *place);
        placed.into_iter().map(|(_, key)| key).collect()
    }

    /// A config from its table; `optional` keys may be unknown, and are then left out.
    fn read(kinds: &ModelKinds, table: Table, optional: Optional, name: &str) -> Result<Config> {
        if !table.contains_key("model") {
            return Err(argument::no_model(&table));
        }
        let mut resolved = table.clone();
        let mut reader = Reader::new(table, optional);
        let model = model(kinds, &mut reader)?;
        model.validate()?;
        let notes = model.notes();
        let mut config = Config::with_model(model, &mut reader)?;
        config.notes = notes;
        for path in &reader.left_out {
            if let Some((section, key)) = path.split_once('.')
                && let Some(Value::Table(table)) = resolved.get_mut(section)
            {
                table.remove(key);
            }
        }
        if !reader.left_out.is_empty() {
            config.notes.push(format!(
                "left out of the bundled config `{name}`, because the chosen kind does not have it: {}",
                reader.left_out.join(", ")
            ));
        }
        config.resolved = resolved;
        Ok(config)
    }

    /// The sections other than `[model]`.
    fn with_model(model: Arc<dyn ModelSource>, reader: &mut Reader) -> Result<Config> {
        let (train, mixed) = Train::read(reader, model.terms())?;
        let (step, schedule) = optimizer::read(reader, train.steps)?;
        let step = mixed.apply(step, train.dtype)?;
        let data = reader.section("data", |s| {
            Ok(Data {
                path: s.find(
                    "path",
                    "the bundled text",
                    "file or folder of text, or tensors by input: .npz, .npy, .safetensors",
                )?,
                extensions: s.find(
                    "extensions",
                    "all that is text",
                    "endings of the files read below path",
                )?,
                max_bytes: s.find("max_bytes", "no limit", "bytes read from path at most")?,
                validation_fraction: s.get(
                    "validation_fraction",
                    0.05,
                    "share of the text held out for validation",
                )?,
                shuffle: s.get(
                    "shuffle",
                    false,
                    "shuffle the rows of a file of tensors in each epoch, by train.seed; text always is",
                )?,
            })
        })?;
        check_data(&data)?;
        let mesh = reader.section("mesh", |s| {
            s.get(
                "shape",
                "dp=1".to_string(),
                "the axes with their sizes: dp=2,tp=2; -1 takes the remaining cores",
            )
        })?;
        let cluster = reader.section("cluster", cluster)?;
        let plan = reader.section("plan", |s| {
            Ok(PlanConfig {
                file: s.find("file", "the other keys of the section, else the built-in plan", "plan file")?,
                sequence_parallel: s.get(
                    "sequence_parallel",
                    false,
                    "shard the residual stream over tp along the sequence",
                )?,
                vocab_parallel: s.get(
                    "vocab_parallel",
                    false,
                    "shard the embedding and the head over tp along the vocabulary",
                )?,
                strict: s.get("strict", false, "refuse a mesh that leaves ranks without work")?,
                styles: s.rest(),
            })
        })?;
        let checkpoint = reader.section("checkpoint", |s| {
            Ok(CheckpointConfig {
                dir: s.find(
                    "dir",
                    "runs/MODEL, or the next free runs/MODEL-N",
                    "folder of this run's checkpoints",
                )?,
                every: s.get("every", 0, "steps between checkpoints; 0 saves only at the end")?,
                keep: s.get("keep", 2, "the number of this run's newest checkpoints that are kept")?,
                sharded: s.get("sharded", false, "whether every process writes the shards of its ranks")?,
                is_async: s.get("async", true, "whether training continues while a checkpoint is written")?,
            })
        })?;
        at_least_one("checkpoint.keep", checkpoint.keep as u64)?;
        let shards = Mesh::parse(&mesh, Some(1)).map_or(1, |mesh| mesh.batch_shards());
        Limit::Planned.check(model.as_ref(), rows_at_once(train.batch, train.microbatches, shards))?;
        if let Some(key) = reader.unread() {
            let known: Vec<String> = SECTIONS.iter().map(|s| s.to_string()).collect();
            let mut error = unknown("the top of the config", key, &known);
            if key == "stages" {
                error.help = Some("in a config, stages are a part of the plan: [[plan.stages]]".to_string());
            }
            return Err(error);
        }
        Ok(Config {
            model,
            train,
            step,
            schedule,
            data,
            mesh,
            cluster,
            plan,
            checkpoint,
            resolved: Table::new(),
            values: std::mem::take(&mut reader.values),
            notes: Vec::new(),
        })
    }
}

impl Train {
    /// The section, and what it says of mixed precision.
    fn read(reader: &mut Reader, terms: Terms) -> Result<(Train, Mixed)> {
        let (train, mixed) = reader.section("train", |s| {
            let usual = terms.dtype.unwrap_or(DType::F32).name().to_string();
            let dtype = s.get("dtype", usual, "type of parameters and activations: f32, f64, bf16 or f16")?;
            let known = ["f32", "f64", "bf16", "f16"];
            let dtype = DType::from_name(&dtype).filter(|d| d.is_float()).ok_or_else(|| {
                Diagnostic::new("E004", format!("`train.dtype` cannot be {dtype}")).expected(known.join(", "))
            })?;
            let train = Train {
                steps: s.get("steps", 100, "optimizer steps")?,
                batch: s.get("batch", terms.rows.unwrap_or(32), "rows of the global batch")?,
                microbatches: s.get("microbatches", 1, "microbatches of a step")?,
                timetable: match s.find::<String>(
                    "timetable",
                    &Value::from(Order::default().name()).to_string(),
                    "order of microbatches in a pipeline: a name, or a CSV file of torch.distributed.pipelining",
                )? {
                    None => Order::default(),
                    Some(name) => Order::open(&name).map_err(|error| match error.at {
                        None => error.at("train.timetable"),
                        Some(_) => error,
                    })?,
                },
                seed: s.get("seed", 1, "seed of initial values, data order and dropout")?,
                dtype,
                validate_every: s.get(
                    "validate_every",
                    0,
                    "steps between validations; 0 validates only at the end",
                )?,
                validate_batches: s.get("validate_batches", 8, "batches of a validation")?,
                sample_bytes: s.get(
                    "sample_bytes",
                    240,
                    "bytes of the text generated at the end; 0 for none",
                )?,
                memory_limit: memory::memory_limit(s)?,
                activation_limit: memory::activation_limit(s)?,
                collective_matmul: precision::collective_matmul(s)?,
                verify_limit: s.get(
                    "verify_limit",
                    VERIFY_LIMIT,
                    "element operations that a verification on the interpreter may take",
                )?,
                kernels: match s.find::<String>(
                    "kernels",
                    "\"native\"",
                    "machine code of the kernels: portable, avx2, avx512 or native",
                )? {
                    None => KernelChoice::default(),
                    Some(text) => {
                        text.parse().map_err(|error: Box<Diagnostic>| error.at("[train] kernels"))?
                    }
                },
            };
            Ok((train, Mixed::read(s)?))
        })?;
        train.check()?;
        terms.check(train.batch, train.dtype)?;
        Ok((train, mixed))
    }
}

/// The section `[model]`.
fn model(kinds: &ModelKinds, reader: &mut Reader) -> Result<Arc<dyn ModelSource>> {
    reader.section("model", |s| {
        let kind = s.get("kind", "gpt".to_string(), "kind of model, such as gpt; a wrong one lists all")?;
        kinds.named(&kind)?.read(s)
    })
}

/// `kind` in a section.
fn kind_of<'a>(table: &'a Table, section: &str) -> Option<&'a Value> {
    table.get(section)?.get("kind")
}

/// A model with more layers than this is a typo.
const MOST_LAYERS: usize = 4096;

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

/// The rows that a rank computes at a time: those of its microbatch.
pub(crate) fn rows_at_once(batch: usize, microbatches: usize, shards: usize) -> usize {
    batch.div_ceil(shards.max(1).saturating_mul(microbatches.max(1)))
}

/// How large the tensors of a model may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// In a plan, which holds shapes alone: products of sizes below the limit cannot overflow.
    Planned,
    /// In a process that runs the model.
    Held,
}

impl Limit {
    /// E015 if a parameter of the model, or an activation of so many rows, is beyond the limit.
    pub fn check(self, model: &dyn ModelSource, rows: usize) -> Result<()> {
        // A process would need 64 GiB for one tensor in single precision.
        let (most, what) = match self {
            Limit::Planned => ((1u64 << 48) as f64, "for a plan"),
            Limit::Held => ((1u64 << 34) as f64, "for one process"),
        };
        let refused = |at: &str| {
            let message = format!("the model or its batch is too large {what}");
            let error = Diagnostic::new("E015", message).at(at).help("check the sizes for a typo");
            match self {
                Limit::Planned => error,
                Limit::Held => error.note("`partita simulate`, `show` and `explain` plan larger sizes"),
            }
        };
        let sizes = model.sizes(rows);
        if sizes.layers > MOST_LAYERS {
            return Err(refused("[model]")
                .expected(format!("at most {MOST_LAYERS} layers"))
                .found(format!("{} layers", sizes.layers)));
        }
        match sizes.tensors.into_iter().find(|(_, elements)| *elements > most) {
            None => Ok(()),
            Some((what, elements)) => Err(refused("[model], [train]")
                .expected(format!("tensors of at most {most:.1e} elements"))
                .found(format!("{what} = {elements:.1e}"))),
        }
    }
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
