//! T5 (Raffel et al. 2020): an encoder and a decoder with relative positions.

use super::{positive, rate, token_inputs, with_loss};
use crate::context::Context;
use crate::init::Init;
use crate::losses::IGNORE_INDEX;
use crate::modules::{Activation, Embedding, Linear, Mlp, RMSNorm};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::composites::EMBEDDING;
use partita_ir::ops::{Direction, DotGeneral};
use partita_ir::{Literal, TensorType, ValueId};

/// Parameters: `embed_tokens`, `encoder_positions`, `decoder_positions`, `layers.N` with `attn_norm`, `attn.{q,k,v,o}_proj`,
/// `mlp_norm`, `mlp.{up,down}_proj`, of the decoder also `cross_norm` and `cross.{q,k,v,o}_proj`, `encoder_norm`, `norm`,
/// `lm_head`. Layers of the encoder come first: `layers.0` to `layers.(layers - 1)`, then as many of the decoder.
///
/// The decoder reads the `labels` moved by one place, from a 0 on; labels that are ignored are read as 0.
#[derive(Clone, PartialEq, Debug)]
pub struct T5Config {
    /// Vocabulary size.
    pub vocab: usize,
    /// Features of the residual stream.
    pub dim: usize,
    /// Layers of the encoder, and of the decoder.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features of a head; heads need not divide `dim`.
    pub head_features: usize,
    /// Hidden features of the feed-forward block.
    pub hidden: usize,
    /// Tokens of a row, of the encoder and of the decoder.
    pub sequence: usize,
    /// Buckets of relative positions.
    pub buckets: usize,
    /// The distance from which on positions share the last bucket.
    pub distance: usize,
    /// Dropout after the embedding and each block.
    pub dropout: f64,
    /// Whether the head shares the weight of the token embedding; its input is divided by the root of `dim` then.
    pub tied: bool,
}

impl Default for T5Config {
    fn default() -> Self {
        T5Config {
            vocab: 256,
            dim: 64,
            layers: 2,
            heads: 4,
            head_features: 16,
            hidden: 256,
            sequence: 64,
            buckets: 32,
            distance: 128,
            dropout: 0.0,
            tied: true,
        }
    }
}

/// Attention with a number for each head and distance added to the scores, which are not scaled.
#[derive(Clone, Debug)]
struct Attention {
    dim: usize,
    heads: usize,
    depth: usize,
}

impl Attention {
    /// `x[b, s, dim]` attends to `memory[b, t, dim]`; `added[heads, s, t]` is added to the scores.
    fn forward(
        &self,
        cx: &mut Context,
        x: ValueId,
        memory: ValueId,
        added: Option<ValueId>,
    ) -> Result<ValueId> {
        let (heads, depth, inner) = (self.heads, self.depth, self.heads * self.depth);
        let project = |cx: &mut Context, name: &str, x: ValueId, std: f64| -> Result<ValueId> {
            let linear = Linear::new(self.dim, inner).bias(false).init(Init::Normal { std });
            let y = cx.apply(name, &linear, x)?;
            let shape = cx.shape(y);
            let y = cx.builder.reshape(y, &[shape[0], shape[1], heads, depth])?;
            cx.builder.transpose(y, &[0, 2, 1, 3])
        };
        // The initial weights of queries make up for scores that are not scaled.
        let std = (self.dim as f64).powf(-0.5);
        let q = project(cx, "q_proj", x, std * (depth as f64).powf(-0.5))?;
        let k = project(cx, "k_proj", memory, std)?;
        let v = project(cx, "v_proj", memory, std)?;
        let contracted = |lhs: usize, rhs: usize| DotGeneral {
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
            lhs_contracting: vec![lhs],
            rhs_contracting: vec![rhs],
            ..DotGeneral::default()
        };
        let mut scores = cx.builder.dot_general(q, k, contracted(3, 3))?;
        if let Some(added) = added {
            let shape = cx.shape(scores);
            let added = cx.builder.broadcast_in_dim(added, &shape, &[1, 2, 3])?;
            scores = cx.builder.add(scores, added)?;
        }
        let weights = cx.softmax(scores, -1)?;
        let y = cx.builder.dot_general(weights, v, contracted(3, 2))?;
        let y = cx.builder.transpose(y, &[0, 2, 1, 3])?;
        let shape = cx.shape(y);
        let y = cx.builder.reshape(y, &[shape[0], shape[1], inner])?;
        let out =
            Linear::new(inner, self.dim).bias(false).init(Init::Normal { std: (inner as f64).powf(-0.5) });
        cx.apply("o_proj", &out, y)
    }
}

/// The bucket of each pair of a query and a key, `[sequence, sequence]`: exact for short distances, logarithmic up to
/// `distance`; without `both` ways, later keys share the bucket of the query itself.
fn buckets(sequence: usize, buckets: usize, distance: usize, both: bool) -> Vec<i32> {
    let count = if both { buckets / 2 } else { buckets };
    let exact = count / 2;
    let bucket = |query: usize, key: usize| {
        let behind = query as i64 - key as i64;
        let offset = if both && behind < 0 { count } else { 0 };
        let apart = if both { behind.unsigned_abs() as usize } else { behind.max(0) as usize };
        if apart < exact {
            return (offset + apart) as i32;
        }
        let far = (apart as f64 / exact as f64).ln() / (distance as f64 / exact as f64).ln();
        (offset + (exact + (far * (count - exact) as f64) as usize).min(count - 1)) as i32
    };
    (0..sequence)
        .flat_map(|query| (0..sequence).map(move |key| (query, key)))
        .map(|(q, k)| bucket(q, k))
        .collect()
}

