//! A decoder in the style of DeepSeek-V3 (DeepSeek-AI 2024): latent attention, many small experts beside shared ones,
//! routing that biases balance instead of a loss, and a head that predicts the token after the next one.

use super::gpt::{STD, residual_init};
use super::{positive, token_inputs, with_loss};
use crate::context::Context;
use crate::init::Init;
use crate::losses::{self, IGNORE_INDEX};
use crate::modules::{Embedding, LatentAttention, Linear, MixtureOfExperts, RMSNorm, Scores, SwiGlu};
use partita_base::{Diagnostic, Result};
use partita_ir::{TensorType, ValueId};

/// Parameters: `embed_tokens`, `layers.N.attn_norm`, `layers.N.attn.*` as [`LatentAttention`] lists them,
/// `layers.N.mlp_norm`, `layers.N.mlp.{gate,up,down}_proj` in the first `dense_layers`, `layers.N.moe.*` as
/// [`MixtureOfExperts`] lists them in the others, `norm`, `lm_head`, and `next.{hidden_norm,token_norm,proj}` with
/// `next.layer.*` for the second prediction.
#[derive(Clone, PartialEq, Debug)]
pub struct DeepseekConfig {
    /// Vocabulary size.
    pub vocab: usize,
    /// Features of the residual stream.
    pub dim: usize,
    /// Transformer layers.
    pub layers: usize,
    /// The first layers, which have no experts.
    pub dense_layers: usize,
    /// Heads.
    pub heads: usize,
    /// Features of the latent vector of queries; 0 projects them from the stream.
    pub query_rank: usize,
    /// Features of the latent vector of keys and values.
    pub latent_rank: usize,
    /// Features of a head's query and key without positions.
    pub plain_features: usize,
    /// Features of a head's query and key with rotary positions.
    pub rotary_features: usize,
    /// Features of a head's value.
    pub value_features: usize,
    /// Positions.
    pub sequence: usize,
    /// Hidden features of the feed-forward block without experts.
    pub hidden: usize,
    /// Hidden features of an expert.
    pub expert_hidden: usize,
    /// The number of experts.
    pub experts: usize,
    /// Experts for each token, beside the shared ones.
    pub top_k: usize,
    /// Experts that every token visits.
    pub shared: usize,
    /// Slots of an expert over its even share of a row's choices; `None` drops no token.
    pub capacity: Option<f64>,
    /// The change of an expert's bias in a step.
    pub bias_rate: f64,
    /// The factor of the balance loss within a row.
    pub balance: f64,
    /// What the weights of experts are multiplied with.
    pub weight_scale: f64,
    /// The factor of the loss of the second prediction; 0 leaves out its head.
    pub next_weight: f64,
    /// The base of the rotary frequencies.
    pub rotary_base: f64,
    /// Added to the mean square in norms.
    pub epsilon: f64,
}

impl Default for DeepseekConfig {
    fn default() -> Self {
        DeepseekConfig {
            vocab: 256,
            dim: 64,
            layers: 2,
            dense_layers: 1,
            heads: 4,
            query_rank: 32,
            latent_rank: 16,
            plain_features: 16,
            rotary_features: 8,
            value_features: 16,
            sequence: 64,
            hidden: 176,
            expert_hidden: 32,
            experts: 8,
            top_k: 2,
            shared: 1,
            capacity: None,
            bias_rate: 1e-3,
            balance: 1e-4,
            weight_scale: 2.5,
            next_weight: 0.3,
            rotary_base: 10000.0,
            epsilon: 1e-6,
        }
    }
}

impl DeepseekConfig {
    fn attention(&self) -> LatentAttention {
        LatentAttention {
            dim: self.dim,
            heads: self.heads,
            query_rank: (self.query_rank > 0).then_some(self.query_rank),
            latent_rank: self.latent_rank,
            plain_features: self.plain_features,
            rotary_features: self.rotary_features,
            value_features: self.value_features,
            rotary_base: self.rotary_base,
            epsilon: self.epsilon,
            init: Init::Normal { std: STD },
            out_init: residual_init(self.layers),
        }
    }

