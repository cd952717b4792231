//! Multi-head latent attention (DeepSeek-AI 2024, section 2.1): keys and values of all heads are projections of one narrow
//! latent vector per token, and so may queries be.
//!
//! Positions are rotary, but a rotation cannot pass through the projection from the latent vector. So each head's query and
//! key consist of a part without positions, from the latent vectors, and a rotated part; the rotated key is one for all
//! heads.

use super::attention::rotary_tables;
use super::mlp::linear;
use super::{Module, RMSNorm};
use crate::context::Context;
use crate::init::Init;
use partita_base::{Diagnostic, Result};
use partita_ir::composites::{ATTENTION, ROTARY};
use partita_ir::{Attribute, TensorType, ValueId};

/// Causal self-attention over `x[batch, sequence, dim]`.
///
/// Parameters: `q_proj`, or `q_a_proj`, `q_a_norm` and `q_b_proj` with a latent vector of queries; `kv_a_proj` (the latent
/// vector, then the rotated key), `kv_a_norm`, `kv_b_proj` (for each head its key, then its value), `o_proj`.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    /// Extent of the last dimension.
    pub dim: usize,
    /// Heads.
    pub heads: usize,
    /// Features of the latent vector of queries; `None` projects queries from `x`.
    pub query_rank: Option<usize>,
    /// Features of the latent vector of keys and values.
    pub latent_rank: usize,
    /// Features of a query and key without positions.
    pub plain_features: usize,
    /// Features of a query and key with rotary positions; an even number.
    pub rotary_features: usize,
    /// Features of a value.
    pub value_features: usize,
    /// The base of the rotary frequencies.
    pub rotary_base: f64,
    /// Added to the mean square in norms.
    pub epsilon: f64,
    /// Initial weights.
    pub init: Init,
    /// Initial `o_proj`.
    pub out_init: Init,
}

impl LatentAttention {
    /// E050 with the offending size.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("heads", self.heads),
            ("latent_rank", self.latent_rank),
            ("plain_features", self.plain_features),
            ("rotary_features", self.rotary_features),
            ("value_features", self.value_features),
            ("query_rank", self.query_rank.unwrap_or(1)),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Diagnostic::new("E050", format!("`{name}` is zero"))
                .at(name)
                .expected("at least 1")
                .found("0"));
        }
        if !self.rotary_features.is_multiple_of(2) {
            return Err(Diagnostic::new("E050", "rotary positions need an even number of features")
                .at("rotary_features")
                .expected("an even number")
                .found(self.rotary_features.to_string()));
        }
        if self.value_features > self.plain_features + self.rotary_features {
            return Err(Diagnostic::new("E050", "a value is wider than its key")
                .at("value_features")
                .expected(format!("at most {}", self.plain_features + self.rotary_features))
                .found(self.value_features.to_string()));
        }
        Ok(())
    }
}

impl Module for LatentAttention {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        self.validate()?;
        let shape = cx.shape(x);
        let &[batch, sequence, _] = &shape[..] else {
            return Err(Diagnostic::new("E050", "the input of attention has the wrong shape")
                .at(cx.builder.path.clone())
                .expected("[batch, sequence, dim]")
                .found(format!("{shape:?}")));
        };
        let LatentAttention { dim, heads, latent_rank, plain_features: plain, .. } = *self;
        let (rotary, value) = (self.rotary_features, self.value_features);
        let width = plain + rotary;
        let init = Some(self.init);
        let norm = |rank: usize| RMSNorm::new(rank).epsilon(self.epsilon);

        let q = match self.query_rank {
            None => cx.apply("q_proj", &linear(dim, heads * width, false, init), x)?,
            Some(rank) => {
                let q = cx.apply("q_a_proj", &linear(dim, rank, false, init), x)?;
                let q = cx.apply("q_a_norm", &norm(rank), q)?;
                cx.apply("q_b_proj", &linear(rank, heads * width, false, init), q)?
            }
        };
        let latent = cx.apply("kv_a_proj", &linear(dim, latent_rank + rotary, false, init), x)?;
        let rotated = cx.builder.slice_dim(latent, 2, latent_rank, latent_rank + rotary)?;
        let latent = cx.builder.slice_dim(latent, 2, 0, latent_rank)?;
        let latent = cx.apply("kv_a_norm", &norm(latent_rank), latent)?;
        let kv = cx.apply("kv_b_proj", &linear(latent_rank, heads * (plain + value), false, init), latent)?;

        let tables = rotary_tables(cx, sequence, rotary, self.rotary_base)?;
        let b = &mut cx.builder;
        let mut by_head = |x: ValueId, features: usize| {
            let x = b.reshape(x, &[batch, sequence, heads, features])?;
            b.transpose(x, &[0, 2, 1, 3])
        };
        let (q, kv) = (by_head(q, width)?, by_head(kv, plain + value)?);
        let q_plain = b.slice_dim(q, 3, 0, plain)?;
        let q_rotary = b.slice_dim(q, 3, plain, width)?;
        let q_rotary = b.composite(&ROTARY, &[], &[q_rotary, tables[0], tables[1]])?;
        let q = b.concatenate(&[q_plain, q_rotary], 3)?;
        let k_plain = b.slice_dim(kv, 3, 0, plain)?;
        let rotated = b.reshape(rotated, &[batch, 1, sequence, rotary])?;
        let rotated = b.composite(&ROTARY, &[], &[rotated, tables[0], tables[1]])?;
        let rotated = b.reshape(rotated, &[batch, sequence, rotary])?;
        let rotated = b.broadcast_in_dim(rotated, &[batch, heads, sequence, rotary], &[0, 2, 3])?;
        let k = b.concatenate(&[k_plain, rotated], 3)?;
        // Kernels of attention want values as wide as keys; the added features are zero, before and after.
        let mut v = b.slice_dim(kv, 3, plain, plain + value)?;
        if value < width {
            let dtype = b.ty(v).dtype;
            let zeros = b.full(&TensorType::new(dtype, [batch, heads, sequence, width - value]), 0.0)?;
            v = b.concatenate(&[v, zeros], 3)?;
        }
        let attributes =
            [("causal", Attribute::Bool(true)), ("scale", Attribute::Float(1.0 / (width as f64).sqrt()))];
        let y = b.composite(&ATTENTION, &attributes, &[q, k, v])?;
        let y = b.slice_dim(y, 3, 0, value)?;
        let y = b.transpose(y, &[0, 2, 1, 3])?;
        let y = b.reshape(y, &[batch, sequence, heads * value])?;
        cx.apply("o_proj", &linear(heads * value, dim, false, Some(self.out_init)), y)
    }
}