impl T5Config {
    pub(super) fn validate(&self) -> Result<()> {
        for (key, value) in [
            ("vocab", self.vocab),
            ("dim", self.dim),
            ("layers", self.layers),
            ("heads", self.heads),
            ("head_features", self.head_features),
            ("hidden", self.hidden),
            ("sequence", self.sequence),
        ] {
            positive(key, value)?;
        }
        if self.buckets < 4 || !self.buckets.is_multiple_of(4) || self.distance <= self.buckets / 2 {
            return Err(Diagnostic::new("E050", "the buckets of relative positions do not fit")
                .at("buckets")
                .expected("a multiple of 4, less than twice the distance")
                .found(format!("{} buckets up to a distance of {}", self.buckets, self.distance)));
        }
        rate("dropout", self.dropout)
    }

    /// `[heads, sequence, sequence]`: what is added to the scores. The table is `weight[buckets, heads]`.
    fn positions(&self, cx: &mut Context, name: &str, both: bool) -> Result<ValueId> {
        let sequence = self.sequence;
        cx.scope(name, |cx| {
            let table = Embedding::new(self.buckets, self.heads)
                .init(Init::Normal { std: (self.dim as f64).powf(-0.5) });
            let weight = table.table(cx)?;
            let ids = buckets(sequence, self.buckets, self.distance, both);
            let ids = cx.builder.constant(Literal::new([sequence, sequence], ids));
            let found = cx.builder.composite(&EMBEDDING, &[], &[weight, ids])?;
            let added = cx.builder.transpose(found, &[2, 0, 1])?;
            if both {
                return Ok(added);
            }
            // No query sees later keys.
            let ty = TensorType::new(DType::I32, [self.heads, sequence, sequence]);
            let (query, key) = (cx.builder.iota(ty.clone(), 1)?, cx.builder.iota(ty, 2)?);
            let seen = cx.builder.compare(Direction::Ge, query, key)?;
            let never = cx.builder.full_like(added, f64::NEG_INFINITY)?;
            cx.builder.select(seen, added, never)
        })
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let (tokens, labels) = token_inputs(cx, batch, self.sequence);
        let table = Embedding::new(self.vocab, self.dim).init(Init::Normal { std: 1.0 });
        let norm = RMSNorm::new(self.dim).epsilon(1e-6);
        let attention = Attention { dim: self.dim, heads: self.heads, depth: self.head_features };
        let mlp = Mlp {
            activation: Activation::Relu,
            bias: false,
            init: Some(Init::Normal { std: (self.dim as f64).powf(-0.5) }),
            out_init: Some(Init::Normal { std: (self.hidden as f64).powf(-0.5) }),
            ..Mlp::new(self.dim, self.hidden)
        };
        let feed_forward = |cx: &mut Context, x: ValueId| -> Result<ValueId> {
            let h = cx.call("mlp_norm", &norm, x)?;
            let h = cx.call("mlp", &mlp, h)?;
            let h = cx.dropout(h, self.dropout)?;
            cx.builder.add(x, h)
        };
        let x = cx.call("embed_tokens", &table, tokens)?;
        let mut x = cx.dropout(x, self.dropout)?;
        let positions = self.positions(cx, "encoder_positions", true)?;
        for layer in 0..self.layers {
            x = cx.scope(&format!("layers.{layer}"), |cx| {
                let h = cx.call("attn_norm", &norm, x)?;
                let h = cx.scope("attn", |cx| attention.forward(cx, h, h, Some(positions)))?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                feed_forward(cx, x)
            })?;
        }
        let memory = cx.call("encoder_norm", &norm, x)?;
        let memory = cx.dropout(memory, self.dropout)?;
        let read = cx.scope("shift", |cx| shifted(cx, labels, batch))?;
        let x = cx.call("embed_tokens", &table, read)?;
        let mut x = cx.dropout(x, self.dropout)?;
        let positions = self.positions(cx, "decoder_positions", false)?;
        for layer in self.layers..2 * self.layers {
            x = cx.scope(&format!("layers.{layer}"), |cx| {
                let h = cx.call("attn_norm", &norm, x)?;
                let h = cx.scope("attn", |cx| attention.forward(cx, h, h, Some(positions)))?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                let h = cx.call("cross_norm", &norm, x)?;
                let h = cx.scope("cross", |cx| attention.forward(cx, h, memory, None))?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                feed_forward(cx, x)
            })?;
        }
        x = cx.call("norm", &norm, x)?;
        x = cx.dropout(x, self.dropout)?;
        let mut head = Linear::new(self.dim, self.vocab).bias(false).init(Init::Normal { std: 1.0 });
        if self.tied {
            cx.tie("lm_head.weight", "embed_tokens.weight")?;
            x = cx.builder.scale(x, (self.dim as f64).powf(-0.5))?;
        } else {
            head = head.init(Init::Normal { std: (self.dim as f64).powf(-0.5) });
        }
        let logits = cx.call("lm_head", &head, x)?;
        with_loss(cx, logits, labels)
    }
}

/// `labels[b, s]` moved by one place, with 0 at the first place and where labels are ignored.
fn shifted(cx: &mut Context, labels: ValueId, batch: usize) -> Result<ValueId> {
    let sequence = cx.shape(labels)[1];
    let b = &mut cx.builder;
    let start = b.full(&TensorType::new(DType::I32, [batch, 1]), 0.0)?;
    let before = b.slice_dim(labels, 1, 0, sequence - 1)?;
    let moved = b.concatenate(&[start, before], 1)?;
    let ignored = b.full_like(moved, IGNORE_INDEX as f64)?;
    let is_ignored = b.compare(Direction::Eq, moved, ignored)?;
    let zero = b.full_like(moved, 0.0)?;
    b.select(is_ignored, zero, moved)
}
