//! `model.kind = "gpt"`: a decoder in the style of GPT-2 (Radford et al. 2019).

use super::pretrained::{self, Fact};
use super::{Experts, ModelKind, ModelSource, Sizes, period};
use crate::keys::Section;
use partita_base::{DType, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_nn::{GptConfig, Model, ModelConfig};
use partita_schedule::{Plan, ReadyOptions, ready_plan};
use std::sync::Arc;

/// The kind `gpt`.
pub(super) struct Gpt;

impl ModelKind for Gpt {
    fn name(&self) -> &str {
        "gpt"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let config = read(section, GptConfig::default())?;
        let real = |size: usize| size as f64;
        let facts = vec![
            ("n_head", "model.heads", Fact::Is(real(config.heads))),
            ("n_layer", "model.layers", Fact::Is(real(config.layers))),
            ("n_embd", "model.dim", Fact::Is(real(config.dim))),
            ("vocab_size", "model.vocab", Fact::Is(real(config.vocab))),
            ("n_positions", "model.sequence", Fact::AtLeast(real(config.sequence))),
            ("layer_norm_epsilon", "this kind of model", Fact::Is(1e-5)),
            ("activation_function", "this kind of model", Fact::Named(&["gelu_new", "gelu_pytorch_tanh"])),
            ("scale_attn_by_inverse_layer_idx", "this kind of model", Fact::Plain),
        ];
        pretrained::read(section, Arc::new(config), facts)
    }
}

/// Reads the keys of a decoder with these defaults.
pub(super) fn read(section: &mut Section, d: GptConfig) -> Result<GptConfig> {
    Ok(GptConfig {
        vocab: section.get("vocab", d.vocab, "size of the vocabulary")?,
        dim: section.get("dim", d.dim, "features of the residual stream")?,
        layers: section.get("layers", d.layers, "transformer layers")?,
        heads: section.get("heads", d.heads, "heads of the attention")?,
        kv_heads: section
            .find("kv_heads", "as many as heads", "heads of keys and values, a divisor of heads")?
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
        mlp_ratio: section.get(
            "mlp_ratio",
            d.mlp_ratio,
            "hidden features of the feed-forward block, in multiples of dim",
        )?,
        dropout: section.get("dropout", d.dropout, "dropout after the embedding and each block")?,
        tied: section.get("tied", d.tied, "whether the head shares the weight of the token embedding")?,
        fused_qkv: section.get(
            "fused_qkv",
            d.fused_qkv,
            "whether queries, keys and values share one projection",
        )?,
        bias: section.get("bias", d.bias, "whether linear layers and norms have a bias")?,
        experts: d.experts,
    })
}

impl ModelSource for GptConfig {
    fn name(&self) -> &str {
        if self.experts.is_some() { "moe-gpt" } else { "gpt" }
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::Gpt(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::Gpt(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let hidden = self.dim as f64 * self.mlp_ratio as f64;
        Sizes::of_transformer(batch, self.layers, [self.vocab, self.dim, self.heads, self.sequence], hidden)
    }

    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        let period = period(self.experts.as_ref());
        Some(Arc::new(GptConfig { layers: layers * period, ..self.clone() }))
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
