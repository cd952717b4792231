//! A BERT-style encoder: norms after each attention and feed-forward block, bidirectional
//! attention, a masked-language head.

use super::gpt::{STD, add_positions};
use super::{positive, rate, token_inputs, with_loss};
use crate::context::Context;
use crate::init::Init;
use crate::modules::{Activation, Embedding, LayerNorm, Linear, Mlp, Module, MultiheadAttention};
use partita_base::{DType, Result};
use partita_ir::ValueId;
use partita_ir::ops::Direction;

/// Parameters: `embed_tokens`, `embed_positions`, `embed_types`, `embed_norm`, `layers.N.attn.{q,k,v,o}_proj` (or
/// `qkv_proj`), `layers.N.attn_norm`, `layers.N.mlp.{up,down}_proj`, `layers.N.mlp_norm`, `lm_transform`, `lm_norm`,
/// `lm_head`. `labels` are -100 where no token was masked.
#[derive(Clone, PartialEq, Debug)]
pub struct BertConfig {
    /// Vocabulary size.
    pub vocab: usize,
    /// Features of the residual stream.
    pub dim: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Positions.
    pub sequence: usize,
    /// Hidden features of the feed-forward block, in multiples of `dim`.
    pub mlp_ratio: usize,
    /// Dropout after the embedding and each attention and feed-forward block.
    pub dropout: f64,
    /// Segment types: if nonzero, there is an input `token_types` i32 `[batch, sequence]`.
    pub types: usize,
    /// Whether there is an input `attention_mask` i32 `[batch, sequence]`: 0 marks padding, which
    /// is masked in attention.
    pub padding_mask: bool,
    /// Whether `lm_head.weight` is `embed_tokens.weight`.
    pub tied: bool,
    /// Whether q, k, v share one projection.
    pub fused_qkv: bool,
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig {
            vocab: 256,
            dim: 64,
            layers: 2,
            heads: 4,
            sequence: 64,
            mlp_ratio: 4,
            dropout: 0.0,
            types: 0,
            padding_mask: false,
            tied: true,
            fused_qkv: false,
        }
    }
}

impl BertConfig {
    fn attention(&self) -> MultiheadAttention {
        MultiheadAttention {
            fused_qkv: self.fused_qkv,
            init: Some(Init::Normal { std: STD }),
            ..MultiheadAttention::new(self.dim, self.heads)
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        positive("vocab", self.vocab)?;
        positive("dim", self.dim)?;
        positive("layers", self.layers)?;
        positive("sequence", self.sequence)?;
        positive("mlp_ratio", self.mlp_ratio)?;
        rate("dropout", self.dropout)?;
        self.attention().validate()
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let init = Init::Normal { std: STD };
        let (tokens, labels) = token_inputs(cx, batch, self.sequence);
        let shape = [batch, self.sequence];
        let types = (self.types > 0).then(|| cx.input("token_types", DType::I32, &shape));
        let mask = self.padding_mask.then(|| cx.input("attention_mask", DType::I32, &shape));
        let mask = mask.map(|mask| key_mask(cx, mask, batch, self.sequence)).transpose()?;

        let norm = LayerNorm::new(self.dim).epsilon(1e-12);
        let mut x = cx.call("embed_tokens", &Embedding::new(self.vocab, self.dim).init(init), tokens)?;
        x = add_positions(cx, x, self.sequence, self.dim)?;
        if let Some(types) = types {
            let t = cx.call("embed_types", &Embedding::new(self.types, self.dim).init(init), types)?;
            x = cx.builder.add(x, t)?;
        }
        x = cx.call("embed_norm", &norm, x)?;
        x = cx.dropout(x, self.dropout)?;
        let attention = self.attention();
        let mlp = Mlp { init: Some(init), ..Mlp::new(self.dim, self.mlp_ratio * self.dim) };
        for layer in 0..self.layers {
            x = cx.scope(&format!("layers.{layer}"), |cx| {
                let h = cx.scope("attn", |cx| {
                    cx.note_kind(&attention);
                    attention.forward_masked(cx, x, mask)
                })?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                let x = cx.call("attn_norm", &norm, x)?;
                let h = cx.call("mlp", &mlp, x)?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                cx.call("mlp_norm", &norm, x)
            })?;
        }
        x = cx.scope("lm_transform", |cx| {
            let x = Linear::new(self.dim, self.dim).init(init).forward(cx, x)?;
            Activation::Gelu.forward(cx, x)
        })?;
        x = cx.call("lm_norm", &norm, x)?;
        if self.tied {
            cx.tie("lm_head.weight", "embed_tokens.weight")?;
        }
        let logits = cx.call("lm_head", &Linear::new(self.dim, self.vocab).init(init), x)?;
        with_loss(cx, logits, labels)
    }
}

/// i32 `[batch, sequence]` to i1 `[batch, 1, 1, sequence]`: every query attends to nonzero keys.
fn key_mask(cx: &mut Context, mask: ValueId, batch: usize, sequence: usize) -> Result<ValueId> {
    cx.scope("attention_mask", |cx| {
        let zero = cx.builder.full_like(mask, 0.0)?;
        let seen = cx.builder.compare(Direction::Ne, mask, zero)?;
        cx.builder.reshape(seen, &[batch, 1, 1, sequence])
    })
}
