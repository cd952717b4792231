//! `model.kind = "bert"`: an encoder in the style of BERT (Devlin et al. 2018) with a head that predicts hidden tokens.

use super::pretrained::{self, Fact};
use super::{ModelKind, ModelSource, Sizes};
use crate::keys::Section;
use partita_base::{DType, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_nn::{BertConfig, Model, ModelConfig};
use partita_schedule::{Plan, ReadyOptions, ready_plan};
use std::sync::Arc;

/// The kind `bert`.
pub(super) struct Bert;

impl ModelKind for Bert {
    fn name(&self) -> &str {
        "bert"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let d = BertConfig::default();
        let config = BertConfig {
            vocab: section.get("vocab", d.vocab, "size of the vocabulary")?,
            dim: section.get("dim", d.dim, "features of the residual stream")?,
            layers: section.get("layers", d.layers, "transformer layers")?,
            heads: section.get("heads", d.heads, "heads of the attention")?,
            sequence: section.get("sequence", d.sequence, "tokens of a row")?,
            mlp_ratio: section.get(
                "mlp_ratio",
                d.mlp_ratio,
                "hidden features of the feed-forward block, in multiples of dim",
            )?,
            dropout: section.get("dropout", d.dropout, "dropout after the embedding and each block")?,
            types: section.get("types", d.types, "segment types; 0 for a model without them")?,
            padding_mask: section.get("padding_mask", d.padding_mask, "whether an input marks padding")?,
            tied: section.get("tied", d.tied, "whether the head shares the weight of the token embedding")?,
            fused_qkv: section.get(
                "fused_qkv",
                d.fused_qkv,
                "whether queries, keys and values share one projection",
            )?,
        };
        let real = |size: usize| size as f64;
        let facts = vec![
            ("num_attention_heads", "model.heads", Fact::Is(real(config.heads))),
            ("num_hidden_layers", "model.layers", Fact::Is(real(config.layers))),
            ("hidden_size", "model.dim", Fact::Is(real(config.dim))),
            ("vocab_size", "model.vocab", Fact::Is(real(config.vocab))),
            ("max_position_embeddings", "model.sequence", Fact::AtLeast(real(config.sequence))),
            ("layer_norm_eps", "this kind of model", Fact::Is(1e-12)),
            ("hidden_act", "this kind of model", Fact::Named(&["gelu"])),
        ];
        pretrained::read(section, Arc::new(config), facts)
    }
}

impl ModelSource for BertConfig {
    fn name(&self) -> &str {
        "bert"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::Bert(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::Bert(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let hidden = self.dim as f64 * self.mlp_ratio as f64;
        Sizes::of_transformer(batch, self.layers, [self.vocab, self.dim, self.heads, self.sequence], hidden)
    }

    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        Some(Arc::new(BertConfig { layers, ..self.clone() }))
    }

    fn stream(&self) -> Option<[usize; 3]> {
        Some([self.layers, self.sequence, self.dim])
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan("bert", forward, mesh, options)
    }

    fn is_bidirectional(&self) -> bool {
        true
    }
}
