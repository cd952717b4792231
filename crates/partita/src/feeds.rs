//! What a model is fed: global batches by input name, each a pure function of (data, seed, step).

mod corpus;
mod masked;
mod regression;
mod text;

pub use corpus::{BUNDLED_CORPUS, bundled_corpus, open_corpus};
pub use masked::MaskedTextFeed;
pub use regression::RegressionFeed;
pub use text::TextFeed;

use crate::config::Config;
use partita_base::Result;
use partita_nn::ModelConfig;
use std::collections::BTreeMap;

/// Labels with this value do not count towards the loss.
pub const IGNORED: i32 = partita_nn::losses::IGNORE_INDEX as i32;

/// The global batch of one step by input name: `tokens`, `labels`, `token_types`, `attention_mask` (i32 `[batch,
/// sequence]`), or `inputs` and `targets` (floats `[batch, features]`) or `labels` (i32 `[batch]`). Scalars (`seed`,
/// `step`, `learning_rate`) are not in it: see
/// [`scalars`](partita_schedule::feed::scalars).
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
    /// Where the data stands after `steps` steps, for checkpoints.
    fn position(&self, steps: u64) -> BTreeMap<String, String>;
    /// The step to go on with from a [`Feed::position`]. E304 where data, seed or sizes are others.
    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64>;
    /// What counting bytes alone would reach on the first `batches` validation batches; `None` without text.
    fn baselines(&self, batches: u64) -> Option<Baselines> {
        let _ = batches;
        None
    }
}

/// Losses in nats per byte that need no model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Baselines {
    /// Knowing how often each byte occurs.
    pub unigram_nats: f64,
    /// Knowing the byte before, too.
    pub bigram_nats: f64,
}

/// The feed of a config's model and data. Opens the data: E031 for an empty batch, E301 to E303, E305 where it does not suit the model.
pub fn feed(config: &Config) -> Result<Box<dyn Feed>> {
    let (batch, seed) = (config.train.batch, config.train.seed);
    config.train.check()?;
    let text = |sequence, vocab| -> Result<TextFeed> {
        let corpus = open_corpus(&config.data)?;
        TextFeed::new(&corpus, config.data.validation_fraction, sequence, batch, vocab, seed)
    };
    Ok(match &config.model {
        ModelConfig::Gpt(model) => Box::new(text(model.sequence, model.vocab)?),
        ModelConfig::Llama(model) => Box::new(text(model.sequence, model.vocab)?),
        ModelConfig::Bert(model) => {
            let text = text(model.sequence, model.vocab)?;
            Box::new(MaskedTextFeed::new(text, model.vocab, model.types, model.padding_mask, seed)?)
        }
        ModelConfig::Mlp(model) => {
            Box::new(RegressionFeed::new(&model.dims, model.classify, batch, config.train.dtype, seed))
        }
    })
}
