//! What a model is fed: global batches by input name, each a pure function of (data, seed, step).

mod corpus;
mod images;
mod masked;
mod random;
mod regression;
mod tensors;
mod text;

pub use corpus::{BUNDLED_CORPUS, bundled_corpus, open_corpus};
pub use images::{ImageFeed, ImageGoal};
pub use masked::MaskedTextFeed;
pub use random::RandomFeed;
pub use regression::RegressionFeed;
pub use tensors::{TensorFeed, is_tensors};
pub use text::TextFeed;

use crate::config::Config;
use crate::execution::tensor_data;
use crate::signature::Signature;
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_runtime::checkpoint::TensorData;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Labels with this value do not count towards the loss.
pub const IGNORED: i32 = partita_nn::losses::IGNORE_INDEX as i32;

/// The global batch of one step by input name: `tokens`, `labels`, `positions`, `token_types`, `attention_mask` (i32
/// `[batch, sequence]`), or `inputs` and `targets` (floats `[batch, features]`) or `labels` (i32 `[batch]`). Scalars
/// (`seed`, `step`, `learning_rate`) are not in it: see [`scalars`](partita_schedule::feed::scalars).
pub use partita_schedule::feed::Fed;

/// Where batches come from.
pub trait Feed: Send + Sync {
    /// The training batch of a step; the first step is 0.
    fn batch(&self, step: u64) -> Result<Fed>;
    /// A batch of what is held out; the first is 0.
    fn validation(&self, index: u64) -> Result<Fed>;
    /// How many validation batches show something new; 0 where nothing is held out.
    fn validation_batches(&self) -> u64;
    /// What tokens/s counts: tokens of a batch, or rows where there are no tokens.
    fn tokens_per_batch(&self) -> usize;
    /// One line for people: what the data is.
    fn describe(&self) -> String;
    /// The position in the data after `steps` steps, for checkpoints.
    fn position(&self, steps: u64) -> BTreeMap<String, String>;
    /// The step to go on with from a [`Feed::position`]. E304 where data, seed or sizes are others.
    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64>;
    /// What counting bytes alone would reach on the first `batches` validation batches; `None` without text.
    fn baselines(&self, batches: u64) -> Option<Baselines> {
        let _ = batches;
        None
    }
}

/// The batches of the steps after the first `steps.start`, by `<step>/<name>`, of which the first is that of step
/// `first_batch` of the data.
///
/// # Errors
/// Those of [`Feed::batch`].
pub(crate) fn batches(
    feed: &dyn Feed,
    steps: Range<u64>,
    first_batch: u64,
) -> Result<IndexMap<String, TensorData>> {
    let mut batches = IndexMap::new();
    for step in steps.clone() {
        for (name, value) in feed.batch(first_batch + (step - steps.start))? {
            batches.insert(format!("{}/{name}", step + 1), tensor_data(&value));
        }
    }
    Ok(batches)
}

/// Losses in nats per byte that need no model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Baselines {
    /// Knowing how often each byte occurs.
    pub unigram_nats: f64,
    /// Knowing the byte before, too.
    pub bigram_nats: f64,
}

