//! A Llama-style decoder: rotary positions, RMS norms, SwiGLU, grouped key/value heads, no biases.

use super::gpt::{STD, residual_init};
use super::{Documents, ExpertsConfig, positive, rate, token_inputs, with_loss};
use crate::context::Context;
use crate::init::Init;
use crate::modules::{Embedding, Linear, MultiheadAttention, RMSNorm, SwiGlu};
use partita_base::{Diagnostic, Result};
use partita_ir::ValueId;

/// Parameters: `embed_tokens`, `layers.N.attn_norm`, `layers.N.attn.{q,k,v,o}_proj` (or `qkv_proj`), `layers.N.mlp_norm`,
/// `layers.N.mlp.{gate,up,down}_proj`, `norm`, `lm_head`.
#[derive(Clone, PartialEq, Debug)]
pub struct LlamaConfig {
    /// Vocabulary size.
    pub vocab: usize,
    /// Features of the residual stream.
    pub dim: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `None` means as many as `heads`.
    pub kv_heads: Option<usize>,
    /// Positions.
    pub sequence: usize,
    /// How many positions a query sees, its own among them; `None` for all before it.
    pub window: Option<usize>,
    /// Whether rows are packed with documents: then there is an input `positions` i32 `[batch, sequence]`, the position of
    /// each token in its document, and a token sees its own document only.
    pub documents: bool,
    /// Hidden features of the feed-forward block; `None` is 8/3 of `dim`, rounded up to a multiple
    /// of 16.
    pub hidden: Option<usize>,
    /// The base of the rotary frequencies.
    pub rotary_base: f64,
    /// Added to the mean square in norms.
    pub epsilon: f64,
    /// Dropout after the embedding and each attention and feed-forward block.
    pub dropout: f64,
    /// Whether `lm_head.weight` is `embed_tokens.weight`.
    pub tied: bool,
    /// Whether q, k, v share one projection.
    pub fused_qkv: bool,
    /// Experts in place of feed-forward blocks (Mixtral, Jiang et al. 2024).
    pub experts: Option<ExpertsConfig>,
}

impl Default for LlamaConfig {
    fn default() -> Self {
        LlamaConfig {
            vocab: 256,
            dim: 64,
            layers: 2,
            heads: 4,
            kv_heads: Some(2),
            sequence: 64,
            window: None,
            documents: false,
            hidden: None,
            rotary_base: 10000.0,
            epsilon: 1e-5,
            dropout: 0.0,
            tied: false,
            fused_qkv: false,
            experts: None,
        }
    }
}

impl LlamaConfig {
    /// The tiny default with experts in every layer, of which no token is dropped.
    pub fn mixtral() -> LlamaConfig {
        let experts = ExpertsConfig { every: 1, capacity: None, ..ExpertsConfig::default() };
        LlamaConfig { experts: Some(experts), ..LlamaConfig::default() }
    }

    /// Hidden features of the feed-forward block.
    pub fn hidden_features(&self) -> usize {
        self.hidden.unwrap_or((8 * self.dim).div_ceil(3).next_multiple_of(16))
    }

    fn attention(&self) -> MultiheadAttention {
        MultiheadAttention {
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            causal: true,
            window: self.window,
            rotary: Some(self.rotary_base),
            fused_qkv: self.fused_qkv,
            bias: false,
            init: Some(Init::Normal { std: STD }),
            out_init: Some(residual_init(self.layers)),
            ..MultiheadAttention::new(self.dim, self.heads)
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        positive("vocab", self.vocab)?;
        positive("dim", self.dim)?;
        positive("layers", self.layers)?;
        positive("sequence", self.sequence)?;
        positive("hidden", self.hidden_features())?;
        rate("dropout", self.dropout)?;
        if self.rotary_base.is_nan() || self.rotary_base <= 0.0 {
            return Err(Diagnostic::new("E050", "`rotary_base` out of range")
                .at("rotary_base")
                .expected("a positive number")
                .found(self.rotary_base.to_string()));
        }
        if let Some(experts) = &self.experts {
            experts.validate(self.layers)?;
            experts.mixture(self.dim, self.hidden_features(), true, self.layers).validate()?;
        }
        self.attention().validate()
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let init = Init::Normal { std: STD };
        let (tokens, labels) = token_inputs(cx, batch, self.sequence);
        let documents = self.documents.then(|| Documents::of(cx, batch, self.sequence)).transpose()?;
        let table = Embedding::new(self.vocab, self.dim).init(init);
        let mut x = cx.call("embed_tokens", &table, tokens)?;
        x = cx.dropout(x, self.dropout)?;
        let norm = RMSNorm::new(self.dim).epsilon(self.epsilon);
        let mlp = SwiGlu {
            init: Some(init),
            out_init: Some(residual_init(self.layers)),
            ..SwiGlu::new(self.dim, self.hidden_features())
        };
        let attention = self.attention();
        let experts = self.experts.as_ref();
        let mixture =
            experts.map(|experts| experts.mixture(self.dim, self.hidden_features(), true, self.layers));
        for layer in 0..self.layers {
            x = cx.scope(&format!("layers.{layer}"), |cx| {
                let h = cx.call("attn_norm", &norm, x)?;
                let h = cx.scope("attn", |cx| {
                    cx.note_kind(&attention);
                    attention.forward_masked(cx, h, documents.map(|documents| documents.limits))
                })?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                let h = cx.call("mlp_norm", &norm, x)?;
                let h = match (experts, &mixture) {
                    (Some(experts), Some(mixture)) if experts.has(layer) => cx.call("moe", mixture, h)?,
                    _ => cx.call("mlp", &mlp, h)?,
                };
                let h = cx.dropout(h, self.dropout)?;
                cx.builder.add(x, h)
            })?;
        }
        x = cx.call("norm", &norm, x)?;
        if self.tied {
            cx.tie("lm_head.weight", "embed_tokens.weight")?;
        }
        let head = Linear::new(self.dim, self.vocab).bias(false).init(init);
        let logits = cx.call("lm_head", &head, x)?;
        with_loss(cx, logits, labels)
    }
}
