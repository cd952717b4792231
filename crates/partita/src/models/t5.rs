//! `model.kind = "t5"`: an encoder and a decoder in the style of T5 (Raffel et al. 2020).

use super::{ModelKind, ModelSource, Sizes};
use crate::keys::Section;
use partita_base::{DType, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_nn::{Model, ModelConfig, T5Config};
use partita_schedule::{Plan, ReadyOptions, ready_plan};
use std::sync::Arc;

/// The kind `t5`.
pub(super) struct T5;

impl ModelKind for T5 {
    fn name(&self) -> &str {
        "t5"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let d = T5Config::default();
        Ok(Arc::new(T5Config {
            vocab: section.get("vocab", d.vocab, "size of the vocabulary")?,
            dim: section.get("dim", d.dim, "features of the residual stream")?,
            layers: section.get(
                "layers",
                d.layers,
                "transformer layers; of t5: of the encoder, and of the decoder",
            )?,
            heads: section.get("heads", d.heads, "heads of the attention")?,
            head_features: section.get("head_features", d.head_features, "features of a head")?,
            hidden: section.get("hidden", d.hidden, "hidden features of the feed-forward block")?,
            sequence: section.get("sequence", d.sequence, "tokens of a row")?,
            buckets: section.get("buckets", d.buckets, "buckets of relative positions")?,
            distance: section.get(
                "distance",
                d.distance,
                "distance from which on positions share the last bucket",
            )?,
            dropout: section.get("dropout", d.dropout, "dropout after the embedding and each block")?,
            tied: section.get("tied", d.tied, "whether the head shares the weight of the token embedding")?,
        }))
    }
}

impl ModelSource for T5Config {
    fn name(&self) -> &str {
        "t5"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::T5(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::T5(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let hidden = (self.hidden as f64).max(self.heads as f64 * self.head_features as f64);
        let layers = self.layers.saturating_mul(2);
        Sizes::of_transformer(batch, layers, [self.vocab, self.dim, self.heads, self.sequence], hidden)
    }

    /// A block of the encoder and one of the decoder repeat together.
    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        Some(Arc::new(T5Config { layers, ..self.clone() }))
    }

    fn period(&self) -> usize {
        2
    }

    /// All blocks of the encoder come before those of the decoder.
    fn kind_of_block(&self, block: usize, blocks: usize) -> usize {
        usize::from(2 * block >= blocks)
    }

    fn stream(&self) -> Option<[usize; 3]> {
        Some([self.layers, self.sequence, self.dim])
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan("t5", forward, mesh, options)
    }

    /// The encoder sees a whole row, from which the decoder is to restore the hidden tokens.
    fn is_bidirectional(&self) -> bool {
        true
    }
}
