//! `model.kind = "llama"`: a decoder in the style of Llama (Touvron et al. 2023).

use super::pretrained::{self, Fact};
use super::{Experts, ModelKind, ModelSource, Sizes, period};
use crate::keys::Section;
use partita_base::{DType, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_nn::{LlamaConfig, Model, ModelConfig};
use partita_schedule::{Plan, ReadyOptions, ready_plan};
use std::sync::Arc;

/// The kind `llama`.
pub(super) struct Llama;

impl ModelKind for Llama {
    fn name(&self) -> &str {
        "llama"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let config = read(section, LlamaConfig::default())?;
        let real = |size: usize| size as f64;
        let kv_heads = config.kv_heads.unwrap_or(config.heads);
        let facts = vec![
            ("num_attention_heads", "model.heads", Fact::Is(real(config.heads))),
            ("num_key_value_heads", "model.kv_heads", Fact::Is(real(kv_heads))),
            ("num_hidden_layers", "model.layers", Fact::Is(real(config.layers))),
            ("hidden_size", "model.dim", Fact::Is(real(config.dim))),
            ("vocab_size", "model.vocab", Fact::Is(real(config.vocab))),
            ("max_position_embeddings", "model.sequence", Fact::AtLeast(real(config.sequence))),
            ("rms_norm_eps", "model.epsilon", Fact::Is(config.epsilon)),
            ("rope_theta", "model.rotary_base", Fact::Is(config.rotary_base)),
            ("rope_type", "this kind of model", Fact::Plain),
            ("hidden_act", "this kind of model", Fact::Named(&["silu", "swish"])),
            ("attention_bias", "this kind of model", Fact::Plain),
        ];
        pretrained::read(section, Arc::new(config), facts)
    }
}

/// Reads the keys of a decoder with these defaults.
pub(super) fn read(section: &mut Section, d: LlamaConfig) -> Result<LlamaConfig> {
    Ok(LlamaConfig {
        vocab: section.get("vocab", d.vocab, "size of the vocabulary")?,
        dim: section.get("dim", d.dim, "features of the residual stream")?,
        layers: section.get("layers", d.layers, "transformer layers")?,
        heads: section.get("heads", d.heads, "heads of the attention")?,
        kv_heads: section
            .find("kv_heads", "2", "heads of keys and values, a divisor of heads")?
            .or(d.kv_heads),
        sequence: section.get("sequence", d.sequence, "tokens of a row")?,
        window: section
            .find("window", "all before it", "positions that a token attends to, its own among them")?
            .or(d.window),
        documents: section.get(
            "documents",
            d.documents,
            "whether rows are packed with documents; a token attends to its own alone",
        )?,
        hidden: section
            .find("hidden", "8/3 of dim, rounded up to 16", "hidden features of the feed-forward block")?
            .or(d.hidden),
        rotary_base: section.get("rotary_base", d.rotary_base, "base of the rotary frequencies")?,
        epsilon: section.get("epsilon", d.epsilon, "added to the mean square in norms")?,
        dropout: section.get("dropout", d.dropout, "dropout after the embedding and each block")?,
        tied: section.get("tied", d.tied, "whether the head shares the weight of the token embedding")?,
        fused_qkv: section.get(
            "fused_qkv",
            d.fused_qkv,
            "whether queries, keys and values share one projection",
        )?,
        experts: d.experts,
    })
}

impl ModelSource for LlamaConfig {
    fn name(&self) -> &str {
        if self.experts.is_some() { "mixtral" } else { "llama" }
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::Llama(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::Llama(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let hidden = self.hidden.map_or(4.0 * self.dim as f64, |hidden| hidden as f64);
        Sizes::of_transformer(batch, self.layers, [self.vocab, self.dim, self.heads, self.sequence], hidden)
    }

    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        let period = period(self.experts.as_ref());
        Some(Arc::new(LlamaConfig { layers: layers * period, ..self.clone() }))
    }

    fn period(&self) -> usize {
        period(self.experts.as_ref())
    }

    fn stream(&self) -> Option<[usize; 3]> {
        let period = self.period();
        self.layers.is_multiple_of(period).then_some([self.layers / period, self.sequence, self.dim])
    }

    fn tokens(&self) -> Option<usize> {
        Some(self.sequence)
    }

    fn experts(&self) -> Option<Experts> {
        self.experts.as_ref().map(Experts::of)
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan(self.name(), forward, mesh, options)
    }
}