    fn mixture(&self) -> MixtureOfExperts {
        MixtureOfExperts {
            top_k: self.top_k,
            capacity: self.capacity,
            gated: true,
            shared_hidden: self.shared * self.expert_hidden,
            scores: Scores::BiasedSigmoid { rate: self.bias_rate },
            weight_scale: self.weight_scale,
            balance: self.balance,
            init: Init::Normal { std: STD },
            out_init: residual_init(self.layers),
            ..MixtureOfExperts::new(self.dim, self.expert_hidden, self.experts)
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        for (name, size) in [
            ("vocab", self.vocab),
            ("dim", self.dim),
            ("layers", self.layers),
            ("sequence", self.sequence),
            ("hidden", self.hidden),
        ] {
            positive(name, size)?;
        }
        for (name, number) in [
            ("bias_rate", self.bias_rate),
            ("weight_scale", self.weight_scale),
            ("next_weight", self.next_weight),
        ] {
            if !(number.is_finite() && number >= 0.0) {
                return Err(Diagnostic::new("E050", format!("`{name}` out of range"))
                    .at(name)
                    .expected("a finite number, at least 0")
                    .found(number.to_string()));
            }
        }
        self.mixture().validate()?;
        self.attention().validate()
    }

    /// A layer at the current path, with experts or without.
    fn layer(&self, cx: &mut Context, x: ValueId, sparse: bool) -> Result<ValueId> {
        let norm = RMSNorm::new(self.dim).epsilon(self.epsilon);
        let h = cx.call("attn_norm", &norm, x)?;
        let h = cx.call("attn", &self.attention(), h)?;
        let x = cx.builder.add(x, h)?;
        let h = cx.call("mlp_norm", &norm, x)?;
        let h = match sparse {
            true => cx.call("moe", &self.mixture(), h)?,
            false => {
                let mlp = SwiGlu {
                    init: Some(Init::Normal { std: STD }),
                    out_init: Some(residual_init(self.layers)),
                    ..SwiGlu::new(self.dim, self.hidden)
                };
                cx.call("mlp", &mlp, h)?
            }
        };
        cx.builder.add(x, h)
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let init = Init::Normal { std: STD };
        let (tokens, labels) = token_inputs(cx, batch, self.sequence);
        let table = Embedding::new(self.vocab, self.dim).init(init);
        let norm = RMSNorm::new(self.dim).epsilon(self.epsilon);
        let head = Linear::new(self.dim, self.vocab).bias(false).init(init);
        let mut x = cx.call("embed_tokens", &table, tokens)?;
        for layer in 0..self.layers {
            x = cx.scope(&format!("layers.{layer}"), |cx| self.layer(cx, x, layer >= self.dense_layers))?;
        }
        let stream = x;
        x = cx.call("norm", &norm, x)?;
        let logits = cx.call("lm_head", &head, x)?;
        if self.next_weight > 0.0 {
            // Position s knows the token s + 1, and predicts the token behind it.
            let next = shifted(cx, tokens, 0)?;
            let targets = shifted(cx, labels, IGNORE_INDEX)?;
            let embedded = cx.call("embed_tokens", &table, next)?;
            let mut h = cx.scope("next", |cx| {
                let hidden = cx.call("hidden_norm", &norm, stream)?;
                let token = cx.call("token_norm", &norm, embedded)?;
                let both = cx.builder.concatenate(&[hidden, token], 2)?;
                let proj = Linear::new(2 * self.dim, self.dim).bias(false).init(init);
                let h = cx.call("proj", &proj, both)?;
                cx.scope("layer", |cx| self.layer(cx, h, true))
            })?;
            h = cx.call("norm", &norm, h)?;
            let second = cx.call("lm_head", &head, h)?;
            let loss = losses::cross_entropy(cx, second, targets)?;
            let loss = cx.builder.scale(loss, self.next_weight)?;
            cx.add_loss(loss);
        }
        with_loss(cx, logits, labels)
    }
}

/// `x[batch, sequence]` one position to the left, with a number at the end.
fn shifted(cx: &mut Context, x: ValueId, end: i64) -> Result<ValueId> {
    let b = &mut cx.builder;
    let ty = b.ty(x).clone();
    let [batch, sequence] = ty.shape[..] else { unreachable!("rows of tokens") };
    let rest = b.slice_dim(x, 1, 1, sequence)?;
    let end = b.full(&TensorType::new(ty.dtype, [batch, 1]), end as f64)?;
    b.concatenate(&[rest, end], 1)
}