/// The feed that suits the inputs of a model, chosen by their names, shapes and types:
///
/// * `tokens` and `labels`, i32 `[batch, sequence]`, perhaps with `positions`, `token_types` and `attention_mask` of that
///   shape: text of the config, with the next byte as the label, or with hidden bytes for a bidirectional model;
/// * `inputs`, floats `[batch, features]`, with `targets`, floats `[batch, features]`, or with `labels`, i32 `[batch]`: a
///   fixed random function;
/// * `inputs`, floats `[batch, height, width, channels]`, with `labels`, i32 `[batch]`, or `targets`, floats
///   `[batch, height, width, outputs]`: waves under noise.
///
/// A file of tensors (`.npz`, `.npy`, `.safetensors`) suits any model whose inputs it has. A model of a file for which the
/// config names no data is fed random numbers. Opens the data. A program may bring any other [`Feed`] of its own.
///
/// # Errors
/// E036 if no feed suits the inputs, or `data.path` is no data for them; E301 to E303 for data that cannot be read, E305
/// for a vocabulary that is too small.
pub fn feed(config: &Config, signature: &Signature) -> Result<Arc<dyn Feed>> {
    config.train.check()?;
    let (batch, seed) = (config.train.batch, config.train.seed);
    let text = |sequence, vocab| -> Result<TextFeed> {
        let corpus = open_corpus(&config.data)?;
        TextFeed::new(&corpus, config.data.validation_fraction, sequence, batch, vocab, seed)
    };
    if let Some(path) = config.data.path.as_deref().filter(|path| is_tensors(path)) {
        let tensors = TensorFeed::open(path, config.data.validation_fraction, signature, batch)?;
        return Ok(Arc::new(tensors.shuffled(config.data.shuffle.then_some(seed))));
    }
    // Data that is made up here: a path to other data would change nothing.
    let made_up = |feed: Arc<dyn Feed>| match &config.data.path {
        None => Ok(feed),
        Some(path) => Err(Diagnostic::new("E036", "this data cannot be fed to the model")
            .at("--data")
            .expected(format!("a file .npz or .safetensors with an array for each input: {signature}"))
            .found(path.display().to_string())
            .help("save the inputs under these names, rows first; without --data they are made up")),
    };
    let shape = |name: &str| signature.input(name).map(|input| (input.ty.dtype, input.ty.shape.as_slice()));
    let others = |known: &[&str]| signature.inputs.iter().any(|input| !known.contains(&input.name.as_str()));
    match (shape("tokens"), shape("inputs"), shape("labels"), shape("targets")) {
        (Some((DType::I32, &[_, sequence])), None, Some((DType::I32, labels)), None)
            if labels == [batch, sequence] && !others(&TEXT) =>
        {
            let vocab = signature.choices("tokens");
            let text = text(sequence, vocab)?;
            if !signature.is_bidirectional {
                return Ok(Arc::new(text.with_documents(signature.input("positions").is_some())));
            }
            let types = signature.input("token_types").map_or(0, |input| input.choices);
            let padding_mask = signature.input("attention_mask").is_some();
            Ok(Arc::new(MaskedTextFeed::new(text, vocab, types, padding_mask, seed)?))
        }
        (None, Some((dtype, &[_, inputs])), None, Some((goal, &[_, outputs])))
            if dtype.is_float() && goal == dtype && !others(&["inputs", "targets"]) =>
        {
            made_up(Arc::new(RegressionFeed::new(&[inputs, outputs], false, batch, dtype, seed)))
        }
        (None, Some((dtype, &[_, inputs])), Some((DType::I32, &[_])), None)
            if dtype.is_float() && !others(&["inputs", "labels"]) =>
        {
            let classes = signature.choices("labels");
            made_up(Arc::new(RegressionFeed::new(&[inputs, classes], true, batch, dtype, seed)))
        }
        (None, Some((dtype, &[_, height, width, channels])), Some((DType::I32, &[_])), None)
            if dtype.is_float() && !others(&["inputs", "labels"]) =>
        {
            let goal = ImageGoal::Class(signature.choices("labels"));
            made_up(Arc::new(ImageFeed::new([height, width, channels], goal, batch, dtype, seed)))
        }
        (None, Some((dtype, &[_, height, width, channels])), None, Some((goal, &[_, to, from, outputs])))
            if dtype.is_float()
                && goal == dtype
                && [height, width] == [to, from]
                && !others(&["inputs", "targets"]) =>
        {
            let goal = ImageGoal::Clean(outputs);
            made_up(Arc::new(ImageFeed::new([height, width, channels], goal, batch, dtype, seed)))
        }
        _ if config.model.terms().takes_any_data => {
            made_up(Arc::new(RandomFeed::new(signature, batch, seed)))
        }
        _ => Err(Diagnostic::new("E036", "there is no data for the inputs of this model")
            .at("[model]")
            .expected("tokens and labels of text, or inputs with targets or labels")
            .found(signature.to_string())
            .help("name a file of tensors by input, --data DATA.npz, or implement the trait `Feed`")),
    }
}

/// Inputs of a model of text.
const TEXT: [&str; 5] = ["tokens", "labels", "positions", "token_types", "attention_mask"];
