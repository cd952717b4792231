//! `model.kind = "deepseek"`: a decoder in the style of DeepSeek-V3 (DeepSeek-AI 2024).

use super::{Experts, ModelKind, ModelSource, Sizes};
use crate::keys::Section;
use partita_base::{DType, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_nn::{DeepseekConfig, Model, ModelConfig};
use partita_schedule::{Plan, ReadyOptions, ready_plan};
use std::sync::Arc;

/// The kind `deepseek`.
pub(super) struct Deepseek;

impl ModelKind for Deepseek {
    fn name(&self) -> &str {
        "deepseek"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let d = DeepseekConfig::default();
        let capacity = section.get(
            "capacity",
            d.capacity.unwrap_or(0.0),
            "slots of an expert over its even share of a row's choices; 0 drops no token",
        )?;
        Ok(Arc::new(DeepseekConfig {
            vocab: section.get("vocab", d.vocab, "size of the vocabulary")?,
            dim: section.get("dim", d.dim, "features of the residual stream")?,
            layers: section.get("layers", d.layers, "transformer layers")?,
            dense_layers: section.get(
                "dense_layers",
                d.dense_layers,
                "first layers, which have no experts",
            )?,
            heads: section.get("heads", d.heads, "heads of the attention")?,
            query_rank: section.get(
                "query_rank",
                d.query_rank,
                "features of the latent vector of queries; 0 for none",
            )?,
            latent_rank: section.get(
                "latent_rank",
                d.latent_rank,
                "features of the latent vector of keys and values",
            )?,
            plain_features: section.get(
                "plain_features",
                d.plain_features,
                "features of a head's query and key without positions",
            )?,
            rotary_features: section.get(
                "rotary_features",
                d.rotary_features,
                "features of a head's query and key with rotary positions",
            )?,
            value_features: section.get("value_features", d.value_features, "features of a head's value")?,
            sequence: section.get("sequence", d.sequence, "tokens of a row")?,
            hidden: section.get(
                "hidden",
                d.hidden,
                "hidden features of a feed-forward block without experts",
            )?,
            expert_hidden: section.get("expert_hidden", d.expert_hidden, "hidden features of an expert")?,
            experts: section.get("experts", d.experts, "experts of a layer")?,
            top_k: section.get("top_k", d.top_k, "experts for each token")?,
            shared: section.get("shared", d.shared, "experts that every token visits")?,
            capacity: (capacity != 0.0).then_some(capacity),
            bias_rate: section.get("bias_rate", d.bias_rate, "change of an expert's bias in a step")?,
            balance: section.get("balance", d.balance, "factor of the balance loss")?,
            weight_scale: section.get(
                "weight_scale",
                d.weight_scale,
                "what the weights of experts are multiplied with",
            )?,
            next_weight: section.get(
                "next_weight",
                d.next_weight,
                "factor of the loss of the token after the next; 0 leaves out its head",
            )?,
            rotary_base: section.get("rotary_base", d.rotary_base, "base of the rotary frequencies")?,
            epsilon: section.get("epsilon", d.epsilon, "added to the mean square in norms")?,
        }))
    }
}

impl ModelSource for DeepseekConfig {
    fn name(&self) -> &str {
        "deepseek"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::Deepseek(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::Deepseek(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let hidden = self.hidden.max(self.expert_hidden) as f64 * self.experts as f64;
        Sizes::of_transformer(batch, self.layers, [self.vocab, self.dim, self.heads, self.sequence], hidden)
    }

    /// The layers with experts repeat.
    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        Some(Arc::new(DeepseekConfig { layers: self.dense_layers + layers, ..self.clone() }))
    }

    fn stream(&self) -> Option<[usize; 3]> {
        let repeated = self.layers.saturating_sub(self.dense_layers);
        (repeated > 0).then_some([repeated, self.sequence, self.dim])
    }

    fn tokens(&self) -> Option<usize> {
        Some(self.sequence)
    }

    fn experts(&self) -> Option<Experts> {
        Some(Experts { count: self.experts, top_k: self.top_k })
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan("deepseek", forward, mesh, options)
    }
}
