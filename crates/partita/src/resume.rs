//! What differs between a run and the run whose checkpoint it resumes.
//!
//! A checkpoint says what the model computes, by a digest of its graph, and by which rule its parameters are updated; the
//! config beside it has the settings. Another model, or another rule, of equal tensors is refused: shapes do not show how
//! many heads there are. Any other setting may change, and is named.

use crate::config::{Config, Limit};
use crate::models::ModelKinds;
use crate::run_files::{CONFIG_FILE, Saved};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::Graph;
use partita_ir::text::{PrintOptions, print_with};
use partita_nn::StepOptions;
use partita_runtime::data::is_of_samples;
use partita_runtime::digest;
use std::collections::{BTreeMap, BTreeSet};

const GRAPH: &str = "model.graph";
const INPUTS: &str = "model.inputs";
const ROWS: &str = "model.rows";
const DTYPE: &str = "model.dtype";
const RULE: &str = "optimizer.rule";
const OPTIMIZER: &str = "optimizer";

/// Sections whose keys decide numbers; those of the others are where and how a run is run.
const SECTIONS: [&str; 4] = ["model", "train", "optimizer", "data"];

/// Keys in them that change no number of a step.
const OF_EXECUTION: [&str; 10] = [
    "train.microbatches",
    "train.timetable",
    "train.memory_limit",
    "train.activation_limit",
    "train.collective_matmul",
    "train.verify_limit",
    "train.kernels",
    "train.validate_every",
    "train.validate_batches",
    "train.sample_bytes",
];

/// Keys of `[optimizer]` that are no part of the rule.
const OF_RATES: [&str; 7] = [
    "optimizer.learning_rate",
    "optimizer.decay",
    "optimizer.floor",
    "optimizer.warmup_steps",
    "optimizer.decay_steps",
    "optimizer.clip_grad_norm",
    "optimizer.stochastic_rounding",
];

/// Keys of `[model]` that are no part of what a trained model computes.
const OF_BEGINNINGS: [&str; 3] = ["model.dropout", "model.weights", "model.path"];

/// What a run computes, as its checkpoints say it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    meta: BTreeMap<String, String>,
}

impl Origin {
    /// That of a run of a config: of its model without dropout.
    ///
    /// # Errors
    /// What building the model refuses.
    pub fn of_config(config: &Config) -> Result<Origin> {
        Origin::in_batches(config, config.train.batch, config.train.dtype)
    }

    fn in_batches(config: &Config, rows: usize, dtype: DType) -> Result<Origin> {
        // A checkpoint may claim any number.
        Limit::Planned.check(config.model.as_ref(), rows)?;
        let model = config.model.build(rows, dtype, false)?;
        let mut origin = Origin::of_graph(&model.forward, &config.step);
        origin.meta.insert(ROWS.to_string(), rows.to_string());
        origin.meta.insert(DTYPE.to_string(), dtype.name().to_string());
        origin.meta.insert(OPTIMIZER.to_string(), config.step.optimizer.name().to_string());
        Ok(origin)
    }

    /// That of a run of a graph, which is updated so.
    pub fn of_graph(forward: &Graph, options: &StepOptions) -> Origin {
        let text = print_with(forward, &PrintOptions { locations: false, ..PrintOptions::default() });
        let inputs: Vec<String> =
            forward.inputs.iter().map(|&input| forward.value(input).ty.to_string()).collect();
        let mut rule = format!("{:?}", options.optimizer);
        if options.decay_1d {
            rule += " with decay of vectors";
        }
        if !options.groups.is_empty() {
            rule += &format!(" and groups {}", digest::of_bytes(format!("{:?}", options.groups).as_bytes()));
        }
        let meta = [
            (GRAPH, digest::of_bytes(text.as_bytes())),
            (INPUTS, digest::of_bytes(inputs.join(" ").as_bytes())),
            (RULE, rule),
        ];
        Origin { meta: meta.map(|(key, value)| (key.to_string(), value)).into() }
    }

    /// What a checkpoint says of it.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        self.meta.clone()
    }

    /// Compares what a run computes with what the run of a checkpoint did, as far as that is known: on inputs of other types
    /// the models cannot be compared. What differs, for people, if `is_allowed`.
    ///
    /// # Errors
    /// E317 if the model or the rule of the optimizer is another.
    pub fn compare(&self, saved: &BTreeMap<String, String>, is_allowed: bool) -> Result<Vec<String>> {
        let differs = |key: &str| saved.get(key).is_some_and(|was| Some(was) != self.meta.get(key));
        let mut changed = Vec::new();
        if differs(GRAPH) && !differs(INPUTS) {
            changed.push(Change::of_graph(None));
        }
        if differs(RULE) {
            changed.push(Change::of_rule(saved, &self.meta));
        }
        refused(changed, "", is_allowed)
    }
}

/// A setting that is another than that of the checkpoint.
#[derive(Clone, Debug)]
struct Change {
    what: String,
    was: String,
    is: String,
}

impl Change {
    fn of_graph(is: Option<&Diagnostic>) -> Change {
        Change {
            what: "the graph of the model".to_string(),
            was: "that of the checkpoint".to_string(),
            is: is.map_or("another".to_string(), |error| format!("none: {}", error.message)),
        }
    }

    fn of_rule(was: &BTreeMap<String, String>, is: &BTreeMap<String, String>) -> Change {
        let text = |meta: &BTreeMap<String, String>| {
            meta.get(RULE).or_else(|| meta.get(OPTIMIZER)).cloned().unwrap_or_default()
        };
        Change { what: "the rule of the optimizer".to_string(), was: text(was), is: text(is) }
    }

    fn line(&self) -> String {
        format!("{} is {}; the checkpoint was made with {}", self.what, self.is, self.was)
    }
}

/// E317 for changes that are not allowed; a line for each of them otherwise.
fn refused(changed: Vec<Change>, config: &str, is_allowed: bool) -> Result<Vec<String>> {
    if is_allowed || changed.is_empty() {
        return Ok(changed.iter().map(Change::line).collect());
    }
    let list = |value: fn(&Change) -> &String| {
        let items = changed.iter().map(|change| format!("{} = {}", change.what, value(change)));
        items.collect::<Vec<_>>().join(", ")
    };
    Err(Diagnostic::new("E317", "the checkpoint is of another model, or of another rule of the optimizer")
        .expected(list(|change| &change.was))
        .found(list(|change| &change.is))
        .help(format!(
            "resume with the settings of the checkpoint{config}, or say that the run may go on with others: --resume-changed \
             (`changed=True` in Python)"
        )))
}

/// Compares a run of a config, and what it computes, with what it resumes. Returns a line for each difference that a run may
/// have.
///
/// # Errors
/// E317 if the model or the rule of the optimizer is another, unless [`Saved::allowing_changes`] says that this may be.
pub(crate) fn compare(config: &Config, own: &Origin, saved: &Saved) -> Result<Vec<String>> {
    let meta = saved.opened().meta();
    let mut lines = Vec::new();
    let file = saved.path.join(CONFIG_FILE);
    let before = match saved.config(&ModelKinds::bundled(), &[]) {
        Ok(before) => Some(before),
        Err(error) if file.exists() => {
            lines.push(format!(
                "{} cannot be read here, and its settings are not compared: {} {}",
                file.display(),
                error.code,
                error.message
            ));
            None
        }
        Err(_) => None,
    };
    let is_another_plan = before.as_ref().is_some_and(|before| {
        (&before.plan.styles, &before.plan.file) != (&config.plan.styles, &config.plan.file)
    });
    let mut differing = before.map_or(Vec::new(), |before| changes(&before.values, &config.values));
    let in_section = |change: &Change, section: &str| change.what.split('.').next() == Some(section);
    let decides = |change: &Change, others: &[&str]| !others.contains(&change.what.as_str());
    // What is refused: the keys of the model, or of the rule, if it is known that it is another.
    let mut refuse = |section: &str, others: &[&str], is_other: Option<bool>, unnamed: Change| {
        let is_named = differing.iter().any(|change| in_section(change, section) && decides(change, others));
        if !is_other.unwrap_or(is_named) {
            return Vec::new();
        }
        let (named, rest) = std::mem::take(&mut differing)
            .into_iter()
            .partition::<Vec<_>, _>(|change| in_section(change, section) && decides(change, others));
        differing = rest;
        if named.is_empty() { vec![unnamed] } else { named }
    };
    let (rows, dtype) = (meta.get(ROWS).and_then(|rows| rows.parse().ok()), meta.get(DTYPE));
    let rows = rows.filter(|&rows: &usize| rows > 0);
    let now = match (rows, dtype.and_then(|dtype| DType::from_name(dtype))) {
        (Some(rows), Some(dtype)) if (rows, dtype) == (config.train.batch, config.train.dtype) => {
            Some(Ok(own.clone()))
        }
        (Some(rows), Some(dtype)) => Some(Origin::in_batches(config, rows, dtype)),
        _ => None,
    };
    let is_other = match &now {
        Some(Ok(now)) => meta.get(GRAPH).map(|was| Some(was) != now.meta.get(GRAPH)),
        Some(Err(_)) => Some(true),
        None => None,
    };
    let error = now.as_ref().and_then(|now| now.as_ref().err());
    let mut refused_changes =
        refuse("model", &OF_BEGINNINGS, is_other, Change::of_graph(error.map(|error| error.as_ref())));
    let key = if meta.contains_key(RULE) { RULE } else { OPTIMIZER };
    let is_other = meta.get(key).map(|was| Some(was) != own.meta.get(key));
    let is_other = if key == RULE { is_other } else { is_other.filter(|&is_other| is_other) };
    refused_changes.extend(refuse("optimizer", &OF_RATES, is_other, Change::of_rule(meta, &own.meta)));
    let help = match file.exists() {
        true => format!(", `partita train {} --resume {}`", file.display(), saved.path.display()),
        false => String::new(),
    };
    lines.extend(refused(refused_changes, &help, saved.are_changes_allowed())?);
    let names = |change: &&Change| {
        SECTIONS.iter().any(|section| in_section(change, section)) && decides(change, &OF_EXECUTION)
    };
    lines.extend(differing.iter().filter(names).map(Change::line));
    if is_another_plan {
        lines.push(format!(
            "the plan is another than the one in {}; that changes no number",
            saved.path.join(CONFIG_FILE).display()
        ));
    }
    if meta.get("data.digest").is_some_and(|digest| is_of_samples(digest)) {
        lines.push(
            "the text is compared with that of the checkpoint by samples alone, 64 of 1 MiB".to_string(),
        );
    }
    if !saved.opened().has_manifest() {
        lines.push(NO_MANIFEST.to_string());
    }
    Ok(lines)
}

/// What is to say of a checkpoint without a manifest.
pub const NO_MANIFEST: &str = "the checkpoint has no manifest, as an earlier version wrote it: damage of its tensors is \
                               noticed, and of its other files is not";

/// The keys of which two configs have other values. Where the kind of a section is another, of its keys only those count
/// that both kinds have.
fn changes(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<Change> {
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let changed = keys.into_iter().filter_map(|key| match (before.get(key), now.get(key)) {
        (Some(was), Some(is)) if was != is => {
            Some(Change { what: key.clone(), was: was.clone(), is: is.clone() })
        }
        _ => None,
    });
    changed.collect()
}
